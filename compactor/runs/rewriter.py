"""Runs plans, one run each, and publishes how each run began and ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compactor.planning.plan_table import TablePlan
from compactor.runs.results import RunResult
from compactor.runs.rewrite import rewrite
from compactor.runs.run_tools import RunTools
from compactor.runs.supervisor import Switches


class Rewriter(RunTools):
    """Carries out plans through one Spark session. See `RunTools` for the arguments."""

    def run(
        self,
        plan: TablePlan,
        *,
        enabled: Callable[[], bool] = lambda: True,
        stopping: Callable[[], bool] = lambda: False,
        **more: Any,
    ) -> RunResult:
        """See `rewrite`; `enabled` and `stopping` are the switches."""
        return rewrite(self, plan, Switches(enabled, stopping), **more)
