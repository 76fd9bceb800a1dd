"""Rules that are broken on purpose: which histories notice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Final

import click

from tests.mutations.applying import broken
from tests.mutations.catalogue import MUTATIONS
from tests.mutations.mutation import Mutation
from tests.simulator.jobs import Played, played, stage

NOTICED: Final = (
    "numbers_of_the_commit",
    "referenced_by_the_head",
    "counts_not_checked",
    "nothing_missing",
    "refused_for_good",
    "polaris_not_asked",
    "none_lost",
    "by_position_to_older_ones",
    "where_they_were",
    "carried_ones_only",
    "only_new_positions",
    "believed",
    "not_compared_with_the_plan",
    "never_found",
    "running_ones_too",
    "nothing_settled",
    "first_attempts",
    "sent_off_the_record",
    "expired_with_the_commit",
    "branches_overlooked",
    "branches_for_ever",
    "deletes_not_noticed",
    "gone_with_the_first",
    "covers_what_is_planned",
    "without_being_searched",
    "for_any_head",
)
"""Rules whose breach some history notices."""
RARE: Final = (
    "silent_is_dead",
    "by_value_to_its_own_number",
    "never_overtaken",
)
"""Others that concern commits, rebasing, conversions, rollbacks and sweeps. They are held by a second rule too."""


def noticed(mutations: Sequence[Mutation], seeds: Iterable[int]) -> Iterator[tuple[Mutation, int, str]]:
    """Each mutation, after how many histories it was noticed (0: it was not), and the story that did."""
    for each in mutations:
        import_module(each.module)  # with Python's own threads
    with stage():
        for each in mutations:
            with broken(each):
                yield (
                    each,
                    *next(((number, found.failed[0]) for number, found in _each(seeds) if found.failed), (0, "")),
                )


def _each(seeds: Iterable[int]) -> Iterator[tuple[int, Played]]:
    for number, seed in enumerate(seeds, 1):
        yield number, played(seed)


def chosen(names: str) -> list[Mutation]:
    """`names`: the ends of their names, or `all` that concern what is simulated."""
    wanted = (*NOTICED, *RARE) if names == "all" else names.split(",")
    return [each for name in wanted for each in MUTATIONS if each.name.endswith(f":{name}")]


def noticed_by(names: str, seeds: Iterable[int]) -> bool:
    """Tell it; whether one was not noticed."""
    missed = 0
    for each, number, story in noticed(chosen(names), seeds):
        missed += not number
        what = story.partition("\n")[0].partition("): ")[2]
        found = f"history {number:5}" if number else "NOT NOTICED  "
        click.echo(f"{found} {each.name}: {each.what}" + (f" [{what}]" if what else ""))
    return missed > 0
