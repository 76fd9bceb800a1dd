"""Why files are small: found in how commits add files, with the remedy that saves most first."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from compactor.iceberg.tables import FileSizes
from compactor.iceberg.writers import UNKNOWN, Writer, WriterEngine
from compactor.partitions import PartitionKey
from compactor.whatif.causes import arrivals_in, causes_of
from compactor.whatif.table_history import Commit

MEBIBYTE = 1024 * 1024
SIZES = FileSizes(512 * MEBIBYTE, 384 * MEBIBYTE)
BUCKETS = [PartitionKey(0, f"[{bucket}]") for bucket in range(4)]
WHOLE = [PartitionKey(0, "[]")]


def commit(at: float, files: int, size: float, *, writer: Writer = UNKNOWN, rewrite: bool = False) -> Commit:
    added = {key: (int(size),) * files for key in BUCKETS}
    return Commit(at, rewrite, writer, added, {})


def spark(job: str) -> Writer:
    return Writer(WriterEngine.SPARK, job)


def names(commits: Sequence[Commit], mode: str = "") -> list[str]:
    found = arrivals_in(commits)
    return [] if found is None else [cause.name for cause in causes_of(found, SIZES, mode)]


def test_a_day_between_commits_is_the_most_that_is_advised() -> None:
    found = arrivals_in([commit(3600.0 * number, 1, MEBIBYTE) for number in range(300)])
    assert found is not None
    assert "24 h would bring 24 MB a commit" in causes_of(found, SIZES, "")[0].remedy


def test_28_tasks_in_every_bucket_are_named_and_hash_distribution_makes_one_of_them() -> None:
    arrivals = arrivals_in([commit(600.0 * number, 28, 7.6 * MEBIBYTE) for number in range(20)])
    assert arrivals is not None
    cause = causes_of(arrivals, SIZES, "none")[0]
    assert cause.name == "fan_out"
    assert "28 tasks write into each bucket" in cause.sentence
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


def test_writers_that_commit_at_the_same_time_are_one_round() -> None:
    commits = [
        commit(60.0 * minute + writer, 1, 40 * MEBIBYTE, writer=spark(f"app-{writer}"))
        for minute in range(30)
        for writer in range(7)
    ]
    found = arrivals_in(commits)
    assert found is not None
    assert (found.writers, found.files_per_bucket, found.interval) == (7, 7, 60.0)
    cause = causes_of(found, SIZES, "hash")[0]
    assert (cause.name, cause.files_left_of_100) == ("writers", pytest.approx(100 / 7))
    assert "7 writers (Spark)" in cause.sentence
    assert "7 files become 1" in cause.remedy


def every(seconds: float, numbers: range, writer: str, files: int = 1, start: float = 0.0) -> list[Commit]:
    return [commit(seconds * number + start, files, MEBIBYTE, writer=spark(writer)) for number in numbers]


@pytest.mark.parametrize(
    ("commits", "writers", "files"),
    [
        # a batch job has a new id in each run
        ([one for run in range(9) for one in every(60, range(2), f"app-{run}", start=3600.0 * run)], 1, 1),
        # a batch job beside a stream is a second writer only while it runs
        (
            every(60, range(240), "stream", 2)
            + [one for hour in range(4) for one in every(1, range(1), f"app-{hour}", 2, 3600.0 * hour + 1)],
            1,
            2,
        ),
        # each has an interval of its own
        (every(10, range(60), "often") + every(60, range(10), "rarely", start=5), 2, 1),
        # a deployment overlaps the one before
        (every(60, range(50), "old") + every(60, range(48, 98), "new", start=30), 1, 1),
    ],
)
def test_writers_are_those_that_are_active_at_the_same_time(commits: list[Commit], writers: int, files: int) -> None:
    found = arrivals_in(sorted(commits, key=lambda one: one.at))
    assert found is not None
    assert (found.writers, found.files_per_bucket) == (writers, files)


def test_several_writers_of_several_tasks_have_both_causes() -> None:
    commits = [
        commit(60.0 * minute + writer, 4, MEBIBYTE, writer=spark(f"app-{writer}"))
        for minute in range(30)
        for writer in range(2)
    ]
    assert names(commits, "none")[:3] == ["fan_out", "writers", "interval"]


def test_other_engines_beside_each_other_get_a_remedy_each() -> None:
    flink = Writer(WriterEngine.FLINK, "job/sink")
    commits = [commit(10.0 * number, 2, MEBIBYTE, writer=(flink, UNKNOWN)[number % 2]) for number in range(21)]
    found = arrivals_in(commits)
    assert found is not None
    assert (found.writers, found.engines) == (2, (WriterEngine.FLINK, WriterEngine.UNKNOWN))
    remedy = next(cause.remedy for cause in causes_of(found, SIZES, "none") if cause.name == "fan_out")
    assert remedy.startswith("Flink: distribute rows by bucket")
    assert "; unknown engine: let one task write a bucket" in remedy


@pytest.mark.parametrize(
    ("engine", "mode", "buckets", "remedy"),
    [
        (WriterEngine.SPARK, "", BUCKETS, "which means 'hash' in Spark: look for a job that overrides it"),
        (WriterEngine.SPARK, "hash", BUCKETS, "it is 'hash' now: look for a job that overrides it"),
        (WriterEngine.FLINK, "", BUCKETS, "write.distribution-mode = 'hash'; it is not set)"),
        (WriterEngine.FLINK, "hash", BUCKETS, "or that was started before it was set"),
        (WriterEngine.CONNECT, "hash", BUCKETS, "the sink ignores write.distribution-mode"),
        (WriterEngine.SPARK, "none", WHOLE, "let fewer tasks write"),
        (WriterEngine.FLINK, "none", WHOLE, "write-parallelism"),
        (WriterEngine.CONNECT, "none", WHOLE, "lower tasks.max"),
    ],
)
def test_the_remedy_is_one_that_the_writer_does_not_have_yet(
    engine: WriterEngine, mode: str, buckets: list[PartitionKey], remedy: str
) -> None:
    added = dict.fromkeys(buckets, (MEBIBYTE,) * 4)
    found = arrivals_in([Commit(60.0 * minute, False, Writer(engine, "job"), added, {}) for minute in range(9)])
    assert found is not None
    assert remedy in next(cause.remedy for cause in causes_of(found, SIZES, mode) if cause.name == "fan_out")


def test_partitions_that_never_hold_a_file_are_a_cause_of_their_own() -> None:
    assert names([commit(60.0 * number, 2, MEBIBYTE) for number in range(3)])[-1] == "interval"
    assert "partitions" in names([commit(60.0 * number, 2, MEBIBYTE) for number in range(3)])
    assert "partitions" not in names([commit(60.0 * number, 2, MEBIBYTE) for number in range(300)])


def test_a_bucket_that_holds_more_than_the_newest_commits_added_is_large_enough() -> None:
    commits = [commit(60.0 * number, 2, MEBIBYTE) for number in range(3)]
    found = arrivals_in(commits, dict.fromkeys(BUCKETS, 400 * MEBIBYTE))
    assert found is not None
    assert "partitions" not in {cause.name for cause in causes_of(found, SIZES, "")}


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
