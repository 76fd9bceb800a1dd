"""A live data file, as planning knows it."""

from __future__ import annotations

from typing import Any

from compactor.iceberg.manifest_entries import Content, FileEntry, Status
from compactor.manifests.live_files import LiveFile
from compactor.partitions import PartitionKey

KEY = PartitionKey(0, "[1]")


def live(path: str = "file", size: int = 1, **more: Any) -> LiveFile:
    values = {
        "manifest_path": "manifest", "status": Status.ADDED, "snapshot_id": 1, "data_sequence_number": 1,
        "content": Content.DATA, "path": path, "file_format": "parquet", "key": KEY, "partition": (1,), "records": 1,
        "size": size, "sort_order_id": None, "encrypted": False, "equality_ids": (), "applies_to": None,
    }  # fmt: skip
    return LiveFile(FileEntry(**{**values, **more}))
