"""All mutations, in the order of the rules."""

from __future__ import annotations

from typing import Final

from tests.mutations import commits, deletes, files
from tests.mutations.mutation import Mutation
from tests.mutations.rules import RULES

_ALL: Final = [each for module in (commits, deletes, files) for each in vars(module).values()]
_ORDER: Final = [rule.key for rule in RULES]
MUTATIONS: Final[tuple[Mutation, ...]] = tuple(
    sorted((each for each in _ALL if isinstance(each, Mutation)), key=lambda mutation: _ORDER.index(mutation.rule))
)
