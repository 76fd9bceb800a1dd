"""Memory of the service's processes, by kind: the driver, a JVM, Spark's Python workers, others."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from compactor.debt.board import DebtBoard
from metrics.gauges import Gauges
from streaming.service.process_memory import memory_now
from tests.unit.streaming.states import state_of


def test_the_memory_of_every_process_of_the_service_is_shown_by_kind(tmp_path: Path) -> None:
    """As Spark starts them: a JVM, a daemon below it, a worker below that. What they hold is real."""
    holds = "import sys; held = bytearray(30_000_000); print(flush=True); sys.stdin.read()"
    below = [sys.executable, "-c", "import os; os.fork(); " + holds, "pyspark.daemon"]
    java = shutil.copy(shutil.which("sh") or "", tmp_path / "java")
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with (
        subprocess.Popen([java, "-c", f"{shlex.join(below)}; :"], **pipes) as jvm,
        subprocess.Popen([sys.executable, "-c", holds], **pipes) as pump,
    ):
        for pipe in (jvm.stdout, jvm.stdout, pump.stdout):
            assert pipe is not None
            pipe.readline()
        registry = CollectorRegistry()
        registry.register(Gauges(DebtBoard(), state_of(), "1"))
        shown = {
            kind: registry.get_sample_value("firnline_memory_bytes", {"process": kind}) or 0
            for kind in ("driver", "jvm", "workers", "other")
        }
        jvm.communicate()
        pump.communicate()
    assert shown["workers"] >= 60_000_000
    assert shown["other"] >= 30_000_000
    assert min(shown.values()) > 0
    assert (registry.get_sample_value("firnline_free_memory_bytes") or 0) > 0


def test_a_process_that_has_ended_holds_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    assert set(memory_now(ended.pid).resident.values()) == {0}
