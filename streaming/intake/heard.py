"""What the driver keeps of one usable commit event: names and flags, never its bytes."""

from __future__ import annotations

from dataclasses import dataclass

from compactor.table_names import TableName


@dataclass(frozen=True, slots=True)
class Heard:
    """One usable commit event.

    `source`: name of the decoder. `timestamp_ms`: of the event, milliseconds since the epoch. `writes`: the event
    announces a writer's commit; it is no rewrite and no requested rewrite.
    `request`: filter of a requested rewrite, empty for all partitions, else None. `snapshot_id`: the snapshot that the
    event announces, if it says so; `metadata_location`: the metadata file, of an event that named no table.
    """

    table: TableName
    source: str
    timestamp_ms: int
    writes: bool
    request: str | None = None
    snapshot_id: int | None = None
    metadata_location: str | None = None


@dataclass(frozen=True, slots=True)
class HeardLocation:
    """One usable event about a metadata file. `source`, `timestamp_ms`: as of `Heard`."""

    metadata_location: str
    source: str
    timestamp_ms: int


AnyHeard = Heard | HeardLocation
