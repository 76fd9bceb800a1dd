"""A real Apache Polaris server that runs elsewhere: its address is in `TEST_POLARIS` (`http://127.0.0.1:8181`).

It needs a catalog `lake` of storage type FILE on this machine, the principal `root` with the secret `s3cr3t`, and the
setting `polaris.features."ICEBERG_ROLLBACK_COMPACTION_ON_CONFLICTS"=true`.
"""

from __future__ import annotations

import os
from typing import Final

from tests.conftest import Lake
from tests.services.faulty_catalog import FaultyCatalog
from tests.services.rest_lake import RestLake, rest_lake_of

ADDRESS: Final = "TEST_POLARIS"
PATH: Final = "/api/catalog"
CATALOG: Final = "lake"


def address() -> str | None:
    return os.environ.get(ADDRESS)


def polaris_lake(lake: Lake, proxy: FaultyCatalog, name: str, server: str | None) -> RestLake:
    """The catalog behind the proxy, in the lake's session under `name`. `server`: None for a stand-in."""
    login = {"credential": "root:s3cr3t", "scope": "PRINCIPAL_ROLE:ALL"} if server else {}
    if server:
        login["oauth2-server-uri"] = f"{server}{PATH}/v1/oauth/tokens"
    return rest_lake_of(lake, proxy, name, uri=proxy.uri + PATH, **login)
