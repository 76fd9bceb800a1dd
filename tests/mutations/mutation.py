"""One way to break a rule: a name of product code, what stands there instead, and the tests that must notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mutation:
    """A small bug that could have been written.

    Attributes:
        rule: The key of a rule in docs/rules.md.
        target: What is replaced: `module:name` or `module:Class.name`; a function, method, property or constant.
        what: What is broken, in words of the rule.
        tests: Each of them fails then, as pytest names them, from the project's root; the cheapest comes first.
        replacement: Has the parameters of the target. A first parameter `original` is given the target as it is. For a
            constant: takes `original`, and returns the other value.
    """

    rule: str
    target: str
    what: str
    tests: tuple[str, ...]
    replacement: Callable[..., Any]

    @property
    def name(self) -> str:
        """The name of the mutation: where its replacement is defined, as `module:name`."""
        return f"{self.replacement.__module__}:{self.replacement.__name__}"

    @property
    def module(self) -> str:
        """The module of product code that is changed."""
        return self.target.partition(":")[0]


class MutationError(Exception):
    """A mutation that does not fit the code any more: it names itself, and must be written again."""


def breaks(rule: str, target: str, what: str, *tests: str) -> Callable[[Callable[..., Any]], Mutation]:
    """Decorates the replacement of `target`; the arguments are those of `Mutation`."""
    return lambda replacement: Mutation(rule, target, what, tests, replacement)
