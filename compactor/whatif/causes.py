"""Find out why a table's files are small, from the commits that made them, and what would help at the source. Pure.

The files of a bucket are commits x files per commit. More than one file per commit and bucket means that several tasks
of a job write into the same bucket; several active writers multiply them. Other causes are the interval between commits
and partitions that hold few bytes.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from compactor.iceberg.tables import FileSizes
from compactor.iceberg.writers import Writer, WriterEngine
from compactor.partitions import PartitionKey
from compactor.whatif.remedies import less_often, one_task_per_bucket
from compactor.whatif.table_history import Commit

FAN_OUT_FROM = 1.5
"""Files per commit and bucket from which the distribution over tasks is a cause; likewise commits per round."""
HOUR = 3600.0
LONGEST_INTERVAL = 24 * HOUR
NO_PARTITION = "[]"


@dataclass(frozen=True)
class Arrivals:
    """How files arrive, in medians over commits or rounds of commits.

    Attributes:
        commits: The number of writers' commits.
        engines: The engines that made them, the engine with most commits first.
        writers: Writers that are active at the same time: jobs, or sinks of one job. Successive runs of a job are one
            writer. None if unknown, because commits name no job.
        partitioned: Whether the table has partitions; if not, the whole table is one bucket.
        files_per_commit: Files that one commit adds to a bucket: the tasks that write into it.
        bytes_per_commit: Bytes that one commit adds to a bucket.
        files_per_bucket: Files that one round (one commit of each active writer) adds to a bucket.
        interval: Seconds between rounds; 0 if there was only one.
        bytes_per_bucket: Bytes that one round adds to a bucket.
        file_bytes: Size of an added file.
        partition_bytes: Bytes of a bucket that the commits added to.
    """

    commits: int
    engines: tuple[WriterEngine, ...]
    writers: int | None
    partitioned: bool
    files_per_commit: float
    bytes_per_commit: float
    files_per_bucket: float
    interval: float
    bytes_per_bucket: float
    file_bytes: float
    partition_bytes: float


@dataclass(frozen=True)
class Cause:
    """One cause, its remedy, and how many of a hundred arriving files would be left with the remedy."""

    name: str
    sentence: str
    remedy: str
    files_left_of_100: float


def arrivals_in(commits: Sequence[Commit], held: Mapping[PartitionKey, int] | None = None) -> Arrivals | None:
    """Medians of the writers' commits (given oldest first); None if no commit added a file.

    `held`: bytes that each bucket holds now; without it, the bytes that the commits added.
    """
    written = [commit for commit in commits if commit.added and not commit.rewrite]
    if not written:
        return None
    spans = _spans(written)
    rounds = _rounds(written, spans)
    by_commit = _added_to_buckets([[commit] for commit in written])
    by_round = _added_to_buckets(rounds)
    totals: dict[PartitionKey, int] = defaultdict(int)
    for key, sizes in by_commit:
        totals[key] += sum(sizes)
    totals.update({key: held[key] for key in totals if held and key in held})
    pauses = [later[0].at - earlier[0].at for earlier, later in pairwise(rounds)]
    return Arrivals(
        commits=len(written),
        engines=tuple(engine for engine, _ in Counter(commit.writer.engine for commit in written).most_common()),
        writers=_writers(rounds, spans),
        partitioned=any(key.values != NO_PARTITION for key in totals),
        files_per_commit=statistics.median(len(sizes) for _, sizes in by_commit),
        bytes_per_commit=statistics.median(sum(sizes) for _, sizes in by_commit),
        files_per_bucket=statistics.median(len(sizes) for _, sizes in by_round),
        interval=statistics.median(pauses) if pauses else 0.0,
        bytes_per_bucket=statistics.median(sum(sizes) for _, sizes in by_round),
        file_bytes=statistics.median(size for _, sizes in by_commit for size in sizes),
        partition_bytes=statistics.median(totals.values()),
    )


def _added_to_buckets(groups: Sequence[Sequence[Commit]]) -> list[tuple[PartitionKey, list[int]]]:
    """For each group of commits and each bucket that it added to, the sizes of the files."""
    found: list[tuple[PartitionKey, list[int]]] = []
    for members in groups:
        added: dict[PartitionKey, list[int]] = defaultdict(list)
        for commit in members:
            for key, sizes in commit.added.items():
                added[key].extend(sizes)
        found += added.items()
    return found


Spans = dict[Writer, tuple[float, float]]
"""The times of the first and the last commit of each writer."""


def _spans(commits: Sequence[Commit]) -> Spans:
    times: dict[Writer, list[float]] = defaultdict(list)
    for commit in commits:
        times[commit.writer].append(commit.at)
    return {writer: (min(at), max(at)) for writer, at in times.items()}


def _overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _rounds(commits: Sequence[Commit], spans: Spans) -> list[list[Commit]]:
    """Group commits into rounds: one commit of each active writer at about the same time.

    Writers whose commits do not overlap in time are no round together: a batch job has a new id in each run.
    """
    rounds: list[list[Commit]] = []
    for commit in commits:
        members = {known.writer for known in rounds[-1]} if rounds else set()
        beside = all(_overlap(spans[commit.writer], spans[member]) for member in members)
        if members and commit.writer not in members and beside:
            rounds[-1].append(commit)
        else:
            rounds.append([commit])
    return rounds


def _writers(rounds: Sequence[Sequence[Commit]], spans: Spans) -> int | None:
    """The number of writers active in a round. Commits that name no job count as one writer per engine."""
    active = statistics.median_low(
        sum(_overlap(span, (members[0].at, members[-1].at)) for span in spans.values()) for members in rounds
    )
    return active if active > 1 or all(writer.job for writer in spans) else None


def causes_of(arrivals: Arrivals, sizes: FileSizes, distribution_mode: str) -> tuple[Cause, ...]:
    """The causes, ordered by how many files their remedy saves; none if files arrive large enough."""
    if arrivals.file_bytes >= sizes.small_below:
        return ()
    found = []
    if arrivals.files_per_commit >= FAN_OUT_FROM:
        found.append(_fan_out(arrivals, sizes, distribution_mode))
    if (arrivals.writers or 0) > 1 and arrivals.files_per_bucket >= FAN_OUT_FROM * arrivals.files_per_commit:
        found.append(_several_writers(arrivals))
    found += _interval(arrivals, sizes)
    if arrivals.partition_bytes < sizes.small_below:
        found.append(
            Cause(
                "partitions",
                f"a bucket holds {_size(arrivals.partition_bytes)} in all, less than one healthy file of "
                f"{_size(sizes.target)}",
                "fewer or coarser partitions and buckets; no rewrite can make larger files than a partition holds",
                100.0 * arrivals.partition_bytes / sizes.small_below,
            )
        )
    return tuple(sorted(found, key=lambda cause: (cause.files_left_of_100, cause.name)))


def _fan_out(arrivals: Arrivals, sizes: FileSizes, distribution_mode: str) -> Cause:
    files = arrivals.files_per_commit
    after = max(1.0, arrivals.bytes_per_commit / sizes.target)
    remedy = one_task_per_bucket(arrivals.engines, distribution_mode, partitioned=arrivals.partitioned)
    return Cause(
        "fan_out",
        f"each commit adds {files:g} files to every bucket it touches: {files:g} tasks{_of_writers(arrivals)} write "
        f"into each bucket (median over {arrivals.commits} commits): {_size(arrivals.file_bytes)} a file",
        f"{remedy}: {files:g} files become {after:.0f}",
        100.0 * after / files,
    )


def _of_writers(arrivals: Arrivals) -> str:
    if arrivals.writers is None:
        return ""
    return f" of one {_names(arrivals)} job" if arrivals.writers == 1 else f" of each of {arrivals.writers} writers"


def _names(arrivals: Arrivals) -> str:
    return " and ".join(arrivals.engines)


def _several_writers(arrivals: Arrivals) -> Cause:
    files, after = arrivals.files_per_bucket, arrivals.files_per_commit
    return Cause(
        "writers",
        f"{arrivals.writers} writers ({_names(arrivals)}) commit into the same buckets at the same time: one commit of "
        f"each adds {files:g} files to a bucket together, {after:g} by one commit",
        f"let one writer own a bucket (split the rows between the {arrivals.writers} writers by bucket, or let "
        f"one write all of them): {files:g} files become {after:g}",
        100.0 * after / files,
    )


def _interval(arrivals: Arrivals, sizes: FileSizes) -> list[Cause]:
    """The interval is a cause if all bytes of a round for a bucket would still be a small file."""
    if not arrivals.interval or arrivals.bytes_per_bucket >= sizes.small_below:
        return []
    to_fill = sizes.target / max(1.0, arrivals.bytes_per_bucket)
    factor = min(to_fill, LONGEST_INTERVAL / arrivals.interval)
    if factor <= 1:
        return []
    # Frequent commits pay only if readers need the rows that soon; so name the interval that would fill a file.
    longer = arrivals.interval * factor
    bring = (
        "fill one file a commit" if factor == to_fill else f"bring {_size(arrivals.bytes_per_bucket * factor)} a commit"
    )
    return [
        Cause(
            "interval",
            f"commits follow each other every {_time(arrivals.interval)} with {_size(arrivals.bytes_per_bucket)} for a "
            f"bucket; a target file is {_size(sizes.target)}: a larger target would not help",
            f"commit less often where readers can wait{less_often(arrivals.engines)}: twice the interval halves the "
            f"files, {_time(longer)} would {bring}",
            100.0 / factor if arrivals.files_per_bucket < FAN_OUT_FROM else 50.0 + 50.0 / factor,
        )
    ]


def _size(size: float) -> str:
    for unit, least in (("GB", 1024**3), ("MB", 1024**2), ("KB", 1024)):
        if size >= least:
            return f"{size / least:.3g} {unit}"
    return f"{size:.0f} bytes"


def _time(seconds: float) -> str:
    for unit, least in (("h", HOUR), ("min", 60.0)):
        if seconds >= 2 * least:
            return f"{seconds / least:.3g} {unit}"
    return f"{seconds:.3g} s"
