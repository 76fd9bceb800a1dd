"""Table names that arrive as one text with dots, as engines write them."""

from __future__ import annotations

import re

from streaming.commit_events.decoder import BadEventReason, MalformedError, shown
from streaming.commit_events.strict_json import FEWEST_PARTS, checked_text, no_namespace

# A part as Spark writes it: in backticks if it has other characters than letters, digits and underscores.
_QUOTED_PART = re.compile(r"(?:`((?:[^`]|``)+)`|([^`.]+))(\.|$)")
_QUOTE = '"'
# Schema and table as Trino writes them: in double quotes if it has other characters than small letters and digits.
_TRINO_NAME = re.compile(r'("(?:[^"]|"")+"|[^"./]+)\.("(?:[^"]|"")+"|[^"./]+)')


def catalog_namespace_name(text: str, where: str) -> tuple[str | None, tuple[str, ...], str]:
    """The parts of `catalog.namespace.name`, as Iceberg's engines call a table. With two parts the catalog is unknown.

    Iceberg does not quote the parts, so a dot inside one of them separates, too. Trino does, and gives no catalog; dots
    in its schema separate levels of the namespace. `where`: the field's name in errors.

    Raises:
        MalformedError: `no_identifier` for a location, `no_namespace` for one part, `invalid_text` for an empty part.
    """
    of_trino = _TRINO_NAME.fullmatch(text) if _QUOTE in text else None
    if of_trino is not None:
        schema, name = map(_without_quotes, of_trino.groups())
        return None, *_checked([*schema.split("."), name], text, where)
    if "/" in text:  # a table that was loaded by its path, or a catalog whose name is a URI
        raise MalformedError(
            BadEventReason.NO_IDENTIFIER,
            f"{where} is {shown(text)}: a location, not catalog.namespace.name; write to the table by its name in the "
            "catalog, or rely on sweeps",
        )
    namespace, name = _checked(text.split("."), text, where)
    return (namespace[0], namespace[1:], name) if len(namespace) > 1 else (None, namespace, name)


def _checked(parts: list[str], text: str, where: str) -> tuple[tuple[str, ...], str]:
    for part in parts:
        checked_text(part, f"a part of {where} {shown(text)}")
    if len(parts) < FEWEST_PARTS:
        raise no_namespace(f"{where} is {shown(text)}")
    return tuple(parts[:-1]), parts[-1]


def _without_quotes(part: str) -> str:
    return part[1:-1].replace(2 * _QUOTE, _QUOTE) if part.startswith(_QUOTE) else part


def namespace_name(text: str, where: str) -> tuple[tuple[str, ...], str]:
    """Namespace and name of a Spark identifier, whose parts are quoted with backticks where necessary.

    Raises:
        MalformedError: `no_namespace` for one part, `invalid_text` for text that is not an identifier.
    """
    parts: list[str] = []
    end, more = 0, True
    while more:
        part = _QUOTED_PART.match(text, end)
        if part is None:
            raise MalformedError(BadEventReason.INVALID_TEXT, f"{where} is {shown(text)}: not names with dots")
        parts.append(part[2] or part[1].replace("``", "`"))
        end, more = part.end(), part[3] == "."
    if len(parts) < FEWEST_PARTS:
        raise no_namespace(f"{where} is {shown(text)}")
    return tuple(parts[:-1]), parts[-1]
