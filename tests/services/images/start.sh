# Starts the image's service; its environment becomes its properties file, as in the usual images.
set -eu

# properties PREFIX [KEPT]: variables with the prefix as lines; KEPT stays in front of the name.
properties() {
    env | sed -n "s/^$1_\([A-Z0-9_]*\)=\(.*\)/\1 \2/p" | while read -r name value; do
        echo "${2:-}$(echo "$name" | tr 'A-Z_' 'a-z.')=$value"
    done
}

case $SERVICE in
kafka)
    { properties KAFKA && echo log.dirs=/tmp/logs; } >/tmp/server.properties
    java -cp '/jars/*' kafka.tools.StorageTool format -t MkU3OEVBNTcwNTJENDM2Qg -c /tmp/server.properties
    exec java -Xmx512m -cp '/jars/*' kafka.Kafka /tmp/server.properties
    ;;
s3proxy)
    mkdir -p /data
    { properties S3PROXY s3proxy. && properties JCLOUDS jclouds. && printf 'jclouds.identity=x\njclouds.credential=x\n'; } \
        >/tmp/s3proxy.conf
    exec java -Xmx512m -jar /jars/s3proxy-*.jar --properties /tmp/s3proxy.conf
    ;;
rest-catalog)
    exec java -Xmx512m -cp '/jars/*' org.apache.iceberg.rest.RESTCatalogServer
    ;;
esac
