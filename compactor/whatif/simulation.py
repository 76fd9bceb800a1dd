"""Simulate a policy: replay commits and count the cost and the benefit of its rewrites, without data. Pure.

Files arrive in buckets. The policy decides after every commit (or by a cron), and its rewrites happen at once. Idle
time between commits allows settling merges. Only sizes matter, so that 10,000 commits take a second.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from compactor.iceberg.manifest_entries import Content, FileEntry, Status
from compactor.manifests.live_files import LiveFile
from compactor.partitions import PartitionKey
from compactor.planning.policy import Policy

KEY = PartitionKey(0, "[]")
FOREVER = float("inf")


@dataclass(frozen=True)
class Arrival:
    """One commit of a writer: its time (seconds), and the sizes (bytes) of its files by bucket.

    `upserts`: the commit also adds an equality delete file per bucket, which applies to all older files.
    """

    at: float
    files: Mapping[Any, tuple[int, ...]]
    upserts: bool = False


@dataclass
class Costs:
    """What the rewrites of a history read and wrote.

    Attributes:
        bytes_in: Bytes that the writer wrote.
        bytes_rewritten: Bytes that rewrites read, without settling merges.
        bytes_settled: Bytes that settling merges read.
        rewrites: `replace` commits.
        files_rewritten: Files that rewrites read.
        files_written: Files that rewrites wrote.
        most_rewrites: The largest number of rewrites of one byte, without settling merges.
        vain_rewrites: Rewrites of a bucket that did not reduce its data and delete files.
    """

    bytes_in: int = 0
    bytes_rewritten: int = 0
    bytes_settled: int = 0
    rewrites: int = 0
    files_rewritten: int = 0
    files_written: int = 0
    most_rewrites: int = 0
    vain_rewrites: int = 0


@dataclass
class Outcome(Costs):
    """The result of one replay.

    Attributes:
        files: Files of any size at the end.
        overlap: The average number of files of a bucket that hold rows of one commit; 1 if files do not overlap.
        small_files: The number of small files in all buckets after each commit, when the policy has acted.
        delete_files: Live delete files of each bucket, after each commit that adds some.
    """

    files: int = 0
    overlap: float = 0.0
    small_files: tuple[int, ...] = field(default=(), repr=False)
    delete_files: tuple[tuple[int, ...], ...] = field(default=(), repr=False)

    @property
    def arrivals(self) -> int:
        """Commits of the writer."""
        return len(self.small_files)

    @property
    def mean_small_files(self) -> float:
        """Averaged over the commits."""
        return sum(self.small_files) / self.arrivals if self.small_files else 0.0

    @property
    def most_small_files(self) -> int:
        return max(self.small_files, default=0)

    @property
    def mean_delete_files(self) -> float:
        """In all buckets, averaged over the commits."""
        return sum(map(sum, self.delete_files)) / self.arrivals if self.delete_files else 0.0

    @property
    def most_delete_files(self) -> int:
        """In one bucket."""
        return max(map(max, self.delete_files), default=0)

    @property
    def write_amplification(self) -> float:
        """Bytes rewritten per byte written, without settling merges."""
        return self.bytes_rewritten / self.bytes_in if self.bytes_in else 0.0

    @property
    def settling(self) -> float:
        """Bytes rewritten by settling merges per byte written."""
        return self.bytes_settled / self.bytes_in if self.bytes_in else 0.0


@dataclass
class _File:
    live: LiveFile
    first: int
    last: int
    rewrites: int
    written: float


class _Bucket:
    """The files of one bucket during a replay."""

    def __init__(self, policy: Policy, is_small: Callable[[int], bool], settle_after: float, costs: Costs) -> None:
        """`costs`: of all buckets."""
        self._policy = policy
        self._is_small = is_small
        self._settle_after = settle_after
        self._costs = costs
        self._serial = 0
        self.open: list[_File] = []
        self.done: list[_File] = []
        self.commits = 0
        self.deletes: list[FileEntry] = []

    def add(self, size: int, first: int, last: int, rewrites: int, written: float) -> None:
        self._serial += 1
        live = LiveFile(_entry(f"{self._serial:012d}", size, self.commits))
        file = _File(live=live, first=first, last=last, rewrites=rewrites, written=written)
        (self.open if self._is_small(size) else self.done).append(file)

    def delete(self) -> None:
        """Add an equality delete file, which applies to the files of all earlier commits."""
        self.deletes.append(_entry(f"deletes-{self.commits}", 1, self.commits, Content.EQUALITY_DELETES))

    @property
    def _files(self) -> int:
        return len(self.open) + len(self.done) + len(self.deletes)

    def _live(self, file: _File) -> LiveFile:
        written = file.live.entry.data_sequence_number
        first = bisect_right(self.deletes, written, key=attrgetter("data_sequence_number"))
        return LiveFile(file.live.entry, tuple(self.deletes[first:]))

    def act(self, idle_seconds: float, now: float) -> bool:
        """Apply the policy once; return whether it rewrote files."""
        self.open.sort(key=lambda file: file.first)
        candidates = [*self.done, *self.open] if self.deletes else self.open  # without deletes, only small files
        by_path = {file.live.entry.path: file for file in candidates}

        def age_of(live: LiveFile) -> float:
            return now - by_path[live.entry.path].written

        chosen = self._policy.choose([self._live(file) for file in candidates], idle_seconds, age_of).files
        runs = [chosen[start:end] for start, end in self._policy.cut(chosen)] if chosen else []
        runs = [run for run in runs if len(run) > 1 or run[0].deletes]
        before = self._files
        for run in runs:
            self._merge(
                [by_path[live.entry.path] for live in run], now, settling=0 < self._settle_after <= idle_seconds
            )
        if runs and self.deletes:
            oldest = min(file.live.entry.data_sequence_number for file in (*self.open, *self.done))
            self.deletes = [each for each in self.deletes if each.data_sequence_number > oldest]
        self._costs.vain_rewrites += bool(runs) and self._files >= before
        return bool(runs)

    def _merge(self, files: Sequence[_File], now: float, *, settling: bool) -> None:
        size = sum(file.live.size for file in files)
        merged = {id(file) for file in files}
        self.open = [file for file in self.open if id(file) not in merged]
        self.done = [file for file in self.done if id(file) not in merged]
        rewrites = max(file.rewrites for file in files) + (not settling)
        self._costs.files_rewritten += len(files)
        self._costs.files_written += 1
        if settling:
            self._costs.bytes_settled += size
        else:
            self._costs.bytes_rewritten += size
            self._costs.most_rewrites = max(self._costs.most_rewrites, rewrites)
        self.add(size, min(file.first for file in files), max(file.last for file in files), rewrites, now)


def _entry(path: str, size: int, commit: int, content: Content = Content.DATA) -> FileEntry:
    return FileEntry(
        manifest_path="",
        status=Status.ADDED,
        snapshot_id=commit,
        data_sequence_number=commit,
        content=content,
        path=path,
        file_format="parquet",
        key=KEY,
        partition=(),
        records=1,
        size=size,
        sort_order_id=None,
        encrypted=False,
        equality_ids=(),
        applies_to=None,
    )


class _Replay:
    """All buckets of a table during a replay."""

    def __init__(self, policy: Policy, is_small: Callable[[int], bool], waits: Sequence[float], sweep: float) -> None:
        """`waits`: seconds without a commit after which the policy is applied to a bucket; the last one settles it."""
        self._policy = policy
        self._is_small = is_small
        self._settle_after = waits[-1]
        self._sweep = sweep
        self._first_sweep: float | None = None
        self.buckets: dict[Hashable, _Bucket] = {}
        self._touched: dict[Hashable, None] = {}
        self._waiting: dict[float, dict[Hashable, float]] = {wait: {} for wait in waits}
        self.small_files = 0
        self.costs = Costs()

    def arrive(self, arrival: Arrival) -> None:
        self._first_sweep = arrival.at if self._first_sweep is None else self._first_sweep
        for key, sizes in arrival.files.items():
            bucket = self.buckets.setdefault(key, _Bucket(self._policy, self._is_small, self._settle_after, self.costs))
            before = len(bucket.open)
            bucket.commits += 1
            for size in sizes:
                bucket.add(size, bucket.commits, bucket.commits, 0, arrival.at)
            if arrival.upserts:
                bucket.delete()
            self.small_files += len(bucket.open) - before
            self.costs.bytes_in += sum(sizes)
            self._touched[key] = None
            for waiting in self._waiting.values():
                waiting.pop(key, None)
                waiting[key] = arrival.at  # ordered by last commit, oldest first

    def look(self, now: float) -> None:
        """Run once: rewrite all that is due or idle, until nothing is. The service judges all buckets at any commit."""
        self._act(list(self._touched), 0.0, now)
        self._settle(now)
        self._touched.clear()

    def sweep_until(self, now: float) -> None:
        """Run the sweeps before `now` that find an idle bucket."""
        while True:
            moments = [next(iter(each.values())) + wait for wait, each in self._waiting.items() if each]
            sweep = self._sweep_at(min(moments, default=FOREVER))
            if sweep > now:
                return
            self._settle(sweep)

    def _sweep_at(self, moment: float) -> float:
        """The first sweep at or after `moment`; sweeps begin with the first commit."""
        if not self._sweep or moment == FOREVER or self._first_sweep is None:
            return moment
        sweep = self._first_sweep + math.ceil((moment - self._first_sweep) / self._sweep) * self._sweep
        return max(moment, sweep)  # rounded

    def _settle(self, now: float) -> None:
        """Apply the policy to idle buckets."""
        for wait, waiting in self._waiting.items():
            idle = []
            for key, since in waiting.items():
                if since + wait > now:
                    break
                idle.append(key)
            for key in idle:
                del waiting[key]
            self._act(idle, wait, now)

    def _act(self, keys: Sequence[Hashable], idle_seconds: float, now: float) -> None:
        while keys:
            self.small_files -= sum(len(self.buckets[key].open) for key in keys)
            acted = [key for key in keys if self.buckets[key].act(idle_seconds, now)]
            self.small_files += sum(len(self.buckets[key].open) for key in keys)
            self.costs.rewrites += bool(acted)
            keys = acted


def replay(
    arrivals: Iterable[Arrival],
    policy: Policy,
    is_small: Callable[[int], bool],
    *,
    every: int = 1,
    settle_after: float = FOREVER,
    skip_newer: float = 0.0,
    sweep: float = 0.0,
) -> Outcome:
    """Replay commits, and apply `policy` after every `every` commits until nothing is due.

    Args:
        arrivals: The commits, in order of time.
        policy: The policy.
        is_small: Whether a file of this size in bytes is small.
        every: 1 for a service that receives every commit; more for a cron.
        settle_after: Seconds without a commit after which a bucket is idle.
        skip_newer: Seconds without a commit before which the policy leaves a bucket alone (`LeaveHotPartitions`).
        sweep: Seconds between two sweeps for idle buckets; 0: idle buckets are found at once.
    """
    waits = sorted({skip_newer, max(settle_after, skip_newer)} - {0.0}) or [0.0]
    table = _Replay(policy, is_small, waits, sweep)
    counts: list[int] = []
    deletes: list[tuple[int, ...]] = []
    for number, arrival in enumerate(arrivals, 1):
        table.sweep_until(arrival.at)
        table.arrive(arrival)
        if number % every == 0:
            table.look(arrival.at)
        counts.append(table.small_files)
        if arrival.upserts:
            deletes.append(tuple(len(bucket.deletes) for bucket in table.buckets.values()))
    buckets = table.buckets.values()
    commits = sum(bucket.commits for bucket in buckets)
    spans = sum(file.last - file.first + 1 for bucket in buckets for file in (*bucket.done, *bucket.open))
    return Outcome(
        **vars(table.costs),
        files=sum(len(bucket.done) + len(bucket.open) for bucket in buckets),
        overlap=spans / commits if commits else 0.0,
        small_files=tuple(counts),
        delete_files=tuple(deletes),
    )


def regular(
    commits: int, sizes: Sequence[int], interval: float, files: int = 1, *, upserts: bool = False
) -> Iterator[Arrival]:
    """`commits` commits, `interval` seconds apart, of `files` files each; `sizes` are used in turn."""
    for number in range(commits):
        yield Arrival(number * interval, {"": _in_turn(sizes, number, files)}, upserts)


def bursts(
    commits: int, sizes: Sequence[int], interval: float, length: int, pause: float, files: int = 1
) -> Iterator[Arrival]:
    """Bursts of `length` commits of `files` files, `interval` seconds apart, with `pause` seconds after each burst."""
    at = 0.0
    for number in range(commits):
        yield Arrival(at, {"": _in_turn(sizes, number, files)})
        at += pause if (number + 1) % length == 0 else interval


def _in_turn(sizes: Sequence[int], number: int, files: int) -> tuple[int, ...]:
    """The sizes of the files of a commit, counted from 0."""
    return tuple(sizes[(number * files + index) % len(sizes)] for index in range(files))
