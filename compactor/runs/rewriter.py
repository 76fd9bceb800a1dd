"""Runs plans, one run each, and publishes how each run began and ended."""

from __future__ import annotations

from collections.abc import Callable

from compactor.commit.in_flight import new_run_id
from compactor.errors import CommitUnknownError, FirnlineError
from compactor.events import RunCommitted, RunFailed, RunPlanned, RunSkipped
from compactor.planning.budget import Charge, uncharged
from compactor.planning.plan_table import TablePlan
from compactor.reasons import Reason
from compactor.runs.dropped_groups import expiry_explained
from compactor.runs.results import RunResult
from compactor.runs.run import Progress, Run
from compactor.runs.run_tools import RunTools
from compactor.runs.supervisor import Switches
from compactor.spark.java_table import unforeseen


class Rewriter(RunTools):
    """Carries out plans through one Spark session. See `RunTools` for the arguments."""

    def run(
        self,
        plan: TablePlan,
        *,
        enabled: Callable[[], bool] = lambda: True,
        stopping: Callable[[], bool] = lambda: False,
        waiting_since: float | None = None,
        run_id: str | None = None,
        progress: Progress | None = None,
        charge: Charge = uncharged,
    ) -> RunResult:
        """Carry out `plan`. The run can be stopped at any time except while it commits.

        A file group that cannot be rewritten, or that another commit touched, is dropped and the others go on. The run
        fails when none is left.

        Args:
            plan: From `plan_table`.
            enabled: Whether the table is still switched on, one catalog call. Asked every `check_seconds` while the run
                works and once more before each commit.
            stopping: Whether the process is stopping. Asked every second and before each commit.
            waiting_since: When the oldest event that the run answers was published (seconds since the epoch).
            run_id: A new one if None.
            progress: Called after each output task.
            charge: Called with each cost of the run when it arises.

        Raises:
            FirnlineError: by class the reaction; nothing more was committed (unless it is a CommitUnknownError).
        """
        run_id, table = run_id or new_run_id(plan.table), plan.table.name
        switches = Switches(enabled, lambda: stopping() or self.right.lost() is not None)
        run = Run(self, plan, run_id, switches, progress, charge)
        if not plan.has_work or plan.snapshot_id is None:
            return run.result
        self.lifelines.moved(table)
        self.listener(
            RunPlanned(
                run_id=run_id,
                table=table,
                groups=len(plan.groups),
                files=sum(len(group.file_group.files) for group in plan.groups),
                bytes=plan.bytes,
                seconds=plan.seconds,
            )
        )
        try:
            with expiry_explained(plan.table, plan.snapshot_id, self.catalogs):
                result = run.carry_out(plan.snapshot_id)
        except FirnlineError as failed:
            error = self._cause_of(failed)
            message = f"{error} (after {run.commits} commits of the run)" if run.commits else str(error)
            self.listener(RunFailed.of(error, run_id, table, run.stage, message))
            if error is failed:
                raise
            raise error from failed
        except Exception as error:
            failure = unforeseen(f"rewriting {table}", error)
            self.listener(RunFailed.of(failure, run_id, table, run.stage, str(error)))
            raise failure from error
        if result.snapshot_after is None:  # another commit came first and removed the same delete files
            self.listener(RunSkipped(table=table, reason=Reason.NOTHING_DUE))
            return result
        self._publish_committed(result, result.snapshot_after, waiting_since)
        return result

    def _cause_of(self, error: FirnlineError) -> FirnlineError:
        """Why the run ended: once another process has taken over, that is the reason, however the run noticed it."""
        return error if isinstance(error, CommitUnknownError) else self.right.lost() or error

    def _publish_committed(self, result: RunResult, snapshot_id: int, waiting_since: float | None) -> None:
        groups = [group.rewritten for group in result.groups]
        waited = None if waiting_since is None else max(0.0, self.clock() - waiting_since)
        self.listener(
            RunCommitted(
                run_id=result.run_id,
                table=result.table,
                snapshot_id=snapshot_id,
                groups=len(groups),
                files_in=sum(group.files_in for group in groups),
                files_out=sum(group.files_out for group in groups),
                bytes_in=sum(group.bytes_in for group in groups),
                bytes_out=sum(group.bytes_out for group in groups),
                plan_seconds=result.plan_seconds,
                rewrite_seconds=result.rewrite_seconds,
                commit_seconds=result.commit_seconds,
                event_to_compacted_seconds=waited,
                delete_files_removed=result.delete_files_removed,
            )
        )
