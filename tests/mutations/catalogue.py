"""All mutations, in the order of the rules."""

from __future__ import annotations

from typing import Final

from tests.mutations import commits, conversions, deletes, events, files, planning, predicates, rollbacks, spark
from tests.mutations.mutation import Mutation
from tests.mutations.rules import RULES

_MODULES: Final = (commits, events, rollbacks, deletes, conversions, planning, files, spark, predicates)
_ALL: Final = [mutation for module in _MODULES for mutation in module.MUTATIONS]
_ORDER: Final = [rule.key for rule in RULES]
MUTATIONS: Final[tuple[Mutation, ...]] = tuple(sorted(_ALL, key=lambda mutation: _ORDER.index(mutation.rule)))
