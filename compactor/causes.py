"""Why a table's files are small, from the commits that made them, and what would help at the source. Pure.

A bucket's files come to commits x files per commit. Files per commit and bucket above one come from writers that do not
agree who writes a bucket; what is left is the interval between commits, or partitions that never hold much.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from compactor.partitions import PartitionKey
from compactor.table_history import Commit
from compactor.tables import FileSizes

FAN_OUT_FROM = 1.5
"""Files per commit and bucket from which the writers' distribution is a cause."""
HOUR = 3600.0
LONGEST_INTERVAL = 24 * HOUR


@dataclass(frozen=True)
class Arrivals:
    """How files arrive, in medians over commits or rounds of commits.

    Attributes:
        commits: Writers' commits looked at.
        writers: Writers that told themselves apart; 1 if none did.
        files_per_bucket: Files that one round (one commit, or several writers' commits at a time) adds to a bucket.
        interval: Seconds between rounds; 0 if there was only one.
        bytes_per_bucket: Bytes that one round adds to a bucket.
        file_bytes: Size of an added file.
        partition_bytes: Bytes that were added to a bucket in all.
    """

    commits: int
    writers: int
    files_per_bucket: float
    interval: float
    bytes_per_bucket: float
    file_bytes: float
    partition_bytes: float


@dataclass(frozen=True)
class Cause:
    """One reason, what would help, and how many files would be left of each hundred that arrive now."""

    name: str
    sentence: str
    remedy: str
    files_left_of_100: float


def arrivals_in(commits: Sequence[Commit]) -> Arrivals | None:
    """The shape of the writers' commits; None where no commit added a file."""
    written = [commit for commit in commits if commit.added and not commit.rewrite]
    if not written:
        return None
    rounds = _rounds(written)
    files: list[int] = []
    sizes: list[int] = []
    round_bytes: list[int] = []
    totals: dict[PartitionKey, int] = defaultdict(int)
    for members in rounds:
        in_round: dict[PartitionKey, list[int]] = defaultdict(list)
        for commit in members:
            for key, added in commit.added.items():
                in_round[key].extend(added)
        for key, added_sizes in in_round.items():
            files.append(len(added_sizes))
            sizes.extend(added_sizes)
            round_bytes.append(sum(added_sizes))
            totals[key] += sum(added_sizes)
    pauses = [later[0].at - earlier[0].at for earlier, later in pairwise(rounds)]
    return Arrivals(
        len(written),
        max(1, len({commit.writer for commit in written if commit.writer})),
        statistics.median(files),
        statistics.median(pauses) if pauses else 0.0,
        statistics.median(round_bytes),
        statistics.median(sizes),
        statistics.median(totals.values()),
    )


def _rounds(commits: Sequence[Commit]) -> list[list[Commit]]:
    """Commits by one writer each are rounds of their own; those of several writers at about one time are one round."""
    if len({commit.writer for commit in commits if commit.writer}) < 2:  # noqa: PLR2004 - nobody to share a round with
        return [[commit] for commit in commits]
    rounds: list[list[Commit]] = []
    for commit in commits:
        if rounds and commit.writer not in {known.writer for known in rounds[-1]}:
            rounds[-1].append(commit)
        else:
            rounds.append([commit])
    return rounds


def causes_of(arrivals: Arrivals, sizes: FileSizes, distribution_mode: str) -> tuple[Cause, ...]:
    """The causes, the one whose remedy saves most files first; none where files arrive large enough."""
    if arrivals.file_bytes >= sizes.small_below:
        return ()
    found = []
    fan_out = arrivals.files_per_bucket
    if fan_out >= FAN_OUT_FROM:
        found.append(_fan_out(arrivals, sizes, distribution_mode))
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
    fan_out = arrivals.files_per_bucket
    after = max(1.0, arrivals.bytes_per_bucket / sizes.target)
    who = f"{fan_out:g} writers add a file each to every bucket they touch"
    if arrivals.writers > 1:
        remedy = f"let one writer own a bucket (key the {arrivals.writers} jobs by bucket): {fan_out:g} files become 1"
    else:
        mode = f"it is {distribution_mode!r} now" if distribution_mode else "it is not set"
        remedy = (
            f"distribute rows by bucket before writing (write.distribution-mode = 'hash'; {mode}): "
            f"{fan_out:g} files become {after:.0f}"
        )
    return Cause(
        "fan_out",
        f"{who} in each commit (median over {arrivals.commits} commits): {_size(arrivals.file_bytes)} a file",
        remedy,
        100.0 * after / fan_out,
    )


def _interval(arrivals: Arrivals, sizes: FileSizes) -> list[Cause]:
    """The interval is a cause where a whole round's bytes of a bucket would still be a small file."""
    if not arrivals.interval or arrivals.bytes_per_bucket >= sizes.small_below:
        return []
    factor = min(sizes.target / max(1.0, arrivals.bytes_per_bucket), LONGEST_INTERVAL / arrivals.interval)
    if factor <= 1:
        return []
    # A commit sooner than needed is worth its files only to readers that need the rows; the fewest minutes say enough.
    longer = arrivals.interval * factor
    return [
        Cause(
            "interval",
            f"commits follow each other every {_time(arrivals.interval)} with {_size(arrivals.bytes_per_bucket)} for a "
            f"bucket; a target file is {_size(sizes.target)}: a larger target would not help",
            f"commit less often where readers can wait: twice the interval halves the files, {_time(longer)} would "
            "fill one file a commit",
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
