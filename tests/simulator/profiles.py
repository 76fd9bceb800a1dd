"""What a history is mostly about: what others like to do, which faults happen, and how the service is set.

A history of everything meets most of it too rarely: two events that must come together, each in one of thirty
histories, come together in one of a thousand. So each history draws one of these, and what it does not name is by
chance as ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any, Final

from compactor.settings.tree import Settings

WORK: Final = ("job done", "apply", "applied", "check", "confirm", "send", "answer", "delete")
"""Steps between the last output and the end of a run, at which deaths and pauses are the most delicate."""


@dataclass(frozen=True)
class Profile:
    """Values in a tuple: one of them by chance.

    Attributes:
        share: Of all histories.
        likes: How much others like to do something, instead of by chance; see `Writers`.
        kinds, versions: Of the catalog and the table.
        faults: How often something does not answer.
        rush: How often others act at a step.
        late, never, lies: Of commits under faults: share that arrives later, or never; and of the latter, how many are
            answered by success (apache/iceberg 17202).
        arrives: How likely one that is late arrives when others may act.
        sweeps: Looks at the records of dead services before all settles.
        lost: Share of tasks whose executor is lost, under faults.
        cluster: Share of histories whose executors are on other hosts, under faults.
        silent: How often the store stops to answer for some files, of what others do under faults.
        outages, switches: How often, of what others do, the catalog goes down, under faults; and a person switches the
            table off or on.
        ends: Weights of how a service ends: it is stopped, killed, paused.
        aims: At which steps it is killed or paused; empty: at any.
        mixed: Share of histories with a second, unpartitioned spec, whose equality deletes apply everywhere.
        leased: Share of histories in which a lease tells a service that another one has taken over.
        hosts: Share of services on a host of their own, where nobody can see whether they live.
        looked_at: Share of pauses in which a sweep comes before any other service.
        converts: Equality deletes from which they are converted; None: never.
        commits: File groups in one commit.
        group_files, run_files: Most files in one file group, and in a run.
        merges: Manifests from which they are merged; None: never.
        least_files: Files from which they are merged.
        before: So often others act before the first service starts, beside some appends.
        works: Seconds for which a service works, up to four times.
        paid: Share of the histories in which the debt is paid at the end: that takes longer than all before.
        experiment: Share of histories with a branch that is written for more than a week.
    """

    name: str
    share: float
    likes: Mapping[str, float] = field(default_factory=dict)
    kinds: tuple[str, ...] = ("rest", "rest", "polaris", "location")
    versions: tuple[int, ...] = (1, 2, 2, 2, 3, 3, 3)
    faults: tuple[float, ...] = (0.0, 0.1, 0.5)
    rush: tuple[float, ...] = (0.05, 0.2, 0.4)
    late: float = 0.35
    never: float = 0.1
    lies: float = 0.1
    arrives: float = 0.5
    sweeps: tuple[int, ...] = (0, 1, 2)
    lost: float = 0.03
    cluster: float = 0.3
    silent: float = 0.15
    outages: float = 0.01
    switches: float = 0.02
    ends: tuple[int, int, int] = (4, 5, 2)
    aims: tuple[str, ...] = ("", "", *WORK)
    partitions: tuple[int, ...] = (1, 2)
    mixed: float = 0.3
    leased: float = 0.9
    hosts: float = 0.4
    looked_at: float = 0.2
    converts: tuple[int | None, ...] = (None, 1, 1, 2)
    commits: tuple[int, ...] = (1, 1000, 1000)
    group_files: tuple[int | None, ...] = (None, None, 2)
    run_files: tuple[int | None, ...] = (None, None, 3)
    merges: tuple[int | None, ...] = (None, None, 3)
    least_files: tuple[int, ...] = (2,)
    before: tuple[int, ...] = (0, 0, 2)
    works: tuple[float, ...] = (1.0, 5.0, 15.0)
    paid: float = 0.2
    experiment: float = 0.0

    def settings(self, chance: Random) -> Settings:
        """Of the service."""
        return _settings(
            converts=chance.choice(self.converts),
            tiered=chance.random() < 0.3,
            hold_seconds=chance.choice((0.0, 0.0, 10.0)),
            commits=chance.choice(self.commits),
            group_files=chance.choice(self.group_files),
            run_files=chance.choice(self.run_files),
            merges=chance.choice(self.merges),
            least_files=chance.choice(self.least_files),
        )


@cache
def _settings(
    *,
    converts: int | None,
    tiered: bool,
    hold_seconds: float,
    commits: int,
    group_files: int | None,
    run_files: int | None,
    merges: int | None,
    least_files: int,
) -> Settings:
    policy: dict[str, Any] = {
        "strategy": "tiered" if tiered else "threshold",
        "settle_after_seconds": 60.0,
        "min_input_files": least_files,
        "target_file_size": 4096,
        "convert_equality_deletes": converts,
        "equality_delete_threshold": 3,
        "max_file_group_input_files": group_files,
        "max_files_to_rewrite": run_files,
    }
    return Settings(
        catalogs={"lake": {"type": "rest", "uri": "http://catalog"}},
        tables={"include": ["*"]},
        policy=policy,
        commit={"hold_seconds": hold_seconds, "groups": commits, "max_failed_commits": commits % 2},
        manifests={
            "rewrite": merges is not None,
            "min_count": merges or 2,
            "min_reduction": 1.5,
            "wait_seconds": 600.0,
        },
    )


UPSERTS: Final = {"upsert": 5.0, "erase": 3.0, "append": 2.0, "expire": 0.0, "compact": 0.0, "roll_back": 0.0}
"""What equality deletes need to be converted: no other compactor, and snapshots that do not expire within a day."""
PROFILES: Final = (
    Profile("everything", 0.07),
    Profile(
        "conversions",
        0.26,
        {**UPSERTS, "delete": 2.0, "upgrade": 0.0, "append_again": 4.0, "delete_again": 3.0, "convert": 0.0},
        versions=(2, 3, 3),
        faults=(0.0, 0.1, 0.5),
        rush=(0.2, 0.4),
        silent=0.2,
        lost=0.1,
        ends=(6, 3, 1),
        partitions=(2,),
        converts=(1, 1, 2),
        merges=(None,),
        before=(3, 4, 6),
        works=(5.0, 15.0, 60.0),
        paid=0.1,
    ),
    Profile(
        "another converter",
        0.1,
        {**UPSERTS, "delete": 1.0, "convert": 8.0, "upgrade": 0.0},
        versions=(2, 3),
        rush=(0.2, 0.4),
        converts=(None, 1, 1),
        merges=(None,),
        ends=(6, 3, 1),
        before=(3, 4, 6),
        works=(5.0, 15.0, 60.0),
        paid=0.0,
    ),
    Profile(
        "merges of manifests",
        0.12,
        {"append": 3.0, "expire": 0.5, "roll_back": 0.5},
        versions=(2, 3, 3),
        faults=(0.1, 0.5),
        late=0.5,
        rush=(0.4,),
        merges=(3, 4),
        least_files=(2, 50, 50, 50),
        before=(2, 4),
        ends=(6, 3, 1),
        works=(5.0, 15.0, 60.0),
        paid=0.1,
    ),
    Profile(
        "late requests",
        0.1,
        {"append": 0.5, "begin": 0.0},
        faults=(0.5,),
        rush=(0.02, 0.05),
        late=0.6,
        never=0.2,
        lies=0.5,
        arrives=0.1,
        sweeps=(1, 2),
        ends=(1, 8, 2),
        aims=("answer",),
        paid=0.0,
    ),
    Profile(
        "branches",
        0.08,
        {
            "publish": 12.0,
            "append": 1.0,
            "delete": 0.2,
            "upsert": 0.2,
            "erase": 0.0,
            "copy_on_write": 0.2,
            "begin": 0.0,
            "roll_back": 0.0,
            "expire": 0.0,
        },
        rush=(0.02, 0.1),
        before=(2, 4),
        works=(15.0, 60.0),
        paid=0.2,
        experiment=0.3,
    ),
    Profile(
        "repeated appends",
        0.03,
        {
            **UPSERTS,
            "append_again": 40.0,
            "upsert": 0.1,
            "erase": 0.1,
            "delete": 0.1,
            "copy_on_write": 0.2,
            "begin": 0.0,
        },
        rush=(0.1, 0.2),
        converts=(None,),
        merges=(None,),
        works=(5.0, 15.0, 60.0),
        paid=0.0,
    ),
    Profile(
        "erasures",
        0.04,
        {**UPSERTS, "erase": 10.0, "append": 4.0, "upsert": 0.3, "delete": 0.3, "convert": 0.0},
        versions=(2, 3),
        faults=(0.0, 0.1),
        rush=(0.4,),
        partitions=(1,),
        converts=(None,),
        group_files=(None,),
        run_files=(None,),
        merges=(None,),
        paid=0.0,
    ),
    Profile(
        "slow writers",
        0.05,
        {"begin": 8.0, "append": 1.0, "delete": 1.0},
        kinds=("polaris", "polaris", "rest"),
        versions=(2, 2, 3),
        paid=0.1,
    ),
    Profile("rollbacks and expiries", 0.05, {"roll_back": 4.0, "expire": 4.0, "delete": 2.0}),
    Profile("upgrades", 0.04, {"upgrade": 12.0, "delete": 3.0}, versions=(2,), rush=(0.2, 0.4), paid=0.0),
    Profile(
        "pauses",
        0.06,
        rush=(0.02, 0.1),
        ends=(1, 0, 8),
        aims=("check", "check", "confirm", "send", "answer"),
        leased=0.3,
        hosts=0.9,
        looked_at=0.7,
        works=(5.0, 15.0),
        paid=0.0,
    ),
    Profile(
        "outages and switches",
        0.05,
        {"append": 3.0},
        faults=(0.5,),
        outages=0.15,
        switches=0.15,
        ends=(5, 2, 1),
        works=(15.0, 60.0, 300.0),
        paid=0.1,
    ),
    Profile(
        "repeated deletes",
        0.05,
        {**UPSERTS, "delete": 0.2, "append_again": 3.0, "delete_again": 20.0, "convert": 0.0, "upgrade": 0.0},
        versions=(2,),
        rush=(0.4,),
        partitions=(1, 2),
        converts=(1,),
        merges=(None,),
        before=(4, 6),
        works=(5.0, 15.0, 60.0),
        paid=0.0,
    ),
    Profile(
        "deletes of several groups",
        0.06,
        {**UPSERTS, "delete": 3.0, "copy_on_write": 3.0},
        versions=(2, 2, 3),
        rush=(0.2, 0.4),
        faults=(0.5,),
        lost=0.2,
        cluster=1.0,
        silent=0.4,
        partitions=(2,),
        mixed=0.7,
        converts=(None,),
        commits=(1, 1000),
        group_files=(2,),
        run_files=(None, 3),
        merges=(None,),
        paid=0.0,
    ),
)


def profile_of(chance: Random) -> Profile:
    return chance.choices(PROFILES, [each.share for each in PROFILES])[0]


def is_about(name: str, seed: int) -> bool:
    """Whether the history of a seed has this profile; empty: any."""
    return not name or profile_of(Random(seed)).name == name
