"""No secret is shown: canaries are planted as working credentials, all commands run, failures are forced.

Everything that firnline writes, shows or starts is searched: command lines and environments of processes, output, logs,
pages, metrics, topics, history rows, state, Spark's event log and user interface.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import yaml
from kafka import KafkaConsumer

from deploy.demo.local_process import free_port
from deploy.demo.object_store import s3proxy
from deploy.demo.rest_catalog import files_on, rest_catalog
from streaming.cli import main
from streaming.commit_events import canonical
from streaming.commit_events.decoder import TableChanged
from streaming.kafka.clients import client_arguments
from tests.integration.service_process import ROOT, ServiceProcess, wait_for
from tests.security.canaries import Canaries, Watch, leaks_in_files, readable_by_others, watching
from tests.security.secured_site import SecuredSite
from tests.services.certificates import issue
from tests.services.guarded_catalog import GuardedCatalog, guarded_catalog
from tests.services.kafka_topics import records
from tests.services.quick_java import quick_java
from tests.services.secured_broker import secured_broker

CANARIES = Canaries(
    {
        name: f"canary-{name}-{uuid.uuid4().hex}"
        for name in ("s3", "oauth", "token", "kafka", "page", "hook", "hadoop", "wrong", "database", "invalid")
    }
)
S3_KEY = "FIRNLINE_CATALOGS__LAKE__S3__SECRET_ACCESS_KEY"
NOBODY = "127.0.0.1:9"
LIFETIME = 30.0  # seconds of a token, for the service


@dataclass
class Place(SecuredSite):
    """A site whose catalog, store and broker want the canaries."""

    catalog: GuardedCatalog | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ui_port = free_port()
        super().__post_init__()

    def _tree(self) -> dict[str, Any]:
        tree, events = super()._tree(), self.folder / "spark-events"
        events.mkdir()
        tree["spark"]["conf"] |= {
            "spark.hadoop.fs.s3a.secret.key": CANARIES["hadoop"],
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": events.as_uri(),
            "spark.ui.enabled": "true",
            "spark.ui.port": str(self.ui_port),
        }
        return tree | {
            "http": {"basic_auth": {"me": bcrypt.hashpw(CANARIES["page"].encode(), bcrypt.gensalt(4)).decode()}},
            "history": {"table": "ops.history"},
            "hooks": [
                {
                    "kind": "trino", "uri": f"https://{NOBODY}", "statement": "CALL f()",
                    "password_env": "HOOK_PASSWORD",
                }
            ],
        }  # fmt: skip

    def topic_bytes(self) -> bytes:
        """All records of all topics."""
        found = records(**client_arguments(self.settings.kafka, KafkaConsumer))
        return b"".join(repr((one.key, one.value, one.headers)).encode() for one in found)

    def command(self, *arguments: str, config: Path | None = None, seconds: int = 300, **environment: str) -> str:
        """Run a command of the CLI; its whole output. One that does not end is stopped: exit code 124."""
        command = [sys.executable, "-m", "streaming.cli", "-c", str(config or self.config), *arguments]
        done = subprocess.run(
            ["timeout", str(seconds), *command], capture_output=True, text=True, check=False, cwd=ROOT,
            env={**os.environ, **self.environment, "COLUMNS": "240", **environment},
        )  # fmt: skip
        return f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("canaries")
    certificates = issue(folder / "certificates")
    with (
        pytest.MonkeyPatch.context() as patch,
        quick_java(s3proxy(folder / "s3", CANARIES["s3"])) as store,
        quick_java(
            rest_catalog(folder / "catalog", "s3://lake/warehouse", {**files_on(store), "include-credentials": "true"})
        ) as upstream,
        guarded_catalog(upstream, certificates, f"client:{CANARIES['oauth']}", mark=CANARIES["token"]) as catalog,
        secured_broker(folder / "kafka", certificates, "firnline", CANARIES["kafka"]) as broker,
    ):
        patch.setenv("REQUESTS_CA_BUNDLE", str(certificates.authority))
        files = {key: value for key, value in store.properties.items() if key != "s3.secret-access-key"}
        made = Place(
            folder / "site",
            broker.address,
            catalog=catalog,
            options=broker.options("SCRAM-SHA-512"),
            trust=certificates.trust_store(),
            properties={**catalog.properties, "warehouse": "s3://lake/warehouse", **files},
        )
        for name in ("tmp", "state", "cache"):
            (folder / name).mkdir()
        made.environment = {
            S3_KEY: CANARIES["s3"],
            "HOOK_PASSWORD": CANARIES["hook"],
            "TMPDIR": str(folder / "tmp"),
            "XDG_STATE_HOME": str(folder / "state"),
            "XDG_CACHE_HOME": str(folder / "cache"),
        }
        try:
            yield made
        finally:
            made.close()


@contextlib.contextmanager
def searched(place: Place) -> Iterator[tuple[Watch, Callable[[str, str | bytes], None]]]:
    """Collects leaks while the block runs, and fails with all of them."""
    leaks: set[tuple[str, str]] = set()
    places: list[str] = []

    def search(where: str, content: str | bytes) -> None:
        places.append(where)
        leaks.update((where, name) for name in CANARIES.found_in(content))

    with watching(CANARIES) as watch:
        yield watch, search
    folders = [place.folder / "checkpoint", place.folder / "spark-events", place.folder.parent / "s3"]
    folders += [place.folder.parent / name for name in ("tmp", "state", "cache")]
    kept = leaks_in_files(CANARIES, folders)
    # The store's own settings, which the test wrote, hold its key.
    leaks |= watch.leaks | {(where, name) for where, name in kept if not where.endswith("s3proxy.conf")}
    print(f"\nsearched {len(places)} texts, and the processes {sorted(watch.seen)}: {len(leaks)} leaks")
    assert not leaks, "\n".join(f"{name}: {where}" for where, name in sorted(leaks))


def fill(place: Place, table: str) -> list[TableChanged]:
    return place.append(table, commits=5, parts=1, rows=50)


def ask(service: ServiceProcess, path: str, password: str = "") -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{service.port}{path}")
    if password:
        import base64  # noqa: PLC0415

        request.add_header("Authorization", "Basic " + base64.b64encode(f"me:{password}".encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
            return str(answer.headers) + answer.read().decode()
    except urllib.error.HTTPError as error:
        return str(error.headers) + error.read().decode()
    except OSError as error:
        return repr(error)


@pytest.mark.timeout(1800)
def test_no_command_shows_a_secret(place: Place) -> None:
    """Commands that succeed with the canaries as credentials."""
    fill(place, "t")
    commands = [
        ["check-config"], ["check-config", "--output", "json"], ["check-config", "--connect"],
        ["check-config", "--connect", "--output", "json"], ["debt"], ["debt", "db.t", "--why"],
        ["plan", "db.t", "--force"], ["-v", "compact", "db.t", "--force", "--output", "json"],
        ["compact", "db.t", "--force", "--engine", "spark"], ["assess"], ["simulate", "db.t"],
        ["history", "db.t", "--output", "json"], ["request", "db.t"], ["emit", "db.t"], ["convert", "db.t"],
        ["jars", "--list"], ["--help"],
        ["pause", "db.t", "--output", "json"], ["pause", "--list"], ["resume"],
    ]  # fmt: skip
    every = {word for command in commands for word in command}
    assert set(main.commands) - every == {"run"}  # which has a test of its own
    with searched(place) as (watch, search):
        for command in commands:
            output = place.command(*command)
            assert output.startswith("exit code 0\n"), f"{command}: {output}"
            search(" ".join(command), output)
        assert "SparkSubmit" in watch.seen
        assert place.catalog is not None
        assert place.catalog.seen("PyIceberg") or place.catalog.seen("python")
        assert place.catalog.seen("java") or place.catalog.seen("Apache-HttpClient")


def failures(place: Place) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Commands that fail because of what the environment changes."""
    kafka = {"FIRNLINE_KAFKA__OPTIONS__SASL__PASSWORD": CANARIES["wrong"]}
    database = f"postgresql://me:{CANARIES['database']}@{NOBODY}/catalog"
    other_catalog = {
        "FIRNLINE_CATALOGS": json.dumps({"lake": {"type": "sql", "uri": database, "warehouse": "file:///w"}})
    }
    odd_catalog = {"FIRNLINE_CATALOGS": json.dumps({"lake": {"type": "sql", "uri": f"odd{database}"}})}
    spark = ["compact", "db.t", "--force", "--engine", "spark"]
    bucket = {
        "FIRNLINE_STATE__CHECKPOINT": "s3://lake/checkpoint",
        "AWS_ENDPOINT_URL": place.properties["s3.endpoint"],
        "AWS_ACCESS_KEY_ID": place.properties["s3.access-key-id"],
        "AWS_SECRET_ACCESS_KEY": CANARIES["wrong"],
        "AWS_REGION": place.properties["s3.region"],
    }
    return {
        "bucket of the checkpoint refuses": (["run"], bucket),
        "bucket of the checkpoint refuses, checked": (["check-config", "--connect"], bucket),
        "wrong key of the store": (["compact", "db.t", "--force"], {S3_KEY: CANARIES["wrong"]}),
        "wrong key of the store, in Spark": (spark, {S3_KEY: CANARIES["wrong"]}),
        "wrong key of the store, checked": (["check-config", "--connect"], {S3_KEY: CANARIES["wrong"]}),
        "store is down": (["compact", "db.t", "--force"], {"FIRNLINE_CATALOGS__LAKE__S3__ENDPOINT": f"http://{NOBODY}"}),
        "wrong client secret": (["debt"], {"FIRNLINE_CATALOGS__LAKE__CREDENTIAL": f"client:{CANARIES['wrong']}"}),
        "wrong token": (
            ["debt"], {"FIRNLINE_CATALOGS__LAKE__TOKEN": CANARIES["wrong"], "FIRNLINE_CATALOGS__LAKE__CREDENTIAL": ""},
        ),
        "catalog is down": (["debt"], {"FIRNLINE_CATALOGS__LAKE__URI": f"https://{NOBODY}"}),
        "authority is unknown": (["debt"], {"REQUESTS_CA_BUNDLE": ""}),
        "wrong password of Kafka": (["request", "db.t"], kafka),
        "wrong password of Kafka, checked": (["check-config", "--connect", "--output", "json"], kafka),
        "wrong password of Kafka, in the service": (["run"], {**kafka, "FIRNLINE_LOGGING__FORMAT": "console"}),
        "unknown option of Kafka": (["run"], {"FIRNLINE_KAFKA__OPTIONS__SASL__UNKNOWN_PASSWORD": CANARIES["invalid"]}),
        "catalog in a database that is down": (["debt"], other_catalog),
        "odd database, in Spark": (["check-config", "--connect"], odd_catalog),
        "password of the pages in clear": (
            ["check-config"], {"FIRNLINE_HTTP__BASIC_AUTH": json.dumps({"me": CANARIES["invalid"]})},
        ),
        "unknown setting": (["check-config"], {"FIRNLINE_STATE__NONSENSE": CANARIES["invalid"]}),
        "wrong type": (["check-config"], {"FIRNLINE_KAFKA__OPTIONS": f'["{CANARIES["invalid"]}"]'}),
    }  # fmt: skip


@pytest.mark.timeout(1800)
def test_no_failure_shows_a_secret(place: Place) -> None:
    fill(place, "t")
    with searched(place) as (_, search), switched(place, vends=False):  # else its keys are used, not ours
        for name, (command, environment) in failures(place).items():
            output = place.command("-v", *command, seconds=60 if "run" in command else 300, **environment)
            assert not output.startswith("exit code 0\n"), f"{name}: {output}"
            search(f"failure: {name}", output)
        for switch in ("lies", "refuses"):
            with switched(place, **{switch: True}):
                for command in (["debt"], ["check-config", "--connect"], ["compact", "db.t", "--force"]):
                    output = place.command(*command)
                    assert not output.startswith("exit code 0\n"), f"{switch}: {output}"
                    search(f"catalog {switch}: {' '.join(command)}", output)


@contextlib.contextmanager
def switched(place: Place, **switches: bool) -> Iterator[None]:
    """The catalog behaves so while the block runs."""
    assert place.catalog is not None
    before = {name: getattr(place.catalog, name) for name in switches}
    vars(place.catalog).update(switches)
    try:
        yield
    finally:
        vars(place.catalog).update(before)


@pytest.mark.timeout(600)
def test_no_broken_settings_file_shows_a_secret(place: Place) -> None:
    secret = CANARIES["invalid"]
    broken = {
        "not YAML": f"catalogs:\n  lake:\n    token: {secret}: x\n",
        "a list": f"- token: {secret}\n",
        "an unknown key": f"catalogs: {{lake: {{type: sql, uri: 'sqlite://'}}}}\ntoken: {secret}\n",
        "an odd tag": f"catalogs: !odd {{token: {secret}}}\n",
        "a catalog that is text": f"catalogs: {{lake: '{secret}'}}\n",
        "a map for a text": f"catalogs: {{lake: {{}}}}\nkafka: {{options: {{x.password: {{a: {secret}}}}}}}\n",
        "a URL": f"catalogs: {{lake: {{type: sql, uri: 'ftp://u:{secret}@h/x'}}}}\n",
    }
    with searched(place) as (_, search):
        for name, text in broken.items():
            file = place.folder / "broken.yaml"
            file.write_text(text)
            for command in (["check-config"], ["debt"], ["run"]):
                search(f"settings with {name}", place.command(*command, config=file))
            file.unlink()


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("format", ["json", "console"])
def test_the_service_shows_no_secret(place: Place, format: str) -> None:  # noqa: A002
    """It works, then what it depends on refuses it, then it is started again, works and stops."""
    assert place.catalog is not None
    place.catalog.lifetime = LIFETIME
    fill(place, "served")
    pages = ("/", "/metrics", "/api/v1/status", "/healthz", "/readyz", "/nowhere")
    with searched(place) as (watch, search):

        def start() -> ServiceProcess:
            logging = {"FIRNLINE_LOGGING__FORMAT": format, "FIRNLINE_LOGGING__LEVEL": "DEBUG"}
            started = place.start(**place.environment, **logging)
            wait_for("the service", lambda: started.must_run() or "ready: " in started.log_text)
            return started

        service = start()

        def see(when: str) -> None:
            for path in pages:
                search(f"page {path} {when}", ask(service, path, CANARIES["page"]))
                search(f"page {path} {when}, not logged in", ask(service, path, CANARIES["wrong"]))
            search(f"log {when}", service.log_text)
            for path in ("/environment/", "/jobs/", "/StreamingQuery/", "/SQL/", "/executors/", "/api/v1/applications"):
                search(f"Spark's page {path} {when}", spark_page(place, path))

        place.publish(*fill(place, "served"))
        wait_for("a rewrite", lambda: commits(service) >= 1)
        place.send(b"not an event")
        see("at work")
        temporary = place.folder.parent / "tmp"
        shown = [Path(where) for where, _ in leaks_in_files(CANARIES, [temporary])]
        assert not [path for path in shown if path.exists() and readable_by_others(path, temporary)]
        assert "Environment" in spark_page(place, "/environment/")

        place.catalog.lies = True
        place.publish(*[place.event("served") for _ in range(3)])
        wait_for("the catalog's lie to be reported", lambda: "cannot" in service.log_text)
        see("while the catalog lies")
        place.catalog.lies, place.catalog.refuses = False, True
        wait_for(
            "Java's tokens to expire and their renewal to be refused",
            lambda: "to clean up on failure" in service.log_text,
        )
        place.publish(*[place.event("served") for _ in range(3)])
        wait_for("the refusal to be reported", lambda: "refused: " in service.log_text)
        see("while the catalog refuses")
        assert service.terminate()[0] == 0
        search("log at its end", service.log_text)
        place.catalog.refuses = False
        service = start()
        place.publish(*fill(place, "served"))
        wait_for("rewrites to go on", lambda: commits(service) >= 1)
        see("afterwards")
        assert service.terminate()[0] == 0
        search("log at the end", service.log_text)
        search("topics", place.topic_bytes())
        search("history", place.command("history", "db.served", "--output", "json"))
        assert "SparkSubmit" in watch.seen
        assert any("pyspark" in program for program in watch.seen), watch.seen


def spark_page(place: Place, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{place.ui_port}{path}", timeout=20) as answer:
            return str(answer.read().decode())
    except OSError as error:
        return repr(error)


def metrics(service: ServiceProcess) -> str:
    return ask(service, "/metrics", CANARIES["page"])


def commits(service: ServiceProcess) -> float:
    found = re.findall(r"^firnline_commits_total(?:\{[^}]*\})? (\S+)", metrics(service), re.MULTILINE)
    return sum(map(float, found))


def test_the_watch_finds_what_is_there(tmp_path: Path) -> None:
    """The search itself: a command line, an environment and a file with a canary are found."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read()", CANARIES["s3"]]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process, watching(CANARIES) as watch:
        wait_for("the leak", lambda: watch.leaks)
        process.communicate()
    assert {name for _, name in watch.leaks} == {"s3"}
    (tmp_path / "file").write_text(yaml.safe_dump({"x": CANARIES["token"]}))
    assert {name for _, name in leaks_in_files(CANARIES, [tmp_path])} == {"token"}
    assert readable_by_others(tmp_path / "file", tmp_path)
    (tmp_path / "file").chmod(0o600)
    assert not readable_by_others(tmp_path / "file", tmp_path)
    assert CANARIES.found_in(canonical.__doc__ or "") == set()
