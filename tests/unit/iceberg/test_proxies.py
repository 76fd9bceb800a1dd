"""Proxies of the environment: which addresses go through one, and what Arrow and Java are told."""

from __future__ import annotations

import pytest

from compactor.iceberg.proxies import java_rest_proxy, with_store_proxy
from compactor.spark.catalogs import spark_catalog_conf

PROXY = "http://proxy.test:3128"
S3 = {
    "type": "rest",
    "uri": "http://catalog.test:8181",
    "warehouse": "s3://lake/w",
    "s3.endpoint": "http://s3.test:9000",
}


@pytest.fixture(autouse=True)
def _proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HTTP_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", "localhost,10.0.0.0/8,.inner.test,s3.plain.test")


def conf(**more: str) -> dict[str, str]:
    return {
        key.removeprefix("spark.sql.catalog.lake."): value
        for key, value in spark_catalog_conf("lake", {**S3, **more}).items()
    }


def test_java_is_told_of_the_proxy_of_catalog_and_store() -> None:
    told = conf()
    assert (told["rest.client.proxy.hostname"], told["rest.client.proxy.port"]) == ("proxy.test", "3128")
    assert told["http-client.proxy-endpoint"] == PROXY


def test_a_login_at_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://me:p%40ss@proxy.test")
    assert java_rest_proxy("http://catalog.test") == {
        "rest.client.proxy.hostname": "proxy.test",
        "rest.client.proxy.port": "80",
        "rest.client.proxy.username": "me",
        "rest.client.proxy.password": "p@ss",
    }


@pytest.mark.parametrize("host", ["localhost:1", "10.1.2.3:1", "a.inner.test", "s3.plain.test:9000"])
def test_no_proxy_where_it_is_excluded(host: str) -> None:
    told = conf(**{"uri": f"http://{host}", "s3.endpoint": f"http://{host}"})
    assert not [key for key in told if "proxy." in key or key == "http-client.proxy-endpoint"]
    assert told["http-client.proxy-use-environment-variable-values"] == "false"


def test_https_has_a_proxy_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    at_aws = {"warehouse": "s3://lake/w", "s3.region": "eu-west-1"}
    assert "s3.proxy-uri" not in with_store_proxy(at_aws)
    monkeypatch.setenv("HTTPS_PROXY", "proxy.test:1")
    assert with_store_proxy(at_aws)["s3.proxy-uri"] == "http://proxy.test:1"
    assert java_rest_proxy("https://catalog.test")["rest.client.proxy.port"] == "1"


def test_what_is_in_the_properties_wins() -> None:
    told = conf(**{"s3.proxy-uri": "http://other.test:1", "rest.client.proxy.hostname": "third.test"})
    assert told["http-client.proxy-endpoint"] == "http://other.test:1"
    assert told["rest.client.proxy.hostname"] == "third.test"


def test_other_stores_get_no_property_of_s3() -> None:
    assert with_store_proxy({"type": "rest", "warehouse": "gs://lake"}) == {"type": "rest", "warehouse": "gs://lake"}
