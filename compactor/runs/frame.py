"""The frame of every job on a table: record → supervise → pieces → checks → one commit for each part → clean up.

The order is the safety: outputs are on record before the first byte, rows are checked before the commit, and a failure
after the commit was sent deletes no output whose fate is unknown. A kind of job is a class with the methods of `Job`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from compactor.commit.in_flight import Record
from compactor.errors import CommitUnknownError, FirnlineError, GiveUpError, ReplanError, RetryError
from compactor.events import RunFailed
from compactor.iceberg.tables import TableView
from compactor.patience.holds import What
from compactor.planning.budget import Charge, uncharged
from compactor.rewrite.tasks.input_metrics import TaskId
from compactor.runs.committable import Committable, Landed, P, Pending
from compactor.runs.committing import commit
from compactor.runs.dropped_groups import expiry_explained
from compactor.runs.failures import Next, Unavailable, failure_of
from compactor.runs.output_record import OutputRecords, Outputs
from compactor.runs.pool import Done, Pieces, Pool, Ran, Room
from compactor.runs.run_tools import RunTools
from compactor.runs.supervisor import ALWAYS_ON, RunSupervisor, RunWatch, Switches
from compactor.spark.java_table import JavaTable, unforeseen


@dataclass(frozen=True)
class Part:
    """What a job commits at once; `name`: "2/3" is the second of three."""

    name: str
    pieces: Sequence[TaskId]


class Job(Pieces[Done]):
    """One job on one table. It can be stopped at any time except while it commits.

    `charge` is called with each cost when it arises. `stage` and `commits` say how far it is. `record` and `watch` are
    of the frame; without a record, nothing that the job writes may be left behind.
    """

    verb: ClassVar[str]
    kind: ClassVar[str]
    holds: ClassVar[What]
    """What is held of a group that failed."""

    def __init__(
        self,
        tools: RunTools,
        table: TableView,
        run_id: str,
        switches: Switches = ALWAYS_ON,
        charge: Charge = uncharged,
    ) -> None:
        self.tools = tools
        self.table = table
        self.run_id = run_id
        self.switches = switches
        self.charge = charge
        self.stage = self.kind
        self.commits = 0
        self.watch = RunWatch()
        self.record: Record | None = None

    def begin(self) -> Outputs | None:
        """Prepare; returns where outputs will be, for the record.

        Raises:
            FirnlineError: by class the reaction.
        """
        return None

    def parts(self) -> Sequence[Part]:
        """The pieces of each commit."""
        return [Part("1/1", ())]

    def run(self, bundle: Sequence[TaskId], room: Room) -> Mapping[TaskId, Done | Exception | Next]:
        """See `Pieces`; a kind without pieces has none."""
        raise NotImplementedError(bundle, room)

    def failure(self, piece: TaskId, error: Exception) -> FirnlineError:  # noqa: ARG002
        return failure_of(self.what, error)

    def checked(self, part: Part, ran: Ran[Done]) -> Mapping[int, FirnlineError]:  # noqa: ARG002
        """Keep what is correct of a part for its commit; returns the errors of all other groups."""
        return ran.failed

    @abstractmethod
    def commit(self, part: Part) -> bool:
        """Commit what was kept of a part; returns whether a snapshot was made.

        Raises:
            FirnlineError: by class the reaction; always if it is unknown whether the commit has landed.
        """

    def send(self, prepares: Committable[P], java: JavaTable) -> Landed[P] | None:
        """Commit what `prepares` prepares; `java`: the table as it was planned. See `committing.commit`."""
        pending = Pending(java, self.run_id, self.record, self.watch, self.switches, self.charge)
        return commit(prepares, pending, self.tools.committing)

    def paths(self, _group: int) -> Collection[str]:
        """The data files of a group."""
        return ()

    def leave(self, failed: Mapping[int, FirnlineError]) -> None:
        """These groups are left out of the job; their files are held already.

        Raises:
            FirnlineError: nothing can be done without them.
        """

    def end(self) -> None:
        """All parts are through.

        Raises:
            FirnlineError: nothing was committed, and that is a failure: by class the reaction.
        """

    @property
    def leftovers(self) -> bool | None:
        """Whether outputs may be left that no snapshot has; None: and a task may still write some."""
        return True

    @contextmanager
    def around(self) -> Iterator[None]:
        """Around all pieces and commits."""
        yield

    @property
    def what(self) -> str:
        return f"{self.verb} {self.table.name}"

    @property
    def lane(self) -> str:
        return str(self.table.name)

    def cancel(self) -> None:
        self.tools.session.sparkContext.cancelJobGroup(self.run_id)

    def moved(self) -> None:
        self.tools.lifelines.moved(self.table.name)


def carry_out(job: Job[Any], work: Callable[[Job[Any]], object] | None = None) -> None:
    """Do a job. A failure is published. `work`: in place of all that is done between record and clean-up.

    Raises:
        FirnlineError: by class the reaction; nothing more was committed (unless it is a CommitUnknownError).
    """
    tools, table = job.tools, job.table
    job.moved()
    try:
        with expiry_explained(table, table.snapshot.snapshot_id if table.snapshot else None, tools.catalogs):
            (work or _done_in_order)(job)
    except Exception as failed:
        error = failed if isinstance(failed, FirnlineError) else unforeseen(job.what, failed)
        if not isinstance(error, CommitUnknownError):  # who has taken over is the reason, however it was noticed
            error = tools.right.lost() or error
        told = str(error if isinstance(failed, FirnlineError) else failed)
        told += f" (after {job.commits} commits of the run)" if job.commits else ""
        tools.listener(RunFailed.of(error, job.run_id, table.name, job.stage, told))
        if error is failed:
            raise
        raise error from failed


def _done_in_order(job: Job[Any]) -> None:
    tools, store = job.tools, Unavailable()
    outputs = job.begin()
    records = OutputRecords(tools.records, tools.catalogs, tools.cache, tools.right, tools.listener)
    name = job.table.name
    supervisor = RunSupervisor(
        tools.records, job.cancel, tools.lease_seconds, tools.check_seconds, lambda: tools.lifelines.stalled(name)
    )
    with (
        job.around(),
        nullcontext() if outputs is None else records.around(job.run_id, job.table, *outputs) as job.record,
        supervisor.watch(job.record, job.switches, job.what) as job.watch,
    ):
        for part in job.parts():
            job.stage = job.kind
            started = tools.ticks()
            ran = Pool(job, tools.slots, job.watch.stopped, store).run(part.pieces)
            ran = replace(ran, seconds=tools.ticks() - started)
            failed = {
                group: _given_up_again(job, group, error) if group in ran.at_fault else error
                for group, error in job.checked(part, ran).items()
            }
            hold(job, failed)
            job.leave(failed)
            if job.commit(part):
                job.commits += 1
                store.end()
        job.end()
    rolls_back = job.commits > 0 and tools.committing.rolls_back(job.table)
    if job.record is not None and job.leftovers is None:
        records.abandon(job.record, rolls_back=rolls_back)
    elif job.record is not None:
        records.close(job.record, clean=bool(job.leftovers), rolls_back=rolls_back)


def hold(job: Job[Any], failed: Mapping[int, FirnlineError]) -> None:
    """The next jobs of this kind leave out the files of these groups for a while, unless they are planned again."""
    held = [(job.paths(group), error) for group, error in failed.items() if not isinstance(error, ReplanError)]
    job.tools.files.note(job.table, held, job.holds)


def _given_up_again(job: Job[Any], group: int, error: FirnlineError) -> FirnlineError:
    """The error of a group that the store did not answer for, although it answered for others.

    If the last job met the same, the fault is the group's own, and it is given up.
    """
    failures = job.tools.files.failures(job.table.name, frozenset(job.paths(group)), job.holds)
    if not failures or not isinstance(error, RetryError):
        return error
    given_up = GiveUpError(f"{error}, again, while other files were read and written", reason=error.reason)
    given_up.__cause__ = error
    return given_up
