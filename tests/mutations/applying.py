"""Putting a mutation in force: in a copy of the project, for all processes that run it, or in this process."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

from tests.mutations.mutation import Mutation, MutationError

_LINE = "\n__import__('tests.mutations.applying', fromlist=['_']).install({name!r})\n"
_MISSING = object()
_WRAPPERS = (staticmethod, classmethod)
_OURS = ("compactor.", "streaming.", "metrics.", "tests.")


@contextmanager
def applied(tree: Path, mutation: Mutation) -> Iterator[None]:
    """Break the rule in the project below `tree` for the time of the context: its module replaces the name itself.

    A line at the end of the module does it, so that it holds in every process that imports it, e.g. Spark's workers.

    Raises:
        MutationError: the module has no file there.
    """
    file = tree.joinpath(*mutation.module.split(".")).with_suffix(".py")
    if not file.is_file():
        raise MutationError(f"{mutation.name}: {mutation.target}: no file {file}")
    whole = file.read_bytes()
    file.write_bytes(whole + _LINE.format(name=mutation.name).encode())
    try:
        yield
    finally:
        file.write_bytes(whole)


def install(name: str) -> None:
    """Replace what the mutation of this name is about. Its module has just been executed: nobody has the name yet."""
    mutation = resolve_name(name)
    owner, attribute, original = found(mutation)
    setattr(owner, attribute, _replaced(mutation, original))


@contextmanager
def broken(mutation: Mutation) -> Iterator[None]:
    """Break the rule in this process for the time of the context, also where our modules have the name already.

    Does not reach what holds the function otherwise: a `partial`, a table, another process.

    Raises:
        MutationError: the target is not there.
    """
    owner, attribute, original = found(mutation)
    replaced = _replaced(mutation, original)
    holders = [(owner, attribute)]
    if isinstance(owner, ModuleType):
        holders += _importers(owner, attribute, original)
    for holder, key in holders:
        setattr(holder, key, replaced)
    try:
        yield
    finally:
        for holder, key in holders:
            setattr(holder, key, original)


def _importers(owner: ModuleType, attribute: str, original: Any) -> list[tuple[Any, str]]:
    """Our modules that have imported a name of `owner`, and what they call it. Equal numbers count by their name."""
    ours = [each for name, each in sys.modules.items() if name.startswith(_OURS) and each is not owner]
    return [
        (module, key)
        for module in ours
        for key, value in list(vars(module).items())
        if value is original and (callable(original) or key == attribute)
    ]


def found(mutation: Mutation) -> tuple[Any, str, Any]:
    """The module or class that has the target, the target's name in it, and the target as it is stored there.

    Raises:
        MutationError: the target is not there, or is inherited.
    """
    module, _, path = mutation.target.partition(":")
    *classes, attribute = path.split(".")
    try:
        owner = resolve_name(":".join((module, ".".join(classes))) if classes else module)
    except (ImportError, AttributeError) as error:
        raise MutationError(f"{mutation.name}: {mutation.target}: {error}") from error
    original = vars(owner).get(attribute, _MISSING)
    if original is _MISSING:
        raise MutationError(f"{mutation.name}: {mutation.target} does not exist")
    return owner, attribute, original


def function_of(original: Any) -> Any:
    """The function behind a method, property or cached function; None for a constant."""
    if isinstance(original, property):
        original = original.fget
    elif isinstance(original, functools.cached_property):
        original = original.func
    elif isinstance(original, _WRAPPERS):
        original = original.__func__
    return inspect.unwrap(original) if callable(original) else None


def takes_original(mutation: Mutation) -> bool:
    """Whether the replacement is given the target as it is."""
    return next(iter(inspect.signature(mutation.replacement).parameters), "") == "original"


def _replaced(mutation: Mutation, original: Any) -> Any:
    """What is stored instead: the same kind of thing as the original, under its name (Spark pickles by names)."""
    function, replacement = function_of(original), mutation.replacement
    if function is None:
        return replacement(original)
    gives = (function,) if takes_original(mutation) else ()

    @functools.wraps(function)
    def replaced(*arguments: Any, **named: Any) -> Any:
        return replacement(*gives, *arguments, **named)

    if isinstance(original, functools.cached_property):
        cached = functools.cached_property(replaced)
        cached.attrname = original.attrname
        return cached
    kinds = (property, *_WRAPPERS)
    return next((kind(replaced) for kind in kinds if isinstance(original, kind)), replaced)
