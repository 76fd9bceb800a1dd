"""How `make test-writers` judges: what made the service look, when a commit counts as heard, what a table must hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.writers.judgement import (
    Commit,
    Count,
    Differences,
    Facts,
    Found,
    Heard,
    counts_of,
    differences,
    heard,
    wrong_with,
    wrong_with_service,
)

TABLE = "lake.db.t"


def updated(at: float, snapshot: int | None, waited: float | None, table: str = TABLE) -> dict[str, Any]:
    event = {"event": "LedgerUpdated", "table": table, "snapshot_id": snapshot, "event_to_ledger_seconds": waited}
    return {"at": at, **event}


def committed(at: float, name: str = "RunCommitted", table: str = TABLE) -> dict[str, Any]:
    return {"at": at, "event": name, "table": table}


def test_a_count_tells_what_made_the_service_look() -> None:
    events = [
        updated(1, None, None),  # the empty table, at the start
        updated(2, 11, 0.4),
        committed(3, table="lake.db.other"),
        updated(4, 12, None),
        committed(5),
        updated(6, 13, None),
        updated(7, 14, None),
        committed(8, "ManifestsRewritten"),
        updated(9, 15, None),
        committed(10),
        updated(11, 16, 0.2),
        updated(12, 17, None),
        updated(13, 99, 0.1, "lake.db.other"),
    ]
    assert [(count.snapshot_id, count.found) for count in counts_of(TABLE, events)] == [
        (11, Found.EVENT),
        (12, Found.SWEEP),
        (13, Found.OWN_COMMIT),
        (14, Found.SWEEP),
        (15, Found.OWN_COMMIT),
        (16, Found.EVENT),
        (17, Found.SWEEP),
    ]


def commit(number: int, at: float, *, writes: bool = True) -> Commit:
    return Commit(100 + number, number, at, writes)


def test_a_commit_is_heard_by_the_first_count_of_it_or_of_a_later_snapshot() -> None:
    commits = [commit(1, 10.0), commit(2, 11.0), commit(3, 12.0, writes=False), commit(4, 20.0), commit(5, 30.0)]
    counts = [Count(25.0, 104, Found.SWEEP), Count(12.5, 103, Found.OWN_COMMIT), Count(10.5, 101, Found.EVENT)]
    counts += [Count(26.0, 104, Found.EVENT), Count(31.0, 777, Found.EVENT)]  # 777: of a snapshot that is not there
    assert heard(commits, counts) == [
        Heard(commits[0], 0.5, Found.EVENT),
        Heard(commits[1], 1.5, Found.OWN_COMMIT),
        Heard(commits[3], 5.0, Found.SWEEP),
        Heard(commits[4], None, Found.NOTHING),
    ]


def test_rows_are_compared_by_id_and_value() -> None:
    wanted = {1: "a", 2: "b", 3: "c"}
    assert str(differences(wanted, [(3, "c"), (1, "a"), (2, "b")])) == ""
    found = differences(wanted, [(1, "a"), (1, "a"), (2, "x"), (9, "y")])
    assert found == Differences(missing=[3], extra=[9], changed=[2], twice=[1])
    for word in ("1 missing (e.g. [3])", "1 not written", "1 with another value", "1 more than once"):
        assert word in str(found)


GOOD = Facts(
    name="W",
    table=TABLE,
    announced_by="x",
    heard=[Heard(commit(number, number), 1.0, Found.EVENT) for number in range(1, 21)],
    starting=[Heard(commit(0, 0), 9.0, Found.EVENT)],
    announced=frozenset(range(100, 121)),
    rows=1,
    differences=Differences(),
    retries=2,
    failures=(),
    rewrites=3,
)
SLOW = [Heard(commit(number, number), 3.1, Found.EVENT) for number in range(1, 21)]


def test_nothing_is_wrong_with_a_writer_whose_commits_are_heard() -> None:
    assert wrong_with(GOOD) == {}
    one_slow = [*GOOD.heard[:19], replace(GOOD.heard[19], seconds=60.0)]
    assert wrong_with(replace(GOOD, heard=one_slow)) == {}  # 95 of 100 are wanted


@pytest.mark.parametrize(
    ("change", "expectation"),
    [
        ({"heard": ()}, "the writer commits"),
        ({"heard": SLOW}, "95 % of the commits are heard within 3 s"),
        ({"heard": [replace(GOOD.heard[0], seconds=None, found=Found.NOTHING), *GOOD.heard]}, "every commit is heard"),
        ({"starting": [replace(GOOD.starting[0], found=Found.SWEEP)]}, "no commit is found by a sweep"),
        ({"announced": GOOD.announced - {107}}, "every commit has an event of its own"),
        ({"failures": ["exit code 1"]}, "the writer does not fail"),
        ({"differences": Differences(missing=[4])}, "rows are as written"),
        ({"rewrites": 0}, "the service rewrites the table meanwhile"),
    ],
)
def test_each_broken_expectation_is_named(change: dict[str, Any], expectation: str) -> None:
    assert list(wrong_with(replace(GOOD, **change))) == [f"W: {expectation}"]


def test_trouble_of_the_service_is_named_but_a_lost_race_is_none() -> None:
    failed = {"at": 1.0, "event": "RunFailed", "table": TABLE, "reason": "conflict", "reaction": "replan"}
    assert wrong_with_service([failed, committed(1), updated(2, 3, 0.1)]) == {}
    letters = {"at": 1.0, "event": "DeadLettered", "reason": "unrecognised", "count": 1}
    wrong = wrong_with_service([letters, {**failed, "reaction": "give_up"}, letters])
    assert wrong.keys() == {"service: no DeadLettered", "service: no RunFailed"}
    assert wrong["service: no DeadLettered"].startswith("2 times: ")
