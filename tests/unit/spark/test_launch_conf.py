"""What may be on the JVM's command line, which every user of the host can read."""

from __future__ import annotations

import re

from compactor.redaction import SECRET_NAMES, secrets_in
from compactor.settings.tree import Settings
from compactor.spark.session import launch_conf, session_conf

CATALOG = {
    "type": "rest",
    "uri": "http://catalog:8181",
    "warehouse": "s3://lake",
    "credential": "client:canary-credential",
    "token": "canary-token",
    "header.Authorization": "canary-header",
    "s3.access-key-id": "AKIA",
    "s3.secret-access-key": "canary-key",
}
CONF = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-Xss4m",
    "spark.jars": "a.jar",
    "spark.hadoop.fs.s3a.secret.key": "canary-hadoop",
    "spark.kubernetes.authenticate.oauthToken": "canary-kubernetes",
    "spark.authenticate.secret": "canary-rpc",
    "spark.ssl.keyPassword": "canary-ssl",
    "spark.executorEnv.TOKEN": "canary-executor",
}


def settings(**conf: str) -> Settings:
    sql = {"type": "sql", "uri": "postgresql://me:canary-url@host/db", "warehouse": "file:///w"}
    return Settings(
        catalogs={"lake": CATALOG, "other": sql}, spark={"master": "spark://host:7077", "conf": {**CONF, **conf}}
    )


def test_the_command_line_has_what_the_jvm_needs_and_no_secret() -> None:
    conf = session_conf(settings())
    launched = launch_conf(conf)
    assert "canary" not in repr(launched)
    needed = {"spark.driver.memory", "spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions", "spark.jars"}
    assert needed <= launched.keys()
    assert not any(key.startswith("spark.sql.catalog.") for key in launched)


def test_spark_remembers_little_of_finished_work() -> None:
    """The service runs for ever, and nothing reads it."""
    conf = session_conf(settings())
    kept = ("spark.ui.retainedJobs", "spark.ui.retainedStages", "spark.sql.ui.retainedExecutions")
    assert all(int(conf[key]) <= 100 for key in kept)


def test_the_context_gets_all_of_it() -> None:
    conf = session_conf(settings())
    for secret in ("canary-credential", "canary-key", "canary-hadoop", "canary-kubernetes", "canary-rpc", "canary-url"):
        assert any(secret in value for value in conf.values()), secret


def test_executors_send_only_required_checksums() -> None:
    assert session_conf(settings())["spark.executorEnv.AWS_REQUEST_CHECKSUM_CALCULATION"] == "when_required"
    theirs = settings(**{"spark.executorEnv.AWS_REQUEST_CHECKSUM_CALCULATION": "when_supported"})
    assert session_conf(theirs)["spark.executorEnv.AWS_REQUEST_CHECKSUM_CALCULATION"] == "when_supported"


def test_spark_redacts_every_secret_of_the_configuration() -> None:
    conf = session_conf(settings())
    redacted = re.compile(conf["spark.redaction.regex"])
    assert SECRET_NAMES in redacted.pattern
    shown = {key: value for key, value in conf.items() if not redacted.search(key) and not redacted.search(value)}
    secrets = {one for one in secrets_in(dict(settings())) if one.startswith("canary")}
    assert not [key for key, value in shown.items() if any(secret in value for secret in secrets)]
