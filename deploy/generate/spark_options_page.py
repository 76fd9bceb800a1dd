"""docs/spark-options.md: each option of Spark's `rewrite_data_files`, and its equivalent in firnline."""

from __future__ import annotations

from typing import Final

from pydantic.fields import FieldInfo

from compactor.settings.policy import PolicyValues
from compactor.settings.section import is_setting
from compactor.settings.spark_options import OPTIONS, REWRITE_ALL, SparkOption
from compactor.settings.tree import Settings

ARGUMENTS: Final = (
    ("table", "the argument of `plan` and `compact`; the service takes the tables of `tables.include`"),
    (
        "where",
        "`--where`, `policy.where` ([Filters](where.md)); the table property `firnline.policy.prune_files` skips files",
    ),
    ("branch", "`--branch`"),
    ("strategy => 'binpack'", "always done; `--strategy` of firnline is different: it chooses the policy"),
    ("strategy => 'sort'", "a table with a sort order is sorted by it, by Iceberg's own writer (engine `spark`)"),
    ("sort_order", "not offered: firnline uses the table's sort order; no other order, no z-order"),
)


PLACES: Final = {
    "policy": "the table property `firnline.policy.{}`",
    "commit": "for one run",
    "service": "for one run",
}


def spark_options_page() -> str:
    """The text of docs/spark-options.md."""
    lines = [
        "# Spark's options, by their own names",
        "",
        "Options of Spark's `rewrite_data_files` (Iceberg 1.11) and their equivalents in firnline. `plan` and",
        "`compact` accept them by Spark's name:",
        "`firnline compact db.t --option min-input-files=3 --option rewrite-job-order=bytes-asc`.",
        "These options win over table properties and settings. An unknown name is an error with a suggestion.",
        "",
        "For the service, use settings ([Settings](settings.md)). Keys of `policy` can also be set per table: in the",
        "file (`policy.tables.<name>.<key>`) or as table properties (`firnline.policy.<key>`). What no setting changes",
        "is a table property alone.",
        "",
        "This page is generated: `make generate` writes it.",
        "",
        "| option | Spark's default | in firnline | default in firnline |",
        "|---|---|---|---|",
        *map(_row, OPTIONS),
        "",
        "## Arguments of the procedure",
        "",
        "| argument | in firnline |",
        "|---|---|",
        *(f"| `{name}` | {meaning} |" for name, meaning in ARGUMENTS),
        "",
        "## Table properties without a setting",
        "",
        "`firnline.policy.<key>` of a table sets these too; their defaults suit almost all tables.",
        "",
        "| key | default | meaning and reason |",
        "|---|---|---|",
        *(_property(key, field) for key, field in PolicyValues.model_fields.items() if not is_setting(field)),
    ]
    return "\n".join(lines) + "\n"


def _row(option: SparkOption) -> str:
    if option.refused:
        here, default = f"not offered: {option.refused}", ""
    elif option.only:
        here, default = f"always `{option.only}`; no other value is accepted. {option.note}", f"`{option.only}`"
    elif option.setting:
        section, key = option.setting.split(".")
        field = type(Settings.model_fields[section].default).model_fields[key]
        known = field.get_default(call_default_factory=True)
        here = f"`{option.setting}`" if is_setting(field) else PLACES[section].format(key)
        default = "unset" if known in (None, {}) else f"`{known}`"
        here += f". {option.note}" if option.note else ""
    else:
        here, default = option.note, "`false`" if option.name == REWRITE_ALL else "unset"
    return f"| `{option.name}` | {option.default} | {here} | {default} |"


def _property(key: str, field: FieldInfo) -> str:
    default = "unset" if field.default is None else f"`{field.default}`"
    return f"| `firnline.policy.{key}` | {default} | {field.description} |"
