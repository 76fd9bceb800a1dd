"""A `Lake` over the REST catalog of `faulty_catalog`, in whatever Spark session there is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyiceberg.catalog import Catalog

from compactor.spark_catalogs import spark_catalog_conf
from compactor.table_names import TableName
from compactor.tables import Catalogs
from tests.conftest import Lake
from tests.services.faulty_catalog import FaultyCatalog

CATALOG = "faulty"


class RestLake(Lake):
    """`lake.` in the SQL of tests means this catalog."""

    @property
    def catalog(self) -> Catalog:
        return self.catalogs.catalog(CATALOG)

    def name(self, table: str) -> TableName:
        return replace(super().name(table), catalog=CATALOG)

    def sql(self, text: str) -> list[Any]:
        return super().sql(text.replace("lake.", f"{CATALOG}."))


def rest_lake_of(lake: Lake, faulty: FaultyCatalog) -> RestLake:
    """The REST catalog as seen from the lake's session."""
    properties = {"type": "rest", "uri": faulty.uri, "warehouse": faulty.warehouse}
    for key, value in spark_catalog_conf(CATALOG, properties).items():
        lake.session.conf.set(key, value)
    made = RestLake(lake.folder, lake.settings, lake.session, Catalogs({CATALOG: properties}))
    made.sql("CREATE NAMESPACE IF NOT EXISTS lake.db")
    return made
