"""Settings from environment variables, put over those of the file."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from compactor.errors import InputError
from compactor.reasons import Reason
from compactor.settings.allowed import nearest
from compactor.settings.origins import (
    CONFIG_FILE_VARIABLE,
    ENVIRONMENT_PREFIX,
    PROPERTY_MAPS,
    Key,
    Origin,
    Sources,
    dotted,
)

JSON_BEGINS: Final = ("[", "{")
_SERVICE_LINK: Final = re.compile(r"_(?:SERVICE_HOST|(?:SERVICE_)?PORT(?:_\w+)?)\Z")
SERVICE_LINK: Final = (
    "; Kubernetes sets such variables for each service of the namespace: set enableServiceLinks: false in the pod"
)


def put_environment(sources: Sources, environment: Mapping[str, str], sections: Collection[str]) -> None:
    """Put the variables over what the file says. `sections`: the names of all sections.

    Raises:
        InputError: a variable names no section, sets a key below a value that is no map, or holds a key twice.
    """
    for name, text in sorted(environment.items()):
        if name.startswith(ENVIRONMENT_PREFIX) and name != CONFIG_FILE_VARIABLE:
            _put(sources, name, text, sections)


def _put(sources: Sources, name: str, text: str, sections: Collection[str]) -> None:
    levels = name[len(ENVIRONMENT_PREFIX) :].lower().split("__")
    if levels[0] not in sections:
        known = [ENVIRONMENT_PREFIX + section.upper() for section in sections]
        hint = nearest(ENVIRONMENT_PREFIX + levels[0].upper(), known)
        links = SERVICE_LINK if _SERVICE_LINK.search(name) and "__" not in name else ""
        message = f"environment variable {name} names no section{hint}; sections: {', '.join(sections)}{links}"
        raise InputError(message, reason=Reason.BAD_SETTING)
    has_text = bool(levels[2:]) and (levels[0] == "catalogs" or tuple(levels[:2]) in PROPERTY_MAPS)
    if has_text:
        property_name = ".".join(levels[2:])
        levels[2:] = [property_name.replace("_", "-") if levels[0] == "catalogs" else property_name]
    origin = Origin(variable=name)
    section: Any = sources.values
    key: list[str | int] = []
    for level in levels[:-1]:
        key.append(_existing_key(section, level))
        inner = section.get(key[-1])
        if inner is None:
            sources.put(tuple(key), {}, origin)
        elif not isinstance(inner, dict):
            _refuse_key_below(sources, tuple(key), name)
        section = section[key[-1]]
    key.append(_existing_key(section, levels[-1]))
    sources.put(tuple(key), text if has_text else _value(name, text), origin)


def _refuse_key_below(sources: Sources, key: Key, name: str) -> None:
    origin = sources.origin(key)
    where = f" ({origin.place})" if origin else ""
    raise InputError(
        f"environment variable {name} sets a key of {dotted(key)}, which is not a map{where}; write all of "
        f"{dotted(key)} in one place",
        reason=Reason.BAD_SETTING,
    )


def _existing_key(section: Mapping[str, Any], key: str) -> str:
    """The file's spelling of `key`, if it has one: environment names cannot contain '-' or '.'."""
    return next((known for known in section if _folded(str(known)) == _folded(key)), key)


def _folded(key: str) -> str:
    return key.lower().replace("-", "_").replace(".", "_")


def _value(name: str, text: str) -> Any:
    """Lists and maps are JSON; numbers in them are texts. What is no JSON stays text, which a list then refuses."""
    if not text.startswith(JSON_BEGINS):
        return text

    def pairs(found: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = [key for key, _ in found]
        double = next((key for key in keys if keys.count(key) > 1), None)
        if double is not None:
            message = f"environment variable {name} has the key {double} twice; remove one of them"
            raise InputError(message, reason=Reason.BAD_SETTING)
        return dict(found)

    try:
        return json.loads(text, object_pairs_hook=pairs, parse_int=str, parse_float=str, parse_constant=str)
    except (ValueError, RecursionError):
        return text


def variable_of(key: Key) -> str | None:
    """The variable that sets this key; None for items of lists, and for names that only JSON can spell."""
    parts = [part for part in key if isinstance(part, str)]
    has_text = len(parts) > len(key[:2]) and (parts[0] == "catalogs" or tuple(parts[:2]) in PROPERTY_MAPS)
    if has_text:
        parts = [*parts[:2], *".".join(parts[2:]).split(".")]
    if len(parts) < len(key) or any(part != part.lower() for part in parts[2:]):
        return None
    return ENVIRONMENT_PREFIX + "__".join(parts).upper().replace("-", "_")
