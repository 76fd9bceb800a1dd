"""docs/spark-options.md: each option of Spark's `rewrite_data_files`, and what it is here."""

from __future__ import annotations

from typing import Final

from compactor.settings.spark_options import OPTIONS, REWRITE_ALL, SparkOption
from compactor.settings.tree import Settings

ARGUMENTS: Final = (
    ("table", "the argument of `plan` and `compact`; the service takes the tables of `tables.include`"),
    ("where", "`--where`, `policy.where` ([Filters](where.md)); `policy.prune_files` leaves out files, as Spark does"),
    ("branch", "`--branch`"),
    ("strategy => 'binpack'", "what is always done; `--strategy` chooses how files are picked, another thing"),
    ("strategy => 'sort'", "a table with a sort order is sorted by it, by Iceberg's own writer (engine `spark`)"),
    ("sort_order", "not offered: the table's own order is kept; no other, and no z-order"),
)


def spark_options_page() -> str:
    """The text of docs/spark-options.md."""
    lines = [
        "# Spark's options, by their own names",
        "",
        "What Spark's `rewrite_data_files` (Iceberg 1.11) takes, and what it is here. `plan` and `compact` take each",
        "by Spark's name: `firnline compact db.t --option min-input-files=3 --option rewrite-job-order=bytes-asc`.",
        "They go before table properties and settings. An unknown name is refused, with the nearest that is known.",
        "",
        "For the service, the same are settings ([Settings](settings.md)); those of `policy` also per table, in the",
        "file (`policy.tables.<name>.<key>`) or as table properties (`firnline.policy.<key>`).",
        "",
        "This page is generated: `make generate` writes it.",
        "",
        "| option | Spark's default | here | default here |",
        "|---|---|---|---|",
        *map(_row, OPTIONS),
        "",
        "## Arguments of the procedure",
        "",
        "| argument | here |",
        "|---|---|",
        *(f"| `{name}` | {meaning} |" for name, meaning in ARGUMENTS),
    ]
    return "\n".join(lines) + "\n"


def _row(option: SparkOption) -> str:
    if option.refused:
        here, default = f"not offered: {option.refused}", ""
    elif option.only:
        here, default = f"always `{option.only}`; nothing else is accepted. {option.note}", f"`{option.only}`"
    elif option.setting:
        section, key = option.setting.split(".")
        known = Settings.model_fields[section].default.model_dump()[key]
        here, default = f"`{option.setting}`", "unset" if known is None else f"`{known}`"
        here += f". {option.note}" if option.note else ""
    else:
        here, default = option.note, "`false`" if option.name == REWRITE_ALL else "unset"
    return f"| `{option.name}` | {option.default} | {here} | {default} |"
