"""The compactor room: Iceberg, storage and Spark as a place to run tasks. Knows nothing of Kafka or Prometheus."""
