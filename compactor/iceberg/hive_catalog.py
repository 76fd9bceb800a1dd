"""PyIceberg's Hive catalog with timeouts, and with a client for each thread: PyIceberg has neither.

PyIceberg's client is one socket without a lock: threads that share it read each other's answers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.typedef import Properties

from compactor.iceberg.rest_catalog import ANSWER_SECONDS


def open_hive_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """PyIceberg's Hive catalog with these properties, with timeouts and a client for each thread.

    Raises:
        ModuleNotFoundError: the extra `hive` is not installed.
    """
    from pyiceberg.catalog.hive import HiveCatalog  # noqa: PLC0415 - not in a default installation

    class HiveCatalogWithTimeouts(_ClientOfEachThread, HiveCatalog):
        """As its base class."""

    return HiveCatalogWithTimeouts(name, **properties)


class _ClientOfEachThread:
    """Goes before PyIceberg's Hive catalog among the base classes."""

    properties: Properties
    _create_hive_client: Callable[[Properties], Any]

    def __init__(self, name: str, **properties: str) -> None:
        self._clients = threading.local()
        super().__init__(name, **properties)  # type: ignore[call-arg]  # of HiveCatalog

    @property
    def _client(self) -> Any:
        found = getattr(self._clients, "client", None)
        if found is None:
            client: Any = self._create_hive_client(self.properties)
            _set_timeout(client._transport)  # noqa: SLF001 - of PyIceberg's client, which has no setting for it
            client._init_thrift_transport = partial(_with_timeout, client._init_thrift_transport)  # noqa: SLF001
            found = self._clients.client = client
        return found

    @_client.setter
    def _client(self, _first: Any) -> None:
        """PyIceberg makes one for all threads: not used."""


def _with_timeout(make: Any) -> Any:
    transport = make()
    _set_timeout(transport)
    return transport


def _set_timeout(transport: Any) -> None:
    """To connect, and without receiving a byte.

    Of the socket inside a buffered transport or, with Kerberos, inside a SASL transport.
    """
    for name in ("_TBufferedTransport__trans", "transport"):
        inner = getattr(transport, name, None)
        if inner is not None:
            inner.setTimeout(ANSWER_SECONDS * 1000)
