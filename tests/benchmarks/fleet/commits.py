"""Commits made in advance: of each, the metadata file, the manifest list and the manifest that a writer would leave.

Each commit appends one small file to one partition. Playing it is setting the table's pointer to its metadata file,
which costs a fraction of a millisecond. Written as a writer would write them: a table keeps its newest `RETAINED`
snapshots and `PREVIOUS` metadata files on record; manifests are not merged, as with PyIceberg's default.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compactor.locations import plain_path
from tests.benchmarks.fleet.avro_records import AvroRecords
from tests.benchmarks.fleet.tables import Fleet, snapshot_of

RETAINED = 48
PREVIOUS = 100
ADDED = 1
APART_MS = 1000
COUNTS = {
    "added_files_count": 1,
    "added_data_files_count": 1,
    "existing_files_count": 0,
    "existing_data_files_count": 0,
    "deleted_files_count": 0,
    "deleted_data_files_count": 0,
    "existing_rows_count": 0,
    "deleted_rows_count": 0,
}


@dataclass(frozen=True)
class Commit:
    """One commit of a table: the `number`-th after the table was made, from 0."""

    table: tuple[str, str]
    number: int
    snapshot_id: int
    metadata_location: str


def commits_of(fleet: Fleet, table: tuple[str, str], count: int) -> list[Commit]:
    """The first commits of a table, in order; made if they are not there."""
    kept = fleet.folder / "warehouse" / table[0] / table[1] / "commits.json"
    made: list[list[Any]] = json.loads(kept.read_text()) if kept.exists() else []
    if len(made) < count:
        chain = Chain(made[-1][1] if made else fleet.heads[table], f"{table[0]}.{table[1]}.{len(made)}")
        made += [list(chain.append()) for _ in range(count - len(made))]
        kept.write_text(json.dumps(made))
    return [Commit(table, number, *each) for number, each in enumerate(made[:count])]


class Chain:
    """A table's commits, each on top of the one before."""

    def __init__(self, metadata_location: str, seed: str, retained: int = RETAINED) -> None:
        self._retained = retained
        self._random = random.Random(seed)
        self._location = metadata_location
        self._tree = json.loads(Path(plain_path(metadata_location)).read_text())
        self._list = AvroRecords.read(Path(plain_path(snapshot_of(self._tree)["manifest-list"])))
        self._manifests = self._list.records
        self._home = Path(plain_path(self._tree["location"]))
        by_partition: dict[str, dict[str, Any]] = {}
        for record in self._manifests:
            self._manifest = AvroRecords.read(Path(plain_path(record["manifest_path"])))
            for entry in self._manifest.records:
                by_partition.setdefault(entry["data_file"]["partition"]["part"], entry)
        self._entries = [by_partition[part] for part in sorted(by_partition)]

    def append(self) -> tuple[int, str]:
        """Make one commit; returns its snapshot id and metadata location."""
        parent = snapshot_of(self._tree)
        snapshot_id, sequence = self._random.getrandbits(62), self._tree["last-sequence-number"] + 1
        entry = self._random.choice(self._entries)
        file = self._file(entry, sequence)
        manifest = self._home / "metadata" / f"{sequence:06d}-m0.avro"
        added = {
            **entry, "status": ADDED, "snapshot_id": snapshot_id, "sequence_number": None,
            "file_sequence_number": None, "data_file": file,
        }  # fmt: skip
        length = self._manifest.write(manifest, [added])
        part = file["partition"]["part"].encode()
        bounds = {"contains_null": False, "contains_nan": False, "lower_bound": part, "upper_bound": part}
        newest = {
            "manifest_path": f"file://{manifest}", "manifest_length": length, "added_snapshot_id": snapshot_id,
            "sequence_number": sequence, "min_sequence_number": sequence, "added_rows_count": file["record_count"],
            "partitions": [bounds], **COUNTS,
        }  # fmt: skip
        fields = self._manifests[0].keys()
        self._manifests.insert(0, {**self._manifests[0], **{name: newest[name] for name in newest if name in fields}})
        listed = self._home / "metadata" / f"snap-{sequence:06d}.avro"
        ids = {"snapshot-id": snapshot_id, "parent-snapshot-id": parent["snapshot-id"], "sequence-number": sequence}
        self._list.write(listed, self._manifests, **{name: str(value) for name, value in ids.items()})
        snapshot = {**ids, "manifest-list": f"file://{listed}", "summary": _summary(parent["summary"], file)}
        return snapshot_id, self._write({**snapshot, "schema-id": parent.get("schema-id", 0)})

    def _file(self, entry: dict[str, Any], sequence: int) -> dict[str, Any]:
        """A data file of its own: another name of the file that it repeats."""
        source = Path(plain_path(entry["data_file"]["file_path"]))
        folder = self._home / "data" / source.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{sequence:06d}-{self._random.getrandbits(32):08x}.parquet"
        os.link(source, path)
        return {**entry["data_file"], "file_path": f"file://{path}"}

    def _write(self, snapshot: dict[str, Any]) -> str:
        tree = self._tree
        at = tree["last-updated-ms"] + APART_MS
        snapshot_id = snapshot["snapshot-id"]
        kept = [*tree["snapshots"], {**snapshot, "timestamp-ms": at}][-self._retained :]
        known = {each["snapshot-id"] for each in kept}
        log = [*tree["snapshot-log"], {"snapshot-id": snapshot_id, "timestamp-ms": at}]
        previous = {"metadata-file": self._location, "timestamp-ms": tree["last-updated-ms"]}
        tree |= {
            "last-updated-ms": at,
            "last-sequence-number": snapshot["sequence-number"],
            "current-snapshot-id": snapshot_id,
            "snapshots": kept,
            "snapshot-log": [each for each in log if each["snapshot-id"] in known],
            "metadata-log": [*tree["metadata-log"], previous][-PREVIOUS:],
            "refs": {**tree["refs"], "main": {**tree["refs"]["main"], "snapshot-id": snapshot_id}},
        }
        path = self._home / "metadata" / f"{snapshot['sequence-number']:05d}-{snapshot_id:x}.metadata.json"
        path.write_text(json.dumps(tree, separators=(",", ":")))
        self._location = f"file://{path}"
        return self._location


def _summary(before: dict[str, str], file: dict[str, Any]) -> dict[str, str]:
    size, rows = file["file_size_in_bytes"], file["record_count"]
    added = {"data-files": 1, "files-size": size, "records": rows}
    totals = {f"total-{name}": str(int(before[f"total-{name}"]) + change) for name, change in added.items()}
    return {
        **before,
        **{f"added-{name}": str(change) for name, change in added.items()},
        **totals,
        "operation": "append",
        "changed-partition-count": "1",
    }
