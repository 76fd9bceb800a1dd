"""A Spark driver of its own process: prints the slots of its cluster whenever they change, until its input ends.

    python -m tests.integration.cluster_driver SETTINGS TABLE

First it decodes the manifests of TABLE on executors and prints whether they are those that this process decodes.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

from compactor.iceberg.tables import Catalogs
from compactor.manifests.cache import ManifestCache
from compactor.manifests.executor_job import ReadOnExecutors
from compactor.settings.tree import load_settings
from compactor.spark.session import spark_session
from compactor.table_names import TableName
from streaming.wiring import rewrite_slots


def main() -> None:
    settings = load_settings(Path(sys.argv[1]), {})
    session = spark_session(settings)
    slots, watch = rewrite_slots(session)
    catalogs = Catalogs(settings.catalogs)
    view = catalogs.load(TableName.parse(sys.argv[2], catalogs.names))
    cache = ManifestCache(2**24)
    cache.use_reader(ReadOnExecutors(session, 0))
    here, there = (each.read(view, view.manifests()) for each in (ManifestCache(2**24), cache))
    print(json.dumps({"manifests": len(here), "equal": [*map(list, here)] == [*map(list, there)]}), flush=True)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    shown = None
    while not ended.wait(0.1):
        now = {"slots": slots.book.capacity, "cores": watch.state.executors.cores, "trouble": watch.state.trouble}
        if now != shown:
            print(json.dumps(now), flush=True)
            shown = now
    watch.stop()
    session.stop()


if __name__ == "__main__":
    main()
