"""A real Apache Polaris server that runs elsewhere: its address is in `TEST_POLARIS` (`http://127.0.0.1:8181`).

It needs a catalog `lake` of storage type FILE on this machine, the principal `root` with the secret `s3cr3t`, and the
setting `polaris.features."ICEBERG_ROLLBACK_COMPACTION_ON_CONFLICTS"=true`.
"""

from __future__ import annotations

import os
from typing import Final

from compactor.iceberg.tables import Catalogs
from compactor.spark.catalogs import spark_catalog_conf
from tests.conftest import Lake
from tests.services.faulty_catalog import FaultyCatalog
from tests.services.rest_lake import RestLake

ADDRESS: Final = "TEST_POLARIS"
PATH: Final = "/api/catalog"
CATALOG: Final = "lake"


def address() -> str | None:
    return os.environ.get(ADDRESS)


def polaris_lake(lake: Lake, proxy: FaultyCatalog, name: str, server: str | None) -> RestLake:
    """The catalog behind the proxy, in the lake's session under `name`. `server`: None for a stand-in."""
    properties = {"type": "rest", "uri": proxy.uri + PATH, "warehouse": proxy.warehouse}
    if server:
        properties |= {"credential": "root:s3cr3t", "scope": "PRINCIPAL_ROLE:ALL"}
        properties["oauth2-server-uri"] = f"{server}{PATH}/v1/oauth/tokens"
    for key, value in spark_catalog_conf(name, properties).items():
        lake.session.conf.set(key, value)
    made = RestLake(lake.folder, lake.settings, lake.session, Catalogs({name: properties}), name)
    made.sql("CREATE NAMESPACE IF NOT EXISTS lake.db")
    return made
