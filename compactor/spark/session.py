"""The Spark session: jars and catalogs, configured so that Spark downloads nothing at run time."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from compactor.errors import InputError, RetryError
from compactor.reasons import Reason
from compactor.redaction import SECRET_NAMES, holds_secret, is_secret
from compactor.settings.origins import ENVIRONMENT_PREFIX
from compactor.settings.tree import Settings
from compactor.spark.catalogs import aws_profile, bundles, spark_catalog_conf
from compactor.spark.java import SPARK_JARS, JarSet, fetch_jars, java_home
from compactor.spark.jvm_output import output_without_secrets
from compactor.spark.shipped_modules import send_modules
from compactor.storage.s3_client import checksum_environment

EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
SPARK_HOME = Path(pyspark.__file__).parent
HOST_VARIABLES = frozenset({"SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME", "SPARK_LOCAL_DIRS", "SPARK_USER"})
"""Variables of Spark that tell of the host and its user. The others are for a Spark that is started in another way."""
HADOOP_VARIABLES = frozenset({"HADOOP_CONF_DIR", "YARN_CONF_DIR"})  # YARN, HDFS and Kerberos need them
LOG_FOR_PEOPLE = Path(__file__).with_name("log4j2.properties")
LOG_AS_JSON = Path(__file__).with_name("log4j2-json.properties")
KEPT_JOBS = 100
"""Finished jobs, stages and queries that Spark remembers for its user interface, which is off. By default it is a
thousand of each: 15 MB of heap after half an hour.
"""
KEPT_BATCHES = 20
"""Finished batches of a query whose progress Spark keeps: the service reads them once a second."""
SMALL_HEAP = "-XX:MinHeapFreeRatio=10 -XX:MaxHeapFreeRatio=30 -XX:G1PeriodicGCInterval=300000"
"""The driver's heap shrinks again after work: what the JVM does not need is the host's."""
SMALL_BUFFERS = "-Djdk.nio.maxCachedBufferSize=1048576"
WORKER_ENVIRONMENT = {"ARROW_DEFAULT_MEMORY_POOL": "jemalloc"}
"""Environment of Spark's Python workers. With jemalloc an encode holds 2.6 row groups at its peak, with Arrow's default
allocator 3.3, at the same speed. If Arrow was built without jemalloc, it logs that and uses its default.
"""
NEEDED_AT_LAUNCH = (
    "spark.master", "spark.app.name", "spark.submit.", "spark.driver.", "spark.jars", "spark.files", "spark.archives",
    "spark.kerberos.", "spark.kubernetes.", "spark.yarn.",
)  # fmt: skip
"""Settings that Spark reads before its context exists: options of the JVM, the class path, the kind of cluster. They
are on the JVM's command line, which every user of the host can read."""
LOG = logging.getLogger("firnline")
SHUFFLE_PARTITIONS = 1  # no query of the service shuffles more than a few rows


def spark_session(settings: Settings, application: str = "firnline") -> SparkSession:
    """Start (or reuse) the session that runs the stream and the output tasks.

    Raises:
        InputError: the JVM, or a local Spark, does not start with these settings.
        RetryError: a cluster did not admit the application.
    """
    _settings_win(settings.spark.conf)
    conf = {"spark.app.name": application, "spark.master": settings.spark.master} | session_conf(settings)
    _launch_jvm(launch_conf(conf), settings)
    builder = SparkSession.builder
    for key, value in conf.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except Py4JError as error:
        cause = str(getattr(error, "java_exception", error)).splitlines()[0]
        if settings.spark.master.startswith("local"):
            raise _does_not_start(cause) from error
        raise RetryError(
            f"Spark's cluster {settings.spark.master} starts no application: {cause}; check spark.master, the network "
            "between both, and that spark.authenticate and its secret are the cluster's",
            reason=Reason.SPARK_LOST,
        ) from error
    session.sparkContext.setLogLevel(settings.spark.conf.get("spark.log.level", "ERROR"))
    if not settings.spark.master.startswith("local"):
        send_modules(session.sparkContext)
    return session


def foreign_variables(environment: Mapping[str, str], conf: Mapping[str, str]) -> dict[str, str]:
    """Variables of another Spark, which would win over the settings: each has its setting (`spark.conf`). Pure."""
    ours = {"SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": _interpreter(conf)}
    kept = HOST_VARIABLES - ({"SPARK_LOCAL_DIRS"} if "spark.local.dir" in conf else set())
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(("SPARK_", "PYSPARK_")) and name not in kept and ours.get(name) != value
    }


def _interpreter(conf: Mapping[str, str]) -> str:
    """Of Spark's Python workers. Local ones must use the interpreter of this environment."""
    return conf.get("spark.pyspark.python", sys.executable)


def _settings_win(conf: Mapping[str, str]) -> None:
    """Take variables of another Spark out of this process' environment, before Spark starts; say so."""
    if SparkContext._gateway is not None:  # noqa: SLF001 - what Spark has set itself since then stays
        return
    foreign = foreign_variables(os.environ, conf)
    for name in foreign:
        del os.environ[name]
    if foreign:
        LOG.warning(
            "ignored in the environment: %s; firnline starts the Spark that it was installed with, as its settings "
            "say: write to spark.master and spark.conf what is needed of them",
            ", ".join(sorted(foreign)),
        )
    for name in HADOOP_VARIABLES & os.environ.keys():
        LOG.info(
            "Spark also reads the Hadoop configuration in %s (%s); keys spark.hadoop.* of spark.conf win over it",
            os.environ[name],
            name,
        )
    # PySpark reads these from the environment only.
    os.environ |= {"JAVA_HOME": str(java_home()), "SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": _interpreter(conf)}


def launch_conf(conf: Mapping[str, str]) -> dict[str, str]:
    """The part of the configuration that may be, and must be, on the JVM's command line. The JVM gets all of it
    afterwards, through Py4J's authenticated socket.
    """
    needed = {key: value for key, value in conf.items() if key.startswith(NEEDED_AT_LAUNCH)}
    return {key: value for key, value in needed.items() if not is_secret(key, value)}


def _launch_jvm(conf: Mapping[str, str], settings: Settings) -> None:
    """Start the JVM, unless this process has one. PySpark would put the whole configuration on its command line.

    PySpark has no public way to start the JVM before the context.

    Raises:
        InputError: the JVM ends at once.
    """
    if SparkContext._gateway is not None:  # noqa: SLF001
        return
    for key in (key for key, value in conf.items() if holds_secret(value)):
        LOG.warning(
            "spark.conf: %s seems to hold a password, which every user of this host can read in the process list; "
            "set Java's options in the environment instead (JDK_JAVA_OPTIONS), and name no password in addresses",
            key,
        )
    as_json = settings.logging.as_json(terminal=sys.stderr.isatty())
    with out_of_environment(settings), output_without_secrets(as_json=as_json) as output:
        arguments = SparkConf(loadDefaults=False).setAll(list(conf.items()))
        try:
            gateway = launch_gateway(arguments, {"stdout": output, "stderr": output})
        except PySparkRuntimeError as error:  # the JVM has ended
            output.drain()
            raise _does_not_start(output.first_error or str(error)) from error
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001


def _does_not_start(cause: str) -> InputError:
    return InputError(
        f"Spark does not start: {cause}; check spark.master, spark.conf (memory and options of Java) and the memory of "
        "this host",
        reason=Reason.BAD_SETTING,
    )


@contextmanager
def out_of_environment(settings: Settings) -> Iterator[None]:
    """The JVM and Spark's Python workers do not inherit firnline's settings and the variables that hold a password: the
    driver sends them what they need.
    """
    passwords = {hook.password_env for hook in settings.hooks} | {lock.password_env for lock in settings.locks}
    names = [name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX) or name in passwords]
    taken = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(taken)


def jar_sets(settings: Settings) -> tuple[JarSet, ...]:
    """The jar sets that Spark needs for the catalogs in the settings."""
    needed = (jar_set for properties in settings.catalogs.values() for jar_set in bundles(properties))
    return tuple(dict.fromkeys((SPARK_JARS, *needed)))


def session_conf(settings: Settings) -> dict[str, str]:
    """The complete Spark configuration; keys in the setting `spark.conf` take precedence."""
    as_json = settings.logging.as_json(terminal=sys.stderr.isatty())
    log_option = f"-Dlog4j2.configurationFile={(LOG_AS_JSON if as_json else LOG_FOR_PEOPLE).as_uri()}"
    conf = {
        "spark.sql.extensions": EXTENSIONS,
        "spark.ui.enabled": "false",
        **{f"spark.ui.retained{kind}": str(KEPT_JOBS) for kind in ("Jobs", "Stages")},
        "spark.sql.ui.retainedExecutions": str(KEPT_JOBS),
        "spark.redaction.regex": f"(?i){SECRET_NAMES}",  # in event logs, plans and the user interface
        "spark.ui.showConsoleProgress": "false",
        "spark.scheduler.mode": "FAIR",  # a long rewrite must not delay the small batches of the stream
        "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.numRecentProgressUpdates": str(KEPT_BATCHES),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        # -Xss4m: Spark needs a deep stack to handle the error text of a stopped stream. SMALL_BUFFERS: otherwise each
        # rewriting thread keeps the direct buffers of its largest reads and writes. Spark appends extraJavaOptions.
        "spark.driver.defaultJavaOptions": f"-Xss4m {SMALL_HEAP} {SMALL_BUFFERS} {log_option}",
        "spark.executor.defaultJavaOptions": SMALL_BUFFERS,
        # When direct memory is short, Hadoop loses asynchronous reads of local files and waits 5 min for each.
        "spark.hadoop.parquet.hadoop.vectored.io.enabled": "false",
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",  # otherwise damaged pages are read and rewritten
        # The cache reuses the deletes of one query in a query that reads other columns: deleted rows come back
        # (apache/iceberg 15039).
        "spark.sql.iceberg.executor-cache.enabled": "false",
        **{f"spark.executorEnv.{name}": value for name, value in (WORKER_ENVIRONMENT | checksum_environment()).items()},
        "spark.driver.host": "127.0.0.1" if settings.spark.master.startswith("local") else "",
    }
    if not ({"spark.jars", "spark.jars.packages"} & set(settings.spark.conf)):
        conf["spark.jars"] = ",".join(str(jar) for jar_set in jar_sets(settings) for jar in fetch_jars(jar_set))
    if settings.spark.master.startswith("local"):
        # Its ports are open to all users of this host, who could send it code. Spark makes the secret itself.
        conf["spark.authenticate"] = "true"
    profile = aws_profile(settings.catalogs)
    if profile:  # Iceberg's Java client has no property for the profile
        for side in ("driver", "executor"):
            conf[f"spark.{side}.defaultJavaOptions"] += f" -Daws.profile={profile}"
    if as_json and settings.spark.master.startswith("k8s"):  # executors run this image (deploy/docker/entrypoint.sh)
        conf["spark.executor.defaultJavaOptions"] += f" {log_option}"
    for name, properties in settings.catalogs.items():
        conf.update(spark_catalog_conf(name, properties))
    conf.update(settings.spark.conf)
    return {key: value for key, value in conf.items() if value != ""}
