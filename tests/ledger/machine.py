"""The state machine: random changes of two tables, events on their way, looks and restarts of the ledger in between.

After each step, what the ledger says is compared with a recount of the snapshot that it names. A table whose newest
change was announced and looked at must be counted at its newest snapshot. So must all tables after a sweep, and
at the end of each sequence.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition
from pyiceberg.table import Table

from compactor.debt import ledger as arithmetic
from compactor.events import LedgerUpdated
from compactor.iceberg.tables import Catalogs
from compactor.settings.tree import Settings
from compactor.table_names import TableName
from streaming.ledger import board_writer
from tests.ledger import pyiceberg_commits as by
from tests.ledger.checks import check_claims, check_current, check_recounts, snapshot_of
from tests.ledger.feed import BARE, FULL, LOST, NOW, READ, TOLD, Feed, Sent, heard
from tests.ledger.files import PARTS
from tests.ledger.recount import Truths
from tests.ledger.rules import FIGURES, INDEX, commits, step
from tests.ledger.tables import CATALOG, NAMESPACE, SPECS, Tables
from tests.ledger.under_test import DISK_IS_FULL, TROUBLES, LedgerUnderTest

TARGETS = (2_100, 4_000, 1_000_000)
"""Bytes. By the first, files of one or two rows are small, by the second those of sixty too, by the third all."""
ROWS = st.lists(st.sampled_from([1, 2, 60, 1000]), min_size=1, max_size=3)
PART = st.sampled_from(PARTS)
COUNT = st.integers(1, 3)
NEVER_IDLE = 1e11
WHERE = ("p = 'a'", "p = 'b'", "id < 40", "id >= 40")


class LedgerMachine(RuleBasedStateMachine):
    """Changes by PyIceberg. `folder`: of all sequences of this process; `catalogs`: over the catalog there."""

    folder: ClassVar[Path]
    catalogs: ClassVar[Catalogs]
    catalog_settings: ClassVar[dict[str, Any]]
    on_step: ClassVar[Callable[[], None]] = staticmethod(lambda: None)
    newest_version: ClassVar[int] = 2

    def __init__(self) -> None:
        super().__init__()
        number = FIGURES.sequences = FIGURES.sequences + 1
        names = (TableName(CATALOG, (NAMESPACE,), f"s{number}a"), TableName(CATALOG, (NAMESPACE,), f"s{number}b"))
        self.tables = Tables(self.catalogs.catalog(CATALOG), names)
        self.truths = Truths()
        self.feed = Feed()
        self.heard: dict[TableName, int] = {}
        self.ledger: LedgerUnderTest | None = None
        self.own_folder = Path(tempfile.mkdtemp(dir=self.folder, prefix=f"s{number}-"))
        self._constants = (arithmetic.FILES_PER_LOOK, arithmetic.SLOTS, board_writer.CACHED_FROM)

    @initialize(
        version=st.sampled_from([2, 1, 3]),
        spec=st.sampled_from(sorted(SPECS)),
        target_size=st.sampled_from(TARGETS),
        manifests_per_look=st.sampled_from([1, 3, 500]),
        files_per_look=st.sampled_from([1, 250_000]),
        slots=st.sampled_from([1, 256]),
        cached_from=st.sampled_from([0, 1_000]),
        strategy=st.sampled_from(["tiered", "threshold"]),
        leased=st.booleans(),
    )
    def begin(
        self,
        version: int,
        spec: str,
        target_size: int,
        manifests_per_look: int,
        files_per_look: int,
        slots: int,
        cached_from: int,
        strategy: str,
        leased: bool,
    ) -> None:
        arithmetic.FILES_PER_LOOK, arithmetic.SLOTS = files_per_look, slots
        board_writer.CACHED_FROM = cached_from
        settings = self.settings(strategy, manifests_per_look)
        self.ledger = LedgerUnderTest(settings, self.catalogs, self.own_folder, leased=leased)
        self.default = (min(version, self.newest_version), spec, target_size)
        name = self.tables.names[0]
        self.make(name)
        for part in PARTS[:2]:
            self.append_something(name, part)
        self.announce(name, NOW)

    def settings(self, strategy: str, manifests_per_look: int) -> Settings:
        return Settings(
            catalogs={CATALOG: self.catalog_settings},
            tables={"include": [f"{NAMESPACE}.*"]},
            policy={"strategy": strategy, "min_input_files": 3, "growth": 2, "settle_after_seconds": NEVER_IDLE},
            service={"manifests_per_batch": manifests_per_look, "manifest_disk_bytes": 0},
        )

    def append_something(self, name: TableName, part: str = "a") -> None:
        """What happens if a change has nothing to do."""
        by.append(self.existing(name), part, [1, 60])

    def make(self, name: TableName) -> None:
        """A new table without data."""
        self.tables.create(name, *self.default)

    def existing(self, name: TableName) -> Table:
        """The table as it is now."""
        table = self.tables.find(name)
        assert table is not None
        return table

    # --- events and looks ---------------------------------------------------------------------------------------------

    def announce(self, name: TableName, told: str) -> None:
        """One of the tables has changed; the ledger hears of it now, later or never."""
        table, ledger = self.tables.find(name), self.under_test
        self.feed.changed(name)
        if table is not None:
            self.truths.note(table)
        if told == LOST:
            return
        head = None if table is None else table.current_snapshot()
        operation = None if head is None or head.summary is None else head.summary.operation.value
        self.feed.announce(
            name, int(ledger.clock.wall * 1000), head.snapshot_id if head else None, operation, bare=told == BARE
        )
        if told in (READ, FULL):
            self.deliver([self.feed.pending.pop()])
            self.look_in_trouble(DISK_IS_FULL if told == FULL else "")
        elif told == NOW:
            before = None if self.is_waiting(name) else ledger.board.get(name)
            self.deliver([self.feed.pending.pop()])
            ledger.drain()
            after = ledger.board.get(name)
            if operation == "replace" and before is not None and after is not None:
                assert after.waiting_since == before.waiting_since, f"{name} waits since a rewrite"

    def deliver(self, records: list[Sent]) -> None:
        for record in records:
            name, known = record.table, self.under_test.ledger.driver.tables.get(record.table)
            missing = known.missing_until > self.under_test.clock.ticks
            if known.known or not missing:  # else the event is dropped: a sweep finds the table
                self.heard[name] = max(self.heard.get(name, -1), record.change)
        self.under_test.hear(heard(records))

    @property
    def under_test(self) -> LedgerUnderTest:
        assert self.ledger is not None
        return self.ledger

    def forget_what_was_heard(self) -> None:
        """From now on the ledger need not know any table, until it hears of it again."""
        self.heard = {}

    @step(
        what=st.sampled_from(["late", "late", "again", "all"]), count=st.integers(1, 5), seed=INDEX, looks=st.booleans()
    )
    def hear(self, what: str, count: int, seed: int, looks: bool) -> None:
        """Events out of order: late ones, or any that were sent before; or a sweep, which finds all changes."""
        if what == "all":
            self.look_at_everything()
            return
        self.deliver(self.feed.again(count, seed) if what == "again" else self.feed.take(count, seed))
        if looks:
            self.under_test.drain()

    @step(seed=INDEX)
    def replay(self, seed: int) -> None:
        """The whole day once more, in another order: nothing may change where everything was counted."""
        ledger = self.under_test
        ledger.drain()
        current = tuple(name for name in self.tables.names if self.is_current(name))
        before = snapshot_of(ledger, current)
        self.deliver(self.feed.again(len(self.feed.sent), seed))
        ledger.drain()
        for name, known in snapshot_of(ledger, current).items():
            assert known == before[name], f"{name}: a replay changed the ledger"

    def look_at_everything(self) -> None:
        self.under_test.sweep()
        self.heard = dict(self.feed.changes)
        self.under_test.drain()

    @step(trouble=st.sampled_from(TROUBLES), which=st.integers(0, 1))
    def look_once(self, trouble: str, which: int) -> None:
        """One look, if one is due, or at one of the tables while something does not work."""
        ledger = self.under_test
        if trouble:
            ledger.ledger.driver.look_soon(self.tables.names[which])
        self.look_in_trouble(trouble)

    def look_in_trouble(self, trouble: str) -> None:
        with self.under_test.in_trouble(trouble):
            self.under_test.look_once()
        if trouble == DISK_IS_FULL:
            self.forget_what_was_heard()  # what was counted is on the board only, until the next look

    # --- restarts -----------------------------------------------------------------------------------------------------

    @step(how=st.sampled_from(["again", "take over", "lose the state", "back up", "restore"]))
    def restart(self, how: str) -> None:
        """Another process, on the state of the last one, on none, or on that of the last backup."""
        ledger = self.under_test
        if how == "take over":
            ledger.take_over()
        elif how == "lose the state":
            ledger.lose_state()
        elif how == "back up":
            ledger.back_up()
        elif how == "restore" and ledger.has_backup:
            ledger.restore()
        else:
            ledger.restart()
        self.forget_what_was_heard()

    @step(target_size=st.sampled_from(["table", *TARGETS]), fewest=st.sampled_from([2, 3, 5]))
    def change_settings(self, target_size: str | int, fewest: int) -> None:
        """A reload of the settings file; the service then sweeps."""
        settings = self.under_test.settings
        policy = settings.policy.model_copy(update={"target_file_size": target_size, "min_input_files": fewest})
        settings.take(settings.now.model_copy(update={"policy": policy}))
        self.look_at_everything()

    # --- rows and files -----------------------------------------------------------------------------------------------

    append = commits(by.append, part=PART, counts=ROWS)
    append_rows = commits(by.append_rows, when=by.takes_rows, part=PART, count=COUNT)
    overwrite = commits(
        by.overwrite, when=by.is_rewritable, part=PART, count=COUNT, where=st.sampled_from([None, *WHERE])
    )
    overwrite_partition = commits(
        by.overwrite_partition, when=lambda table: by.is_rewritable(table) and bool(table.spec().fields), part=PART,
        count=COUNT,
    )  # fmt: skip
    delete = commits(by.delete, when=by.is_rewritable, where=st.sampled_from([*WHERE, "true"]))
    delete_positions = commits(by.delete_positions, when=by.may_delete, which=INDEX, beside=st.booleans())
    delete_equal = commits(
        by.delete_equal, when=by.may_delete, part=PART, count=COUNT, also=st.lists(st.just(2), max_size=1)
    )
    remove_deletes = commits(by.remove_deletes, when=by.may_delete, which=INDEX)
    replace_by_another = commits(by.replace, count=st.sampled_from([3, 1000]))
    merge_manifests = commits(by.merge_manifests)

    # --- snapshots and branches ---------------------------------------------------------------------------------------

    move_main = commits(by.move_main, which=INDEX)
    roll_back = commits(by.roll_back, steps=COUNT)
    stage = commits(by.stage, part=PART, counts=ROWS)
    cherry_pick = commits(by.cherry_pick)
    expire = commits(by.expire, keep=st.integers(0, 2))
    commit_to_branch = commits(by.commit_to_branch, part=PART, counts=ROWS)
    publish_branch = commits(by.publish_branch)
    drop_branch = commits(by.drop_branch)
    replace_table = commits(by.remove_main)

    # --- metadata -----------------------------------------------------------------------------------------------------

    change_spec = commits(by.change_spec, name=st.sampled_from(["p", "day", "k", "day_day", "k_bucket"]))
    change_schema = commits(by.change_schema, what=st.sampled_from(["note", "widen", "rename", "drop"]))
    change_target = commits(by.set_target, size=st.sampled_from(TARGETS))
    change_properties = commits(
        by.set_policy, fewest=st.sampled_from(["2", "3", "5"]), enabled=st.sampled_from(["true", "false"])
    )
    let_appends_merge = commits(by.let_appends_merge, merge=st.booleans())
    upgrade = commits(by.upgrade)

    # --- names --------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.tables.taken)
    @step(which=st.integers(0, 1), again=st.booleans(), told=st.sampled_from(TOLD))
    def drop(self, which: int, again: bool, told: str) -> None:
        """No event says that a table was dropped; `again`: a new one of this name is made, which may be announced."""
        name = self.tables.names[which]
        self.tables.drop(name)
        if again:
            self.make(name)
        self.announce(name, told if again else LOST)

    @precondition(lambda self: self.tables.taken)
    @step(which=st.integers(0, 1), file=INDEX, told=st.sampled_from(TOLD))
    def register(self, which: int, file: int, told: str) -> None:
        """The catalog is restored: a table goes back to an earlier metadata file, under this name or the other."""
        name = self.tables.names[which]
        self.tables.drop(name)
        self.tables.register(name, file)
        self.announce(name, told if self.tables.find(name) is not None else LOST)

    @precondition(lambda self: self.tables.taken)
    @step(told=st.sampled_from(TOLD))
    def rename(self, told: str) -> None:
        """To the name that is free; if both are taken, the tables change names."""
        names = [name for name, _ in self.tables.there()]
        if len(names) > 1:
            self.tables.swap()
        else:
            other = next(name for name in self.tables.names if name not in names)
            self.tables.rename(names[0], other)
        for name in self.tables.names:
            self.announce(name, told if self.tables.find(name) is not None else LOST)

    @precondition(lambda self: len(self.tables.taken) < len(self.tables.names))
    @step(told=st.sampled_from(TOLD))
    def create(self, told: str) -> None:
        name = next(name for name in self.tables.names if name not in self.tables.taken)
        self.make(name)
        self.announce(name, told)

    # --- the checks ---------------------------------------------------------------------------------------------------

    def is_current(self, name: TableName) -> bool:
        """Whether the ledger has heard of the newest change. Its looks may still have to come."""
        return self.heard.get(name, -1) == self.feed.changes[name]

    @invariant()
    def counts_are_exact(self) -> None:
        if self.ledger is None:
            return
        self.ledger.clock.wall += 1
        for name in self.tables.names:
            check_claims(self.ledger, self.truths, name)
            if self.is_current(name) and not self.is_waiting(name):
                check_current(self.ledger, self.truths, name, self.tables.find(name))
        check_recounts(self.ledger)
        FIGURES.steps += 1
        self.on_step()

    def is_waiting(self, name: TableName) -> bool:
        """Whether a look at the table is still to come."""
        record = self.under_test.ledger.driver.tables.get(name)
        return record.wanted is not None or record.later is not None

    def teardown(self) -> None:
        """At the end the ledger has to be exact, by a sweep alone."""
        try:
            if sys.exc_info()[0] is None and self.ledger is not None:
                self.look_at_everything()
                self.counts_are_exact()
        finally:
            arithmetic.FILES_PER_LOOK, arithmetic.SLOTS, board_writer.CACHED_FROM = self._constants
            if self.ledger is not None:
                self.note_figures(self.ledger)
                self.ledger.stop()
            self.tables.remove()
            shutil.rmtree(self.own_folder, ignore_errors=True)

    def note_figures(self, ledger: LedgerUnderTest) -> None:
        for event in ledger.published:
            if isinstance(event, LedgerUpdated):
                FIGURES.looks += 1
                FIGURES.recounts[event.recount_reason or "none: walked"] += 1
