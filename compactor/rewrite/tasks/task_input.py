"""What a task needs to know to write one share: plain values out of the plan."""

from __future__ import annotations

from pyiceberg.transforms import BucketTransform, IdentityTransform, UnknownTransform, VoidTransform

from compactor.iceberg.manifest_entries import Content
from compactor.iceberg.tables import TableView
from compactor.manifests.live_files import LiveFile, deletes_of
from compactor.planning.plan_table import PlannedGroup, TablePlan
from compactor.rewrite.deletes.equality_deletes import EqualityDelete
from compactor.rewrite.deletes.position_deletes import DeleteFile
from compactor.rewrite.encode.encode import EncodeInput, EncodeShare
from compactor.rewrite.splice.checks import SpliceLimits
from compactor.rewrite.splice.lineage_chunks import RowLineage
from compactor.rewrite.splice.splice import SpliceInput
from compactor.rewrite.tasks.output_task import ShareWork, SpliceShare
from compactor.storage.s3_client import with_table_tags

NAME_MAPPING = "schema.name-mapping.default"


def share_work(plan: TablePlan, planned: PlannedGroup, index: int, output: str) -> ShareWork:
    """The work on share `index` of a group that is not `spark`'s, written to `output`.

    `auto` may splice, and encode where the footers speak against it; an engine that was asked for is the only one.
    """
    share = planned.file_group.tasks[index]
    if plan.requested_engine == "splice":
        return ShareWork(splice_share(plan, share, output), None)
    if plan.requested_engine == "encode":
        return ShareWork(None, encode_share(plan, share, output))
    return ShareWork(splice_share(plan, share, output), encode_share(plan, share, output), aside(output))


def aside(output: str) -> str:
    """Where the decoded part of a share is put until it is spliced into `output`."""
    return f"{output.removesuffix('.parquet')}-part.parquet"


def splice_share(plan: TablePlan, share: tuple[LiveFile, ...], output: str) -> SpliceShare:
    """The share as a splice."""
    lineage = plan.table.keeps_row_lineage
    return SpliceShare(
        inputs=tuple(
            SpliceInput(
                file.entry.path,
                file.size,
                RowLineage(file.entry.first_row_id, file.entry.data_sequence_number) if lineage else None,
            )
            for file in share
        ),
        output=output,
        limits=SpliceLimits(min_row_group_bytes=plan.policy.min_row_group_size),
        storage=_storage(plan.table),
    )


def encode_share(plan: TablePlan, share: tuple[LiveFile, ...], output: str) -> EncodeShare:
    """The share as an encode."""
    table = plan.table
    delete_files = _delete_files(share)

    def applying(file: LiveFile) -> list[DeleteFile | EqualityDelete]:
        return [delete_files[delete.path] for delete in file.deletes]

    return EncodeShare(
        inputs=tuple(
            EncodeInput(
                location=file.entry.path,
                size=file.size,
                records=file.entry.records,
                data_sequence_number=file.entry.data_sequence_number,
                first_row_id=file.entry.first_row_id,
                position_deletes=tuple(each for each in applying(file) if isinstance(each, DeleteFile)),
                equality_deletes=tuple(each for each in applying(file) if isinstance(each, EqualityDelete)),
            )
            for file in share
        ),
        output=output,
        schema_json=table.metadata.schema().model_dump_json(),
        partition_constants=_constants(table, share[0]),
        name_mapping_json=table.properties.get(NAME_MAPPING),
        properties=tuple(sorted(table.properties.items())),
        storage=_storage(table),
        format_version=table.metadata.format_version,
        keep_row_lineage=table.keeps_row_lineage,
        sorted_field_ids=_sorted_field_ids(table),
    )


def _delete_files(share: tuple[LiveFile, ...]) -> dict[str, DeleteFile | EqualityDelete]:
    """What a task is told of each delete file, by path: one object however many data files it applies to.

    The work is pickled for its task, and an object only once: 500 files below 500 deletes are not 250,000 objects.
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
        for delete in deletes_of(share)
    }


def storage_of(table: TableView) -> dict[str, str]:
    """How to reach the table's files: its FileIO's properties, and what outputs are tagged with."""
    return with_table_tags(table.io.properties, table.name.namespace, table.name.name)


def _storage(table: TableView) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(storage_of(table).items()))


def _constants(table: TableView, file: LiveFile) -> tuple[tuple[int, object], ...]:
    """Values of identity partition fields: what a file that lacks the column holds (spec: column projection)."""
    fields = table.spec(file.entry.key.spec_id).fields
    return tuple(
        (field.source_id, value)
        for field, value in zip(fields, file.entry.partition, strict=True)
        if isinstance(field.transform, IdentityTransform)
    )


def _sorted_field_ids(table: TableView) -> tuple[int, ...]:
    """Sort columns that get bounds whatever the default metrics mode (Iceberg's MetricsConfig)."""
    without_order = (BucketTransform, VoidTransform, UnknownTransform)
    return tuple(
        field.source_id
        for field in table.metadata.sort_order().fields
        if not isinstance(field.transform, without_order)
    )
