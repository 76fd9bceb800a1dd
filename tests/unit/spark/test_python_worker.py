"""`reduce_task_overhead`, tested in a separate process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

SCRIPT = """
    import gc, importlib, sys, time, zipimport

    def archives():
        return [path for path, finder in sys.path_importer_cache.items() if isinstance(finder, zipimport.zipimporter)]

    sys.path.insert(0, sys.argv[1])
    import first
    assert archives(), "nothing to be forgotten"
    from compactor.spark.python_worker import reduce_task_overhead

    reduce_task_overhead()
    frozen = gc.get_freeze_count()
    assert archives() == []
    assert frozen > 0
    importlib.invalidate_caches()
    import second  # still found
    assert (first.VALUE, second.VALUE) == (1, 2)
    reduce_task_overhead()
    assert archives() == []
    assert gc.get_freeze_count() == frozen, "what came later is to be collected"
"""


def test_archives_are_forgotten_and_modules_frozen_once(tmp_path: Path) -> None:
    archive = tmp_path / "modules.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("first.py", "VALUE = 1")
        file.writestr("second.py", "VALUE = 2")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(archive)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
