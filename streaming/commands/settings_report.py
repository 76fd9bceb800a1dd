"""The settings as `firnline check-config` prints them: all values, secrets hidden, with the origin of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import yaml
from yaml.nodes import MappingNode, SequenceNode

from compactor.redaction import masked
from compactor.settings.origins import Key, Sources, dotted
from compactor.settings.tree import Loaded, Settings
from compactor.settings.yaml_file import YAML_TAG, nodes_of

Tree = dict[str, Any]
DEFAULT: Final = "default"
FILE: Final = "file"
LINE_ENDS: Final = frozenset("\x85\u2028\u2029")
"""Characters at which YAML ends a line, beside the usual one."""


class _Dumper(yaml.SafeDumper):
    """Writes characters at which YAML ends a line as escapes: a reader would make spaces of them."""

    def represent_text(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar(f"{YAML_TAG}str", text, style='"' if LINE_ENDS & {*text} else None)


_Dumper.add_representer(str, _Dumper.represent_text)


def settings_tree(settings: Settings) -> Tree:
    """All settings in the form of a settings file, with secrets hidden."""
    tree: Tree = masked(settings.model_dump(mode="json"))
    return tree


def settings_document(loaded: Loaded) -> Tree:
    """`firnline check-config --output json`: the settings, and where each value comes from, by dotted key.

    An origin is `default`, `<file>:<line>` or the name of an environment variable.
    """
    tree = settings_tree(loaded.settings)
    origins = {
        dotted(key): str(loaded.sources.origin(key)) if loaded.sources.has(key) else DEFAULT for key, _ in _leaves(tree)
    }
    return {"settings": tree, "origins": origins}


def settings_yaml(loaded: Loaded) -> str:
    """The settings as YAML; a comment at the end of each line says where the value comes from.

    Read back as a settings file, it gives the same text: so `default` is the origin of every default, also where the
    file repeats it, and lines are only in the JSON document.
    """
    tree = settings_tree(loaded.settings)
    text = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=float("inf"))
    defaults = dict(_leaves(settings_tree(Settings.model_validate({"catalogs": {"any": {}}}))))
    values, lines = dict(_leaves(tree)), text.removesuffix("\n").split("\n")
    root = yaml.compose(text, yaml.SafeLoader)
    for key, place, node in nodes_of(root) if root is not None else ():
        if key in values:
            is_block = isinstance(node, MappingNode | SequenceNode) and not node.flow_style
            line = place.start_mark.line if is_block else node.end_mark.line
            is_default = key in defaults and defaults[key] == values[key]
            lines[line] += f"  # {_origin(loaded.sources, key, is_default=is_default)}"
    return "\n".join(lines) + "\n"


def _origin(sources: Sources, key: Key, *, is_default: bool) -> str:
    origin = sources.origin(key) if sources.has(key) else None
    if origin is not None and origin.variable:
        return origin.variable
    return DEFAULT if origin is None or is_default else FILE


def _leaves(tree: Tree, above: Key = ()) -> Iterator[tuple[Key, Any]]:
    """All values that are no maps, with their keys; lists and empty maps are values."""
    for name, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value
