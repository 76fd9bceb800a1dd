"""A conversion that cannot be done does not hold up the table's other work. Real tables; no bytes are moved."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from compactor.debt.board import TableDebt
from compactor.debt.manifest_debt import ManifestCounts
from compactor.errors import (
    CommitUnknownError,
    FirnlineError,
    GiveUpError,
    LaterError,
    ReplanError,
    RetryError,
    StoppedError,
)
from compactor.events import (
    EqualityDeletesConverted,
    Event,
    GroupRewritten,
    ManifestsRewritten,
    PartitionsSkipped,
    RunFailed,
    RunSkipped,
)
from compactor.iceberg.other_compactors import DAY_SECONDS, OtherCompactor
from compactor.manifests.cache import ManifestCache
from compactor.partitions import PartitionKey
from compactor.patience.holds import What
from compactor.planning.budget import COMMIT_CALLS, NO_GRANT, Charge, Grant, Spent
from compactor.planning.conversion import Conversion
from compactor.planning.inventory import take_inventory
from compactor.planning.plan_table import PlannedGroup, TablePlan
from compactor.reasons import Reason
from compactor.runs import table_planner, table_worker
from compactor.runs.convert import ConversionResult
from compactor.runs.file_holds import HOUR, UNANSWERED, FileHolds
from compactor.runs.lifelines import Lifelines
from compactor.runs.results import DroppedGroup, GroupResult, NoGroupLeftError, NotTriedError, RunResult
from compactor.runs.table_planner import TablePlanner
from compactor.runs.table_worker import RewriteWorker
from compactor.runs.turns import Turns
from tests.properties.table_history import NAME
from tests.unit.streaming.ledger.scene import Scene

WHY = "data file x has no field ids, and the table no name mapping"
POLICY = {
    "strategy": "threshold",
    "min_input_files": 2,
    "convert_equality_deletes": 1,
    "equality_delete_threshold": 1000,
    "delete_file_threshold": 1000,
}
Outcome = Callable[["Searching"], ConversionResult]


class Searching:
    """In place of `Converting`: what a conversion ends with, without the search."""

    made: list[Conversion]
    outcome: Outcome

    def __init__(self, tools: Any, table: Any, conversion: Conversion, run_id: str, _switches: Any, charge: Any):
        self.tools, self.table, self.conversion, self.run_id, self.charge = tools, table, conversion, run_id, charge
        self.refused = False

    def fails(self, searches: int, error: FirnlineError) -> None:
        self.refused = True
        files = [file.entry.path for search in self.conversion.searches[:searches] for file in search]
        self.tools.worker.planner.files.note(self.table, [(files, error)], What.SEARCH)

    def convert(self) -> ConversionResult:
        Searching.made.append(self.conversion)
        return Searching.outcome(self)


def refused(one: Searching) -> ConversionResult:
    one.fails(1, GiveUpError(WHY))
    one.charge(Spent(bytes=70))
    return ConversionResult(NAME, one.run_id, 1, deletes_left=1, why=WHY)


def given_up(one: Searching) -> ConversionResult:
    one.fails(1, GiveUpError("a page is damaged"))
    raise GiveUpError("a page is damaged")


def commit_given_up(_one: Searching) -> ConversionResult:
    raise GiveUpError("the catalog refuses the commit")


def broken(_one: Searching) -> ConversionResult:
    raise ValueError("Java's parser refuses a number")


def replanned(_one: Searching) -> ConversionResult:
    raise ReplanError("another commit touched the files")


def silent(one: Searching) -> ConversionResult:
    one.fails(9, RetryError("503"))
    raise RetryError("503")


def commit_silent(_one: Searching) -> ConversionResult:
    raise RetryError("503")


def done(one: Searching) -> ConversionResult:
    return ConversionResult(NAME, one.run_id, 1, snapshot_after=2, deletes_removed=1)


def paths_of(plan: TablePlan) -> dict[PartitionKey, set[str]]:
    groups = [each.file_group for each in plan.groups]
    return {group.key: {file.entry.path for file in group.files} for group in groups}


def merged(planned: PlannedGroup) -> GroupResult:
    """All files of the group in one."""
    group = planned.file_group
    size = (len(group.files), 1, group.bytes, group.bytes, group.rows, 0, group.rows)
    return GroupResult(planned, GroupRewritten("run", NAME, group.key, "splice", "test", *size, seconds=0.0), ())


class Working:
    """A real table with equality deletes in partition `a`, the ledger, and a worker whose rewrites move no bytes."""

    def __init__(self, folder: Path, outcome: Outcome, **policy: Any) -> None:
        self.scene = Scene(folder, policy={**POLICY, **policy})
        Searching.made, Searching.outcome = [], staticmethod(outcome)
        self.events: list[Event] = []
        self.plans: list[TablePlan] = []
        self.later: list[LaterError] = []
        self.charged: list[Spent] = []
        self.announced = self.commits = self.reads = 0
        self.rewrites = False
        self.lifelines = Lifelines()
        self.hopeless: frozenset[str] = frozenset()
        planner = TablePlanner(
            settings=self.scene.settings, catalogs=self.scene.catalogs, cache=ManifestCache(1 << 20),
            board=self.scene.board, listener=self.events.append, clock=lambda: self.scene.now, planned=lambda _: None,
            files=FileHolds(self.scene.board.holds),
        )  # fmt: skip
        rewriter: Any = self
        self.worker = RewriteWorker(planner, rewriter, announce=self.announce)
        self.scene.history.append_unreal("a", [10, 10])
        self.delete_by_value()

    def announce(self, _table: object) -> None:
        self.announced += 1

    def run(self, plan: TablePlan, charge: Charge, **_: Any) -> RunResult:
        self.plans.append(plan)
        charge(Spent(bytes=self.reads))
        dropped = [
            DroppedGroup(each, GiveUpError("a page is damaged"))
            for each in plan.groups
            if not self.hopeless.isdisjoint(DroppedGroup(each, GiveUpError("")).paths)
        ]
        if dropped:
            failed = [(each.paths, each.error) for each in dropped]
            self.worker.planner.files.note(plan.table, failed, What.FILES)
            raise NoGroupLeftError(dropped)
        after = 2 if self.rewrites else None
        groups = tuple(map(merged, plan.groups)) if self.rewrites else ()
        return RunResult("run", NAME, 1, after, groups, 0.0, 0.0, 0.0, commits=self.commits)

    def delete_by_value(self, partition: str = "a") -> None:
        self.scene.history.append_unreal(partition, [1], by_value=True)

    def work(self, grant: Grant = NO_GRANT) -> None:
        """The ledger looks; then the worker runs."""
        self.scene.look()
        self.work_on(self.scene.debt(), grant)

    def work_on(self, debt: TableDebt, grant: Grant) -> None:
        try:
            self.worker.work(debt, lambda: False, grant, self.charged.append)
        except LaterError as later:
            self.later.append(later)

    def plan_now(self) -> TablePlan:
        self.scene.look()
        planner = self.worker.planner
        plan = planner.plan(self.scene.debt(), planner.catalogs.load(NAME))
        assert plan is not None
        return plan

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture(autouse=True)
def _no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_worker, "Converting", Searching)


@pytest.mark.parametrize("outcome", [refused, given_up, commit_given_up, broken])
def test_a_conversion_that_cannot_be_done_is_not_repeated_at_each_commit_and_merges_go_on(
    tmp_path: Path, outcome: Outcome
) -> None:
    working = Working(tmp_path, outcome)
    for commit in range(1, 6):
        working.work()
        assert (len(Searching.made), len(working.plans)) == (1, commit)
        working.scene.history.append_unreal("a", [10])
        working.delete_by_value()
    assert len(working.of(PartitionsSkipped)) >= 4, "each time that the conversion is due, it is said why it waits"
    working.scene.now += HOUR
    working.work()
    assert (len(Searching.made), len(working.plans)) == (2, 6)
    assert working.announced == 0


def test_an_unexpected_error_is_published_as_given_up(tmp_path: Path) -> None:
    working = Working(tmp_path, broken)
    working.work()
    (failed,) = working.of(RunFailed)
    assert (failed.stage, failed.reason, failed.reaction) == ("convert", "unexpected", "give_up")
    assert "Java's parser refuses a number" in failed.message


def test_a_conversion_whose_jvm_has_ended_is_tried_again(tmp_path: Path) -> None:
    """No fault of the deletes: they are not left alone until they change."""

    def lost(_: Searching) -> ConversionResult:
        raise Py4JNetworkError("Answer from Java side is empty")

    working = Working(tmp_path, lost)
    for _ in range(2):
        with pytest.raises(RetryError) as error:
            working.work()
        assert error.value.reason == "spark_lost"
    failed = [event.reason for event in working.events if isinstance(event, RunFailed)]
    assert (failed, len(Searching.made)) == (["spark_lost"] * 2, 2)


def test_nothing_is_converted_beside_another_compactor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewrite of its own that is under way would bring deleted rows back."""
    working = Working(tmp_path, done)
    monkeypatch.setattr(table_planner, "other_compactors", lambda *_: (OtherCompactor("spark", 1, 5),))
    working.work()
    (skipped,) = [event for event in working.of(PartitionsSkipped) if event.reason == "other_compactor"]
    assert "would bring deleted rows back" in skipped.partitions[0].why
    assert (Searching.made, len(working.plans)) == ([], 1)


def declined_at_first(working: Working) -> set[PartitionKey]:
    """The partitions with equality deletes, after a run whose plan selected none of them."""
    working.work()
    assert working.plans == []
    partitions = {key for key, each in working.scene.debt().partitions.items() if each.counts.equality_deletes}
    assert partitions
    assert not partitions & {each.key for each in working.scene.debt().due}
    return partitions


def test_a_refused_search_in_an_idle_partition_is_repeated_although_its_files_are_left_alone(tmp_path: Path) -> None:
    working = Working(tmp_path, refused, min_input_files=50)
    partitions = declined_at_first(working)
    working.scene.now += HOUR - 1
    working.scene.look()
    assert not partitions & {each.key for each in working.scene.debt().due}
    working.scene.now += 1
    Searching.outcome = staticmethod(done)
    working.work()
    assert (len(Searching.made), len(working.of(EqualityDeletesConverted))) == (2, 1)


def test_deletes_of_a_file_that_is_listed_twice_are_left_alone_until_they_change(tmp_path: Path) -> None:
    """A restarted writer has repeated its commit; the service says so once, and does not try for ever."""
    working = Working(tmp_path, done, min_input_files=50)
    files = take_inventory(working.scene.history.view(), ManifestCache(1 << 20)).partitions.values()
    again = next(file.entry.path for each in files for file in each)
    working.scene.history.append_unreal("a", [10], path=again)
    declined_at_first(working)
    working.scene.now += HOUR
    declined_at_first(working)
    (skipped,) = [event for event in working.of(PartitionsSkipped) if event.reason == "conversion_refused"]
    assert f"{again} is listed twice" in skipped.partitions[0].why
    assert (Searching.made, working.plans) == ([], [])


def test_equality_deletes_are_converted_once_another_compactor_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = Working(tmp_path, done, min_input_files=50)
    other = OtherCompactor("spark", 1, 5, last=working.scene.now - 60)
    monkeypatch.setattr(
        table_planner, "other_compactors", lambda _, now: (other,) if now < other.last + DAY_SECONDS else ()
    )
    declined_at_first(working)
    working.scene.now += DAY_SECONDS - 60
    working.work()
    assert (len(Searching.made), len(working.of(EqualityDeletesConverted))) == (1, 1)


def test_nothing_is_converted_while_the_history_may_hide_another_compactor(tmp_path: Path) -> None:
    """Snapshots that expire within a day may have been a compactor's."""
    working = Working(tmp_path, done, min_input_files=50)
    first, newest = working.scene.history.view().metadata.snapshots
    working.scene.history.table.maintenance.expire_snapshots().by_id(first.snapshot_id).commit()
    working.scene.now = newest.timestamp_ms / 1000 + 60
    declined_at_first(working)
    (skipped,) = [event for event in working.of(PartitionsSkipped) if event.reason == "other_compactor"]
    assert "does not list all snapshots of the last day" in skipped.partitions[0].why
    working.scene.now += DAY_SECONDS - 61
    working.work()
    assert Searching.made == []
    working.scene.now += 2
    working.work()
    assert (len(Searching.made), len(working.of(EqualityDeletesConverted))) == (1, 1)


def test_a_table_that_waits_for_others_costs_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is loaded twice a minute, perhaps for days: its budget is for the other tables."""
    working = Working(tmp_path, done)

    def locked(*_: Any, **__: Any) -> None:
        raise LaterError("a lock is held", reason=Reason.FLINK_LOCK, seconds=30.0)

    monkeypatch.setattr(Turns, "check", locked)
    working.work()
    assert [each.reason for each in working.later] == ["flink_lock"]
    assert working.charged == [Spent(catalog_calls=1)]


@pytest.mark.parametrize(
    ("acts_on", "left", "paused", "error"),
    [(False, False, False, StoppedError), (True, True, False, LaterError), (True, False, True, StoppedError)],
    ids=["switched off", "left to another", "paused"],
)
def test_manifests_that_were_not_tried_stay_due(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    acts_on: bool,
    left: bool,
    paused: bool,
    error: type[FirnlineError],
) -> None:
    """Nothing on the board changes when the table is switched on again."""
    working, due = Working(tmp_path, done), ManifestCounts(100, 100, due_specs=(0,), why="many")
    monkeypatch.setattr(table_worker, "manifests_of", lambda *_: due)
    monkeypatch.setattr(TablePlanner, "acts_on", lambda *_: acts_on)
    monkeypatch.setattr(TablePlanner, "is_left_to_another", lambda *_: left)
    working.scene.look()
    alone = replace(working.scene.debt(), partitions={}, manifests=due)
    with pytest.raises(error):
        working.worker.work(alone, lambda: paused, NO_GRANT, working.charged.append)
    assert working.of(ManifestsRewritten) == working.of(RunFailed) == []


def test_a_refused_conversion_is_said_and_counted_once_for_each_search(tmp_path: Path) -> None:
    working = Working(tmp_path, refused)
    for _ in range(3):
        working.work()
        working.delete_by_value()
    assert [event.reason for event in working.of(RunSkipped)] == ["conversion_refused"]
    said = [event for event in working.of(PartitionsSkipped) if event.reason == "conversion_refused"]
    assert [[each.why for each in event.partitions] for event in said] == [[WHY], [WHY]]
    assert working.of(RunFailed) == working.of(EqualityDeletesConverted) == []


def test_a_refused_conversion_settles_nothing_by_itself(tmp_path: Path) -> None:
    """The rewrite decides what becomes of the times, and the next plan what is due."""
    working = Working(tmp_path, refused)
    settled: list[object] = []
    working.scene.board.settled = settled.append  # type: ignore[method-assign, assignment]
    working.work()
    assert len(settled) == len(working.plans) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda working: working.scene.history.set_properties({"schema.name-mapping.default": "[]"}),
        lambda working: working.scene.history.table.delete("category == 'a'"),
    ],
    ids=["name mapping", "files"],
)
def test_a_refused_search_is_repeated_once_it_may_succeed(tmp_path: Path, change: Callable[[Working], None]) -> None:
    working = Working(tmp_path, refused)
    working.work()
    change(working)
    working.scene.history.append_unreal("a", [10, 10])
    working.delete_by_value()
    working.work()
    assert len(Searching.made) == 2


def test_other_partitions_are_still_converted(tmp_path: Path) -> None:
    working = Working(tmp_path, refused)
    working.work()
    Searching.outcome = staticmethod(done)
    working.scene.history.append_unreal("b", [10, 10])
    working.delete_by_value("b")
    working.work()
    assert [[len(search) for search in made.searches] for made in Searching.made] == [[2], [2]]
    first, second = ({file.entry.path for files in made.searches for file in files} for made in Searching.made)
    assert first.isdisjoint(second)
    assert Searching.made[1].refused == 1
    assert (len(working.of(EqualityDeletesConverted)), working.announced, len(working.plans)) == (1, 1, 1)


def test_what_a_refused_conversion_has_read_is_taken_from_the_grant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working, granted = Working(tmp_path, refused), list[Grant]()
    real = TablePlanner.plan

    def plan(planner: TablePlanner, debt: Any, table: Any, grant: Grant = NO_GRANT) -> TablePlan | None:
        granted.append(grant)
        return real(planner, debt, table, grant)

    monkeypatch.setattr(TablePlanner, "plan", plan)
    working.work(Grant(bytes=100, commits=3))
    assert granted == [Grant(bytes=30, commits=3)]


@pytest.mark.parametrize(("commits", "granted", "merges"), [(2, 2, 0), (1, 2, 1), (0, 1, 1), (2, None, 1)])
def test_manifests_are_merged_after_a_rewrite_if_the_grant_has_a_commit_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: int, granted: int | None, merges: int
) -> None:
    working, merged = Working(tmp_path, refused), list[object]()
    working.commits = commits
    monkeypatch.setattr(RewriteWorker, "_rewrite_manifests", lambda *_, last: merged.append(last))
    working.scene.look()
    debt = replace(working.scene.debt(), manifests=ManifestCounts(100, 100, due_specs=(0,), why="many"))
    working.work_on(debt, Grant(commits=granted))
    assert (len(working.plans), merged) == (1, [commits > 0] * merges)


@pytest.mark.parametrize(
    ("grant", "commits", "merges"),
    [
        (Grant(bytes=300, requests=1000), 1, True),
        (Grant(bytes=299, requests=1000), 1, False),
        (Grant(bytes=300, requests=202), 1, False),
        (Grant(bytes=1, requests=1), 0, True),
        (NO_GRANT, 1, True),
    ],
    ids=["it fits", "bytes", "requests", "the run has committed nothing", "no limit"],
)
def test_manifests_are_merged_within_what_a_rewrite_has_left_of_the_grant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grant: Grant, commits: int, merges: bool
) -> None:
    """The look after a commit brings another attempt. Without a commit nothing does: they are merged at any grant."""
    working, due, merged = Working(tmp_path, refused), ManifestCounts(100, 200, due_specs=(0,), why="many"), list[Any]()
    working.commits, working.reads = commits, 100

    def merge(*given: Any, **_: Any) -> ManifestsRewritten:
        merged.append(given)
        return ManifestsRewritten("run", NAME, 100, 1, 0.0)

    working.worker.rewriter.session = working.worker.rewriter.committing = None  # type: ignore[assignment, misc]
    monkeypatch.setattr(table_worker, "rewrite_manifests", merge)
    monkeypatch.setattr(table_worker, "manifests_of", lambda *_: due)
    working.scene.history.append_unreal("b", [10, 10])
    working.scene.look()
    debt = working.scene.debt()
    plain = {key: each for key, each in debt.partitions.items() if not each.counts.equality_deletes}
    working.work_on(replace(debt, partitions=plain, manifests=due), grant)
    assert (len(working.plans), len(merged)) == (1, int(merges))


@pytest.mark.parametrize(
    ("error", "commits", "comes_again"),
    [(RetryError("no answer"), 0, True), (RetryError("no answer"), 1, False), (GiveUpError("refused"), 0, False)],
)
def test_a_merge_of_manifests_that_failed_comes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: FirnlineError, commits: int, comes_again: bool
) -> None:
    """A table without writers has nothing else that would bring another attempt."""
    working, due = Working(tmp_path, refused), ManifestCounts(100, 100, due_specs=(0,), why="many")
    working.commits = commits

    def fail(*_: Any, **__: Any) -> None:
        raise error

    working.worker.rewriter.session = working.worker.rewriter.committing = None  # type: ignore[assignment, misc]
    monkeypatch.setattr(table_worker, "rewrite_manifests", fail)
    monkeypatch.setattr(table_worker, "manifests_of", lambda *_: due)
    working.scene.look()
    with pytest.raises(RetryError) if comes_again else nullcontext():
        working.work_on(replace(working.scene.debt(), manifests=due), NO_GRANT)
    assert [event.stage for event in working.of(RunFailed)] == ["manifests"]


@pytest.mark.parametrize(
    ("error", "commits"),
    [(None, 1), (CommitUnknownError("?"), 1), (RetryError("no answer"), 0)],
    ids=["merged", "unknown", "failed"],
)
def test_a_merge_of_manifests_costs_a_commit_only_if_there_may_be_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: FirnlineError | None, commits: int
) -> None:
    """Else a few failures use up the table's commits of the hour. What was read is charged all the same."""
    working, due = Working(tmp_path, refused), ManifestCounts(100, 200, due_specs=(0,), why="many")

    def merge(*_: Any, **__: Any) -> ManifestsRewritten:
        if error is not None:
            raise error
        return ManifestsRewritten("run", NAME, 100, 1, 0.0)

    working.worker.rewriter.session = working.worker.rewriter.committing = None  # type: ignore[assignment, misc]
    monkeypatch.setattr(table_worker, "rewrite_manifests", merge)
    monkeypatch.setattr(table_worker, "manifests_of", lambda *_: due)
    working.scene.look()
    with nullcontext() if error is None else pytest.raises((RetryError, CommitUnknownError)):
        working.work_on(replace(working.scene.debt(), partitions={}, manifests=due), NO_GRANT)
    cost = sum(working.charged, Spent())
    assert (cost.bytes, cost.catalog_calls, cost.commits) == (200, COMMIT_CALLS, commits)


def test_a_merge_of_manifests_is_not_committed_once_it_is_anothers_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes minutes. A job that makes a branch from main in that time could never publish it."""
    working, due = Working(tmp_path, refused), ManifestCounts(100, 100, due_specs=(0,), why="many")
    working.scene.now = time.time()  # branches are made at the time of day
    history, merged = working.scene.history, list[str]()

    def merge(*_: Any, check_turn: Callable[[], object], **__: Any) -> ManifestsRewritten:
        merged.append("manifests are written")
        head = history.table.refresh().current_snapshot()
        assert head is not None
        history.table.manage_snapshots().create_branch(head.snapshot_id, "audit").commit()
        history.append_unreal("a", [10], branch="audit")
        check_turn()
        merged.append("and committed")
        return ManifestsRewritten("run", NAME, 100, 1, 0.0)

    working.worker.rewriter.session = working.worker.rewriter.committing = None  # type: ignore[assignment, misc]
    monkeypatch.setattr(table_worker, "rewrite_manifests", merge)
    monkeypatch.setattr(table_worker, "manifests_of", lambda *_: due)
    working.scene.look()
    with pytest.raises(LaterError, match="branch audit is not published to main"):
        working.worker.work(
            replace(working.scene.debt(), partitions={}, manifests=due), lambda: False, NO_GRANT, working.charged.append
        )
    assert merged == ["manifests are written"]
    assert [each.reason for each in working.of(RunSkipped)] == [Reason.UNPUBLISHED]
    assert sum(working.charged, Spent()).commits == 0


def test_new_files_are_merged_beside_a_file_that_cannot_be_rewritten(tmp_path: Path) -> None:
    """Each commit to the partition would bring another attempt in vain, each larger than the one before."""
    working = Working(tmp_path, refused)
    working.scene.history.append_unreal("b", [10, 10])
    partition = next(key for key in paths_of(working.plan_now()) if key.values == '["b"]')
    before = paths_of(working.plan_now())[partition]
    working.hopeless = frozenset(list(before)[:1])
    with pytest.raises(NoGroupLeftError):
        working.work()
    working.scene.history.append_unreal("b", [10, 10])
    working.work()
    after = paths_of(working.plans[-1])[partition]
    assert (len(after), after & before) == (2, set())
    working.scene.now += HOUR
    working.scene.history.append_unreal("b", [10])
    with pytest.raises(NoGroupLeftError):
        working.work()
    assert len(paths_of(working.plans[-1])[partition]) == 5, "and now and then it is tried again"


@pytest.mark.parametrize(
    "error", [ReplanError("overtaken"), NotTriedError("it was not tried"), GiveUpError("damaged too")]
)
def test_groups_that_wait_for_the_next_run_do_not_wait_for_one_of_their_partition_that_was_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: FirnlineError
) -> None:
    working = Working(tmp_path, refused)
    working.scene.history.append_unreal("b", [10, 10, 10, 10])
    plan = working.plan_now()
    (planned,) = (each for each in plan.groups if each.file_group.key.values == '["b"]')
    files = planned.file_group.files
    lost_files = [file.entry.path for file in files[:2]]
    halves = [replace(planned.file_group, tasks=(half,)) for half in (files[:2], files[2:])]
    lost, other = (replace(planned, file_group=half) for half in halves)
    dropped = (DroppedGroup(lost, GiveUpError("a page is damaged")), DroppedGroup(other, error))
    result = RunResult("run", NAME, 1, None, (), 0.0, 0.0, 0.0, dropped=dropped)
    monkeypatch.setattr(Working, "run", lambda *_, **__: result)
    working.work()
    working.scene.look()
    working.worker.planner.files.note(plan.table, [(lost_files, dropped[0].error)], What.FILES)
    waits = isinstance(error, ReplanError)
    key = planned.file_group.key
    assert (key in {each.key for each in working.scene.debt().due}) == waits
    if waits:
        assert paths_of(working.plan_now())[key] == {file.entry.path for file in files[2:]}


@pytest.mark.parametrize("planned_without", [False, True])
def test_files_that_were_given_up_in_an_idle_partition_are_tried_again_after_an_hour(
    tmp_path: Path, planned_without: bool
) -> None:
    """`planned_without`: a second plan, for a new commit, finds nothing to do beside the files that were given up."""
    working = Working(tmp_path, refused)
    working.scene.history.append_unreal("b", [10, 10])
    partition = next(key for key in paths_of(working.plan_now()) if key.values == '["b"]')
    working.hopeless = frozenset(paths_of(working.plan_now())[partition])
    with pytest.raises(NoGroupLeftError):
        working.work()
    if planned_without:
        working.scene.history.append_unreal("b", [10])
        working.work()
    working.scene.now += HOUR / 2
    working.scene.look()
    assert partition not in {each.key for each in working.scene.debt().due}
    working.scene.now += HOUR / 2
    working.scene.look()
    assert partition in {each.key for each in working.scene.debt().due}
    with pytest.raises(NoGroupLeftError):
        working.work()
    assert partition in paths_of(working.plans[-1])


@pytest.mark.parametrize(("most_files", "left"), [(2, ("",)), (None, ())], ids=["part", "all"])
def test_a_request_stays_open_until_its_last_part_is_done(
    tmp_path: Path, most_files: int | None, left: tuple[str, ...]
) -> None:
    """It ends, too, with a part that leaves no fewer files than the one before: a writer is faster, for example."""
    working = Working(tmp_path, refused, max_files_to_rewrite=most_files)
    working.rewrites = True
    working.scene.history.append_unreal("b", [10, 10, 10, 10])
    working.scene.board.request(NAME, [""])
    working.work()
    assert (len(working.plans), working.scene.board.requests(NAME)) == (1, left)
    working.work()
    assert working.scene.board.requests(NAME) == ()


def test_later_parts_of_a_request_leave_out_what_the_first_one_gave_up(tmp_path: Path) -> None:
    """Else each part would fail at the same files, and the rest would never be done."""
    working = Working(tmp_path, refused, max_files_to_rewrite=2)
    working.scene.history.append_unreal("b", [10, 10])
    working.scene.board.request(NAME, [""])
    first = next(iter(paths_of(working.plan_now()).values()))
    working.hopeless = frozenset(first)
    with pytest.raises(NoGroupLeftError):
        working.work()
    assert working.scene.board.requests(NAME) == ("",)
    working.work()
    assert set().union(*paths_of(working.plans[-1]).values()).isdisjoint(first)
    assert working.scene.board.requests(NAME) == ()


def test_a_conversion_that_another_commit_overtook_fails_and_is_tried_again(tmp_path: Path) -> None:
    working = Working(tmp_path, replanned)
    for _ in range(2):
        with pytest.raises(FirnlineError):
            working.work()
    assert (len(Searching.made), working.plans) == (2, [])


@pytest.mark.parametrize("commits", [0, 1])
def test_a_conversion_without_an_answer_does_not_hold_up_rewrites_and_is_tried_again_after_a_while(
    tmp_path: Path, commits: int
) -> None:
    """A rewrite that is committed shows that catalog and store are well."""
    working = Working(tmp_path, silent)
    working.commits = commits
    for times, searched in ((1, 1), (2, 1), (3, 2)):
        working.scene.history.append_unreal("b", [10, 10])
        is_first = times != 2
        with pytest.raises(RetryError, match="503") if is_first and not commits else nullcontext():
            working.work()
        assert (len(working.plans), len(Searching.made)) == (times, searched)
        working.scene.now += 1 if times == 1 else UNANSWERED.first_seconds
    assert [event.stage for event in working.of(RunFailed)] == ["convert"] * 2


def test_a_conversion_whose_commit_got_no_answer_gives_up_no_search(tmp_path: Path) -> None:
    """All were answered: they are searched once more when the conversion is due again."""
    working = Working(tmp_path, commit_silent)
    working.commits = 1
    for times in (1, 2):
        working.scene.history.append_unreal("b", [10, 10])
        working.work()
        assert len(Searching.made) == len(working.plans) == times
    assert working.later == []
