"""Compare the cost of a table's history as it was, with Spark's action on a cron, and with firnline. Pure.

All three count the files that writers added in the retained snapshots. Older files, and files that writers deleted
themselves, are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import Field

from compactor.iceberg.tables import FileSizes
from compactor.partitions import PartitionKey
from compactor.planning.budget import PART_BYTES, REQUESTS_PER_FILE
from compactor.planning.policy import Policy, ThresholdPolicy
from compactor.settings.policy import PolicyValues
from compactor.settings.section import Section
from compactor.whatif.simulation import Costs, Outcome, replay
from compactor.whatif.table_history import Commit, arrivals

DAY = 86_400.0


class Prices(Section):
    """Prices in one currency: the keys of a price file."""

    get_per_1000: float = Field(default=0.0, ge=0, description="A thousand reading requests.")
    put_per_1000: float = Field(default=0.0, ge=0, description="A thousand writing requests.")
    rewrite_per_gb: float = Field(default=0.0, ge=0, description="Compute for rewriting 1024 ** 3 bytes.")
    full_scans_per_day: float = Field(default=0.0, ge=0, description="How often readers open every file of the table.")


@dataclass(frozen=True)
class Scenario:
    """One way to compact the table over `days` of history."""

    name: str
    outcome: Outcome
    days: float

    @property
    def rewritten(self) -> int:
        """Bytes that rewrites read, with settling merges."""
        return self.outcome.bytes_rewritten + self.outcome.bytes_settled

    @property
    def gets(self) -> int:
        """Requests of rewrites for reading."""
        return REQUESTS_PER_FILE * self.outcome.files_rewritten

    @property
    def puts(self) -> int:
        """Requests of rewrites for writing: parts, plus two to open and close each file."""
        return 2 * self.outcome.files_written + -(-self.rewritten // PART_BYTES)

    @property
    def scan_gets(self) -> float:
        """Requests of one scan of the files of the history, on average."""
        return REQUESTS_PER_FILE * (self.outcome.mean_small_files + max(0, self.outcome.files - self.last_small_files))

    @property
    def last_small_files(self) -> int:
        """Small files at the end."""
        return self.outcome.small_files[-1] if self.outcome.small_files else 0

    def cost(self, prices: Prices) -> float:
        """The total cost of the history."""
        scans = prices.full_scans_per_day * self.days
        gets = self.gets + scans * self.scan_gets
        return (
            gets / 1000 * prices.get_per_1000
            + self.puts / 1000 * prices.put_per_1000
            + self.rewritten / 1024**3 * prices.rewrite_per_gb
        )


def assess(
    commits: Sequence[Commit],
    values: PolicyValues,
    sizes: FileSizes,
    policy: Policy,
    cron_commits: Sequence[int],
    sweep_seconds: float = 0.0,
) -> tuple[Scenario, ...]:
    """The history as it was, with Spark's thresholds after every `cron_commits` commits, and with firnline's policy.

    `sweep_seconds`: how often the service looks for idle partitions; 0: it finds them at once.
    """
    arrived = arrivals(commits)
    days = (commits[-1].at - commits[0].at) / DAY if commits else 0.0
    spark = ThresholdPolicy(values, sizes)
    crons = [
        Scenario(f"Spark every {every}", replay(arrived, spark, sizes.is_small, every=every), days)
        for every in cron_commits
    ]
    ours = replay(
        arrived, policy, sizes.is_small, settle_after=values.settle_after_seconds,
        skip_newer=values.skip_newer_than_seconds, sweep=sweep_seconds,
    )  # fmt: skip
    return (Scenario("as it was", as_it_was(commits, sizes), days), *crons, Scenario("firnline", ours, days))


def as_it_was(commits: Sequence[Commit], sizes: FileSizes) -> Outcome:
    """The history as it was, with the rewrites of any compactor."""
    there: dict[PartitionKey, Counter[int]] = {}
    counts: list[int] = []
    costs, small = Costs(), 0
    for commit in commits:
        known = 0
        for key, removed in commit.removed.items():
            for size in removed:
                if there.get(key, Counter())[size] > 0:  # else the file is older than the history
                    there[key][size] -= 1
                    small -= sizes.is_small(size)
                    known += size
                    costs.files_rewritten += commit.rewrite
        costs.bytes_rewritten += known * commit.rewrite
        costs.rewrites += commit.rewrite and bool(known)
        if commit.rewrite and not known:
            continue  # a rewrite of older files only
        for key, added in commit.added.items():
            there.setdefault(key, Counter()).update(added)
            small += sum(map(sizes.is_small, added))
            costs.files_written += len(added) * commit.rewrite
            costs.bytes_in += sum(added) * (not commit.rewrite)
        if commit.rewrite and counts:
            counts[-1] = small
        elif not commit.rewrite and commit.added:
            counts.append(small)
    files = sum(sum(counter.values()) for counter in there.values())
    return Outcome(**vars(costs), files=files, small_files=tuple(counts))
