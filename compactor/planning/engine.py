"""Choose the engine of a file group: the cheapest engine that keeps every row, every type and every field id.

`splice` copies row groups without decoding; `encode` decodes and encodes Parquet once, with Arrow; `spark` reads and
writes with Iceberg's own code and supports everything. The choice is made from metadata. Footers (schemas, row-group
sizes) may change it later, see `splice/checks.py`: from `splice` to `encode`, from `encode` to `spark`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter

from compactor.errors import InputError
from compactor.iceberg.manifest_entries import Content, FileEntry
from compactor.iceberg.tables import TableView
from compactor.manifests.live_files import LiveFile, deletes_of
from compactor.manifests.tails import only
from compactor.partitions import LOST_COLUMN, NOT_FINITE, PartitionKey
from compactor.planning.compared_columns import not_compared
from compactor.planning.delete_rules import few_deletes
from compactor.planning.spark_misreads import misread
from compactor.reasons import Reason, Refusal
from compactor.table_names import TableName

DELETES_CARRIED = "few rows are deleted: they are copied, and deleted in the output"
ENGINES_TO_ASK_FOR = ("auto", "splice", "encode", "spark")


class Engine(Enum):
    """Engines, the cheapest first; their names on the command line, in results and in metric labels."""

    SPLICE = "splice"
    ENCODE = "encode"
    SPARK = "spark"


@dataclass(frozen=True)
class EngineChoice:
    """An engine, the reason for metric labels, and a sentence for people."""

    kind: Engine
    reason: Reason
    sentence: str


def costliest(choices: Sequence[EngineChoice]) -> EngineChoice:
    """The choice to report for a file group whose output tasks used different engines."""
    cost = list(Engine)
    return max(choices, key=lambda choice: cost.index(choice.kind))


def choose_engine(
    table: TableView,
    key: PartitionKey,
    files: Sequence[LiveFile],
    requested: str = "auto",
    most_carried: float = 0.0,
) -> EngineChoice:
    """Choose an engine from metadata alone; the footers may still rule out `splice` and `encode`.

    `most_carried`: fraction of rows that may be deleted and yet be copied; the commit deletes them in the output.

    Raises:
        InputError: the requested engine does not exist, or would lose data of this file group.
    """
    if requested not in ENGINES_TO_ASK_FOR:
        raise InputError(f"there is no engine {requested!r}; use one of {', '.join(ENGINES_TO_ASK_FOR)}")
    if requested == "spark":
        return EngineChoice(Engine.SPARK, Reason.REQUESTED, "requested by the user")
    delete_files = deletes_of(files)
    foreign = _not_for_arrow(table, key, files, delete_files)
    if foreign is not None and requested == "auto":
        return EngineChoice(Engine.SPARK, *foreign)
    deletes = _deletes(delete_files)
    carried = deletes is not None and few_deletes(files, most_carried)
    obstacle = foreign or (deletes if requested == "splice" and not carried else None)
    if obstacle is not None:
        raise InputError(
            f"engine {requested} cannot rewrite a group of {table.name}: {obstacle[1]}; use --engine auto",
            reason=obstacle[0],
        )
    if requested == "encode":
        return EngineChoice(Engine.ENCODE, Reason.REQUESTED, "requested by the user")
    if carried:
        return EngineChoice(Engine.SPLICE, Reason.DELETES_CARRIED, DELETES_CARRIED)
    if deletes is not None:
        return EngineChoice(Engine.ENCODE, *deletes)
    return EngineChoice(Engine.SPLICE, Reason.ROW_GROUPS_COPIED, "Parquet of one schema, nothing to decode")


def refused_request(engine: str, table: TableName, refusal: Refusal) -> InputError:
    """The error of a request for an engine that the files themselves rule out; `plan` and runs raise it."""
    sentence = refusal.sentence.rstrip(".")
    return InputError(
        f"engine {engine} refuses a file group of {table}: {sentence}; use --engine auto", reason=refusal.reason
    )


def _not_for_arrow(
    table: TableView, key: PartitionKey, files: Sequence[LiveFile], deletes: Collection[FileEntry]
) -> tuple[Reason, str] | None:
    """The first reason in the metadata for which only Iceberg's own code can rewrite the files."""
    kinds = {(file.entry.file_format, file.entry.encrypted) for file in files}
    formats = {file_format for file_format, _ in kinds}
    compared = not_compared(table.metadata.schema(), _compared_ids(deletes))
    checks = (
        (formats != {"parquet"}, Reason.FILE_FORMAT, f"data files are {', '.join(sorted(formats))}"),
        (any(encrypted for _, encrypted in kinds), Reason.ENCRYPTED, "data files are encrypted"),
        (compared is not None, Reason.EQUALITY_DELETES, str(compared)),
        (
            any(delete.file_format not in {"parquet", "puffin"} or delete.encrypted for delete in deletes),
            Reason.DELETE_FILE_FORMAT,
            "delete files are neither plain Parquet nor deletion vectors",
        ),
        (
            _lost_row_ids(table, files),
            Reason.ROW_LINEAGE,
            "a data file has no row ids although its snapshot assigned them: copying would lose them",
        ),
        (is_sorted(table), Reason.SORTED, "the table has a sort order: rows have to be sorted again"),
        (not key.commits_as_json, Reason.PARTITION_VALUE, NOT_FINITE),
    )
    return next(((reason, sentence) for holds, reason, sentence in checks if holds), None)


def _lost_row_ids(table: TableView, files: Sequence[LiveFile]) -> bool:
    """Whether a file lacks the row ids that a V3 snapshot assigns to every data file (spec)."""
    snapshot = table.snapshot
    given = snapshot is not None and snapshot.first_row_id is not None
    return given and any(file.entry.first_row_id is None for file in files)


def _deletes(deletes: Collection[FileEntry]) -> tuple[Reason, str] | None:
    """Why whole row groups cannot be copied."""
    if any(delete.content is Content.EQUALITY_DELETES for delete in deletes):
        return Reason.EQUALITY_DELETES, "equality deletes apply: rows are compared by value"
    if any(delete.is_deletion_vector for delete in deletes):
        return Reason.DELETION_VECTORS, "deletion vectors apply: rows must be left out"
    if deletes:
        return Reason.POSITION_DELETES, "position deletes apply: rows must be left out"
    return None


def _compared_ids(deletes: Collection[FileEntry]) -> frozenset[int]:
    return frozenset(field_id for delete in deletes for field_id in delete.equality_ids)


def impossible(table: TableView, key: PartitionKey, files: Sequence[LiveFile]) -> str | None:
    """Why no engine can rewrite these files, not even Iceberg itself; None if an engine can.

    Files that only Spark can rewrite are also refused if metadata shows that Spark would change their rows.
    """
    orphans = table.orphans(table.spec(key.spec_id))
    if orphans:
        return LOST_COLUMN.format(field=orphans[0])
    columns = table.metadata.schema()._lazy_id_to_field  # noqa: SLF001 - the public find_field raises per miss
    deletes = deletes_of(files)
    if any(delete.content is Content.EQUALITY_DELETES and not delete.equality_ids for delete in deletes):
        return "an equality delete names no column to compare: the rows that it deletes are unknown"
    ids = _compared_ids(deletes) - set(columns)
    if ids:
        return f"an equality delete compares column {min(ids)}, which was dropped: Iceberg cannot apply it any more"
    misunderstood = misread(table, key, files)
    if misunderstood is not None and _not_for_arrow(table, key, files, deletes) is not None:
        return misunderstood.sentence
    vectors_of = only(attrgetter("is_deletion_vector"))
    found = (_contradiction(file, vectors_of(file.deletes)) for file in files if file.deletes)
    return next(filter(None, found), None)


def _contradiction(file: LiveFile, vectors: Sequence[FileEntry]) -> str | None:
    """What is contradictory in a file's deletion vectors; Iceberg's readers refuse such a file."""
    if len(vectors) > 1:
        return f"{file.entry.path} has two deletion vectors: the valid one is unknown"
    for vector in vectors:
        if vector.applies_to is None:
            return f"the deletion vector in {vector.path} names no data file"
        if vector.data_sequence_number < file.entry.data_sequence_number:
            return f"the deletion vector of {file.entry.path} is older than the file"
    return None


def is_sorted(table: TableView) -> bool:
    """Whether the table's default sort order sorts anything."""
    return bool(table.metadata.sort_order().fields)
