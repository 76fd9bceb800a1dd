"""Iceberg's own scan tasks of the planned input files, found by their partitions.

Each file that Java lists costs three calls through Py4J. Of a table with millions of files only those in the wanted
partitions are listed. Java finds a delete by the path of the data file that it names, in any partition, but a filtered
scan reads only the deletes of partitions that the filter keeps, and of these only those whose bounds meet it. Files
with deletes of other partitions or specs are therefore listed without a filter, and `overlooked_delete` compares what
was listed with the plan.
"""

from __future__ import annotations

import json
import logging
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from functools import partial, reduce
from itertools import takewhile
from typing import Any

from py4j.protocol import Py4JJavaError
from pyiceberg.partitioning import PartitionField
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, UnknownTransform, VoidTransform

from compactor.errors import GiveUpError, ReplanError
from compactor.iceberg.manifest_entries import Content, FileEntry
from compactor.iceberg.tables import TableView
from compactor.manifests.live_files import LiveFile
from compactor.partitions import JsonValue, PartitionKey
from compactor.reasons import Reason
from compactor.spark.java_table import JavaTable, first_line

LOG = logging.getLogger("firnline")
PARTITIONS_PER_SCAN = 100
"""Each manifest entry is compared with all partitions of a scan, and each scan reads the manifests again."""
MOST_SCANS = 10
"""Where more would be needed, one walk lists all files. Measured for each file of the table: a walk takes 110 µs, a
scan 3 to 10 µs, and the same 110 µs for a file that it finds.
"""

Filter = dict[str, Any]
"""An expression in Iceberg's JSON form (REST spec, Expression)."""


def planned_scan_tasks(table: JavaTable, files: Collection[LiveFile]) -> dict[str, Any]:
    """Java's own scan tasks of data files at the planned snapshot, by path, deletes and row lineage included.

    Args:
        table: loaded for the run.
        files: planned at the table's snapshot.

    Raises:
        GiveUpError: Java's plan lacks a file of the inventory.
        ReplanError: the planned snapshot has expired.
    """
    view = table.view
    if table.handle.snapshot(table.snapshot_id) is None:
        raise ReplanError(
            f"snapshot {table.snapshot_id} of {view.name} expired during the run", reason=Reason.SNAPSHOT_EXPIRED
        )
    wanted: defaultdict[PartitionKey, set[str]] = defaultdict(set)
    for file in files:
        if not has_stray(file):
            wanted[file.entry.key].add(file.entry.path)
    found: dict[str, Any] = {}
    parts = _parts(list(wanted))
    for keys in parts if len(parts) <= MOST_SCANS else ():
        some = partition_filter(view, table.snapshot_id, keys)
        if some is None:  # then one walk finds the files of all partitions
            break
        try:
            found |= _listed(table, some, {path for key in keys for path in wanted[key]})
        except Py4JJavaError as error:  # the walk below lists all files; it fails too if the store does not answer
            LOG.info("%s: the scan of %d partitions failed: %s", view.name, len(keys), first_line(error))
            break
    left = {file.entry.path for file in files} - found.keys()
    found |= _listed(table, None, left)
    missing = left - found.keys()
    if missing:
        raise GiveUpError(f"Iceberg's scan of {view.name} does not list {min(missing)}", reason=Reason.PLANS_DIFFER)
    return found


def has_stray(file: LiveFile) -> bool:
    """Whether a scan of the file's partition alone may miss a delete of it.

    That may be a position delete of another partition or spec that names the file, which the table format forbids. Or
    an equality delete of another spec, which applies to all partitions: it may also hold columns that it does not
    compare, and Java leaves it out if their bounds do not meet the filter.
    """
    if any(delete.key != file.entry.key for delete in _named(file)):
        return True
    if not file.deletes:
        return False
    last = file.deletes[-1]  # equality deletes of other specs come last
    return last.content is Content.EQUALITY_DELETES and last.key.spec_id != file.entry.key.spec_id


def _named(file: LiveFile) -> Iterator[FileEntry]:
    """The position deletes and the vector that name the file."""
    return takewhile(lambda delete: delete.applies_to is not None, file.deletes)


def overlooked_delete(task: Any, file: LiveFile) -> str | None:
    """The path of a planned delete that names the file and that Java's scan task lacks; None: there is none.

    Java leaves out none of these that applies. The scan finds the others of the file's own partition in any case: their
    bounds meet the filter. Files with deletes of other specs are listed without a filter (`has_stray`).

    Each delete in Java costs two calls through Py4J. The deletes that name the file come last there, so that thousands
    of its partition are not looked at.
    """
    wanted = {delete.path for delete in _named(file)}
    if wanted:
        deletes = task.deletes()
        for index in reversed(range(deletes.size())):
            wanted.discard(str(deletes.get(index).location()))
            if not wanted:
                break
    return min(wanted, default=None)


def partition_filter(view: TableView, snapshot_id: int, keys: Iterable[PartitionKey]) -> Filter | None:
    """An expression that holds for every row of these partitions and for few others; None: there is none.

    At least one key.
    """
    schemas = _schemas(view, snapshot_id)
    found: list[Filter] = []
    for key in keys:
        values = zip(view.spec(key.spec_id).fields, key.tuple_json, strict=True)
        predicates = [each for field, value in values if (each := _predicate(field, value, schemas)) is not None]
        if not predicates:
            return None
        found.append(reduce(partial(_joined, "and"), predicates))
    return reduce(partial(_joined, "or"), found)


def _joined(kind: str, left: Filter, right: Filter) -> Filter:
    return {"type": kind, "left": left, "right": right}


def _predicate(field: PartitionField, value: JsonValue, schemas: Collection[Schema]) -> Filter | None:
    """A predicate on the field's source column; None if Iceberg cannot evaluate one."""
    not_in_json = isinstance(value, float) and not math.isfinite(value)
    if not_in_json or isinstance(field.transform, VoidTransform | UnknownTransform):
        return None
    names = {schema.find_column_name(field.source_id) for schema in schemas}
    if len(names) != 1 or None in names:  # renamed since the snapshot: Java reads names of the one or of the other
        return None
    (name,) = names
    identity = isinstance(field.transform, IdentityTransform)
    term = name if identity else {"type": "transform", "transform": str(field.transform), "term": name}
    return {"type": "is-null", "term": term} if value is None else {"type": "eq", "term": term, "value": value}


def _schemas(view: TableView, snapshot_id: int) -> list[Schema]:
    """The table's schema and the snapshot's."""
    metadata = view.metadata
    snapshot = metadata.snapshot_by_id(snapshot_id)
    written = snapshot.schema_id if snapshot else None
    return [metadata.schema(), *(each for each in metadata.schemas if each.schema_id == written)]


def _listed(table: JavaTable, kept: Filter | None, paths: Collection[str]) -> dict[str, Any]:
    """The scan tasks of `paths` that Java lists. `kept`: holds for their rows; None: list all files."""
    found: dict[str, Any] = {}
    if not paths:
        return found
    scan = table.handle.newScan().useSnapshot(table.snapshot_id).ignoreResiduals()
    if kept is not None:
        parser = table.jvm.org.apache.iceberg.expressions.ExpressionParser
        scan = scan.filter(parser.fromJson(json.dumps(kept), scan.schema()))
    planned = scan.planFiles()
    try:
        iterator = planned.iterator()
        while len(found) < len(paths) and iterator.hasNext():
            task = iterator.next()
            path = str(task.file().location())
            if path in paths:
                found[path] = task
    finally:
        planned.close()
    return found


def _parts(keys: list[PartitionKey]) -> list[list[PartitionKey]]:
    return [keys[start : start + PARTITIONS_PER_SCAN] for start in range(0, len(keys), PARTITIONS_PER_SCAN)]
