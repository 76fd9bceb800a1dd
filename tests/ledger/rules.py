"""Rules of the state machine, and how often each was played."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from pyiceberg.table import Table

from tests.ledger.feed import TOLD

INDEX: Final = st.integers(0, 5)
NOTHING_TO_DO: Final = "(an append, as there was nothing to do)"


@dataclass
class Figures:
    """What this process played so far: `by_kind` counts rules, `recounts` looks by their reason to recount."""

    sequences: int = 0
    steps: int = 0
    looks: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)
    recounts: Counter[str] = field(default_factory=Counter)


FIGURES: Final = Figures()


def step(**arguments: Any) -> Callable[[Callable[..., None]], Any]:
    """A rule that is counted."""

    def decorate(operation: Callable[..., None]) -> Any:
        def played(self: Any, **drawn: Any) -> None:
            FIGURES.by_kind[operation.__name__] += 1
            operation(self, **drawn)

        return rule(**arguments)(_named(played, operation))

    return decorate


def change(*, up_to: int = 2, **arguments: Any) -> Callable[[Callable[..., None]], Any]:
    """A rule that changes one of the tables that exist, and how the ledger hears of it. It is given the table.

    `up_to`: the newest format version that the operation can write; PyIceberg writes 1 and 2. If the table has a newer
    one, or the operation finds nothing to do, a few rows are appended instead, so that no step is lost.
    """

    def decorate(operation: Callable[..., None]) -> Any:
        def changed(self: Any, table: int, told: str, **drawn: Any) -> None:
            tables = list(self.tables.there())
            name, chosen = tables[table % len(tables)]
            before = chosen.metadata_location
            if chosen.format_version <= up_to:
                operation(self, chosen, **drawn)
            has_changed = self.tables.find(name).metadata_location != before
            FIGURES.by_kind[operation.__name__ if has_changed else NOTHING_TO_DO] += 1
            if not has_changed:
                self.append_something(name)
            self.announce(name, told)

        made = rule(table=st.integers(0, 1), told=st.sampled_from(TOLD), **arguments)(_named(changed, operation))
        return precondition(lambda self: self.tables.taken)(made)

    return decorate


def commits(
    operation: Callable[..., None],
    *,
    up_to: int = 2,
    when: Callable[[Table], bool] = lambda _table: True,
    lake: bool = False,
    **arguments: Any,
) -> Any:
    """A rule that calls a function of the table, where `when` says so. `lake`: the function is given Spark's, too."""

    def run(self: Any, table: Table, **drawn: Any) -> None:
        if when(table):
            operation(*([self.lake] if lake else []), table, **drawn)

    run.__name__ = f"{'spark_' if lake else ''}{operation.__name__}"
    return change(up_to=up_to, **arguments)(run)


def _named(played: Callable[..., None], operation: Callable[..., None]) -> Callable[..., None]:
    played.__name__, played.__doc__ = operation.__name__, operation.__doc__
    played.__qualname__, played.__module__ = operation.__qualname__, operation.__module__
    return played
