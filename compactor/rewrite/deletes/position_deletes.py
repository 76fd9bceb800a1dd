"""Position delete files in Parquet, and deletion vectors → the positions to remove from each data file.

A delete file is read once, row group by row group. Row groups whose statistics exclude all requested paths are skipped.
A path matches only if it equals the data file's path byte for byte (Iceberg spec, "Position Delete Files").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.table.name_mapping import MappedField

from compactor.errors import GiveUpError
from compactor.iceberg.manifest_entries import DELETION_VECTORS
from compactor.reasons import Reason, Refusal
from compactor.rewrite.deletes.deletion_vectors import vector_positions
from compactor.rewrite.reading.files import named_errors, open_parquet
from compactor.rewrite.reading.source_columns import SourceColumn, source_columns
from compactor.storage.byte_store import ByteStore

PARQUET: Final = "parquet"
BATCH_ROWS: Final = 256 * 1024

_FILE_PATH: Final = MappedField.model_validate({"field-id": 2147483546, "names": ["file_path"]})
_POSITION: Final = MappedField.model_validate({"field-id": 2147483545, "names": ["pos"]})
_NAMES: Final = (_FILE_PATH, _POSITION)
_DELTA_ENCODINGS: Final = frozenset({"DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"})

Positions = npt.NDArray[np.int64]
NO_POSITIONS: Final[Positions] = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A position delete file.

    Attributes:
        location: Its location.
        size: Bytes.
        file_format: From the manifest: `parquet`, `orc`, `avro`, or `puffin` for a deletion vector.
    """

    location: str
    size: int
    file_format: str = PARQUET


def delete_refusal(files: Iterable[DeleteFile]) -> Refusal | None:
    """Why `encode` cannot apply these delete files: `delete_file_format`, or None."""
    for file in files:
        file_format = file.file_format.lower()
        if file_format not in {PARQUET, DELETION_VECTORS}:
            return Refusal(
                Reason.DELETE_FILE_FORMAT, f"only Iceberg's own reader applies position deletes in {file_format}"
            )
    return None


def deleted_positions(store: ByteStore, deletes: Mapping[str, Sequence[DeleteFile]]) -> dict[str, Positions]:
    """Positions to remove per data file, ascending and without duplicates; files that lose none are left out.

    Args:
        store: Store of the delete files.
        deletes: For each data file's path, the delete files that apply to it. Rows of other delete files for the path
            are ignored.

    Raises:
        GiveUpError: `unreadable_delete_file`: not Parquet, without its two columns, or with nulls or negative
            positions; or as `vector_positions`; or an error of the store.
    """
    paths_of: dict[DeleteFile, list[str]] = {}
    for path, files in deletes.items():
        for file in files:
            paths_of.setdefault(file, []).append(path)
    found: dict[str, list[Positions]] = {}
    for file, paths in paths_of.items():
        is_vector = file.file_format.lower() == DELETION_VECTORS
        pieces = (
            vector_positions(store, file.location, file.size, paths) if is_vector else _positions(store, file, paths)
        )
        for path, positions in pieces:
            found.setdefault(path, []).append(positions)
    return {path: _ascending(np.concatenate(pieces)) for path, pieces in found.items()}


def _ascending(positions: Positions) -> Positions:
    """The positions in order, without duplicates. Most are so already: to look costs a tenth of a sort."""
    return positions if (positions[1:] > positions[:-1]).all() else np.unique(positions)


def kept_rows(positions: Positions, start: int, length: int) -> pa.Array | None:
    """A mask of the rows `start` to `start + length` of a file that are not deleted; None if all are kept."""
    first, last = np.searchsorted(positions, (start, start + length))
    if first == last:
        return None
    kept = np.ones(length, dtype=np.bool_)
    kept[positions[first:last] - start] = False
    return pa.array(kept)


def _positions(store: ByteStore, file: DeleteFile, paths: Sequence[str]) -> Iterable[tuple[str, Positions]]:
    """(path, positions) for the `paths` that a delete file names, batch by batch."""
    location = file.location
    parquet = open_parquet(store, location, file.size, dictionaries=[_FILE_PATH.names[0]])
    if _has_delta_encoding(parquet):  # Arrow cannot read it as a dictionary
        parquet = open_parquet(store, location, file.size)
    path_column, position_column = _columns(parquet, location)
    wanted = sorted(path.encode() for path in paths)
    groups = [
        index for index in range(parquet.metadata.num_row_groups) if _may_name(parquet, path_column, index, wanted)
    ]
    value_set = pa.array(wanted, pa.binary())
    with named_errors(location, Reason.UNREADABLE_DELETE_FILE):
        for batch in parquet.iter_batches(
            BATCH_ROWS, row_groups=groups, columns=[path_column, position_column], use_threads=False
        ):
            positions = batch.column(position_column)
            if positions.null_count or batch.column(path_column).null_count:
                raise _unreadable(location, "it has rows without a path or a position")
            for owner, chosen in _split(batch.column(path_column), positions.cast(pa.int64()).to_numpy(), value_set):
                if chosen.min() < 0:
                    raise _unreadable(location, f"it has the negative position {chosen.min()}")
                yield wanted[owner].decode(), chosen


def _has_delta_encoding(parquet: pq.ParquetFile) -> bool:
    """Whether a column chunk has one of the byte-array encodings that came with data pages V2."""
    groups = [parquet.metadata.row_group(index) for index in range(parquet.metadata.num_row_groups)]
    columns = (group.column(index) for group in groups for index in range(group.num_columns))
    return any(encoding in _DELTA_ENCODINGS for column in columns for encoding in column.encodings)


def _columns(parquet: pq.ParquetFile, location: str) -> tuple[str, str]:
    """Names of the path and position columns."""
    with named_errors(location, Reason.UNREADABLE_DELETE_FILE):
        sources = source_columns(parquet.schema_arrow, parquet.schema, _NAMES)
    by_id: dict[int | None, SourceColumn] = {source.field_id: source for source in sources}
    found = [by_id.get(column.field_id) for column in _NAMES]
    names = [column.name for column in found if column is not None and not column.children]
    if len(names) != len(_NAMES):
        raise _unreadable(location, "it lacks the columns file_path and pos")
    every = parquet.schema_arrow.names
    if any("." in name or every.count(name) > 1 for name in names):  # another column may have the same path
        raise _unreadable(location, f"its columns {names[0]} and {names[1]} cannot be told apart by name")
    return names[0], names[1]


def _unreadable(location: str, why: str) -> GiveUpError:
    return GiveUpError(
        f"The position delete file {location} cannot be used: {why}.", reason=Reason.UNREADABLE_DELETE_FILE
    )


def _may_name(parquet: pq.ParquetFile, path_column: str, group: int, wanted: Sequence[bytes]) -> bool:
    """Whether a row group may contain one of the sorted paths, by its statistics."""
    metadata = parquet.metadata.row_group(group)
    columns = (metadata.column(index) for index in range(metadata.num_columns))
    statistics = next((column.statistics for column in columns if column.path_in_schema == path_column), None)
    if statistics is None or not statistics.has_min_max:
        return True
    try:
        low, high = statistics.min, statistics.max
    except ValueError:  # cut inside a character
        return True
    if not isinstance(low, str) or not isinstance(high, str):
        return True
    return any(low.encode() <= path <= high.encode() for path in wanted)


def _split(paths: pa.Array, positions: Positions, wanted: pa.Array) -> Iterator[tuple[int, Positions]]:
    """The positions of each path of `wanted`, by its index there; other paths are left out."""
    encoded = paths if isinstance(paths, pa.DictionaryArray) else paths.dictionary_encode()
    owners = pc.index_in(encoded.dictionary.cast(pa.binary()), value_set=wanted).fill_null(-1).to_numpy()
    owner_of_row = None if len(owners) == 1 else owners[encoded.indices.to_numpy()]
    for owner in np.unique(owners[owners >= 0]):
        chosen = positions if owner_of_row is None else positions[owner_of_row == owner]
        if len(chosen):
            yield int(owner), chosen
