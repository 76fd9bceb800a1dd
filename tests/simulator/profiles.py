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

WORK: Final = ("job done", "look", "apply", "applied", "confirm", "send", "answer", "delete")
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
        ends: Weights of how a service ends: it is stopped, killed, paused.
        aims: At which steps it is killed or paused; empty: at any.
        mixed: Share of histories with a second, unpartitioned spec, whose equality deletes apply everywhere.
        leased: Share of histories in which a lease tells a service that another one has taken over.
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
    ends: tuple[int, int, int] = (4, 5, 2)
    aims: tuple[str, ...] = ("", "", *WORK)
    partitions: tuple[int, ...] = (1, 2)
    mixed: float = 0.3
    leased: float = 0.9
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
    Profile("everything", 0.2),
    Profile(
        "conversions",
        0.2,
        {**UPSERTS, "delete": 2.0, "upgrade": 0.0, "append_again": 4.0, "delete_again": 3.0, "convert": 0.0},
        versions=(2, 3, 3),
        rush=(0.2, 0.4),
        silent=0.3,
        lost=0.1,
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
        converts=(None, 1),
        merges=(None,),
        before=(3, 4, 6),
        paid=0.0,
    ),
    Profile(
        "merges of manifests",
        0.12,
        {"append": 3.0, "expire": 0.5, "roll_back": 0.5},
        rush=(0.2, 0.4),
        merges=(3, 4),
        least_files=(2, 50, 50),
        before=(1, 2, 4),
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
    Profile("branches", 0.08, {"publish": 12.0, "append": 0.5, "delete": 0.5}, paid=0.3, experiment=0.5),
    Profile("rollbacks and expiries", 0.05, {"roll_back": 4.0, "expire": 4.0, "delete": 2.0}),
    Profile("upgrades", 0.04, {"upgrade": 12.0, "delete": 3.0}, versions=(2,), rush=(0.2, 0.4), paid=0.0),
    Profile("pauses", 0.05, ends=(1, 0, 8), aims=WORK, leased=0.3, paid=0.0),
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
