"""Manifest entries in columns: the data that counting and planning need, a few hundred megabytes for a million files.

Column statistics are not included: they are read again for planned files (`manifest_entries.read_entries`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from compactor.iceberg.manifest_entries import CONTENT, Content, FileEntry, Status
from compactor.partitions import PartitionKey, PartitionLayout

SCHEMA: Final = pa.schema(
    [
        pa.field("status", pa.int8(), nullable=False),
        pa.field("content", pa.int8(), nullable=False),
        pa.field("snapshot_id", pa.int64()),
        pa.field("data_sequence_number", pa.int64(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("file_format", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("records", pa.int64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("sort_order_id", pa.int32()),
        pa.field("encrypted", pa.bool_(), nullable=False),
        pa.field("equality_ids", pa.list_(pa.int32())),
        pa.field("applies_to", pa.string()),
        pa.field("first_row_id", pa.int64()),
        pa.field("blob", pa.list_(pa.int64())),
    ]
)
"""One row per entry, with the names of `FileEntry`; `partition` is an index into the `Partitions` of the rows."""

WEIGHT_OF_A_MANIFEST: Final = 20_000
"""Measured bytes of the objects around the columns of one manifest: far more than the rows of a small manifest."""

_STATUSES: Final = tuple(Status)
_CODES: Final = {content: code for code, content in enumerate(CONTENT)}
_entry: Final = partial(tuple.__new__, FileEntry)  # twice as fast as FileEntry(...)


class Partitions:
    """Distinct partitions of one spec, by index: canonical texts, 64-bit hashes, and keys with raw values on demand.

    Equal hashes find rows of different manifests with the same partition quickly. Code that merges files must compare
    the keys too: two partitions with the same hash must not be merged.
    """

    def __init__(
        self, layout: PartitionLayout, texts: Sequence[str], hashes: npt.NDArray[np.uint64] | None = None
    ) -> None:
        self.layout = layout
        self.texts = texts
        self.hashes = hashes if hashes is not None else _hashes(layout.spec_id, texts)
        self._keys: dict[int, tuple[PartitionKey, tuple[Any, ...]]] = {}

    def key(self, index: int) -> tuple[PartitionKey, tuple[Any, ...]]:
        """The key of one partition, and its values as PyIceberg decodes them."""
        found = self._keys.get(index)
        if found is None:
            key = PartitionKey(self.layout.spec_id, str(self.texts[index]))
            found = self._keys[index] = (key, self.layout.values(key))
        return found


class LiveRuns(NamedTuple):
    """The positions of live rows in one manifest, for data files and for delete files.

    A run is consecutive rows of one partition. Shape (3, runs): partition index, first row, one past the last row.
    """

    data: npt.NDArray[np.int32]
    deletes: npt.NDArray[np.int32]


def live_runs(
    partition: npt.NDArray[Any], status: npt.NDArray[Any], content: npt.NDArray[Any], counts: Sequence[int]
) -> list[LiveRuns]:
    """The live runs of several manifests whose rows follow each other; `counts`: the number of rows of each."""
    live = status != Status.DELETED.value
    is_data = content == _CODES[Content.DATA]
    found = (_runs(np.where(live & chosen, partition, -1), counts) for chosen in (is_data, ~is_data))
    return [LiveRuns(data, deletes) for data, deletes in zip(*found, strict=True)]


def _runs(codes: npt.NDArray[Any], counts: Sequence[int]) -> list[npt.NDArray[np.int32]]:
    """`codes`: the partition index of each row; -1 for rows to leave out."""
    manifests = np.cumsum([0, *counts])
    edge = np.diff(codes, prepend=-1) != 0
    edge[manifests[:-1][np.array(counts) > 0]] = True
    starts = np.flatnonzero(edge)
    ends = np.append(starts, len(codes))[1:]
    meant = codes[starts] >= 0
    starts, ends = starts[meant], ends[meant]
    first = np.searchsorted(starts, manifests)
    begin = np.repeat(manifests[:-1], np.diff(first))
    runs = np.stack([codes[starts], starts - begin, ends - begin]).astype(np.int32)
    return [runs[:, start:end] for start, end in pairwise(first.tolist())]


def _listed(column: pa.Array) -> list[Any]:
    """A column as Python values. Numbers without nulls go through NumPy, which is ten times faster."""
    if column.null_count == 0 and pa.types.is_integer(column.type):
        values: list[Any] = column.to_numpy().tolist()
        return values
    if column.null_count == len(column):
        return [None] * len(column)
    listed: list[Any] = column.to_pylist()
    return listed


def _hashes(spec_id: int, texts: Iterable[str]) -> npt.NDArray[np.uint64]:
    """One hash per partition; the same in every process."""
    digests = b"".join(hashlib.blake2b(f"{spec_id}:{text}".encode(), digest_size=8).digest() for text in texts)
    return np.frombuffer(digests, dtype=np.uint64)


class EntryColumns:
    """The entries of one manifest, in columns. Iterating yields `FileEntry` objects.

    Attributes:
        runs: The positions of live rows.
        nbytes: Bytes of memory that the rows hold.
        prefix: The common start of all paths. The column `path` holds the rest, which is a third of the bytes where the
            files of a manifest are in one folder.
    """

    __slots__ = ("_numbers", "manifest_path", "nbytes", "partitions", "prefix", "rows", "runs")

    def __init__(
        self,
        manifest_path: str,
        rows: pa.RecordBatch,
        partitions: Partitions,
        runs: LiveRuns,
        *,
        prefix: str = "",
        nbytes: int | None = None,
    ) -> None:
        self.manifest_path = manifest_path
        self.rows = rows
        self.partitions = partitions
        self.runs = runs
        self.prefix = prefix
        self.nbytes = rows.nbytes + runs.data.nbytes + runs.deletes.nbytes if nbytes is None else nbytes
        self._numbers: dict[str, npt.NDArray[Any]] = {}

    @classmethod
    def of(cls, manifest_path: str, layout: PartitionLayout, entries: Iterable[FileEntry]) -> EntryColumns:
        """The columns of entries that exist as objects."""
        entries = tuple(entries)
        texts: dict[str, int] = {}
        for entry in entries:
            texts.setdefault(entry.key.values, len(texts))
        columns: dict[str, list[Any]] = {name: [getattr(entry, name) for entry in entries] for name in SCHEMA.names}
        columns |= {
            "status": [entry.status.value for entry in entries],
            "content": [_CODES[entry.content] for entry in entries],
            "partition": [texts[entry.key.values] for entry in entries],
            "equality_ids": [entry.equality_ids or None for entry in entries],
        }
        rows = pa.record_batch([pa.array(columns[name], SCHEMA.field(name).type) for name in SCHEMA.names], SCHEMA)
        partition, status, content = (np.array(columns[name], np.int64) for name in ("partition", "status", "content"))
        (runs,) = live_runs(partition, status, content, [len(entries)])
        return cls(manifest_path, rows, Partitions(layout, list(texts)), runs)

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def __iter__(self) -> Iterator[FileEntry]:
        return iter(self.entries())

    def numbers(self, name: str) -> npt.NDArray[Any]:
        """One column without nulls as a NumPy array over the rows' own memory."""
        found = self._numbers.get(name)
        if found is None:  # cached: each plan reads the columns of a thousand manifests
            found = self._numbers[name] = self.rows.column(name).to_numpy()
        return found

    def entries(self, rows: npt.NDArray[Any] | None = None) -> list[FileEntry]:
        """The given rows, or all, as objects."""
        chosen = self.rows if rows is None else self.rows.take(pa.array(rows, pa.int64()))
        column = {name: _listed(chosen.column(name)) for name in SCHEMA.names}
        known = {index: self.partitions.key(index) for index in set(column["partition"])}
        partitions = [known[index] for index in column["partition"]]
        column |= {
            "manifest_path": [self.manifest_path] * len(chosen),
            "status": [_STATUSES[status] for status in column["status"]],
            "content": [CONTENT[content] for content in column["content"]],
            "path": [self.prefix + path for path in column["path"]],
            "key": [key for key, _ in partitions],
            "partition": [values for _, values in partitions],
            "equality_ids": [tuple(equality_ids) if equality_ids else () for equality_ids in column["equality_ids"]],
            "blob": [None if blob is None else tuple(blob) for blob in column["blob"]],
        }
        return list(map(_entry, zip(*(column[name] for name in FileEntry._fields), strict=True)))

    def paths(self, rows: npt.NDArray[Any]) -> list[str]:
        ends = self.rows.column("path").take(pa.array(rows, pa.int64())).to_pylist()
        return [self.prefix + end for end in ends]

    @property
    def weight(self) -> int:
        """Bytes of memory that the manifest takes, with the objects around its columns."""
        return WEIGHT_OF_A_MANIFEST + self.nbytes

    def named(self, paths: Collection[str]) -> npt.NDArray[np.bool_]:
        """For each row, whether `paths` holds its path."""
        ends = pa.array([path.removeprefix(self.prefix) for path in paths if path.startswith(self.prefix)], pa.string())
        found = pc.is_in(self.rows.column("path"), ends).to_numpy(zero_copy_only=False)
        return np.asarray(found, dtype=np.bool_)

    def compacted(self) -> EntryColumns:
        """A copy whose `Partitions` hold only its own partitions, not those of all manifests of the decoded batch."""
        used, indexes = np.unique(self.numbers("partition"), return_inverse=True)
        texts = [self.partitions.texts[index] for index in used]
        own = Partitions(self.partitions.layout, texts, self.partitions.hashes[used])
        columns = [self.rows.column(name) for name in SCHEMA.names]
        columns[SCHEMA.get_field_index("partition")] = pa.array(indexes, pa.int32())
        rows = pa.record_batch(columns, SCHEMA)
        runs = LiveRuns(*(np.stack([np.searchsorted(used, each[0]), each[1], each[2]]) for each in self.runs))
        return EntryColumns(self.manifest_path, rows, own, runs, prefix=self.prefix, nbytes=self.nbytes)
