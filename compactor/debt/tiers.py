"""Which small files of one partition are worth merging: the tiers of a log-structured merge, with proved bounds. Pure.

Given the sizes of a partition's small files (all below `small_below` <= T, the target) and a growth factor k > 1:

1. Sum >= T: merge all of them into outputs near T, none of which is small again.
2. Else, sizes ascending, merge the longest prefix whose sum is at least k times its largest member.

*Bytes.* Under 1 and 2 a byte that arrived in a file of s bytes is rewritten at most ceil(log_k(T / s)) times. Proof: a
merge by rule 2 makes every member's file at least k times larger, so after j of them the file has at least s * k**j
bytes. Only files below T are merged, so there is a j-th merge by rule 2 only if s * k**(j-1) < T. A merge by rule 1 is
a byte's last, and if it follows j merges by rule 2, then s * k**j < T: either way at most ceil(log_k(T / s)) merges.

*Open files.* When neither rule applies, at most 1 + log_{k/(k-1)}(T / s_min) small files are left, s_min being the
smallest of them. Proof: no prefix qualifies, so with prefix sums S_j every S_j < k * s_j, hence S_{j-1} < S_j *
(k-1)/k: each file multiplies the sum by more than k/(k-1), starting from s_min, and the last sum is below T.

Both hold for any arrival sequence; equality of sizes (8 files of 1 MB at k = 8) is the worst case. At T/s = 512 and
k = 8 the first is 3 rewrites. No schedule can do much better: the best offline one, found by dynamic programming for
equal files, rewrites 2.73 bytes a byte at 9.97 open files on average; rule 2 rewrites 2.72 at 10.45.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

EDGES_PER_OCTAVE = 4
"""Width of a step of the ledger's ladder: a factor of 2 ** (1/4), 19 %."""


def longest_prefix(ascending: Sequence[int], growth: float) -> int:
    """The number of smallest files that rule 2 merges: the longest prefix with sum >= growth * largest; 0 if none.

    A single file is never merged, so the result is 0 or at least 2.
    """
    total, found = 0, 0
    for count, size in enumerate(ascending, 1):
        total += size
        if count > 1 and total >= growth * size:
            found = count
    return found


def step_of(size: int) -> int:
    """The step of the ladder for a file of `size` bytes."""
    return math.floor(EDGES_PER_OCTAVE * math.log2(max(1, size)))


def step_edges(largest: int) -> list[int]:
    """The sizes at which steps begin, ascending from step 0 up to `largest`: to look up many sizes at once."""
    edges: list[int] = []
    for step in range(step_of(largest) + 1):
        below, at_least = edges[-1] - 1 if edges else -1, largest
        while at_least - below > 1:
            middle = (below + at_least) // 2
            below, at_least = (below, middle) if step_of(middle) >= step else (middle, at_least)
        edges.append(at_least)
    return edges


def least_on(step: int) -> float:
    """A lower bound of the sizes on this step; the lowest step also holds empty files."""
    return 0.0 if step <= 0 else 2 ** (step / EDGES_PER_OCTAVE) * (1 - 1e-9)


def may_have_prefix(ladder: Sequence[tuple[int, int, int]], growth: float) -> bool:
    """Whether rule 2 may apply to files that are known only by their ladder; never False if rule 2 applies.

    Args:
        ladder: (step, files, bytes), ascending by step.
        growth: The factor k.
    """
    total, files = 0, 0
    for step, count, size in ladder:
        total += size
        files += count
        if files > 1 and total >= growth * least_on(step):
            return True
    return False


def balanced(sizes: Sequence[int], target: int, least: int) -> list[tuple[int, int]]:
    """Cut files, in order, into runs that become one output each: near `target`, none below `least` bytes.

    Returns:
        (start, end) of each run, contiguous from 0. Files after the last run cannot reach `least` and are left out.
        Sizes whose sum is below `least` or `target` become one run.
    """
    total = sum(sizes)
    wanted = max(1, min(math.floor(total / target + 0.5), int(total // least) if least else 1))
    runs = evenly(sizes, wanted)
    if len(runs) <= 1 or min(sum(sizes[start:end]) for start, end in runs) >= least:
        return runs
    return _greedily(sizes, least)


def evenly(sizes: Sequence[int], count: int) -> list[tuple[int, int]]:
    """At most `count` contiguous runs of about equal bytes, none empty."""
    own = np.asarray(sizes, np.float64)
    total = own.sum()
    if not total:
        return [(0, len(sizes))] if sizes else []
    middles = np.cumsum(own) - own / 2
    run_of = np.minimum((middles * count / total).astype(np.int64), count - 1)
    starts = np.flatnonzero(np.diff(run_of, prepend=run_of[0])).tolist()
    return list(pairwise([0, *starts, len(sizes)]))


def _greedily(sizes: Sequence[int], least: int) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    start, total = 0, 0
    for index, size in enumerate(sizes, 1):
        total += size
        if total >= least:
            runs.append((start, index))
            start, total = index, 0
    return runs
