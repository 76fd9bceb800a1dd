"""Make a table of a million partitions with small files that do not exist; started by wide_case.

python -m tests.benchmarks.fleet.wide_table CATALOG_URI WAREHOUSE NAMESPACE TABLE PARTITIONS
"""

from __future__ import annotations

import sys

from compactor.settings.tree import Settings
from compactor.spark.session import spark_session
from tests.benchmarks.planning_table import call, java_class

CATALOG = "fleet"
BUCKETS = 8
FILES_OF_A_PARTITION = 2
FILES_OF_A_MANIFEST = 20_000


def main() -> None:
    uri, warehouse, namespace, name, count = sys.argv[1:]
    partitions = int(count)
    catalogs = {CATALOG: {"type": "rest", "uri": uri, "warehouse": warehouse}}
    settings = Settings.model_validate({"catalogs": catalogs, "spark": {"master": "local[2]"}})
    session = spark_session(settings, "firnline-bench-fleet")
    session.sql(f"CREATE NAMESPACE IF NOT EXISTS {CATALOG}.{namespace}")
    table = f"{CATALOG}.{namespace}.{name}"
    session.sql(
        f"CREATE TABLE {table} (user_id BIGINT, ts TIMESTAMP, value DOUBLE) USING iceberg "
        f"PARTITIONED BY (days(ts), bucket({BUCKETS}, user_id)) TBLPROPERTIES ('format-version' = '2')"
    )
    handle = session._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, table)
    files = partitions * FILES_OF_A_PARTITION
    manifests = max(1, files // FILES_OF_A_MANIFEST)
    call(session, java_class(session), "appendSpread", handle, partitions, BUCKETS, manifests, -(-files // manifests))
    session.stop()


if __name__ == "__main__":
    main()
