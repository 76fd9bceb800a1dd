"""All mutations."""

from __future__ import annotations

from typing import Final

from tests.mutations import commits, deletes, files
from tests.mutations.mutation import Mutation

MUTATIONS: Final = tuple(
    each for module in (commits, deletes, files) for each in vars(module).values() if isinstance(each, Mutation)
)
