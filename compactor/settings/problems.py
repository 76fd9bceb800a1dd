"""What is wrong with settings, in plain words: the key, the value, what is allowed, and where it is set."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from compactor.redaction import HIDDEN, shown
from compactor.settings.allowed import allowed, kinds_of
from compactor.settings.environment import JSON_BEGINS, variable_of
from compactor.settings.origins import Key, Sources, dotted, walk
from compactor.settings.section import KeyProblemError, Section, kind_of

LONGEST_VALUE: Final = 80
MOST_KEYS: Final = 14
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?")


def explained(error: ValidationError, model: type[Section], sources: Sources) -> list[str]:
    """One line for each key with a problem, in pydantic's order. `sources`: the values as they were written."""
    lines: dict[str, str] = {}
    for problem in error.errors():
        found = _located(model, problem["loc"])
        problem["input"] = sources.value(found.key, problem["input"])
        key, text = _said(problem, found, model)
        origin = sources.origin(key)
        name = dotted(key) or "settings"
        is_json = origin is not None and origin.variable and found.field is not None and _takes_json(found.field)
        text += _where_not_json(sources.value(key)) if is_json else ""
        lines.setdefault(name, f"{name}: {text}" + (f" ({origin.place})" if origin else ""))
    return list(lines.values())


def hidden_secrets(sources: Sources) -> list[str]:
    """A line for each secret that `check-config` has hidden: read back as settings, it would be a wrong password."""
    lines = []
    for key, value in walk(sources.values):
        if isinstance(value, str) and HIDDEN in value:
            variable, origin = variable_of(key), sources.origin(key)
            other = f", or set the environment variable {variable}" if variable else ""
            where = f" ({origin.place})" if origin else ""
            hides = f"{HIDDEN} stands for a secret that `check-config` hides"
            lines.append(f"{dotted(key)}: {hides}; write the secret itself{other}{where}")
    return lines


def checked(section: type[Section], key: str, text: str | Mapping[str, str]) -> Any:
    """Parse the value of one key of a section.

    Raises:
        ValueError: the value is invalid; the message says what is allowed.
    """
    try:
        return getattr(section.model_validate({key: text}), key)
    except ValidationError as error:
        raised = error.errors()[0].get("ctx", {}).get("error")
        why = str(raised) if raised else f"allowed: {allowed(section.model_fields[key])}"
        raise ValueError(why) from None


@dataclass(frozen=True)
class _Place:
    """Where pydantic's location leads: the key, as far as it names settings; its field, and the section around it."""

    key: Key
    field: FieldInfo | None
    section: type[Section] | None
    of_key: bool = False


def _located(model: type[Section], location: Iterable[str | int]) -> _Place:
    place = _Place((), None, model)
    for part in location:
        if part == "[key]":
            return _Place(place.key, place.field, None, of_key=True)
        inner = _below(place, part)
        if inner is None:  # what follows names an alternative of a type
            break
        place = inner
    return place


def _below(place: _Place, part: str | int) -> _Place | None:
    section = place.section if place.field is None else _section_of(place.field)
    if section is not None:
        return _Place((*place.key, str(part)), section.model_fields.get(str(part)), section)
    for kind in kinds_of(place.field) if place.field else ():
        origin, arguments = get_origin(kind.plain), get_args(kind.plain)
        if origin is tuple and isinstance(part, int):
            return _Place((*place.key, part), FieldInfo.from_annotation(arguments[0]), None)
        if origin is dict:
            return _Place((*place.key, str(part)), FieldInfo.from_annotation(arguments[1]), None)
    return None


def _section_of(field: FieldInfo) -> type[Section] | None:
    return next((kind.plain for kind in kinds_of(field) if _is_section(kind.plain)), None)


def _is_section(plain: Any) -> bool:
    return isinstance(plain, type) and issubclass(plain, Section)


def _said(problem: ErrorDetails, place: _Place, model: type[Section]) -> tuple[Key, str]:
    raised = problem.get("ctx", {}).get("error")
    if isinstance(raised, KeyProblemError):
        return (*place.key, *raised.key), raised.message
    return place.key, str(raised) if raised is not None else _sentence(problem, place, model)


def _sentence(problem: ErrorDetails, place: _Place, model: type[Section]) -> str:
    given = problem["input"]
    if place.field is None and place.section is not None and place.key:
        return f"unknown key{_hint(place.key, place.section, model)}"
    if place.of_key:
        return f"the key {given!r} is not allowed; keys are text: put it in quotes"
    expected = f"allowed: {allowed(place.field)}" if place.field else "allowed: a map of sections"
    if problem["type"] == "missing":
        return f"this key is missing; {expected}"
    if given is None:
        return f"it has no value; {expected}; or remove the key, and its default applies"
    hidden = place.field is None or _holds_maps(place.field)
    return f"{kind_of(given) if hidden else _shown(place.key, given)} is not allowed; {expected}"


def _takes_json(field: FieldInfo) -> bool:
    """Whether a variable of this field holds JSON."""
    return _holds_maps(field) or any(get_origin(kind.plain) is tuple for kind in kinds_of(field))


def _holds_maps(field: FieldInfo) -> bool:
    """Whether the field takes a map or a list of maps. What is given instead may hold the secrets of a map."""
    plain = [kind.plain for kind in kinds_of(field)]
    items = [get_args(each)[0] for each in plain if get_origin(each) is tuple]
    return any(get_origin(each) is dict or _is_section(each) for each in (*plain, *items))


def _where_not_json(value: Any) -> str:
    """For a text that was meant as JSON: where the mistake is, without the text."""
    if not isinstance(value, str) or not value.startswith(JSON_BEGINS):
        return ""
    try:
        json.loads(value)
    except json.JSONDecodeError as error:
        return f"; it is not JSON from character {error.pos + 1} on"
    except ValueError:
        return "; it has a number with too many digits"
    except RecursionError:
        return "; it is nested too deeply"
    return ""


def _hint(key: Key, section: type[Section], model: type[Section]) -> str:
    """The nearest key beside the unknown one, else the same key elsewhere, else all keys, if they are few."""
    *above, name = key
    known = list(section.model_fields)
    near = get_close_matches(str(name), known, n=1)
    if near:
        return f"; did you mean {dotted((*above, near[0]))}?"
    elsewhere = [key for key in _known_keys(model) if key.rpartition(".")[2] == name]
    if elsewhere:
        return f"; did you mean {elsewhere[0]}?"
    of = f" of {dotted(tuple(above))}" if above else ""
    return f"; keys{of}: {', '.join(known)}" if len(known) <= MOST_KEYS else "; docs/settings.md lists all keys"


def _known_keys(model: type[Section]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield name
        section = _section_of(field)
        yield from (f"{name}.{key}" for key in section.model_fields) if section else ()


def _shown(key: Key, value: Any) -> str:
    if isinstance(value, dict | list | tuple):
        return f"a {'map' if isinstance(value, dict) else 'list'}"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = shown(str(key[-1]) if key else "", text)
    text = text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]}…"
    return repr(text) if isinstance(value, str) and not _NUMBER.fullmatch(text) else text
