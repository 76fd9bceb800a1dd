"""docs/settings.md: every setting with its default, its unit and range, and its reason."""

from __future__ import annotations

import json

from pydantic.fields import FieldInfo

from compactor.settings.allowed import allowed
from compactor.settings.current import CHANGING
from compactor.settings.hooks import HookSettings
from compactor.settings.locks import LockSettings
from compactor.settings.section import Section, is_setting
from compactor.settings.tree import Settings


def settings_page() -> str:
    """The text of docs/settings.md."""
    lines = [
        "# Settings",
        "",
        "This page is generated: `make generate` writes it. Every key is also an environment variable: `FIRNLINE_` +",
        "the path in capitals, levels joined by `__`; maps and lists as JSON. Environment variables win over the file.",
        "",
        "**Units.** A size is a number of bytes, or has a unit: `512MB` (MB is 10^6), `512MiB` (MiB is 2^20); also B,",
        "KB, GB, TB, KiB, GiB, TiB. A time is a number of seconds, or has a unit: `500ms`, `30s`, `10min`, `1h`, `7d`.",
        "The same holds for environment variables and for table properties `firnline.policy.<key>`. `null` is unset.",
        "",
        "**Texts without quotes.** Properties of catalogs, `kafka.options`, `kafka.catalog_names`, `spark.conf` and",
        "`commit.snapshot_properties` are texts as the file has them: `0123456701` and `1.10` stay so. For a boolean",
        "write `true` or `false` there: `yes`, `no`, `on` and `off` need quotes, because they may be a secret. All",
        "other numbers are decimal: `0777`, `0x1F`, `1:30:00` and `1_000`, which YAML reads its own way, are errors.",
        "",
        "**Check.** `firnline check-config` names wrong keys and values. It prints all settings, each with its origin:",
        "`default`, `file` or the environment variable. The output is a settings file again. Secrets in it are",
        "hidden as `********`, which a settings file refuses: write the secret, or set its environment variable.",
        "",
        "**Removed keys.** A key that is no setting any more has no effect; the service and `check-config` say",
        "what holds instead. What Spark's users know by another name is an option or a table property",
        "([Spark's options](spark-options.md)).",
        "",
        f"**Reload.** {', '.join(f'`{name}`' for name in CHANGING)} and `logging.level` can change while the service",
        "works: [operations](operations.md#change-settings). All others need a restart.",
        "",
        "| key | default | allowed | meaning and reason |",
        "|---|---|---|---|",
    ]
    for name, field in Settings.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, Section):
            lines.extend(
                _row(f"{name}.{key}", inner) for key, inner in section.model_fields.items() if is_setting(inner)
            )
        else:
            lines.append(_row(name, field))
    for name, section in (("hooks", HookSettings), ("locks", LockSettings)):
        lines.extend(_row(f"{name}[].{key}", inner) for key, inner in section.model_fields.items() if is_setting(inner))
    return "\n".join(lines) + "\n"


def _row(key: str, field: FieldInfo) -> str:
    default = "required" if field.is_required() else field.get_default(call_default_factory=True)
    shown = json.dumps(default) if not isinstance(default, str) else default or '""'
    return f"| `{key}` | `{shown}` | {allowed(field, examples=False)} | {field.description or ''} |"
