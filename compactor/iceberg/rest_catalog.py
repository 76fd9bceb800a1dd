"""PyIceberg's REST catalog with requests that end: it sets no timeout, and one silent catalog would stop the stream.

Java's client, which commits, has timeouts of its own properties (`rest.client.socket-timeout-ms`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog

CONNECT_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 60.0
"""Without a byte of an answer. Loading a table of thousands of snapshots takes a busy catalog seconds."""


class RestCatalogWithTimeouts(RestCatalog):
    """As its base; a request that is not answered in time raises what a refused one does."""

    def _create_session(self) -> Any:
        session = super()._create_session()
        in_time = partial(session.request, timeout=(CONNECT_SECONDS, ANSWER_SECONDS))
        setattr(session, "request", in_time)  # noqa: B010 - a method: mypy lets nobody assign to it
        return session


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """The catalog that the properties describe, as PyIceberg's `load_catalog`, of whose errors it raises any."""
    if properties.get("type") != "rest" or "py-catalog-impl" in properties:
        return load_catalog(name, **properties)
    rest = {key: value for key, value in properties.items() if key != "type"}  # PyIceberg takes one of the two
    return load_catalog(name, **rest, **{"py-catalog-impl": f"{__name__}.{RestCatalogWithTimeouts.__name__}"})
