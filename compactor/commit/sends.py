"""Whether a commit that was sent can still land. The table's state alone tells: an answer (409, 500, a timeout) may
come while the same request, or a copy of it, still waits in the catalog or in a proxy.

A catalog that compares metadata locations (SQL, Hive, Glue, DynamoDB, Hadoop) refuses a commit once the table has
changed. A REST catalog compares the id of the branch's head alone: after a rollback to the parent it would accept a
late commit. But from format version 2 on it refuses a snapshot whose sequence number is not above the table's last one.
That number never falls, with one exception: Apache Polaris takes `replace` snapshots back that allow it, for any commit
that was sent for the snapshot before them. In version 1 snapshots have no numbers: there the parent must have left the
table, since no rollback leads to a snapshot that is not listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from compactor.iceberg.other_compactors import POLARIS_ROLLBACK
from compactor.iceberg.tables import TableView
from compactor.spark.java_table import JavaTable


class Sent(NamedTuple):
    """A snapshot that was sent, or is about to be; `number`: its sequence number, 0 in format version 1.

    Iceberg gives all attempts of an update one id. The manifest list tells them apart.
    """

    snapshot_id: int
    parent_id: int
    number: int
    manifest_list: str

    @classmethod
    def of(cls, snapshot: Any) -> Sent:
        """Of Iceberg's Java snapshot."""
        parent, number = int(snapshot.parentId() or 0), int(snapshot.sequenceNumber())
        return cls(int(snapshot.snapshotId()), parent, number, str(snapshot.manifestListLocation()))


@dataclass(frozen=True)
class TableState:
    """What the table's metadata say about commits under way.

    Attributes:
        format_version: Of the table.
        floor: The sequence number below which the table cannot go back: its last one, without `replace` snapshots at
            the head of the branch that the catalog may take back.
        manifest_list_of: The manifest list of a snapshot; None if the metadata do not list the snapshot.
        shows_history: False if the catalog may hide snapshots: it lists one at most.
    """

    format_version: int
    floor: int
    manifest_list_of: Callable[[int], str | None]
    shows_history: bool


def can_still_land(sent: Sent, table: TableState) -> bool:
    """Whether the commit can get into a table that is in this state now, or gets into any later one. Pure.

    A snapshot that the table lists has landed already.
    """
    if table.manifest_list_of(sent.snapshot_id) == sent.manifest_list:
        return False
    if table.format_version > 1:
        return sent.number > table.floor
    return table.manifest_list_of(sent.parent_id) is not None or not table.shows_history


def floor_of(last_number: int, branch: Iterable[tuple[int, Mapping[str, str]]]) -> int:
    """`TableState.floor`. `branch`: sequence number and summary of each snapshot, the newest first. Pure."""
    floor = last_number
    for place, (number, summary) in enumerate(branch):
        floor = number if place else last_number
        if POLARIS_ROLLBACK not in summary:
            return floor
        floor = 0  # unless an older snapshot is found
    return floor


def state_of(table: TableView, ref: str) -> TableState:
    """The state of a table as PyIceberg has read it."""
    lists = {each.snapshot_id: each.manifest_list for each in table.metadata.snapshots}
    branch = (
        (each.sequence_number or 0, each.summary.additional_properties if each.summary else {})
        for each in replace(table, ref=ref).history
    )
    floor = floor_of(_last_number(table), branch)
    return TableState(table.metadata.format_version, floor, lists.get, len(lists) > 1)


def java_state_of(table: JavaTable) -> TableState:
    """The state of a table as Java has read it last."""
    metadata = table.handle.operations().current()

    def manifest_list_of(snapshot_id: int) -> str | None:
        snapshot = metadata.snapshot(snapshot_id)
        return None if snapshot is None else str(snapshot.manifestListLocation())

    def branch() -> Iterator[tuple[int, Mapping[str, str]]]:
        at = table.handle.snapshot(table.view.ref)
        while at is not None:
            yield int(at.sequenceNumber()), at.summary()
            at = table.handle.snapshot(at.parentId()) if at.parentId() is not None else None

    return TableState(
        format_version=int(metadata.formatVersion()),
        floor=floor_of(int(metadata.lastSequenceNumber()), branch()),
        manifest_list_of=manifest_list_of,
        shows_history=int(metadata.snapshots().size()) > 1,
    )


def unknown_sends(table: TableView) -> tuple[Sent, ...]:
    """Stands for all commits that a process may have prepared for this state of the table, or an older one."""
    parents = [each.snapshot_id for each in table.metadata.snapshots] if table.metadata.format_version == 1 else [0]
    return tuple(Sent(0, parent, _last_number(table) + 1, "") for parent in parents)


def _last_number(table: TableView) -> int:
    return getattr(table.metadata, "last_sequence_number", 0)  # V1 has none
