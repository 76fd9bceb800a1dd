"""A `Lake` over the REST catalog of `faulty_catalog`, in whatever Spark session there is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.catalog import Catalog

from compactor.iceberg.tables import Catalogs
from compactor.spark.catalogs import spark_catalog_conf
from compactor.table_names import TableName
from tests.conftest import Lake
from tests.services.faulty_catalog import FaultyCatalog


@dataclass
class RestLake(Lake):
    """`lake.` in the SQL of tests means this catalog."""

    catalog_name: str = "faulty"

    @property
    def catalog(self) -> Catalog:
        return self.catalogs.catalog(self.catalog_name)

    def name(self, table: str) -> TableName:
        return replace(super().name(table), catalog=self.catalog_name)

    def sql(self, text: str) -> list[Any]:
        return super().sql(text.replace("lake.", f"{self.catalog_name}."))

    def rows(self, table: str, columns: str = "*") -> list[Any]:
        """As the catalog has them now: Spark keeps a table that it has loaded."""
        self.sql(f"REFRESH TABLE lake.{table}")
        return super().rows(table, columns)


def rest_lake_of(lake: Lake, faulty: FaultyCatalog, name: str = "faulty", **more: str) -> RestLake:
    """The REST catalog as seen from the lake's session, there under `name`: Spark opens a catalog once.

    `more`: further properties of the catalog, or another `uri`.
    """
    properties = {"type": "rest", "uri": faulty.uri, "warehouse": faulty.warehouse, **more}
    for key, value in spark_catalog_conf(name, properties).items():
        lake.session.conf.set(key, value)
    made = RestLake(lake.folder, lake.settings, lake.session, Catalogs({name: properties}), name)
    made.sql("CREATE NAMESPACE IF NOT EXISTS lake.db")
    return made
