"""Rules that are broken on purpose: which histories notice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType
from typing import Final

import click

from tests.mutations.applying import broken
from tests.mutations.catalogue import MUTATIONS
from tests.mutations.mutation import Mutation
from tests.simulator.jobs import played, stage
from tests.simulator.profiles import is_about

_NOTICED: Final = {
    "": ("nothing_missing", "nothing_settled", "referenced_by_the_head"),
    "conversions": (
        "by_position_to_older_ones",
        "by_value_to_its_own_number",
        "carried_ones_only",
        "expired_with_the_commit",
        "for_any_head",
        "never_found",
        "numbers_of_the_commit",
        "only_new_positions",
        "running_ones_too",
        "where_they_were",
        "without_being_searched",
    ),
    "another converter": ("deletes_not_noticed",),
    "repeated appends": ("counts_not_checked",),
    "repeated deletes": ("never_overtaken",),
    "late requests": ("believed", "refused_for_good", "sent_off_the_record"),
    "branches": ("branches_for_ever", "branches_overlooked"),
    "slow writers": ("polaris_not_asked",),
    "upgrades": ("not_compared_with_the_plan",),
    "pauses": ("silent_is_dead",),
    "deletes of several groups": ("covers_what_is_planned", "first_attempts", "gone_with_the_first"),
    "erasures": ("none_lost",),
}
NOTICED: Final[Mapping[str, str]] = MappingProxyType(
    {name: about for about, names in _NOTICED.items() for name in names}
)
"""Rules whose breach is noticed, and the profile whose histories notice it soonest; empty: any."""


def noticed(mutations: Sequence[Mutation], seeds: Iterable[int]) -> Iterator[tuple[Mutation, int, str]]:
    """Each mutation, after how many histories of its profile it was noticed (0: it was not), and the story that did."""
    for each in mutations:
        import_module(each.module)  # with Python's own threads
    with stage():
        for each in mutations:
            about = NOTICED.get(_short(each), "")
            with broken(each):
                stories = enumerate((played(seed) for seed in seeds if is_about(about, seed)), 1)
                yield (each, *next(((number, found.failed[0]) for number, found in stories if found.failed), (0, "")))


def _short(mutation: Mutation) -> str:
    return mutation.name.rpartition(":")[2]


def chosen(names: str) -> list[Mutation]:
    """`names`: the ends of their names, or `all` that concern what is simulated."""
    wanted = NOTICED if names == "all" else names.split(",")
    return [each for name in wanted for each in MUTATIONS if _short(each) == name]


def noticed_by(names: str, seeds: Iterable[int]) -> bool:
    """Tell it; whether one was not noticed."""
    missed = 0
    for each, number, story in noticed(chosen(names), seeds):
        missed += not number
        what = story.partition("\n")[0].partition("): ")[2]
        found = f"history {number:5}" if number else "NOT NOTICED  "
        click.echo(f"{found} {each.name}: {each.what}" + (f" [{what}]" if what else ""))
    return missed > 0
