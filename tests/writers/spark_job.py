"""A structured stream of Spark, from a Kafka topic into an Iceberg table, as its users write it.

spark-submit … spark_job.py BROKER TOPIC TABLE CHECKPOINT
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json

broker, topic, table, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
records = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", broker)
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .load()
)
rows = records.select(from_json(col("value").cast("string"), "id BIGINT, v STRING").alias("row")).select("row.*")
query = (
    rows.writeStream.format("iceberg")
    .outputMode("append")
    .trigger(processingTime="5 seconds")
    .option("checkpointLocation", checkpoint)
    .option("fanout-enabled", "true")
    .toTable(table)
)
query.awaitTermination()
