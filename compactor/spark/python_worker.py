"""Python workers of Spark: what they do again for every task, and need not.

Before each task PySpark has all import caches read anew, and after each it collects garbage (`worker_util.py` and
`daemon.py` of pyspark 4.0). With the directories of `pyspark.zip` among the caches, and some hundred thousand objects
of imported modules, that is more processor time than a small splice takes: 0.15 s a task, and 0.01 s without it.
"""

from __future__ import annotations

import gc
import sys
import zipimport


def reduce_task_overhead() -> None:
    """Called by a task when its modules are imported. Costs next to nothing, however often it is called."""
    for path, finder in [*sys.path_importer_cache.items()]:
        if isinstance(finder, zipimport.zipimporter):  # a cache: who imports from the archive has it made again
            del sys.path_importer_cache[path]
    if gc.get_freeze_count() == 0:
        gc.freeze()  # modules live as long as the process: no collection needs to look at them
