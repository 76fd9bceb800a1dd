"""What a setting accepts, in plain words, from its type: for error messages and docs/settings.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from compactor.settings.texts import Form
from compactor.settings.units import Unit


@dataclass(frozen=True)
class Kind:
    """One alternative of a type: without Annotated and Union, whose metadata are collected."""

    plain: Any
    metadata: tuple[Any, ...] = ()


def kinds(annotation: Any, metadata: Iterable[Any] = ()) -> Iterator[Kind]:
    """The alternatives of a type, in order."""
    origin, found = get_origin(annotation), tuple(metadata)
    if origin is Annotated:
        plain, *more = get_args(annotation)
        yield from kinds(plain, (*found, *_unpacked(more)))
    elif origin in {Union, UnionType}:
        for each in get_args(annotation):
            yield from kinds(each, found)
    else:
        yield Kind(annotation, found)


def _unpacked(metadata: Iterable[Any]) -> Iterator[Any]:
    for each in metadata:
        yield from each.metadata if isinstance(each, FieldInfo) else (each,)


def kinds_of(field: FieldInfo) -> Iterator[Kind]:
    """The alternatives of a field."""
    return kinds(field.annotation, field.metadata)


def is_number(field: FieldInfo) -> bool:
    """Whether the field takes numbers and no booleans."""
    plain = {each.plain for each in kinds_of(field) if isinstance(each.plain, type)}
    return bool(plain & {int, float}) and bool not in plain


def allowed(field: FieldInfo, *, examples: bool = True) -> str:
    """The values that a field accepts: `a whole number, at least 2`; `bytes, at least 1; or null`."""
    text = "; or ".join(_described(kind, examples=examples) for kind in kinds_of(field))
    shown = ", e.g. " + " or ".join(map(str, field.examples)) if field.examples and examples else ""
    return text + shown


_LIMITS: Final = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
_WORDS: Final = {bool: "true or false", NoneType: "null", int: "a whole number", float: "a number", str: "text"}


def _described(kind: Kind, *, examples: bool) -> str:
    plain, origin = kind.plain, get_origin(kind.plain)
    unit = next((each for each in kind.metadata if isinstance(each, Unit)), None)
    form = next((each for each in kind.metadata if isinstance(each, Form)), None)
    if origin is Literal:
        *others, last = (f"`{value}`" for value in get_args(plain))
        return f"{', '.join(others)} or {last}" if others else last
    if origin is tuple:
        inner = " or ".join(_described(each, examples=examples) for each in kinds(get_args(plain)[0]))
        return f"a list, each item {inner}"
    if origin is dict or plain is dict:
        return "a map"
    if isinstance(plain, type) and issubclass(plain, BaseModel):
        return "a map of settings"
    if form is not None and plain is str:
        return f"{form.text}; or empty" if form.may_be_empty else form.text
    text = unit.name if unit else _WORDS.get(plain, "text")
    limits = [
        f"{word} {limit:,g}" if isinstance(limit, float) else f"{word} {limit:,}"
        for each in kind.metadata
        for name, word in _LIMITS.items()
        if plain in {int, float} and (limit := getattr(each, name, None)) is not None
    ]
    ranged = f"{text}, {' and '.join(limits)}" if limits else text
    return f"{ranged} (or with a unit: {unit.examples})" if unit and examples else ranged


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint at the most similar known name, or an empty text."""
    found = get_close_matches(name, list(names), n=1)
    return f"; did you mean {found[0]}?" if found else ""
