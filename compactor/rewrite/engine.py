"""Which engine rewrites a group, and why: the cheapest one that keeps every row, every type and every label.

`splice` copies row groups and decodes nothing; `spark` reads and writes through Iceberg's own code and can do
everything. What metadata cannot tell (schemas, row-group sizes) the footers tell later, see `splice.refusal`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from compactor.errors import InputError
from compactor.inventory import LiveFile
from compactor.partitions import PartitionKey
from compactor.tables import TableView

ROW_LINEAGE_VERSION = 3


class Engine(Enum):
    """Names as on the command line, in results and in metric labels."""

    SPLICE = "splice"
    SPARK = "spark"


@dataclass(frozen=True)
class EngineChoice:
    """An engine and the reason: a slug fit for a metric label, and a sentence for people."""

    engine: Engine
    reason: str
    sentence: str


def choose_engine(
    table: TableView, key: PartitionKey, files: Sequence[LiveFile], requested: str = "auto"
) -> EngineChoice:
    """Choose from metadata alone; a `splice` is still subject to the footers.

    Raises:
        InputError: the requested engine is not there, or cannot do this group without losing something.
    """
    if requested not in {"auto", "splice", "spark"}:
        raise InputError(f"engine {requested!r} is not available in this version; use auto, splice or spark")
    if requested == "spark":
        return EngineChoice(Engine.SPARK, "requested", "asked for by the user")
    obstacle = _obstacle(table, key, files)
    if obstacle is None:
        return EngineChoice(Engine.SPLICE, "row_groups_copied", "Parquet of one schema, nothing to decode")
    if requested == "splice":
        raise InputError(f"engine splice cannot rewrite a group of {table.name}: {obstacle[1]}; use --engine auto")
    return EngineChoice(Engine.SPARK, *obstacle)


def _obstacle(table: TableView, key: PartitionKey, files: Sequence[LiveFile]) -> tuple[str, str] | None:
    """The first thing metadata tells against copying row groups: slug and sentence."""
    formats = {file.entry.file_format for file in files}
    checks = (
        (formats != {"parquet"}, "file_format", f"data files are {', '.join(sorted(formats))}"),
        (any(file.deletes for file in files), "deletes", "delete files apply: rows must be left out"),
        (any(file.entry.encrypted for file in files), "encrypted", "data files are encrypted"),
        (
            table.metadata.format_version >= ROW_LINEAGE_VERSION,
            "row_lineage",
            "from format version 3 on every row keeps its id",
        ),
        (is_sorted(table), "sorted", "the table has a sort order: copied row groups would not be in it"),
        (not key.commits_as_json, "partition_value", "a partition value is NaN or infinite"),
    )
    return next(((slug, sentence) for stands, slug, sentence in checks if stands), None)


def impossible(table: TableView, key: PartitionKey, files: Sequence[LiveFile]) -> str | None:
    """Why nobody can rewrite these files, Iceberg itself included; None when somebody can."""
    columns = table.metadata.schema()._lazy_id_to_field  # noqa: SLF001 - the public find_field raises per miss
    fields = [field.name for field in table.spec(key.spec_id).fields if field.source_id not in columns]
    if fields:
        return f"partition field {fields[0]} lost its column: Iceberg cannot read the partition values any more"
    ids = {field_id for file in files for delete in file.deletes for field_id in delete.equality_ids} - set(columns)
    if ids:
        return f"an equality delete compares column {min(ids)}, which was dropped: Iceberg cannot apply it any more"
    return None


def is_sorted(table: TableView) -> bool:
    """Whether the table's default sort order sorts anything."""
    return bool(table.metadata.sort_order().fields)
