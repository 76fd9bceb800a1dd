"""The oracle: what a snapshot holds, read by PyIceberg and counted by plain arithmetic. Shares no code with the ledger.

A snapshot never changes, so what was read of one is remembered: the ledger's claim about a snapshot can be judged also
after the snapshot has expired or its table is gone.
"""

from __future__ import annotations

import datetime as dt
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import DateType

from compactor.partitions import PartitionKey

EPOCH = dt.date(1970, 1, 1)
SMALL_SHARE = 0.75
"""The policy's `min_file_size_ratio`, which no sequence changes."""


@dataclass(frozen=True)
class LiveFile:
    """One live file of a snapshot.

    Attributes:
        content: PyIceberg's code.
        added_by: The snapshot that added it.
        sequence_number: Of its data.
    """

    key: PartitionKey
    content: DataFileContent
    size: int
    records: int
    added_by: int | None
    sequence_number: int


@dataclass(frozen=True)
class Truth:
    """All live files of one snapshot, and the number of its manifests."""

    table_uuid: str
    files: tuple[LiveFile, ...]
    manifests: int

    def counts(self, target: int) -> dict[PartitionKey, tuple[Any, ...]]:
        """Counts by partition, in the order of `PartitionCounts.to_list` without the time of the last change."""
        return {key: _counted(files, int(target * SMALL_SHARE)) for key, files in self._by_partition().items()}

    def changed_since(self, metadata: TableMetadata) -> dict[PartitionKey, int]:
        """By partition, a time before which its last writer cannot have committed, by the snapshots that are left.

        Milliseconds since the epoch. The ledger may know more: snapshots that have expired since.
        """
        writers = [each for each in metadata.snapshots if each.summary and each.summary.operation != Operation.REPLACE]
        found: dict[PartitionKey, int] = {}
        for file in self.files:
            own = [each.timestamp_ms for each in writers if each.snapshot_id == file.added_by]
            before = [each for each in writers if 0 < (each.sequence_number or 0) <= file.sequence_number]
            newest = max(before, key=lambda each: each.sequence_number or 0, default=None)
            moment = own[0] if own else newest.timestamp_ms if newest is not None else 0
            found[file.key] = max(found.get(file.key, 0), moment)
        return found

    def _by_partition(self) -> Mapping[PartitionKey, list[LiveFile]]:
        found: dict[PartitionKey, list[LiveFile]] = defaultdict(list)
        for file in self.files:
            found[file.key].append(file)
        return found


NOTHING = Truth("", (), 0)


@dataclass
class Truths:
    """What was read of each snapshot, by its id."""

    known: dict[int, Truth] = field(default_factory=dict)

    def note(self, table: Table) -> None:
        """Read the snapshots of the table that are new."""
        for snapshot in table.metadata.snapshots:
            if snapshot.snapshot_id not in self.known:
                self.known[snapshot.snapshot_id] = read(table.metadata, table.io, snapshot)

    def of(self, snapshot_id: int | None) -> Truth:
        """What the snapshot holds; nothing without a snapshot."""
        if snapshot_id is None:
            return NOTHING
        assert snapshot_id in self.known, f"no table ever had the snapshot {snapshot_id}"
        return self.known[snapshot_id]


def read(metadata: TableMetadata, io: FileIO, snapshot: Snapshot) -> Truth:
    """All manifests of one snapshot, by PyIceberg's reader."""
    specs = {spec.spec_id: spec for spec in metadata.partition_specs}
    manifests = snapshot.manifests(io)
    files = [
        LiveFile(
            _key(metadata, specs[manifest.partition_spec_id], entry.data_file.partition),
            entry.data_file.content,
            entry.data_file.file_size_in_bytes,
            entry.data_file.record_count,
            entry.snapshot_id,
            entry.sequence_number or 0,
        )
        for manifest in manifests
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
    ]
    return Truth(str(metadata.table_uuid), tuple(files), len(manifests))


def _counted(files: Sequence[LiveFile], small_below: int) -> tuple[Any, ...]:
    data = [file for file in files if file.content == DataFileContent.DATA]
    small = [file for file in data if file.size < small_below]
    positions = [file for file in files if file.content == DataFileContent.POSITION_DELETES]
    equality = [file for file in files if file.content == DataFileContent.EQUALITY_DELETES]
    ladder: dict[int, tuple[int, int]] = {}
    for file in small:
        step = next(step for step in range(1000) if max(1, file.size) ** 4 < 2 ** (step + 1))
        number, size = ladder.get(step, (0, 0))
        ladder[step] = number + 1, size + file.size
    return (
        len(data),
        len(small),
        sum(file.size for file in data),
        sum(file.size for file in small),
        len(positions) + len(equality),
        sum(file.records for file in data),
        sum(file.records for file in positions),
        tuple((step, *found) for step, found in sorted(ladder.items())),
        len(equality),
    )


def _key(metadata: TableMetadata, spec: PartitionSpec, partition: Any) -> PartitionKey:
    values = [_plain(metadata, field, partition[number]) for number, field in enumerate(spec.fields)]
    return PartitionKey(spec.spec_id, json.dumps(values, separators=(",", ":"), ensure_ascii=False))


def _plain(metadata: TableMetadata, field: PartitionField, value: Any) -> Any:
    if isinstance(value, dt.date):
        return value.isoformat()
    return (EPOCH + dt.timedelta(days=value)).isoformat() if value is not None and _is_day(metadata, field) else value


def _is_day(metadata: TableMetadata, field: PartitionField) -> bool:
    """Whether the values are days: of the transform, or of a column that any schema had."""
    if isinstance(field.transform, DayTransform):
        return True
    columns = (column for schema in metadata.schemas for column in schema.fields)
    dates = {column.field_id for column in columns if isinstance(column.field_type, DateType)}
    return isinstance(field.transform, IdentityTransform) and field.source_id in dates
