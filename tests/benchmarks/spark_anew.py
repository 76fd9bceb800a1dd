"""One `rewrite_data_files` in a session of its own, as a scheduled job runs it; run by bench_rewrite.

Prints the seconds that the session took to start and those of the call.
"""

from __future__ import annotations

import json
import sys
import time

from compactor.settings.tree import Settings
from compactor.spark.session import spark_session


def main() -> None:
    settings, table, vectorized = json.loads(sys.argv[1])
    started = time.perf_counter()
    session = spark_session(Settings.model_validate(settings), "firnline-benchmark-anew")
    session.conf.set("spark.sql.iceberg.vectorization.enabled", vectorized)
    session.sql("SELECT 1").collect()
    ready = time.perf_counter()
    session.sql(f"CALL lake.system.rewrite_data_files(table => '{table}')").collect()
    print(json.dumps([ready - started, time.perf_counter() - ready]))
    session.stop()


if __name__ == "__main__":
    main()
