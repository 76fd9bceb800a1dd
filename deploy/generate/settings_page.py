"""docs/settings.md: every setting with its default, unit and reason."""

from __future__ import annotations

import json

from pydantic.fields import FieldInfo

from compactor.settings.hooks import HookSettings
from compactor.settings.section import Section
from compactor.settings.tree import Settings


def settings_page() -> str:
    """The text of docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "This page is generated: `make generate` writes it. Every key is also an environment variable: `FIRNLINE_` +",
        "the path in capitals, levels joined by `__`; maps and lists as JSON. Environment variables win over the file.",
        "Keys ending in `_seconds` are seconds; keys with `size` or `bytes` are bytes; `null` is unset.",
        "",
        "| key | default | meaning and reason |",
        "|---|---|---|",
    ]
    for name, field in Settings.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, Section):
            lines.extend(_row(f"{name}.{key}", inner) for key, inner in section.model_fields.items())
        else:
            lines.append(_row(name, field))
    lines.extend(_row(f"hooks[].{key}", inner) for key, inner in HookSettings.model_fields.items())
    return "\n".join(lines) + "\n"


def _row(key: str, field: FieldInfo) -> str:
    default = "required" if field.is_required() else field.get_default(call_default_factory=True)
    shown = json.dumps(default) if not isinstance(default, str) else default or '""'
    return f"| `{key}` | `{shown}` | {field.description or ''} |"
