"""Typed events: what the compactor and the stream tell whoever listens. The metrics room counts them; logs print them.

All durations are seconds, all sizes bytes. `reason` fields are slugs from bounded sets, fit for metric labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from compactor.partitions import JsonValue, PartitionKey
from compactor.table_names import TableName


@dataclass(frozen=True)
class RunPlanned:
    """A rewrite run of one table was planned: `groups` groups (one per partition and bucket) will be rewritten."""

    run_id: str
    table: TableName
    groups: int
    files: int
    bytes: int
    seconds: float


@dataclass(frozen=True)
class RunSkipped:
    """A due table was looked at and deliberately left alone. Decisions not to act are counted too."""

    table: TableName
    reason: str


@dataclass(frozen=True)
class SkippedPartition:
    """A partition that is left as it is. `files`, `bytes`: its small ones."""

    key: PartitionKey
    partition: Mapping[str, JsonValue]
    why: str
    files: int
    bytes: int


@dataclass(frozen=True)
class PartitionsSkipped:
    """Partitions with debt that are not rewritten now; none named: the whole table.

    `reason`: `not_due` by the ledger's counts, `declined` by a plan that looked at their files, `not_acted_on`: the
    table is only watched.
    """

    table: TableName
    snapshot_id: int | None
    reason: str
    partitions: tuple[SkippedPartition, ...] = ()


@dataclass(frozen=True)
class GroupPlan:
    """What was decided about one group before a byte of it was read, and why: `why` in words, `strategy` by name."""

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
class GroupRewritten:
    """One group's new files are written and its row count is checked; nothing is committed yet."""

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
    """One group's new files have taken the place of its old ones. `delete_files_removed`: by the whole commit."""

    rewritten: GroupRewritten
    snapshot_id: int
    delete_files_removed: int = 0


@dataclass(frozen=True)
class GroupDropped:
    """One group could not be rewritten; the run goes on without it and its files are as they were."""

    run_id: str
    table: TableName
    key: PartitionKey
    reason: str
    reaction: str
    message: str
    plan: GroupPlan = field(default_factory=GroupPlan)


@dataclass(frozen=True)
class RunCommitted:
    """One `replace` snapshot holds the whole run; a long one takes several, `snapshot_id` is the last.

    `event_to_compacted_seconds`: since the oldest event it settles.
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
    """A run ended without a commit. `stage`: plan, rewrite, commit, manifests; `reaction`: what its class asks for."""

    run_id: str
    table: TableName
    stage: str
    reason: str
    reaction: str
    message: str


@dataclass(frozen=True)
class RunWouldRewrite:
    """Observe mode: what a run would have done. Nothing was written."""

    table: TableName
    groups: int
    files: int
    files_after: int
    bytes: int


@dataclass(frozen=True)
class ManifestsRead:
    """Manifests wanted by a plan or a recount: found in memory or on disk, or read from the store (`bytes_read`).

    `prefetched`: read before anybody asked; `foreseen`: found in memory for that reason, each counted once. `unusual`:
    manifests that only the slow reference decoder could read.
    """

    table: TableName
    hits: int
    misses: int
    bytes_read: int
    seconds: float
    disk_hits: int = 0
    prefetched: int = 0
    foreseen: int = 0
    unusual: int = 0


@dataclass(frozen=True)
class LedgerUpdated:
    """The ledger has counted a table up to `snapshot_id`. `recount_reason` is None for an incremental walk."""

    table: TableName
    snapshot_id: int | None
    events_by_source: dict[str, int] = field(default_factory=dict)
    recount_reason: str | None = None
    event_to_ledger_seconds: float | None = None


@dataclass(frozen=True)
class TableUnreadable:
    """A table could not be loaded or counted; it is marked stale and tried again, the others go on."""

    table: TableName
    reason: str
    message: str


@dataclass(frozen=True)
class DeadLettered:
    """Events that no decoder or no table wanted were sent to the dead-letter topic."""

    reason: str
    count: int


@dataclass(frozen=True)
class BatchFinished:
    """One micro-batch of the stream is done. `lag_offsets`: events on the topic that the batch had not read."""

    query: str
    batch_id: int
    seconds: float
    input_rows: int
    lag_offsets: int
    state_rows: int


@dataclass(frozen=True)
class UnreferencedFilesRemoved:
    """Outputs of a crashed, failed or aborted run were deleted, after proof that no snapshot references them."""

    table: TableName
    files: int


@dataclass(frozen=True)
class ManifestsRewritten:
    """Manifests were merged and ordered by partition: `before` became `after`, with no data file touched."""

    run_id: str
    table: TableName
    before: int
    after: int
    seconds: float


@dataclass(frozen=True)
class HookFinished:
    """A refresh hook was called after a commit; `error` says why nobody was told, empty when all went well."""

    hook: str
    table: TableName
    seconds: float
    error: str


@dataclass(frozen=True)
class HistoryWritten:
    """An append to the history table: `rows`, or the `error` for which it is tried again. `dropped`: rows lost."""

    rows: int
    dropped: int = 0
    error: str = ""


Event = (
    RunPlanned
    | RunSkipped
    | PartitionsSkipped
    | GroupRewritten
    | GroupCommitted
    | GroupDropped
    | RunCommitted
    | RunFailed
    | RunWouldRewrite
    | ManifestsRead
    | LedgerUpdated
    | TableUnreadable
    | DeadLettered
    | BatchFinished
    | UnreferencedFilesRemoved
    | HookFinished
    | HistoryWritten
    | ManifestsRewritten
)

Listener = Callable[[Event], None]


def ignore(_event: Event) -> None:
    """The listener that does nothing."""
