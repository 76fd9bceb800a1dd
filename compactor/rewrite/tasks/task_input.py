"""The plan → the input of one output task: plain values that a Spark task can carry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from pyiceberg.transforms import BucketTransform, IdentityTransform, UnknownTransform, VoidTransform

from compactor.credentials.renewing_file_io import vended_of
from compactor.iceberg.manifest_entries import Content, FileEntry
from compactor.iceberg.tables import TableView
from compactor.manifests.live_files import LiveFile, deletes_of
from compactor.manifests.tails import Converted
from compactor.planning.engine import Engine
from compactor.planning.plan_table import PlannedGroup, TablePlan
from compactor.rewrite.deletes.equality_deletes import EncodeInput, EqualityDelete, InputFiles
from compactor.rewrite.deletes.position_deletes import DeleteFile
from compactor.rewrite.encode.encode import EncodeTask
from compactor.rewrite.splice.checks import SpliceLimits
from compactor.rewrite.tasks.output_task import SpliceTask, TaskInput
from compactor.storage.s3_client import with_table_tags

Delete = TypeVar("Delete", DeleteFile, EqualityDelete)

NAME_MAPPING = "schema.name-mapping.default"


def build_task_input(plan: TablePlan, planned: PlannedGroup, index: int, output: str) -> TaskInput:
    """The input of output task `index` of a file group that `splice` or `encode` rewrites into the file `output`.

    With engine `auto` the task tries to splice, then to encode. An engine that was requested is the only one tried.
    """
    files = input_files(plan.table, planned.file_group.tasks[index])
    encode = encode_task(plan.table, files, output)
    if plan.requested_engine == "encode":
        return TaskInput(None, encode)
    by_value = planned.engine.kind is Engine.SPLICE  # else more keys are deleted than may be carried
    splice = splice_task(plan, files, output, by_value=by_value)
    if plan.requested_engine == "splice":
        return TaskInput(splice, None)
    return TaskInput(splice, encode, aside(output))


def aside(output: str) -> str:
    """Location of the temporary file that holds the decoded inputs until they are spliced into `output`."""
    return f"{output.removesuffix('.parquet')}-part.parquet"


def splice_task(plan: TablePlan, files: InputFiles, output: str, *, by_value: bool) -> SpliceTask:
    """Splice `files` into `output`.

    `by_value`: look up the rows that equality deletes delete. Where many can be deleted so, the key columns would be
    read twice.
    """
    limits = SpliceLimits(min_row_group_bytes=plan.policy.min_row_group_size)
    return SpliceTask(files, output, plan.policy.most_carried, limits, plan.table.keeps_row_lineage, by_value)


def encode_task(table: TableView, files: InputFiles, output: str) -> EncodeTask:
    """Encode `files` into `output`."""
    return EncodeTask(
        files=files,
        output=output,
        properties=tuple(sorted(table.properties.items())),
        format_version=table.metadata.format_version,
        keep_row_lineage=table.keeps_row_lineage,
        sorted_field_ids=_sorted_field_ids(table),
    )


def input_files(table: TableView, files: Sequence[LiveFile]) -> InputFiles:
    """Data files of one partition with their deletes, as a task reads them."""
    return InputFiles(
        inputs=_inputs(files),
        schema_json=table.metadata.schema().model_dump_json(),
        partition_constants=_constants(table, files[0]),
        name_mapping_json=table.properties.get(NAME_MAPPING),
        storage=tuple(sorted(storage_of(table).items())),
        vended=vended_of(table.io),
    )


def _inputs(files: Sequence[LiveFile]) -> tuple[EncodeInput, ...]:
    delete_files = _delete_files(files)

    def only(kind: type[Delete]) -> Converted[FileEntry, Delete]:
        return Converted(lambda delete: found if isinstance(found := delete_files.get(delete.path), kind) else None)

    by_position, by_value = only(DeleteFile), only(EqualityDelete)
    return tuple(
        EncodeInput(
            location=file.entry.path,
            size=file.size,
            records=file.entry.records,
            data_sequence_number=file.entry.data_sequence_number,
            first_row_id=file.entry.first_row_id,
            position_deletes=by_position(file.deletes),
            equality_deletes=by_value(file.deletes),
        )
        for file in files
    )


def _delete_files(files: Sequence[LiveFile]) -> dict[str, DeleteFile | EqualityDelete]:
    """The delete files as a task needs them, by path: one object each, however many data files it applies to.

    Pickling writes an object only once, also a tuple that many data files share.
    """
    return {
        delete.path: EqualityDelete(
            location=delete.path,
            size=delete.size,
            sequence_number=delete.data_sequence_number,
            field_ids=delete.equality_ids,
            file_format=delete.file_format,
        )
        if delete.content is Content.EQUALITY_DELETES
        else DeleteFile(delete.path, delete.size, delete.file_format)
        for delete in deletes_of(files)
    }


def storage_of(table: TableView) -> dict[str, str]:
    """Properties of the table's FileIO, with the tags for its output files."""
    return with_table_tags(table.io.properties, table.name.namespace, table.name.name)


def _constants(table: TableView, file: LiveFile) -> tuple[tuple[int, object], ...]:
    """Values of identity partition fields, for files that lack the column (spec: column projection)."""
    fields = table.spec(file.entry.key.spec_id).fields
    return tuple(
        (field.source_id, value)
        for field, value in zip(fields, file.entry.partition, strict=True)
        if isinstance(field.transform, IdentityTransform)
    )


def _sorted_field_ids(table: TableView) -> tuple[int, ...]:
    """Sort columns; they get bounds in every default metrics mode (Iceberg's MetricsConfig)."""
    without_order = (BucketTransform, VoidTransform, UnknownTransform)
    return tuple(
        field.source_id
        for field in table.metadata.sort_order().fields
        if not isinstance(field.transform, without_order)
    )
