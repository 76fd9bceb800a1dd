"""The Spark session: jars, catalogs and the state store, set so that nothing is downloaded or guessed at run time."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from compactor.spark.catalogs import aws_profile, bundles, spark_catalog_conf
from compactor.spark.java import SPARK_JARS, JarSet, fetch_jars, java_home

if TYPE_CHECKING:
    from compactor.settings.tree import Settings

EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
LOG_FOR_PEOPLE = Path(__file__).with_name("log4j2.properties")
LOG_AS_JSON = Path(__file__).with_name("log4j2-json.properties")
ROCKSDB_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SMALL_BUFFERS = "-Djdk.nio.maxCachedBufferSize=1048576"
WORKER_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "jemalloc"}
"""Of Spark's Python workers. An encode holds 2.6 row groups at its peak with jemalloc, 3.3 with Arrow's own choice, at
the same speed; where Arrow was built without it, it says so and takes its own choice.
"""
STATE_PARTITIONS = 1
"""Shuffle partitions of the ledger: a warm batch takes 1.2 s at 1, 1.9 s at 4. Part of the checkpoint's path."""


def spark_session(settings: Settings, application: str = "firnline") -> SparkSession:
    """Start (or join) the session that runs the stream and the rewrite tasks."""
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # executors must run this environment's interpreter
    builder = SparkSession.builder.appName(application).master(settings.spark.master)
    for key, value in session_conf(settings).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(settings.spark.conf.get("spark.log.level", "ERROR"))
    return session


def jar_sets(settings: Settings) -> tuple[JarSet, ...]:
    """What Spark needs for the catalogs of the settings."""
    needed = (jar_set for properties in settings.catalogs.values() for jar_set in bundles(properties))
    return tuple(dict.fromkeys((SPARK_JARS, *needed)))


def session_conf(settings: Settings) -> dict[str, str]:
    """The whole Spark configuration; keys of `spark.conf` in the settings win."""
    as_json = settings.logging.as_json(terminal=sys.stderr.isatty())
    log_option = f"-Dlog4j2.configurationFile={(LOG_AS_JSON if as_json else LOG_FOR_PEOPLE).as_uri()}"
    conf = {
        "spark.sql.extensions": EXTENSIONS,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.scheduler.mode": "FAIR",  # a long rewrite must not hold up the stream's small batches
        "spark.sql.shuffle.partitions": str(STATE_PARTITIONS),
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB_PROVIDER,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        # A deep stack for Spark's own handling of a stopped stream's error text; its log looks as ours does.
        # Threads that rewrite would each keep the direct buffers of their largest reads and writes for good.
        # Spark adds the user's extraJavaOptions to them.
        "spark.driver.defaultJavaOptions": f"-Xss4m {SMALL_BUFFERS} {log_option}",
        "spark.executor.defaultJavaOptions": SMALL_BUFFERS,
        # Where direct memory is short, Hadoop's asynchronous reads of local files are lost and waited for, 5 min each.
        "spark.hadoop.parquet.hadoop.vectored.io.enabled": "false",
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",  # else damage is read, and written as if sound
        # Deletes that one query has read would serve the next, also where that one reads other columns: deleted rows
        # come back then (apache/iceberg 15039).
        "spark.sql.iceberg.executor-cache.enabled": "false",
        **{f"spark.executorEnv.{name}": value for name, value in WORKER_ENVIRONMENT.items()},
        "spark.driver.host": "127.0.0.1" if settings.spark.master.startswith("local") else "",
    }
    if not ({"spark.jars", "spark.jars.packages"} & set(settings.spark.conf)):
        conf["spark.jars"] = ",".join(str(jar) for jar_set in jar_sets(settings) for jar in fetch_jars(jar_set))
    profile = aws_profile(settings.catalogs)
    if profile:  # Iceberg's Java client has no property for it
        for side in ("driver", "executor"):
            conf[f"spark.{side}.defaultJavaOptions"] += f" -Daws.profile={profile}"
    if as_json and settings.spark.master.startswith("k8s"):  # executors run this image (deploy/docker/entrypoint.sh)
        conf["spark.executor.defaultJavaOptions"] += f" {log_option}"
        conf["spark.executorEnv.FIRNLINE_LOGGING__FORMAT"] = "json"
    for name, properties in settings.catalogs.items():
        conf.update(spark_catalog_conf(name, properties))
    conf.update(settings.spark.conf)
    return {key: value for key, value in conf.items() if value != ""}
