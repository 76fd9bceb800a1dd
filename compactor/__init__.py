"""The compactor: Iceberg, storage, and Spark as a place to run tasks. Imports neither Kafka nor Prometheus."""
