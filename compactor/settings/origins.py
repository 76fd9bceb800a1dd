"""Where each value of the settings comes from: a line of the file, an environment variable, or the default."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

Key = tuple[str | int, ...]
"""The way to a value: names of keys, and numbers of list items from 0."""
ENVIRONMENT_PREFIX: Final = "FIRNLINE_"
CONFIG_FILE_VARIABLE: Final = "FIRNLINE_CONFIG_FILE"  # path of the settings file; not a setting
PROPERTY_MAPS: Final = frozenset({("kafka", "options"), ("spark", "conf"), ("commit", "snapshot_properties")})
"""Maps of a client's properties, whose names may have dots; as each catalog is."""


@dataclass(frozen=True)
class Origin:
    """A line of the file (from 1), or an environment variable."""

    file: str = ""
    line: int = 0
    variable: str = ""

    @property
    def place(self) -> str:
        """As error messages say it, which name the file once."""
        return self.variable or f"line {self.line}"

    def __str__(self) -> str:
        return self.variable or f"{self.file}:{self.line}"


_MISSING: Final = object()


@dataclass
class Sources:
    """What file and environment say, as one tree, and the origins of its values. `file`: the file, if there is one."""

    file: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[Key, Origin] = field(default_factory=dict)

    def origin(self, key: Key) -> Origin | None:
        """The origin of the value, else of the map or list that should hold it; None for a default."""
        return next((self.origins[key[:end]] for end in range(len(key), 0, -1) if key[:end] in self.origins), None)

    def value(self, key: Key, otherwise: Any = None) -> Any:
        """The value that file or environment set, as it was written; `otherwise` for a default."""
        value: Any = self.values
        for part in key:
            is_there = (
                part in value if isinstance(value, dict) else isinstance(value, list) and part in range(len(value))
            )
            if not is_there:
                return otherwise
            value = value[part]
        return value

    def has(self, key: Key) -> bool:
        """Whether file or environment set this value; else it is a default."""
        return self.value(key, _MISSING) is not _MISSING

    def put(self, key: Key, value: Any, origin: Origin) -> None:
        """Set the value at `key`, whose parents are maps, and its origin; an earlier value is forgotten."""
        self.origins = {known: at for known, at in self.origins.items() if known[: len(key)] != key}
        section: Any = self.values
        for part in key[:-1]:
            section = section[part]
        section[key[-1]] = value
        self.origins |= {below: origin for below, _ in walk(value, key)}


def walk(value: Any, above: Key = ()) -> Iterator[tuple[Key, Any]]:
    """All values in a tree with their keys, itself first."""
    yield above, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from walk(inner, (*above, key))


def dotted(key: Key) -> str:
    """The key as messages and docs write it: `policy.growth`, `hooks[0].uri`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).removeprefix(".")
