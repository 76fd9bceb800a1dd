"""The table's state as seen by the demo, read by PyIceberg and pyarrow, independent of the service."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table.snapshots import Operation, Snapshot

from compactor.commit.history import ENGINES
from compactor.errors import GiveUpError
from compactor.iceberg.tables import Catalogs, FileSizes, TableMissingError, TableView, file_sizes
from compactor.reasons import Reason
from compactor.settings.policy import PolicyValues
from compactor.table_names import TableName

CHECKSUM_MODULUS = 2**64
BATCH_ROWS = 32_768


@dataclass(frozen=True)
class LiveDataFile:
    path: str
    bucket: int
    bytes: int


@dataclass(frozen=True)
class BucketFiles:
    """The files of one bucket. `due`: the policy would merge its small files."""

    files: int
    small_files: int
    bytes: int
    due: bool


@dataclass(frozen=True)
class Content:
    """Content of a set of files. The checksum is the sum of the rows' hashes: it ignores order and layout."""

    files: int = 0
    rows: int = 0
    bytes: int = 0
    checksum: int = 0

    def __add__(self, other: Content) -> Content:
        return Content(
            files=self.files + other.files,
            rows=self.rows + other.rows,
            bytes=self.bytes + other.bytes,
            checksum=(self.checksum + other.checksum) % CHECKSUM_MODULUS,
        )

    def same_rows_as(self, other: Content) -> bool:
        """Whether both have the same rows, in any number of files."""
        return (self.rows, self.checksum) == (other.rows, other.checksum)


@dataclass(frozen=True)
class TableCommit:
    """One snapshot, from its summary. `engines`: empty unless the compactor made the commit."""

    snapshot_id: int
    parent_id: int | None
    operation: str
    files_added: int
    files_removed: int
    bytes_added: int
    engines: str

    @property
    def is_replace(self) -> bool:
        """Whether the commit rewrote files without changing rows."""
        return self.operation == Operation.REPLACE.value


@dataclass(frozen=True)
class Look:
    snapshot_id: int
    buckets: dict[int, BucketFiles]
    commits: tuple[TableCommit, ...]

    @property
    def files(self) -> int:
        return sum(bucket.files for bucket in self.buckets.values())

    @property
    def settled(self) -> bool:
        return not any(bucket.due for bucket in self.buckets.values())

    def commits_after(self, snapshot_id: int | None) -> tuple[TableCommit, ...]:
        """The commits after a snapshot, oldest first; all commits for None."""
        ids = [commit.snapshot_id for commit in self.commits]
        return self.commits[ids.index(snapshot_id) + 1 :] if snapshot_id is not None else self.commits


class TableFacts:
    """Reads one table repeatedly. Manifests and data files are immutable, so each is read once."""

    def __init__(self, catalogs: Catalogs, name: TableName, policy: PolicyValues) -> None:
        self._catalogs = catalogs
        self._name = name
        self._policy = policy
        self._manifests: dict[str, tuple[LiveDataFile, ...]] = {}
        self._contents: dict[str, Content] = {}

    def look(self) -> Look | None:
        """The current state of the table; None before its first commit."""
        view = self._view()
        if view is None or view.snapshot is None:
            return None
        sizes = file_sizes(self._policy, view.properties)
        by_bucket: dict[int, list[LiveDataFile]] = {}
        for file in self._files(view, view.snapshot):
            by_bucket.setdefault(file.bucket, []).append(file)
        buckets = {bucket: self._bucket(by_bucket[bucket], sizes) for bucket in sorted(by_bucket)}
        return Look(view.snapshot.snapshot_id, buckets, tuple(map(_commit, view.metadata.snapshots)))

    def content(self, snapshot_id: int) -> Content:
        """Rows and checksum of the table at a snapshot, read from its data files."""
        view = self._view()
        snapshot = view.metadata.snapshot_by_id(snapshot_id) if view is not None else None
        if view is None or snapshot is None:
            raise GiveUpError(f"snapshot {snapshot_id} of table {self._name} is missing", reason=Reason.BAD_METADATA)
        return sum((self._file_content(view, file) for file in self._files(view, snapshot)), Content())

    def appended(self, commits: Iterable[TableCommit]) -> Content:
        """Content of the files that the appends among `commits` added, including files rewritten since."""
        view = self._view()
        total = Content()
        for commit in commits:
            snapshot = view.metadata.snapshot_by_id(commit.snapshot_id) if view is not None else None
            if view is None or snapshot is None or commit.is_replace:
                continue
            before = {file.path for file in self._parent_files(view, commit)}
            new = (file for file in self._files(view, snapshot) if file.path not in before)
            total = sum((self._file_content(view, file) for file in new), total)
        return total

    def _view(self) -> TableView | None:
        try:
            return self._catalogs.load(self._name)
        except TableMissingError:
            return None

    def _parent_files(self, view: TableView, commit: TableCommit) -> tuple[LiveDataFile, ...]:
        parent = view.metadata.snapshot_by_id(commit.parent_id) if commit.parent_id is not None else None
        return self._files(view, parent) if parent is not None else ()

    def _files(self, view: TableView, snapshot: Snapshot) -> tuple[LiveDataFile, ...]:
        return tuple(file for manifest in view.manifests(snapshot) for file in self._manifest_files(view, manifest))

    def _manifest_files(self, view: TableView, manifest: ManifestFile) -> tuple[LiveDataFile, ...]:
        if manifest.content != ManifestContent.DATA:
            raise GiveUpError(f"table {self._name} has delete files, but the demo's writer never writes them")
        if manifest.manifest_path not in self._manifests:
            self._manifests[manifest.manifest_path] = tuple(
                LiveDataFile(file.file_path, file.partition[0], file.file_size_in_bytes)
                for file in (entry.data_file for entry in manifest.fetch_manifest_entry(view.io, discard_deleted=True))
            )
        return self._manifests[manifest.manifest_path]

    def _bucket(self, files: list[LiveDataFile], sizes: FileSizes) -> BucketFiles:
        small = [file for file in files if sizes.is_small(file.bytes)]
        due = len(small) >= self._policy.min_input_files or sum(file.bytes for file in small) > sizes.target
        return BucketFiles(
            files=len(files),
            small_files=len(small),
            bytes=sum(file.bytes for file in files),
            due=due and len(small) > 1,
        )

    def _file_content(self, view: TableView, file: LiveDataFile) -> Content:
        if file.path not in self._contents:
            rows = checksum = 0
            with view.io.new_input(file.path).open() as opened:
                for batch in pq.ParquetFile(opened).iter_batches(BATCH_ROWS):
                    hashes = pd.util.hash_pandas_object(batch.to_pandas(), index=False, categorize=True)
                    checksum += int(hashes.to_numpy(np.uint64).sum(dtype=np.uint64))
                    rows += batch.num_rows
            self._contents[file.path] = Content(
                files=1, rows=rows, bytes=file.bytes, checksum=checksum % CHECKSUM_MODULUS
            )
        return self._contents[file.path]


def _commit(snapshot: Snapshot) -> TableCommit:
    summary = snapshot.summary
    counts = summary.additional_properties if summary is not None else {}
    return TableCommit(
        snapshot_id=snapshot.snapshot_id,
        parent_id=snapshot.parent_snapshot_id,
        operation=summary.operation.value if summary is not None else "",
        files_added=int(counts.get("added-data-files", 0)),
        files_removed=int(counts.get("deleted-data-files", 0)),
        bytes_added=int(counts.get("added-files-size", 0)),
        engines=counts.get(ENGINES, ""),
    )
