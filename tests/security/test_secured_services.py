"""Servers that want TLS and a login: Kafka with SASL_SSL and with certificates of clients, a catalog with OAuth2.

Spark's source and sink, the Python client, PyIceberg and Iceberg's Java client connect, with the same settings.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactor.errors import RetryError
from compactor.iceberg.tables import Catalogs
from compactor.settings.kafka import KafkaSettings
from deploy.demo.rest_catalog import rest_catalog
from streaming.kafka.clients import ensure_topics
from tests.integration.service_process import firnline, wait_for
from tests.security.secured_site import SecuredSite
from tests.services.certificates import Certificates, issue
from tests.services.guarded_catalog import GuardedCatalog, guarded_catalog
from tests.services.quick_java import quick_java
from tests.services.secured_broker import MutualBroker, SecuredBroker, mutual_broker, secured_broker

LIFETIME = 12.0  # seconds of a token


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return issue(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[SecuredBroker]:
    password = 'a "quoted" \\ password; with=signs'  # noqa: S105
    with secured_broker(tmp_path_factory.mktemp("kafka"), certificates, "firnline", password) as running:
        yield running


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[MutualBroker]:
    with mutual_broker(tmp_path_factory.mktemp("mutual"), certificates) as running:
        yield running


# Kafka


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_the_service_works_on_a_broker_that_wants_tls_and_a_password(
    secured: SecuredBroker, tmp_path: Path, mechanism: str
) -> None:
    works_on(secured.address, secured.options(mechanism), tmp_path)


@pytest.mark.timeout(600)
def test_the_service_works_on_a_broker_that_wants_certificates_of_clients(mutual: MutualBroker, tmp_path: Path) -> None:
    works_on(mutual.address, mutual.options(), tmp_path)


def works_on(address: str, options: dict[str, str], folder: Path) -> None:
    """Spark's source hears an event, its sink writes a dead letter, the Python client makes topics."""
    place = SecuredSite(folder, address, {}, options=options)
    try:
        place.create("t")
        done = firnline(place.config, "check-config", "--connect")
        assert done.returncode == 0, done.stdout + done.stderr
        service = place.started()
        place.publish(*place.append("t", commits=6, parts=1, rows=50))
        service.wait_metric("firnline_commits_total")
        place.send(b"not an event")
        service.wait_metric("firnline_dead_letters_total")
        assert firnline(place.config, "request", "db.t").returncode == 0
        assert service.terminate()[0] == 0
    finally:
        place.close()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_a_refused_password_is_named(secured: SecuredBroker, mechanism: str) -> None:
    refused(secured.address, secured.options(mechanism, password="wrong"), "Authentication failed")  # noqa: S106


def test_a_mechanism_that_the_broker_lacks_is_named(secured: SecuredBroker) -> None:
    refused(secured.address, secured.options("SCRAM-SHA-256"), "UnsupportedSaslMechanism")


def test_an_unknown_authority_is_named(secured: SecuredBroker, tmp_path: Path) -> None:
    options = secured.options("PLAIN") | {"ssl.truststore.location": str(issue(tmp_path).authority)}
    refused(secured.address, options, "CERTIFICATE_VERIFY_FAILED")


@pytest.mark.parametrize("wrong", ["none", "authority"])
def test_a_refused_certificate_names_the_settings(mutual: MutualBroker, tmp_path: Path, wrong: str) -> None:
    options = mutual.options(issue(tmp_path).client)
    if wrong == "none":
        del options["ssl.keystore.location"]
    refused(mutual.address, options)


def refused(address: str, options: dict[str, str], answer: str = "") -> None:
    """On a busy machine, the client may give up before it has the broker's answer: then it is asked again."""
    kafka = KafkaSettings(bootstrap_servers=address, options=options)

    def told() -> bool:
        with pytest.raises(RetryError, match=r"; check .*user, password and certificates in kafka\.options") as error:
            ensure_topics(kafka, create=False)
        return re.search(answer, str(error.value)) is not None

    wait_for(f"the broker's answer {answer}", told)


# The catalog


@pytest.fixture
def catalog(tmp_path: Path, certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> Iterator[GuardedCatalog]:
    """A catalog with tables on local files, whose tokens are short-lived."""
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificates.authority))
    files = {"io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}
    with (
        quick_java(rest_catalog(tmp_path / "catalog", f"file://{tmp_path}/warehouse", files)) as upstream,
        guarded_catalog(upstream, certificates, "client:secret of the client", lifetime=LIFETIME) as guarded,
    ):
        yield guarded


@pytest.mark.timeout(600)
def test_tokens_that_expire_are_renewed_in_python_and_java(
    broker: str, catalog: GuardedCatalog, certificates: Certificates, tmp_path: Path
) -> None:
    """The service rewrites a table again and again, for four lifetimes of a token."""
    place = SecuredSite(
        tmp_path / "site", broker, properties={**catalog.properties, "warehouse": f"file://{tmp_path}/warehouse"},
        trust=certificates.trust_store(),
    )  # fmt: skip
    try:
        place.create("t")
        service = place.started()
        started, commits = time.monotonic(), 0
        while time.monotonic() < started + 4 * LIFETIME:
            place.publish(*place.append("t", commits=6, parts=1, rows=20))
            service.wait_metric("firnline_commits_total", commits + 1)
            commits += 1
        before = {client: catalog.seen(client) for client in ("PyIceberg", "Java")}
        place.publish(*place.append("t", commits=6, parts=1, rows=20))
        service.wait_metric("firnline_commits_total", commits + 1)
        print(
            f"\n{commits + 1} commits in {time.monotonic() - started:.0f} s; {dict(catalog.grants)}, "
            f"{catalog.clients}, {catalog.expired} requests with an expired token"
        )
        assert all(catalog.seen(client) > count for client, count in before.items()), catalog.clients
        assert len(catalog.tokens) > 4
        assert "run failed" not in service.log_text
        assert service.terminate()[0] == 0
    finally:
        place.close()


def test_a_catalog_whose_certificate_nobody_signed_is_refused(
    catalog: GuardedCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(issue(tmp_path / "other").authority))
    with pytest.raises(RetryError, match="certificate"):
        wait_for("nothing", lambda: list(Catalogs({"lake": catalog.properties}).list_tables("lake")), seconds=1)
