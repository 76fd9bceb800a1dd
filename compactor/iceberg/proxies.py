"""Proxies of the environment (HTTP_PROXY, HTTPS_PROXY, NO_PROXY), for the clients that do not look for them.

PyIceberg's REST client and boto3 do. Arrow's S3 client does not, nor does Iceberg's Java client of REST catalogs: these
are told what `requests` would use for the same address.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies

from requests.utils import get_environ_proxies, select_proxy

from compactor.storage.s3_client import S3_SCHEMES

STORE_PROXY: Final = "s3.proxy-uri"
_JAVA_LOOKS: Final = "http-client.proxy-use-environment-variable-values"
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def proxy_of(address: str) -> str | None:
    """The proxy that the environment names for an address; None if there is none, or NO_PROXY excludes the host."""
    found = select_proxy(address, get_environ_proxies(address, no_proxy=None))
    return f"http://{found}" if found and "://" not in found else found


def with_store_proxy(properties: Mapping[str, str]) -> dict[str, str]:
    """A catalog's properties, with the proxy of its S3 store if the environment names one and they do not."""
    made = dict(properties)
    uses_s3 = made.get("warehouse", "").startswith(S3_SCHEMES) or any(name.startswith("s3.") for name in made)
    if not uses_s3 or not getproxies():
        return made
    region = made.get("s3.region") or made.get("client.region") or "us-east-1"
    endpoint = made.get("s3.endpoint") or f"https://s3.{region}.amazonaws.com"
    proxy = proxy_of(endpoint if "://" in endpoint else f"https://{endpoint}")
    if proxy is not None:
        made.setdefault(STORE_PROXY, proxy)
    elif made.get("type") != "glue":  # the AWS SDK for Java reads NO_PROXY in another way
        made.setdefault(_JAVA_LOOKS, "false")
    return made


def java_rest_proxy(uri: str) -> dict[str, str]:
    """Properties of Iceberg's Java client of REST catalogs for the proxy to its address; empty if there is none."""
    proxy = urlsplit(proxy_of(uri) or "")
    if not proxy.hostname:
        return {}
    found = {
        "hostname": proxy.hostname,
        "port": str(proxy.port or _DEFAULT_PORTS.get(proxy.scheme, 80)),
        "username": unquote(proxy.username or ""),
        "password": unquote(proxy.password or ""),
    }
    return {f"rest.client.proxy.{name}": value for name, value in found.items() if value}
