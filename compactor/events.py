"""Typed events that the compactor and the stream publish. `metrics/` counts them, the log prints them.

All durations are seconds, all sizes bytes. `reason` fields are slugs from bounded sets, fit for metric labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from compactor.errors import FirnlineError
from compactor.partitions import JsonValue, PartitionKey
from compactor.redaction import hide
from compactor.table_names import TableName


@dataclass(frozen=True)
class RunPlanned:
    """A run of one table was planned: it will rewrite `groups` file groups."""

    run_id: str
    table: TableName
    groups: int
    files: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class RunSkipped:
    """A due table was deliberately not rewritten."""

    table: TableName
    reason: str


@dataclass(frozen=True)
class SkippedPartition:
    """A partition that is not rewritten. `files`, `bytes`: its small files."""

    key: PartitionKey
    partition: Mapping[str, JsonValue]
    why: str
    files: int
    bytes: int


@dataclass(frozen=True)
class PartitionsSkipped:
    """Partitions with debt that are not rewritten now. No partitions: the whole table.

    `reason`: `not_due` (the ledger's counts), `declined` (a plan that read the partition's files), `not_acted_on` (the
    table is only observed), or why its equality deletes are not converted.
    """

    table: TableName
    snapshot_id: int | None
    reason: str
    partitions: tuple[SkippedPartition, ...] = ()


@dataclass(frozen=True)
class GroupPlan:
    """The decision about one file group, made from metadata. `why`: a sentence; `strategy`: a name."""

    partition: Mapping[str, JsonValue] = field(default_factory=dict)
    why: str = ""
    strategy: str = ""
    snapshot_id: int | None = None
    engine: str = ""
    engine_reason: str = ""
    files: int = 0
    bytes: int = 0
    branch: str = "main"


@dataclass(frozen=True)
class RunMoved:
    """A run wrote an output. `tasks` and `bytes`: of the whole run; bytes are those of its input files."""

    run_id: str
    table: TableName
    tasks_done: int
    tasks: int
    bytes_done: int
    bytes: int


@dataclass(frozen=True)
class GroupRewritten:
    """A file group's outputs are written and their row count is checked. Not committed yet."""

    run_id: str
    table: TableName
    key: PartitionKey
    engine: str
    reason: str
    files_in: int
    files_out: int
    bytes_in: int
    bytes_out: int
    rows_in: int
    rows_deleted: int
    rows_out: int
    seconds: float
    bytes_decoded: int = 0
    plan: GroupPlan = field(default_factory=GroupPlan)


@dataclass(frozen=True)
class GroupCommitted:
    """A commit replaced a file group's inputs by its outputs.

    `delete_files_removed`: of the whole commit. `rows_carried`: deleted rows that the outputs hold, deleted there too.
    `rows_rebased`: rows that other commits deleted while the group was rewritten.
    """

    rewritten: GroupRewritten
    snapshot_id: int
    delete_files_removed: int = 0
    rows_carried: int = 0
    rows_rebased: int = 0


@dataclass(frozen=True)
class GroupDropped:
    """A file group could not be rewritten. Its files are unchanged; the run continues without it."""

    run_id: str
    table: TableName
    key: PartitionKey
    reason: str
    reaction: str
    message: str
    plan: GroupPlan = field(default_factory=GroupPlan)


@dataclass(frozen=True)
class RunCommitted:
    """A run ended with a commit. A long run commits several `replace` snapshots; `snapshot_id` is the last.

    `event_to_compacted_seconds`: from the oldest event that the run settles to its commit.
    """

    run_id: str
    table: TableName
    snapshot_id: int
    groups: int
    files_in: int
    files_out: int
    bytes_in: int
    bytes_out: int
    plan_seconds: float
    rewrite_seconds: float
    commit_seconds: float
    event_to_compacted_seconds: float | None = None
    delete_files_removed: int = 0


@dataclass(frozen=True)
class RunFailed:
    """A run ended by an error, maybe after a part was committed.

    `stage`: plan, convert, rewrite, hold, commit or manifests; `reaction`: of the error's class.
    """

    run_id: str
    table: TableName
    stage: str
    reason: str
    reaction: str
    message: str

    @classmethod
    def of(
        cls, error: FirnlineError, run_id: str, table: TableName, stage: str, message: str | None = None
    ) -> RunFailed:
        """The event of an error; `message`: the error's own if None."""
        return cls(
            run_id=run_id,
            table=table,
            stage=stage,
            reason=error.reason,
            reaction=error.reaction,
            message=str(error) if message is None else hide(message),
        )


@dataclass(frozen=True)
class RunWouldRewrite:
    """Observe mode: the size of the run that was not started. Nothing was written."""

    table: TableName
    groups: int
    files: int
    files_after: int
    bytes: int


@dataclass(frozen=True)
class ManifestsRead:
    """Manifests that a plan or a recount needed: found in memory (`hits`), on disk, or read from the store (`misses`).

    `unusual`: manifests that only the slow reference decoder could read. `bytes_read`: from the store.
    """

    table: TableName
    hits: int
    misses: int
    bytes_read: int
    seconds: float
    disk_hits: int = 0
    unusual: int = 0


@dataclass(frozen=True)
class LedgerUpdated:
    """The ledger counted a table up to `snapshot_id`, or a part of it if not `counted`.

    `recount_reason`: of a recount that this look begins; else None.
    `event_to_ledger_seconds`: age of the oldest event that the count answers; None if no writer's event led to it.
    """

    table: TableName
    snapshot_id: int | None
    recount_reason: str | None = None
    counted: bool = True
    event_to_ledger_seconds: float | None = None


@dataclass(frozen=True)
class EventsHeard:
    """Usable events of one micro-batch, by decoder."""

    by_source: Mapping[str, int]


@dataclass(frozen=True)
class CommitUnannounced:
    """A look found commits that are more than a minute old and had no event. `source`: of the table's last event."""

    table: TableName
    source: str


@dataclass(frozen=True)
class HttpEventAnswered:
    """An event came by HTTP. `result`: accepted, ignored (no commit), refused (not usable), busy (to be sent again),
    unauthorized, closed (the service only observes).
    """

    result: str


@dataclass(frozen=True)
class TableLooked:
    """The ledger looked at a table. `outcome`: counted, unchanged, counting, missing or unreadable."""

    table: TableName
    outcome: str


@dataclass(frozen=True)
class CatalogAnswers:
    """A catalog stopped answering, or answers again."""

    catalog: str
    available: bool
    message: str = ""


@dataclass(frozen=True)
class TableUnreadable:
    """A table could not be loaded or counted. It is marked stale and retried; other tables are not affected."""

    table: TableName
    reason: str
    message: str


@dataclass(frozen=True)
class DeadLettered:
    """Events that no decoder could read were sent to the dead-letter topic."""

    reason: str
    count: int


@dataclass(frozen=True)
class BatchFinished:
    """A micro-batch of the stream ended; without rows also: the query waits for events."""

    query: str
    seconds: float
    input_rows: int


@dataclass(frozen=True)
class LagChanged:
    """How many offsets of the topics a query's last batch has not read."""

    query: str
    offsets: int


@dataclass(frozen=True)
class StreamEnded:
    """A streaming query ended and is started again."""

    query: str
    cause: str


@dataclass(frozen=True)
class EventsLost:
    """The query went on from the end of the topics. `count`: offsets that it has skipped, at least 1."""

    query: str
    count: int


@dataclass(frozen=True)
class FileDeleted:
    """A file of a table was deleted, also one of its metadata. `reason`: one of `commit/deletion.py`."""

    table: TableName
    run_id: str
    path: str
    reason: str


@dataclass(frozen=True)
class DeletionRefused:
    """A record of a run names files that are not the run's own; they stay. `why`: a clause."""

    table: TableName
    run_id: str
    paths: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class ManifestsRewritten:
    """Manifests were merged and ordered by partition: `before` became `after`. No data file changed.

    `after` is `before` if the table could not be read after the commit.
    """

    run_id: str
    table: TableName
    before: int
    after: int
    seconds: float


@dataclass(frozen=True)
class CommitWaits:
    """A finished rewrite begins to wait for a row-level commit of another writer, for at most so many `seconds`."""

    run_id: str
    table: TableName
    seconds: float


@dataclass(frozen=True)
class CommitHeld:
    """A finished rewrite waited for a row-level commit of another writer; `after_writer`: there was one."""

    run_id: str
    table: TableName
    seconds: float
    after_writer: bool


@dataclass(frozen=True)
class CommitRolledBack:
    """The catalog has removed a run's snapshot, for a writer that committed after it. It is committed again."""

    run_id: str
    table: TableName
    snapshot_id: int


@dataclass(frozen=True)
class EqualityDeletesConverted:
    """Equality deletes were replaced by deletes of positions. No data file changed.

    Attributes:
        delete_files: Equality delete files that are gone.
        rows: Rows that are now deleted by position.
        files: Data files that were searched.
        bytes_read: Of these data files.
    """

    run_id: str
    table: TableName
    snapshot_id: int
    delete_files: int
    rows: int
    files: int
    bytes_read: int
    seconds: float


@dataclass(frozen=True)
class HookFinished:
    """A refresh hook was called after a commit. `error`: why it failed, empty if it succeeded."""

    hook: str
    table: TableName
    seconds: float
    error: str


@dataclass(frozen=True)
class HistoryWritten:
    """An append to the history table: `rows` written, or the `error` before its retry. `dropped`: rows lost."""

    rows: int
    dropped: int = 0
    error: str = ""


Event = (
    RunPlanned
    | RunSkipped
    | PartitionsSkipped
    | RunMoved
    | GroupRewritten
    | GroupCommitted
    | GroupDropped
    | RunCommitted
    | RunFailed
    | RunWouldRewrite
    | ManifestsRead
    | EventsHeard
    | CommitUnannounced
    | HttpEventAnswered
    | TableLooked
    | LedgerUpdated
    | TableUnreadable
    | CatalogAnswers
    | DeadLettered
    | BatchFinished
    | LagChanged
    | StreamEnded
    | EventsLost
    | FileDeleted
    | DeletionRefused
    | HookFinished
    | HistoryWritten
    | ManifestsRewritten
    | EqualityDeletesConverted
    | CommitWaits
    | CommitHeld
    | CommitRolledBack
)

Listener = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """Listener that does nothing."""
