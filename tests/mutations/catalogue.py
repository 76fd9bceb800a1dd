"""All mutations, in the order of the rules."""

from __future__ import annotations

from typing import Final

from tests.mutations import commits, deletes, files, planning, predicates
from tests.mutations.mutation import Mutation
from tests.mutations.rules import RULES

_ALL: Final = (*commits.MUTATIONS, *deletes.MUTATIONS, *planning.MUTATIONS, *files.MUTATIONS, *predicates.MUTATIONS)
_ORDER: Final = [rule.key for rule in RULES]
MUTATIONS: Final[tuple[Mutation, ...]] = tuple(sorted(_ALL, key=lambda mutation: _ORDER.index(mutation.rule)))
