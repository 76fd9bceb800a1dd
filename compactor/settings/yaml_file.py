"""Read a settings file: YAML without duplicate keys, with the line of every value."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from yaml.constructor import ConstructorError
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from compactor.errors import InputError
from compactor.reasons import Reason
from compactor.settings.origins import Key, Origin, Sources, dotted, is_property
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
YAML_TAG = "tag:yaml.org,2002:"
MERGE_TAG, TIMESTAMP_TAG, TEXT_TAG = f"{YAML_TAG}merge", f"{YAML_TAG}timestamp", f"{YAML_TAG}str"
INTEGER_TAG, FLOAT_TAG, BOOLEAN_TAG = f"{YAML_TAG}int", f"{YAML_TAG}float", f"{YAML_TAG}bool"
_NOT_QUOTED: Final = frozenset({INTEGER_TAG, FLOAT_TAG, BOOLEAN_TAG, MERGE_TAG, f"{YAML_TAG}value"})
"""Tags that YAML gives to texts without quotes."""
_WORDS: Final = frozenset({"yes", "no", "on", "off"})


class _Loader(yaml.SafeLoader):
    """Dates stay text: no setting is a date, and a filter may be one. A value that its tag does not allow is named."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own attribute
        first: [(tag, pattern) for tag, pattern in known if tag != TIMESTAMP_TAG]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except KeyProblemError:
            raise
        except (ValueError, OverflowError, LookupError, TypeError, AttributeError) as error:  # what PyYAML lets through
            tag = node.tag.replace(YAML_TAG, "!!")  # the value may be a secret
            problem = f"has a value that is not what its tag {tag} says (line {_line(node)}); remove the tag"
            raise KeyProblemError((), problem) from error


def read_file(path: Path, what: str = "settings file") -> Sources:
    """Read a settings file, or another file of keys: `what`, in messages.

    Raises:
        InputError: the file is missing, is an empty pipe, is no YAML, is no map, has a key twice, a number that is not
            decimal, or a value that its tag does not allow. The message names the line.
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
        _refuse_duplicates(list(nodes_of(root)))
        _keep_properties(loader, root, ())
        nodes = list(nodes_of(root))
        _refuse_odd_numbers(nodes)
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
            if not isinstance(name, ScalarNode) or name.tag == MERGE_TAG:
                continue
            first = names.setdefault((name.tag, name.value), name)
            if first is not name:
                lines = sorted({_line(first), _line(name)})
                where = f"line{'s' * (len(lines) - 1)} {' and '.join(map(str, lines))}"
                double = (*key, name.value)
                raise KeyProblemError(double, f"has the key {dotted(double)} twice ({where}); remove one of them")


def _keep_properties(loader: _Loader, node: Node, above: Key) -> None:
    """Make properties texts as they are written; YAML would read some as numbers and booleans.

    A value that an alias uses elsewhere too is a number there.
    """
    entries = node.value if isinstance(node, MappingNode) else []
    for index, (name, value) in enumerate(entries):
        if name.tag == MERGE_TAG:
            for each in value.value if isinstance(value, SequenceNode) else [value]:
                _keep_properties(loader, each, above)
        elif isinstance(name, ScalarNode):
            key = (*above, name.value)
            if is_property(key):
                entries[index] = (name, _as_written(loader, key, value))
            else:
                _keep_properties(loader, value, key)


def _as_written(loader: _Loader, key: Key, node: Node) -> Node:
    if not isinstance(node, ScalarNode) or node.tag not in _NOT_QUOTED:
        return node
    without_quotes = loader.resolve(ScalarNode, node.value, (True, False))  # type: ignore[no-untyped-call]
    if node.tag != without_quotes:  # the file has this tag: the value must be what it says
        return node
    if node.tag == BOOLEAN_TAG and node.value.lower() in _WORDS:
        problem = (
            f"has at {dotted(key)} (line {_line(node)}) a word (yes, no, on or off) that YAML reads as a boolean: "
            "write true or false, or put the text in quotes"
        )
        raise KeyProblemError(key, problem)
    return ScalarNode(TEXT_TAG, node.value, node.start_mark, node.end_mark, node.style)


def _refuse_odd_numbers(nodes: list[tuple[Key, Node, Node]]) -> None:
    """YAML reads `0777` as 511 and `1:30:00` as 5400; people mean something else."""
    for key, place, node in nodes:
        odd = _odd(place) or _odd(node)
        if odd and (is_property(key) or not is_property(key[:3])):  # below a property is no map, but part of a secret
            problem = (
                f"has at {dotted(key)} (line {_line(node)}) {odd}: write a decimal number, or put the text in quotes"
            )
            raise KeyProblemError(key, problem)


def _odd(node: Node) -> str | None:
    """What kind of number it is, if it is not decimal."""
    if node.tag not in {INTEGER_TAG, FLOAT_TAG}:
        return None
    text = node.value.lower().lstrip("+-")
    if text.startswith(("0x", "0b")):
        return "a hexadecimal number" if text[1] == "x" else "a binary number"
    if ":" in text:
        return "a number with colons, which YAML reads in base 60"
    if node.tag == INTEGER_TAG and len(text) > 1 and text.startswith("0"):
        return "a number that begins with 0, which YAML reads as octal"
    return "a number with _" if "_" in text else None


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
