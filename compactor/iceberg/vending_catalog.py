"""REST catalogs that vend credentials for a table's files: the files' FileIO renews them, in any process.

A catalog says where it can be asked for a new credential: in the table's configuration, or among its endpoints. Others
vend with each load of a table.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyiceberg.catalog.rest import Capability, Endpoints, TableResponse
from pyiceberg.catalog.rest.response import _handle_non_200_response
from pyiceberg.catalog.rest.scan_planning import StorageCredential
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from requests import HTTPError

from compactor.credentials.credential import Credential
from compactor.credentials.renewing_file_io import renewing
from compactor.credentials.vended import VendedCredential, shared
from compactor.errors import retried
from compactor.iceberg.rest_catalog import RestCatalogWithTimeouts
from compactor.reasons import Reason

REFRESH_ENDPOINTS: Final = (
    "client.refresh-credentials-endpoint",
    "gcs.oauth2.refresh-credentials-endpoint",
    "adls.refresh-credentials-endpoint",
)
_WITHOUT_HISTORY: Final = {"snapshots": "refs"}
"""Of a table that is loaded for its credential, nothing else is needed."""
_LOGIN_EXPIRED: Final = frozenset({401, 419})
"""Status of answers after which PyIceberg's catalog logs in again."""

Properties = tuple[tuple[str, str], ...]


class VendingRestCatalog(RestCatalogWithTimeouts):
    """As its base class; the FileIO of a table with a vended credential renews it."""

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        self._given = tuple(sorted((key, value) for key, value in properties.items() if key != "py-catalog-impl"))
        with _lock:
            _open[name, self._given] = self

    def vended(self, identifier: tuple[str, ...], location: str, endpoint: str | None) -> Mapping[str, str]:
        """Properties with a new credential for the files of a table below `location`.

        Args:
            identifier: Namespace and name.
            location: Chooses among the credentials of several locations.
            endpoint: Where to ask; None: there is no such place, load the table.
        """
        if endpoint is not None:
            answer = self._get(endpoint)
        else:
            path = self._split_identifier_for_path(identifier)
            answer = self._get(self.url(Endpoints.load_table, **path), _WITHOUT_HISTORY)
        found = [StorageCredential.model_validate(each) for each in answer.get("storage-credentials") or ()]
        return {**(answer.get("config") or {}), **self._resolve_storage_credentials(found, location)}

    def _get(self, url: str, parameters: Mapping[str, str] | None = None) -> dict[str, Any]:
        response = self._session.get(url, params=parameters)
        if response.status_code in _LOGIN_EXPIRED:
            self._refresh_token()
            response = self._session.get(url, params=parameters)
        try:
            response.raise_for_status()
        except HTTPError as error:
            _handle_non_200_response(error, {404: NoSuchTableError})
        found: dict[str, Any] = response.json()
        return found

    def _response_to_table(self, identifier_tuple: tuple[str, ...], table_response: TableResponse) -> Table:
        table = super()._response_to_table(identifier_tuple, table_response)
        table.io = renewing(table.io, self._vended_with(tuple(identifier_tuple), table_response))
        return table

    def _vended_with(self, identifier: tuple[str, ...], response: TableResponse) -> VendedCredential | None:
        location = f"{(response.metadata_location or response.metadata.location).rpartition('/')[0]}/"
        resolved = self._resolve_storage_credentials(response.storage_credentials, location)
        vended = {**response.config, **resolved}
        credential = Credential.of(vended, time.time())
        if credential is None:
            return None
        named = next((vended[name] for name in REFRESH_ENDPOINTS if vended.get(name)), None)
        source = CatalogOfTable(self.name, self._given, identifier, location, self._endpoint(identifier, named))
        return shared(source, credential)

    def _endpoint(self, identifier: tuple[str, ...], named: str | None) -> str | None:
        """Address that vends credentials of a table: the one that is named for it, else the protocol's."""
        if named is not None:
            return named if "://" in named else f"{self.uri.rstrip('/')}/{named.lstrip('/')}"
        if Capability.V1_LOAD_CREDENTIALS in self._supported_endpoints:
            return self.url(Endpoints.load_credentials, **self._split_identifier_for_path(identifier))
        return None


@dataclass(frozen=True)
class CatalogOfTable:
    """The catalog that vends the credential of one table's files: a value that executors can ask too.

    `properties`: the catalog's, as configured. `location`: the folder of the table's metadata, with a slash.
    `endpoint`: the address that vends credentials; None: each load of the table does.
    """

    catalog: str
    properties: Properties = field(repr=False)
    identifier: tuple[str, ...]
    location: str
    endpoint: str | None = None

    def __str__(self) -> str:
        return f"catalog {self.catalog}"

    def ask(self) -> Mapping[str, str]:
        """As `CredentialSource` says. Opens the catalog, once in a process."""
        with retried("no answer", Reason.CATALOG_UNAVAILABLE):
            return self._opened().vended(self.identifier, self.location, self.endpoint)

    def _opened(self) -> VendingRestCatalog:
        with _lock:
            found = _open.get((self.catalog, self.properties))
        return found or VendingRestCatalog(self.catalog, **dict(self.properties))


_open: dict[tuple[str, Properties], VendingRestCatalog] = {}
_lock = threading.Lock()
