#!/usr/bin/env bash
# Builds firnline-test-{kafka,s3proxy,rest-catalog} from the jars that `make setup` and `deploy/setup.sh rest-s3` fetch,
# for machines that have a Docker daemon and no image registry. Then:
#   TEST_KAFKA_IMAGE=firnline-test-kafka TEST_S3_IMAGE=firnline-test-s3proxy \
#   TEST_REST_CATALOG_IMAGE=firnline-test-rest-catalog make test
set -euo pipefail

cd -P "$(dirname "${BASH_SOURCE[0]}")"
readonly PYTHON=${PYTHON:-../../../.venv/bin/python}

jars_of() {
    (cd ../../.. && "$PYTHON" -m streaming.cli jars "$1") | awk '{print $2}'
}

for service in kafka-broker s3proxy rest-catalog; do
    context=$(mktemp -d)
    cp Dockerfile start.sh "$context"
    cp -r "$(jars_of "$service")" "$context/jars"
    if [[ $service == rest-catalog ]]; then # the server needs Hadoop's client jars, which pyspark ships
        cp "$(cd ../../.. && "$PYTHON" -c 'from compactor.spark.java import pyspark_jars; print(pyspark_jars())')"/hadoop-client-*.jar "$context/jars"
    fi
    docker build --quiet --build-arg "SERVICE=${service%-broker}" -t "firnline-test-${service%-broker}" "$context"
    rm -rf "$context"
done
