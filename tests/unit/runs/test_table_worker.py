"""What the table worker does in a turn: no job holds up the others. Real tables; no bytes are moved."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from compactor.debt.manifest_debt import manifests_of
from compactor.errors import (
    CommitUnknownError,
    FirnlineError,
    GiveUpError,
    LaterError,
    ReplanError,
    RetryError,
    StoppedError,
)
from compactor.events import EqualityDeletesConverted, ManifestsRewritten, PartitionsSkipped, RunFailed, RunSkipped
from compactor.iceberg.other_compactors import DAY_SECONDS, OtherCompactor
from compactor.manifests.cache import ManifestCache
from compactor.partitions import PartitionKey
from compactor.patience.holds import What
from compactor.planning.budget import NO_GRANT, Grant, Spent, cost_of_merge
from compactor.planning.inventory import take_inventory
from compactor.reasons import Reason
from compactor.runs import table_planner
from compactor.runs.file_holds import HOUR, UNANSWERED
from compactor.runs.kinds import Turn
from compactor.runs.results import DroppedGroup, NoGroupLeftError, NotTriedError, RunResult
from compactor.runs.table_planner import TablePlanner
from compactor.runs.turns import Turns
from tests.properties.table_history import NAME
from tests.unit.runs.working import ANY_GAIN, DUE, WHY, Outcome, Working, done, fails, paths_of, refused


@pytest.mark.parametrize(
    "outcome",
    [
        refused,
        fails(GiveUpError("a page is damaged"), searches=1),
        fails(GiveUpError("the catalog refuses the commit")),
        fails(ValueError("Java's parser refuses a number")),
    ],
    ids=["refused", "given up", "commit given up", "unexpected"],
)
def test_a_conversion_that_cannot_be_done_is_not_repeated_at_each_commit_and_merges_go_on(
    tmp_path: Path, outcome: Outcome
) -> None:
    working = Working(tmp_path, outcome)
    for commit in range(1, 6):
        working.work()
        assert (len(working.searched), len(working.plans)) == (1, commit)
        working.scene.history.append_unreal("a", [10])
        working.delete_by_value()
    assert len(working.of(PartitionsSkipped)) >= 4, "each time that the conversion is due, it is said why it waits"
    working.scene.now += HOUR
    working.work()
    assert (len(working.searched), len(working.plans)) == (2, 6)
    assert working.announced == 0


def test_an_unexpected_error_is_published_as_given_up(tmp_path: Path) -> None:
    working = Working(tmp_path, fails(ValueError("Java's parser refuses a number")))
    working.work()
    (failed,) = working.of(RunFailed)
    assert (failed.stage, failed.reason, failed.reaction) == ("convert", "unexpected", "give_up")
    assert "Java's parser refuses a number" in failed.message


def test_a_conversion_whose_jvm_has_ended_is_tried_again(tmp_path: Path) -> None:
    """No fault of the deletes: they are not left alone until they change."""
    working = Working(tmp_path, fails(Py4JNetworkError("Answer from Java side is empty")))
    for _ in range(2):
        with pytest.raises(RetryError) as error:
            working.work()
        assert error.value.reason == "spark_lost"
    failed = [event.reason for event in working.events if isinstance(event, RunFailed)]
    assert (failed, len(working.searched)) == (["spark_lost"] * 2, 2)


def test_nothing_is_converted_beside_another_compactor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rewrite of its own that is under way would bring deleted rows back."""
    working = Working(tmp_path, done)
    monkeypatch.setattr(table_planner, "other_compactors", lambda *_: (OtherCompactor("spark", 1, 5),))
    working.work()
    (skipped,) = [event for event in working.of(PartitionsSkipped) if event.reason == "other_compactor"]
    assert "would bring deleted rows back" in skipped.partitions[0].why
    assert (working.searched, len(working.plans)) == ([], 1)


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
    working.outcome = done
    working.work()
    assert (len(working.searched), len(working.of(EqualityDeletesConverted))) == (2, 1)


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
    assert (working.searched, working.plans) == ([], [])


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
    assert (len(working.searched), len(working.of(EqualityDeletesConverted))) == (1, 1)


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
    assert working.searched == []
    working.scene.now += 2
    working.work()
    assert (len(working.searched), len(working.of(EqualityDeletesConverted))) == (1, 1)


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
    working = Working(tmp_path, done)
    monkeypatch.setattr(TablePlanner, "acts_on", lambda *_: acts_on)
    monkeypatch.setattr(TablePlanner, "is_left_to_another", lambda *_: left)
    working.scene.look()
    alone = replace(working.scene.debt(), partitions={}, manifests=DUE)
    with pytest.raises(error):
        working.worker.work(alone, lambda: paused, NO_GRANT, working.charged.append)
    assert working.of(ManifestsRewritten) == working.of(RunFailed) == []


def test_a_refused_conversion_is_said_and_counted_once_for_each_search(tmp_path: Path) -> None:
    working = Working(tmp_path, refused)
    for _ in range(3):
        working.work()
        working.delete_by_value()
    reasons = [event.reason for event in working.of(RunSkipped)]
    assert reasons.count(Reason.CONVERSION_REFUSED) == 1
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
    assert len(working.searched) == 2


def test_other_partitions_are_still_converted(tmp_path: Path) -> None:
    working = Working(tmp_path, refused)
    working.work()
    working.outcome = done
    working.scene.history.append_unreal("b", [10, 10])
    working.delete_by_value("b")
    working.work()
    assert [[len(search) for search in made.searches] for made in working.searched] == [[2], [2]]
    first, second = ({file.entry.path for files in made.searches for file in files} for made in working.searched)
    assert first.isdisjoint(second)
    assert working.searched[1].refused == 1
    assert (len(working.of(EqualityDeletesConverted)), working.announced, len(working.plans)) == (1, 1, 1)


def test_what_a_refused_conversion_has_read_is_taken_from_the_grant(tmp_path: Path) -> None:
    working = Working(tmp_path, refused)
    working.work(Grant(bytes=100, commits=3))
    (plan,) = working.plans
    assert plan.most_commits == 3
    turn = Turn(working.worker.planner, working.scene.debt(), lambda: False, Grant(bytes=100), working.charged.append)
    turn.charge(Spent(bytes=70))
    assert turn.left == Grant(bytes=30)


@pytest.mark.parametrize(("commits", "granted", "merges"), [(2, 2, 0), (1, 2, 1), (0, 1, 1), (2, None, 1)])
def test_manifests_are_merged_after_a_rewrite_if_the_grant_has_a_commit_left(
    tmp_path: Path, commits: int, granted: int | None, merges: int
) -> None:
    working = Working(tmp_path, refused)
    working.commits = commits
    working.scene.look()
    working.work_on(replace(working.scene.debt(), manifests=DUE), Grant(commits=granted))
    assert (len(working.plans), len(working.merges)) == (1, merges)


@pytest.mark.parametrize(
    ("more_bytes", "more_requests", "commits", "merges"),
    [(0, 0, 1, True), (-1, 0, 1, False), (0, -1, 1, False), (-999, -999, 0, True)],
    ids=["it fits", "bytes", "requests", "the run has committed nothing"],
)
def test_manifests_are_merged_within_what_a_rewrite_has_left_of_the_grant(
    tmp_path: Path, more_bytes: int, more_requests: int, commits: int, merges: bool
) -> None:
    """The look after a commit brings another attempt. Without a commit nothing does: they are merged at any grant."""
    working = Working(tmp_path, refused)
    working.commits, working.reads = commits, 100
    working.scene.history.append_unreal("b", [10, 10])
    working.scene.look()
    debt = working.scene.debt()
    plain = {key: each for key, each in debt.partitions.items() if not each.counts.equality_deletes}
    cost = cost_of_merge(manifests_of(working.scene.history.view(), ANY_GAIN))
    grant = Grant(100 + cost.bytes + more_bytes, cost.requests + more_requests)
    working.work_on(replace(debt, partitions=plain, manifests=DUE), grant)
    assert (len(working.plans), len(working.merges)) == (1, int(merges))


@pytest.mark.parametrize(
    ("error", "commits", "comes_again"),
    [
        (RetryError("no answer"), 0, True),
        (RetryError("no answer"), 1, False),
        (GiveUpError("refused"), 0, False),
        (CommitUnknownError("?"), 0, True),
    ],
)
def test_a_merge_of_manifests_that_failed_comes_again(
    tmp_path: Path, error: FirnlineError, commits: int, comes_again: bool
) -> None:
    """A table without writers has nothing else that would bring another attempt."""
    working = Working(tmp_path, refused)
    working.commits, working.merge_error = commits, error
    working.scene.look()
    with pytest.raises(type(error)) if comes_again else nullcontext():
        working.work_on(replace(working.scene.debt(), manifests=DUE))
    assert [event.stage for event in working.of(RunFailed)] == ["manifests"]


def test_a_merge_of_manifests_is_not_committed_once_it_is_anothers_turn(tmp_path: Path) -> None:
    """It takes minutes. A job that makes a branch from main in that time could never publish it."""
    working = Working(tmp_path, refused)
    working.scene.now = time.time()  # branches are made at the time of day
    history = working.scene.history
    working.scene.look()
    working.work_on(replace(working.scene.debt(), partitions={}, manifests=DUE))
    (job,) = working.merges
    head = history.table.refresh().current_snapshot()
    assert head is not None
    history.table.manage_snapshots().create_branch(head.snapshot_id, "audit").commit()
    history.append_unreal("a", [10], branch="audit")
    with pytest.raises(LaterError, match="branch audit is not published to main"):
        job.check_turn()
    assert [each.reason for each in working.of(RunSkipped)] == [Reason.UNPUBLISHED]


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
    tmp_path: Path, error: FirnlineError
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
    working.result = result
    working.work()
    working.scene.look()
    working.worker.planner.tools.files.note(plan.table, [(lost_files, dropped[0].error)], What.FILES)
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
    working = Working(tmp_path, fails(ReplanError("another commit touched the files")))
    for _ in range(2):
        with pytest.raises(FirnlineError):
            working.work()
    assert (len(working.searched), working.plans) == (2, [])


@pytest.mark.parametrize("commits", [0, 1])
def test_a_conversion_without_an_answer_does_not_hold_up_rewrites_and_is_tried_again_after_a_while(
    tmp_path: Path, commits: int
) -> None:
    """A rewrite that is committed shows that catalog and store are well."""
    working = Working(tmp_path, fails(RetryError("503"), searches=9))
    working.commits = commits
    for times, searched in ((1, 1), (2, 1), (3, 2)):
        working.scene.history.append_unreal("b", [10, 10])
        is_first = times != 2
        with pytest.raises(RetryError, match="503") if is_first and not commits else nullcontext():
            working.work()
        assert (len(working.plans), len(working.searched)) == (times, searched)
        working.scene.now += 1 if times == 1 else UNANSWERED.first_seconds
    assert [event.stage for event in working.of(RunFailed)] == ["convert"] * 2


def test_a_conversion_whose_commit_got_no_answer_gives_up_no_search(tmp_path: Path) -> None:
    """All were answered: they are searched once more when the conversion is due again."""
    working = Working(tmp_path, fails(RetryError("503")))
    working.commits = 1
    for times in (1, 2):
        working.scene.history.append_unreal("b", [10, 10])
        working.work()
        assert len(working.searched) == len(working.plans) == times
    assert working.later == []
