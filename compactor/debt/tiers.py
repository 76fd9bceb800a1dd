"""Which small files of one partition are worth merging: the tiers of a log-structured merge, with proved bounds. Pure.

Given the sizes of a partition's small files (all below `small_below` <= 0.9 T, T being the target) and a growth factor
k > 1:

1. Sum >= T: merge them into outputs near T, none of which is small again. What cannot reach `small_below` is left out.
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
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

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


ROUND_UP_FROM = 0.75
"""A rest of 75 % of the target or more becomes an output of its own. Outputs then average 87.5 to 175 % of the target
(or one output is smaller, for lack of bytes), within the 75 to 180 % that count as healthy."""
LEAST_AVERAGE = (1 + ROUND_UP_FROM) / 2


def output_count(total_bytes: int, target: int) -> int:
    """The number of outputs for `total_bytes` if files could be cut anywhere, at least one."""
    whole, rest = divmod(total_bytes, target)
    return max(1, whole + (1 if rest >= ROUND_UP_FROM * target else 0))


def near_target(sizes: Sequence[int], target: int, least: int, most: int) -> list[tuple[int, int]]:
    """Cut files, in order, into runs that become one output each. Their number follows from sizes and `target` alone.

    Each run ends at the file that brings it nearest to an even share of what is left; one that would stay below
    `least` bytes is continued, and none exceeds `most` unless it is one file. There are `output_count` runs, or fewer
    where files are too large to divide the bytes so.

    Returns:
        (start, end) of each run, contiguous, none empty. The last one may stay below `least`; another one does only if
        the file after it does not fit.
    """
    ends, runs, start = [0, *accumulate(sizes)], list[tuple[int, int]](), 0
    wanted = output_count(ends[-1], target)
    while start < len(sizes):
        begun, first, last = ends[start], start + 1, len(sizes)
        left = ends[-1] - begun
        share = begun + left // max(1, min(wanted - len(runs), int(left / (LEAST_AVERAGE * target))))
        near = min(bisect_left(ends, share, first), last)
        if near > first and share - ends[near - 1] < ends[near] - share:
            near -= 1
        enough = min(bisect_left(ends, begun + least, first), last)
        fitting = bisect_right(ends, begun + most, first) - 1
        end = max(first, min(max(near, enough), fitting))
        runs.append((start, end))
        start = end
    if len(runs) > 1:
        (before, end), (_, last) = runs[-2:]
        if ends[last] - ends[end] < least and ends[last] - ends[before] <= most:
            runs[-2:] = [(before, last)]
    return runs
