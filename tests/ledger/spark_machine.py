"""The state machine with Spark beside PyIceberg: SQL, procedures, Iceberg's Java library, and our own rewrites.

After a rewrite of our own the table has less debt than before, nobody is asked to rewrite anything, and without another
commit of a writer the service finds nothing more to rewrite.
"""

from __future__ import annotations

from collections import Counter
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
from tests.ledger.machine import PART, WHERE, LedgerMachine
from tests.ledger.recount import LiveFile, Truth
from tests.ledger.rules import FIGURES, INDEX, change

V3 = 3
MOST_RUNS = 5
KEPT = 0.9  # of the inputs' bytes: outputs of about the planned sizes
FIELDS = {"p": "{c2}", "day_day": "days({c3})", "k_bucket": "bucket(2, {c4})", "id_trunc": "truncate(100, {c1})"}
BY = ("", "PARTITIONED BY (p)", "PARTITIONED BY (days(day), p)")


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

    @change(up_to=V3, part=PART, count=st.sampled_from([1, 60, 1000]))
    def spark_insert(self, table: Table, part: str, count: int) -> None:
        spark.insert(self.lake, table, part, count)

    @change(up_to=V3, part=PART, count=st.integers(1, 3), mode=st.sampled_from(["static", "dynamic"]))
    def spark_insert_overwrite(self, table: Table, part: str, count: int, mode: str) -> None:
        spark.insert_overwrite(self.lake, table, part, count, mode)

    @change(up_to=V3, mode=st.sampled_from(["copy-on-write", "merge-on-read"]), where=st.sampled_from(WHERE))
    def spark_delete(self, table: Table, mode: str, where: str) -> None:
        if table.format_version > 1:
            spark.set_mode(self.lake, table, _possible(table, mode))
        spark.delete(self.lake, table, where)

    @change(up_to=V3, mode=st.sampled_from(["copy-on-write", "merge-on-read"]), part=PART, first=INDEX)
    def spark_merge(self, table: Table, mode: str, part: str, first: int) -> None:
        if table.format_version > 1:
            spark.set_mode(self.lake, table, _possible(table, mode))
        spark.merge(self.lake, table, part, first)

    # --- files --------------------------------------------------------------------------------------------------------

    @change(up_to=V3, part=PART, counts=st.lists(st.sampled_from([1, 60]), min_size=1, max_size=2), fast=st.booleans())
    def java_append(self, table: Table, part: str, counts: list[int], fast: bool) -> None:
        spark.append(self.lake, table, part, counts, fast)

    @change(up_to=V3, part=PART, count=st.integers(1, 3))
    def java_overwrite(self, table: Table, part: str, count: int) -> None:
        spark.overwrite_files(self.lake, table, part, count)

    @change(up_to=V3, seed=INDEX)
    def java_delete_positions(self, table: Table, seed: int) -> None:
        if table.format_version > 1:
            spark.delete_positions(self.lake, table, seed)

    @change(up_to=V3, count=st.integers(1, 3))
    def java_delete_equal(self, table: Table, count: int) -> None:
        if table.format_version > 1:
            spark.delete_equal(self.lake, table, count)

    # --- maintenance by others ----------------------------------------------------------------------------------------

    @change(up_to=V3, everything=st.booleans())
    def rewrite_data_files(self, table: Table, everything: bool) -> None:
        spark.rewrite_data_files(self.lake, table, everything)

    @change(up_to=V3)
    def rewrite_position_deletes(self, table: Table) -> None:
        if table.format_version > 1:
            spark.rewrite_position_deletes(self.lake, table)

    @change(up_to=V3)
    def rewrite_manifests(self, table: Table) -> None:
        spark.rewrite_manifests(self.lake, table)

    @change(up_to=V3, keep=st.integers(1, 2), clean=st.booleans())
    def spark_expire(self, table: Table, keep: int, clean: bool) -> None:
        spark.expire(self.lake, table, keep, clean)

    # --- snapshots and branches ---------------------------------------------------------------------------------------

    @change(up_to=V3)
    def spark_roll_back(self, table: Table) -> None:
        spark.roll_back(self.lake, table)

    @change(up_to=V3, which=INDEX)
    def spark_set_current(self, table: Table, which: int) -> None:
        spark.set_current(self.lake, table, which)

    @change(up_to=V3, which=INDEX)
    def spark_cherry_pick(self, table: Table, which: int) -> None:
        spark.cherry_pick(self.lake, table, which)

    @change(up_to=V3, part=PART, overwrites=st.booleans(), publish=st.booleans())
    def spark_stage(self, table: Table, part: str, overwrites: bool, publish: bool) -> None:
        spark.stage(self.lake, table, part, overwrites)
        if publish:
            spark.cherry_pick(self.lake, table.refresh(), 0)

    @change(up_to=V3, part=PART, count=st.integers(1, 3))
    def spark_insert_into_branch(self, table: Table, part: str, count: int) -> None:
        spark.insert_into_branch(self.lake, table, part, count)

    @change(up_to=V3)
    def spark_fast_forward(self, table: Table) -> None:
        spark.fast_forward(self.lake, table)

    # --- metadata -----------------------------------------------------------------------------------------------------

    @change(up_to=V3, name=st.sampled_from(sorted(FIELDS)))
    def spark_change_spec(self, table: Table, name: str) -> None:
        spark.change_spec(self.lake, table, FIELDS[name], name)

    @change(up_to=V3, what=st.sampled_from(["note", "widen", "drop"]))
    def spark_change_column(self, table: Table, what: str) -> None:
        spark.change_column(self.lake, table, what)

    @change(up_to=V3, fewest=st.sampled_from(["2", "3", "5"]))
    def spark_set_property(self, table: Table, fewest: str) -> None:
        spark.set_property(self.lake, table, "firnline.policy.min_input_files", fewest)

    @change(up_to=V3)
    def spark_upgrade(self, table: Table) -> None:
        spark.upgrade(self.lake, table)

    @change(up_to=V3, count=st.integers(0, 3), by=st.sampled_from(BY))
    def spark_replace_table(self, table: Table, count: int, by: str) -> None:
        spark.replace_table(self.lake, table, count, by)

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
        planner = TablePlanner(
            settings=ledger.settings,
            catalogs=self.catalogs,
            cache=ledger.plans,
            board=ledger.board,
            listener=ledger.published.append,
            clock=lambda: ledger.clock.wall,
            planned=ledger.ledger.driver.planned,
            files=self.parts.rewriter.files,
        )
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


def _possible(table: Table, mode: str) -> str:
    """Spark (Iceberg 1.11) cannot write deletes once a column of an old spec is dropped: "Cannot find field"."""
    columns = {field.field_id for field in table.schema().fields}
    sources = {field.source_id for spec in table.specs().values() for field in spec.fields}
    return mode if sources <= columns else "copy-on-write"


def _bytes_by_partition(files: Counter[LiveFile]) -> Counter[PartitionKey]:
    found = Counter[PartitionKey]()
    for file, times in files.items():
        found[file.key] += file.size * times
    return found
