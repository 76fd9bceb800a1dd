"""Why files are small: found in how commits add files, with the remedy that saves most first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from compactor.causes import arrivals_in, causes_of
from compactor.partitions import PartitionKey
from compactor.table_history import Commit
from compactor.tables import FileSizes

MEBIBYTE = 1024 * 1024
SIZES = FileSizes(512 * MEBIBYTE, 384 * MEBIBYTE)
BUCKETS = [PartitionKey(0, f"[{bucket}]") for bucket in range(4)]


def commit(at: float, files: int, size: float, *, writer: str = "", rewrite: bool = False) -> Commit:
    added = {key: (int(size),) * files for key in BUCKETS}
    return Commit(at, rewrite, writer, added, {})


def names(commits: Sequence[Commit], mode: str = "") -> list[str]:
    found = arrivals_in(commits)
    return [] if found is None else [cause.name for cause in causes_of(found, SIZES, mode)]


def test_28_writers_of_every_bucket_are_named_and_hash_distribution_makes_one_of_them() -> None:
    arrivals = arrivals_in([commit(600.0 * number, 28, 7.6 * MEBIBYTE) for number in range(20)])
    assert arrivals is not None
    cause = causes_of(arrivals, SIZES, "none")[0]
    assert cause.name == "fan_out"
    assert "28 writers" in cause.sentence
    assert "'hash'" in cause.remedy
    assert "it is 'none' now" in cause.remedy
    assert "28 files become 1" in cause.remedy
    assert cause.files_left_of_100 == pytest.approx(100 / 28)


def test_a_commit_every_ten_seconds_is_the_interval_and_not_the_writers() -> None:
    cause, *others = causes_of(
        arrivals_in([commit(10.0 * number, 1, 2 * MEBIBYTE) for number in range(300)]) or pytest.fail("none"), SIZES, ""
    )
    assert (cause.name, others) == ("interval", [])
    assert "every 10 s" in cause.sentence
    assert "larger target would not help" in cause.sentence
    assert "42.7 min" in cause.remedy  # 256 times ten seconds fill 512 MB


def test_writers_that_commit_on_their_own_are_one_round() -> None:
    commits = [
        commit(60.0 * minute + writer, 1, 40 * MEBIBYTE, writer=f"spark.app.id=app-{writer}")
        for minute in range(30)
        for writer in range(7)
    ]
    found = arrivals_in(commits)
    assert found is not None
    assert (found.writers, found.files_per_bucket, found.interval) == (7, 7, 60.0)
    assert "7 jobs" in causes_of(found, SIZES, "hash")[0].remedy


def test_partitions_that_never_hold_a_file_are_a_cause_of_their_own() -> None:
    assert names([commit(60.0 * number, 2, MEBIBYTE) for number in range(3)])[-1] == "interval"
    assert "partitions" in names([commit(60.0 * number, 2, MEBIBYTE) for number in range(3)])
    assert "partitions" not in names([commit(60.0 * number, 2, MEBIBYTE) for number in range(300)])


def test_large_files_rewrites_and_empty_commits_are_no_causes() -> None:
    assert names([commit(10.0 * number, 4, 400 * MEBIBYTE) for number in range(9)]) == []
    assert arrivals_in([]) is None
    assert arrivals_in([commit(1.0, 4, 1, rewrite=True)]) is None
    rewritten = [commit(60.0, 1, MEBIBYTE), commit(61.0, 900, 1, rewrite=True), commit(120.0, 1, MEBIBYTE)]
    found = arrivals_in(rewritten)
    assert found is not None
    assert (found.commits, found.files_per_bucket, found.interval) == (2, 1, 60.0)


def test_what_a_commit_adds_beyond_the_target_is_left_as_several_files() -> None:
    found = arrivals_in([commit(3600.0 * number, 40, 50 * MEBIBYTE) for number in range(5)])
    assert found is not None
    causes = causes_of(found, SIZES, "")
    assert [cause.name for cause in causes] == ["fan_out"]
    assert "40 files become 4" in causes[0].remedy
