"""The state machine with Spark beside PyIceberg: SQL, procedures, Iceberg's Java library, and our own rewrites.

After a rewrite of our own the table has less debt than before, nobody is asked to rewrite anything, and without another
commit of a writer the service finds nothing more to rewrite.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import strategies as st
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table

from compactor.errors import FirnlineError, StoppedError
from compactor.events import RunSkipped
from compactor.partitions import PartitionKey
from compactor.planning.budget import NO_GRANT
from compactor.planning.plan_table import Request, plan_table
from compactor.reasons import Reason
from compactor.runs.table_planner import TablePlanner
from compactor.runs.table_worker import RewriteWorker
from compactor.settings.tree import Settings
from compactor.table_names import TableName
from streaming.wiring import Rewriting
from tests.conftest import Lake
from tests.ledger import spark_commits as spark
from tests.ledger.machine import COUNT, PART, WHERE, LedgerMachine
from tests.ledger.recount import LiveFile, Truth
from tests.ledger.rules import FIGURES, INDEX, change, commits

V3 = 3
MOST_RUNS = 5
KEPT = 0.9  # of the inputs' bytes: outputs of about the planned sizes
MODE = st.sampled_from(["copy-on-write", "merge-on-read"])
BY = ("", "PARTITIONED BY (p)", "PARTITIONED BY (days(day), p)")


def by_spark(operation: Any, **more: Any) -> Any:
    """A rule for a function of `spark_commits`."""
    return commits(operation, up_to=V3, lake=True, **more)


class SparkLedgerMachine(LedgerMachine):
    """`lake`: the catalog as Spark sees it; `parts`: what `firnline run` and `compact` rewrite with."""

    lake: ClassVar[Lake]
    parts: ClassVar[Rewriting]
    newest_version = V3

    def settings(self, strategy: str, manifests_per_look: int) -> Settings:
        made = super().settings(strategy, manifests_per_look)
        policy = made.policy.model_copy(update={"min_row_group_size": 0})
        manifests = made.manifests.model_copy(update={"min_count": 4, "min_reduction": 1.5})
        return made.model_copy(update={"policy": policy, "manifests": manifests})

    def make(self, name: TableName) -> None:
        version, spec, target = self.default
        self.tables.create(name, min(version, 2), spec, target)
        table = self.existing(name)
        spark.set_property(self.lake, table, "write.distribution-mode", "none")
        if version == V3:
            spark.set_property(self.lake, table, "format-version", str(V3))

    def append_something(self, name: TableName, part: str = "a") -> None:
        table = self.existing(name)
        if table.format_version < V3:
            super().append_something(name, part)
        else:
            spark.append(self.lake, table, part, [1, 60], fast=True)

    # --- rows ---------------------------------------------------------------------------------------------------------

    spark_insert = by_spark(spark.insert, part=PART, count=st.sampled_from([1, 60, 1000]))
    spark_insert_overwrite = by_spark(
        spark.insert_overwrite, part=PART, count=COUNT, mode=st.sampled_from(["static", "dynamic"])
    )
    spark_delete = by_spark(spark.delete, mode=MODE, where=st.sampled_from(WHERE))
    spark_merge = by_spark(spark.merge, mode=MODE, part=PART, first=INDEX)

    # --- files --------------------------------------------------------------------------------------------------------

    java_append = by_spark(
        spark.append, part=PART, counts=st.lists(st.sampled_from([1, 60]), min_size=1, max_size=2), fast=st.booleans()
    )
    java_overwrite = by_spark(spark.overwrite_files, part=PART, count=COUNT)
    java_delete_positions = by_spark(spark.delete_positions, when=spark.may_delete, seed=INDEX)
    java_delete_equal = by_spark(spark.delete_equal, when=spark.may_delete, count=COUNT)

    # --- maintenance by others, snapshots and branches ----------------------------------------------------------------

    rewrite_data_files = by_spark(spark.rewrite_data_files, everything=st.booleans())
    rewrite_position_deletes = by_spark(spark.rewrite_position_deletes, when=spark.may_delete)
    rewrite_manifests = by_spark(spark.rewrite_manifests)
    spark_expire = by_spark(spark.expire, keep=st.integers(1, 2), clean=st.booleans())
    spark_roll_back = by_spark(spark.roll_back)
    spark_set_current = by_spark(spark.set_current, which=INDEX)
    spark_cherry_pick = by_spark(spark.cherry_pick, which=INDEX)
    spark_stage = by_spark(spark.stage, part=PART, overwrites=st.booleans(), publish=st.booleans())
    spark_insert_into_branch = by_spark(spark.insert_into_branch, part=PART, count=COUNT)
    spark_fast_forward = by_spark(spark.fast_forward)

    # --- metadata -----------------------------------------------------------------------------------------------------

    spark_change_spec = by_spark(spark.change_spec, name=st.sampled_from(sorted(spark.FIELDS)))
    spark_change_column = by_spark(spark.change_column, what=st.sampled_from(["note", "widen", "drop"]))
    spark_set_property = by_spark(spark.set_fewest, fewest=st.sampled_from(["2", "3", "5"]))
    spark_upgrade = by_spark(spark.upgrade)
    spark_replace_table = by_spark(spark.replace_table, count=st.integers(0, 3), by=st.sampled_from(BY))

    # --- rewrites of our own ------------------------------------------------------------------------------------------

    @change(up_to=V3, force=st.booleans())
    def compact(self, table: Table, force: bool) -> None:
        """`firnline compact`, in another process: the service hears of it as of any other commit."""
        view = self.catalogs.load(self.name_of(table))
        policy = self.under_test.settings.policy.for_table(view.name, view.properties)
        plan = plan_table(view, policy, self.parts.cache, Request(force=force))
        if plan.has_work:
            with self.refusal_counted():
                self.parts.rewriter.run(plan)

    @change(up_to=V3, force=st.booleans())
    def rewrite(self, table: Table, force: bool) -> None:
        """The service rewrites what the board says, which may be old."""
        name = self.name_of(table)
        if force:
            self.under_test.board.request(name, [""])
        self.work(name)

    @change(up_to=V3)
    def rewrite_until_nothing_is_due(self, table: Table) -> None:
        """With counts that are up to date: one run is followed by none, unless its outputs are smaller than planned.

        The files of these tables hold few rows beside a footer, and rewritten ones share it: the outputs of many files
        can be small again, and are merged further.
        """
        name, board = self.name_of(table), self.under_test.board
        self.look_at_everything()
        for _ in range(MOST_RUNS):
            debt, before = board.get(name), self.existing(name)
            if debt is None or not debt.acted_on or not debt.has_work:
                return
            told = len(self.under_test.published)
            has_run = self.work(name)
            if any(
                isinstance(event, RunSkipped) and event.reason == Reason.UNPUBLISHED
                for event in self.under_test.published[told:]
            ):
                return  # main waits for a branch or a staged snapshot that is to be published
            self.look_at_everything()
            debt, files, now = board.get(name), self.data_files_of(before), self.data_files_of(self.existing(name))
            assert debt is not None
            read, written = _bytes_by_partition(files - now), _bytes_by_partition(now - files)
            again = [each for each in debt.due if written[each.key] >= KEPT * read[each.key]]
            assert not has_run or not again, f"{name}: due after our own commit: {again}"
        debt = board.get(name)
        assert debt is None or not debt.has_work, f"{name}: still due after {MOST_RUNS} runs: {debt}"

    def data_files_of(self, table: Table) -> Counter[LiveFile]:
        live = self.truths.of(table.metadata.current_snapshot_id).files
        return Counter(file for file in live if file.content == DataFileContent.DATA)

    def work(self, name: TableName) -> bool:
        """What the dispatcher does with a table; whether data files were rewritten."""
        ledger, debt = self.under_test, self.under_test.board.get(name)
        if debt is None:
            return False
        waiting, before = debt.waiting_since, self.existing(name)
        tools = replace(
            self.parts.rewriter,
            catalogs=self.catalogs,
            cache=ledger.plans,
            listener=ledger.published.append,
            clock=lambda: ledger.clock.wall,
        )
        planner = TablePlanner(tools, ledger.settings, ledger.board, planned=ledger.ledger.driver.planned)
        worker = RewriteWorker(planner, self.parts.rewriter, ledger.ledger.driver.look_soon)
        with self.refusal_counted():
            worker.work(debt, lambda: False, NO_GRANT, lambda _spent: None)
        ledger.board.drop_requests(name)
        after = self.existing(name)
        self.truths.note(after)
        self.check_our_commits(name, before, after, waiting)
        return _rewrote_data(before, after)

    def check_our_commits(self, name: TableName, before: Table, after: Table, waiting: float | None) -> None:
        ours = [each for each in after.snapshots() if before.snapshot_by_id(each.snapshot_id) is None]
        assert all(_operation(each) == "replace" for each in ours), f"{name}: our commit is no replace"
        if ours:
            was, now = (_files(self.truths.of(table.metadata.current_snapshot_id)) for table in (before, after))
            grew = {kind: number for kind, number in now.items() if number > was[kind]}
            assert not grew, f"{name}: our commit left more files: {grew}, before {was}"
            assert now.total() < was.total() or not _rewrote_data(before, after), f"{name}: as many files as before"
        board = self.under_test.board
        debt = board.get(name)
        assert board.requests(name) == (), f"{name}: our commit asks for a rewrite"
        assert debt is None or debt.waiting_since in (None, waiting), f"{name} waits since our own commit"

    @staticmethod
    def refusal_counted() -> Any:
        return _Refusals()

    def name_of(self, table: Table) -> TableName:
        return next(name for name in self.tables.names if name.identifier == table.name())


class _Refusals:
    """Runs that end with an error of firnline's: counted by reason. One that nobody foresaw fails the sequence."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, FirnlineError) or error.reason is Reason.UNEXPECTED:
            return False
        FIGURES.by_kind[f"(a run ended: {'switched off' if isinstance(error, StoppedError) else error.reason})"] += 1
        return True


def _operation(snapshot: Any) -> str:
    return snapshot.summary.operation.value


def _rewrote_data(before: Table, after: Table) -> bool:
    ours = [each for each in after.snapshots() if before.snapshot_by_id(each.snapshot_id) is None]
    return any(each.summary.additional_properties.get("deleted-data-files", "0") != "0" for each in ours)


def _files(truth: Truth) -> Counter[DataFileContent]:
    """Live files by kind."""
    return Counter(file.content for file in truth.files)


def _bytes_by_partition(files: Counter[LiveFile]) -> Counter[PartitionKey]:
    found = Counter[PartitionKey]()
    for file, times in files.items():
        found[file.key] += file.size * times
    return found
