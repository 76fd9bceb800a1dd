"""Read a settings file: YAML without duplicate keys, with the line of every value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from compactor.errors import InputError
from compactor.reasons import Reason
from compactor.settings.origins import Key, Origin, Sources, dotted
from compactor.settings.pipe import read_text
from compactor.settings.section import KeyProblemError

_REMEDIES = {
    **{mark: f"a value that begins with {mark} must be in quotes" for mark in "!*&%@`|>"},
    "\t": "indent with spaces: a tab is not allowed",
}
"""By the character at which PyYAML stops."""
_GENERAL_REMEDY = "a quote, bracket, colon or comma may be wrong"
_OWN_WORDS = re.compile(r"'(<[a-z ]+>|[,\]}.!: ])'")
"""What PyYAML puts into quotes, and is no text of the file: kinds of tokens, and what it expected."""
YAML_TAG: Final = "tag:yaml.org,2002:"
_MERGE_TAG: Final = f"{YAML_TAG}merge"
_WRITTEN: Final = frozenset({f"{YAML_TAG}{kind}" for kind in ("map", "seq", "str", "null", "merge")})
"""Tags that need not be written."""


class _Loader(yaml.SafeLoader):
    """All values are texts, as in environment variables: their setting reads them, and knows what it wants. So a secret
    or a version may look like a number.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own attribute
        first: [(tag, pattern) for tag, pattern in known if tag in _WRITTEN]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read_file(path: Path, what: str = "settings file") -> Sources:
    """Read a settings file, or another file of keys: `what`, in messages.

    Raises:
        InputError: the file is missing, is an empty pipe, is no YAML, is no map, has a key twice, or a tag. The message
            names the line.
    """
    try:
        text = read_text(path, what)
    except FileNotFoundError:
        hint = "; name a file with -c FILE" if what == "settings file" else ""
        raise InputError(f"{what} {path} does not exist{hint}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{what} {path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise InputError(f"{what} {path} cannot be read: {error.strerror}") from None
    try:
        return _parsed(text, path)
    except yaml.YAMLError as error:
        problem = f"is not YAML: {_said(error)}"
    except KeyProblemError as error:
        problem = error.message
    except RecursionError:
        problem = "has maps or lists that are nested too deeply"
    raise InputError(f"{what} {path} {problem}", reason=Reason.BAD_SETTING)


def _parsed(text: str, path: Path) -> Sources:
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return Sources(str(path))
        nodes = list(nodes_of(root))
        _refuse_tags(nodes)
        _refuse_duplicates(nodes)
        tree = loader.construct_document(root)
    finally:
        loader.dispose()
    if tree is None:
        return Sources(str(path))
    if not isinstance(tree, dict):
        raise KeyProblemError((), "must hold a map of keys")
    return Sources(str(path), tree, {key: Origin(str(path), _line(node)) for key, node, _ in nodes if key})


def nodes_of(root: Node) -> Iterator[tuple[Key, Node, Node]]:
    """Every node: its key, the node with its place (the key of a map, not the value), and itself.

    A node that is used again through an alias comes once.
    """
    yield (), root, root
    yield from _nodes_below(root, (), (), set())


def _nodes_below(node: Node, key: Key, around: tuple[Node, ...], seen: set[int]) -> Iterator[tuple[Key, Node, Node]]:
    if node in around:
        at = f"{dotted(key)} (line {_line(node)})"
        raise KeyProblemError(key, f"has an alias at {at} for a map or list around it; write the values there")
    if id(node) in seen:
        return
    seen.add(id(node))
    items: list[tuple[str | int, Node, Node]] = []
    if isinstance(node, MappingNode):
        items = [(name.value, name, value) for name, value in node.value if isinstance(name, ScalarNode)]
    elif isinstance(node, SequenceNode):
        items = [(index, item, item) for index, item in enumerate(node.value)]
    for part, place, value in items:
        yield (*key, part), place, value
        yield from _nodes_below(value, (*key, part), (*around, node), seen)


def _refuse_duplicates(nodes: list[tuple[Key, Node, Node]]) -> None:
    """YAML forbids a key twice in a map; PyYAML would keep the last."""
    for key, _, node in nodes:
        names: dict[tuple[str, str], Node] = {}
        for name, _ in node.value if isinstance(node, MappingNode) else ():
            if not isinstance(name, ScalarNode) or name.tag == _MERGE_TAG:
                continue
            first = names.setdefault((name.tag, name.value), name)
            if first is not name:
                lines = sorted({_line(first), _line(name)})
                where = f"line{'s' * (len(lines) - 1)} {' and '.join(map(str, lines))}"
                double = (*key, name.value)
                raise KeyProblemError(double, f"has the key {dotted(double)} twice ({where}); remove one of them")


def _refuse_tags(nodes: list[tuple[Key, Node, Node]]) -> None:
    for key, place, node in nodes:
        if {place.tag, node.tag} - _WRITTEN:
            at = f"at {dotted(key)} (line {_line(node)})" if key else f"in line {_line(node)}"
            raise KeyProblemError(key, f"has {at} a tag: {_REMEDIES['!']}")  # the tag may be a secret


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _said(error: yaml.YAMLError) -> str:
    """Where it is and what to do. Text of the file is not shown: it may be a secret that needs quotes."""
    if not isinstance(error, yaml.MarkedYAMLError):
        return " ".join(str(error).split())
    mark = error.problem_mark or error.context_mark
    where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    return where + (_remedy(error) or _in_own_words(error))


def _remedy(error: yaml.MarkedYAMLError) -> str | None:
    """For a value that needs quotes."""
    if "escape" in (error.problem or ""):
        return "in double quotes, \\ begins an escape: use single quotes"
    scanned = error.context_mark if (error.context or "").startswith("while scanning") else None
    firsts = (mark.buffer[mark.pointer] for mark in (error.problem_mark, scanned) if mark and mark.buffer)
    return next((_REMEDIES[first] for first in firsts if first in _REMEDIES), None)


def _in_own_words(error: yaml.MarkedYAMLError) -> str:
    words = ": ".join(filter(None, (error.context, error.problem)))
    remedy = "write plain text" if isinstance(error, ConstructorError) else _GENERAL_REMEDY
    left = _OWN_WORDS.sub("", words)
    return remedy if "'" in left or '"' in left else f"{words}; {remedy}"
