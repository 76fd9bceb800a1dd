"""How late a writer without events is heard of, and how rarely a table is looked at whose commits all have events.

A day in the life of one table: its commits and events, the looks that events ask for, and the sweeps of the schedule.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from pyiceberg.table.metadata import SnapshotLogEntry
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from compactor.iceberg.tables import TableView
from compactor.table_names import TableName
from streaming.ledger.rhythm import BEHIND_SECONDS, RARELY, SELDOM, UNKNOWN, Commits, Rhythm, due, wanted_seconds
from streaming.ledger.table_record import Asked, Lane
from tests.properties.table_history import NAME
from tests.unit.streaming.ledger.scene import NOW, Scene

HOUR = 3600
SWEEP = 300.0
ROUND_SECONDS = 5
KEPT_SNAPSHOTS = 100


@dataclass(frozen=True)
class Writer:
    """Commits `every` so many seconds, `burst` times one minute apart, from `first` on.

    `events`: how many seconds after a commit its event arrives, of one commit after the other; none: never.
    `skew`: of the event's clock. `staged`: how long a commit was in another branch before it is published.
    """

    every: int
    first: int = 7
    burst: int = 1
    events: tuple[int, ...] = ()
    skew: float = 0.0
    staged: float = 0.0
    operation: Operation = Operation.APPEND

    def commits_at(self, second: int) -> bool:
        since = second - self.first
        return since >= 0 and since % self.every % 60 == 0 and since % self.every < 60 * self.burst


@dataclass
class Life:
    """`away`: when the catalog does not answer. `unread`: when the stream does not run."""

    real: TableView
    writers: tuple[Writer, ...]
    away: range = range(0)
    unread: range = range(0)
    now: float = NOW
    second: int = 0
    rhythm: Rhythm = UNKNOWN
    unannounced: int = 0
    snapshots: list[Snapshot] = field(default_factory=list)
    log: list[SnapshotLogEntry] = field(default_factory=list)
    events: list[tuple[int, float]] = field(default_factory=list)
    waiting: Asked | None = None
    counted: int = 0
    sweeps: int = 0
    late: list[float] = field(default_factory=list)
    """How late each commit without an event was found."""
    silent: dict[int, float] = field(default_factory=dict)

    def live(self, hours: int) -> Life:
        asked_at: dict[TableName, float | None] = {NAME: self.now}
        for self.second in range(hours * HOUR):
            self.now = NOW + self.second
            for number, writer in enumerate(self.writers):
                if writer.commits_at(self.second):
                    self.commit(number, writer)
            while self.events and self.events[0][0] <= self.second and self.second not in self.unread:
                _, happened_at = heapq.heappop(self.events)
                self.rhythm = self.rhythm.heard("s3", happened_at)
                self.ask(Asked(Lane.EVENT, happened_at))
            if self.second % ROUND_SECONDS == 0:
                behind = self.second in self.unread
                wanted = {NAME: wanted_seconds(self.rhythm, self.now, SWEEP, behind=behind)}
                if due(wanted, asked_at, self.now, 200.0, ROUND_SECONDS):
                    asked_at[NAME] = self.now
                    self.sweeps += not behind
                    self.ask(Asked(Lane.SWEEP))
            self.look()
        return self

    def commit(self, number: int, writer: Writer) -> None:
        parent = self.snapshots[-1].snapshot_id if self.snapshots else None
        made = Snapshot(
            snapshot_id=1_000_000 + self.second * 10 + number, parent_snapshot_id=parent, sequence_number=1,
            timestamp_ms=int((self.now - writer.staged) * 1000), manifest_list="x", summary=Summary(writer.operation),
        )  # fmt: skip
        self.snapshots.append(made)
        self.log.append(SnapshotLogEntry(snapshot_id=made.snapshot_id, timestamp_ms=int(self.now * 1000)))
        if writer.events:
            delay = writer.events[len(self.snapshots) % len(writer.events)]
            heapq.heappush(self.events, (self.second + delay, self.now + writer.skew))
        elif writer.operation is Operation.REPLACE:  # ours: we ask for a look
            self.ask(Asked(Lane.EVENT))
        else:
            self.silent[made.snapshot_id] = self.now

    def ask(self, asked: Asked) -> None:
        self.waiting = asked if self.waiting is None else self.waiting.joined(asked)

    def look(self) -> None:
        asked = self.waiting
        if asked is None or self.second in self.away or not self.snapshots:
            return
        self.waiting = None
        head = self.snapshots[-1].snapshot_id
        if head == self.counted:
            return
        self.counted = head
        commits = Commits.of(self.view(head), self.rhythm)
        self.rhythm, untold = self.rhythm.counted(
            commits, self.now, swept=asked.lane is Lane.SWEEP, oldest_event=asked.oldest_event,
            behind=self.second in self.unread,
        )  # fmt: skip
        self.unannounced += untold
        self.late += [self.now - at for at in self.silent.values()]
        self.silent.clear()

    def view(self, head: int) -> TableView:
        changed = {
            "snapshots": self.snapshots[-KEPT_SNAPSHOTS:],
            "snapshot_log": self.log[-KEPT_SNAPSHOTS:],
            "current_snapshot_id": head,
            "refs": {"main": SnapshotRef(snapshot_id=head, snapshot_ref_type=SnapshotRefType.BRANCH)},
        }
        return replace(self.real, metadata=self.real.metadata.model_copy(update=changed))


Lives = Callable[..., Life]


@pytest.fixture
def lives(scene: Scene) -> Lives:
    def life(*writers: Writer, hours: int = 12, **away: range) -> Life:
        return Life(scene.history.view(), writers, **away).live(hours)

    return life


def test_a_writer_without_events_is_found_beside_one_with_events(lives: Lives) -> None:
    """Each event makes sweeps rare; what the look for it finds besides shows that they must not be."""
    life = lives(Writer(3000, events=(1,)), Writer(30))
    late = life.late[HOUR // 30 :]
    assert max(late) <= 30.0
    assert life.unannounced > 12, "it is shown again and again"


@pytest.mark.parametrize("announcing", [Writer(3000, events=(1,)), Writer(3000, burst=5, events=(1, 3))])
@pytest.mark.parametrize("silent", [Writer(60, 11), Writer(420, 11), Writer(1260, 11), Writer(2400, 11)])
def test_it_is_found_within_four_sweep_intervals_after_the_first_time(
    lives: Lives, announcing: Writer, silent: Writer
) -> None:
    life = lives(announcing, silent)
    first = 2 * HOUR // silent.every
    assert max(life.late[first:]) <= SELDOM * SWEEP + ROUND_SECONDS
    assert max(life.late) <= RARELY * SWEEP + ROUND_SECONDS
    assert life.unannounced


HEALTHY = {
    "often": Writer(60, events=(1,)),
    "seldom": Writer(1200, events=(1,)),
    "bursts": Writer(3000, burst=9, events=(1,)),
    "events come within a minute": Writer(611, events=(50,)),
    "events in another order": Writer(120, events=(1, 200)),
    "events of two sources": Writer(900, events=(1, 40)),
    "the source's clock is fast": Writer(600, events=(1,), skew=900.0),
    "the source's clock is slow": Writer(600, events=(1,), skew=-900.0),
    "published after a check in a branch": Writer(600, events=(1,), staged=3000.0),
}


@pytest.mark.parametrize("writer", HEALTHY.values(), ids=HEALTHY)
def test_a_table_whose_commits_all_have_events_is_looked_at_rarely(lives: Lives, writer: Writer) -> None:
    ours = Writer(writer.every, writer.first + 33, operation=Operation.REPLACE)
    life = lives(writer, ours)
    assert life.sweeps <= 12 + 2, "one an hour, and those before the first event"
    assert (life.late, life.unannounced) == ([], 0)


def test_a_table_whose_events_come_within_minutes_is_looked_at_rarely(lives: Lives) -> None:
    """Sweeps find some of its commits before their event."""
    life = lives(Writer(611, events=(240,)), hours=48)
    assert life.unannounced, "they are more than a minute old"
    assert life.sweeps <= 48 + 2


@pytest.mark.parametrize("trouble", ["away", "unread"])
@pytest.mark.parametrize("writer", [Writer(60, events=(1,)), Writer(500, events=(1,))])
def test_trouble_of_the_catalog_or_of_the_stream_is_no_silence(lives: Lives, writer: Writer, trouble: str) -> None:
    """Their events are read later, or their looks come later: many for one look."""
    life = lives(writer, **{trouble: range(2 * HOUR, 3 * HOUR)})
    assert life.sweeps <= 12 + 2
    assert life.unannounced == 0


def test_a_table_is_trusted_again_an_hour_after_its_last_commit_without_an_event(lives: Lives) -> None:
    life = lives(Writer(600, events=(1,)), Writer(14 * HOUR, 3 * HOUR + 100), hours=14)
    assert len(life.late) == life.unannounced == 1
    assert life.sweeps <= 14 + 2 + RARELY, "twice between two commits, for an hour"
    assert BEHIND_SECONDS < wanted_seconds(life.rhythm, life.now, SWEEP) == RARELY * SWEEP
