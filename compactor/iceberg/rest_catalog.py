"""PyIceberg's REST catalog with request timeouts: PyIceberg sets none, and a catalog that hangs would stop the stream.

The Java client, which commits, has its own properties for timeouts (`rest.client.socket-timeout-ms`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.rest import RestCatalog

CONNECT_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 60.0
"""Without receiving a byte. A busy catalog needs seconds to load a table of thousands of snapshots."""


class RestCatalogWithTimeouts(RestCatalog):
    """As its base class; a request that times out raises the same error as a refused connection."""

    def _create_session(self) -> Any:
        session = super()._create_session()
        in_time = partial(session.request, timeout=(CONNECT_SECONDS, ANSWER_SECONDS))
        setattr(session, "request", in_time)  # noqa: B010 - mypy forbids to assign a method
        return session


def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """The catalog that the properties describe; raises the errors of PyIceberg's `load_catalog`."""
    if properties.get("type") != "rest" or "py-catalog-impl" in properties:
        return load_catalog(name, **properties)
    # PyIceberg refuses `type` beside `py-catalog-impl`.
    rest = {key: value for key, value in properties.items() if key != "type"}
    return load_catalog(name, **rest, **{"py-catalog-impl": f"{__name__}.{RestCatalogWithTimeouts.__name__}"})
