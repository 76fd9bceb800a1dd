#!/usr/bin/env bash
# The image's entrypoint: a firnline command, or a Spark executor when Spark on Kubernetes starts one in this image.
set -euo pipefail

if [[ ${1:-} != executor ]]; then
    exec firnline "$@"
fi

# As the entrypoint of Spark's own image: its Kubernetes backend hands everything over in the environment.
cd "$(mktemp --directory)"  # an executor fetches jars into its working folder
options=()
for name in "${!SPARK_JAVA_OPT_@}"; do
    options+=("${!name}")
done
exec "$JAVA_HOME/bin/java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}${SPARK_EXTRA_CLASSPATH:+$SPARK_EXTRA_CLASSPATH:}$SPARK_HOME/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
