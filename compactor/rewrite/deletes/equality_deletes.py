"""Equality delete files in Parquet → the positions to remove from each data file.

Only the compared columns of the data files are read. A row is deleted if a delete file with a higher data sequence
number than the row's file has a row with the same values in the compared columns; null equals null (Iceberg spec,
"Equality Delete Files" and "Scan Planning"). Floating-point columns are refused: Iceberg's own reader compares NaN and
the sign of zero as Java does.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import parse_mapping_from_json
from pyiceberg.types import NestedField

from compactor.credentials.vended import VendedCredential
from compactor.errors import GiveUpError
from compactor.iceberg.opaque_types import parsed_schema
from compactor.manifests.tails import of_all
from compactor.planning.compared_columns import not_compared
from compactor.reasons import Reason, Refusal
from compactor.rewrite.deletes.key_ranges import Values
from compactor.rewrite.deletes.position_deletes import PARQUET, DeleteFile, Positions, delete_refusal
from compactor.rewrite.reading.files import WHOLE_FILE_BYTES, FileReader, tables
from compactor.rewrite.reading.memory import UNPACKED_RATIO
from compactor.rewrite.reading.schema import WrittenSchema, refused, written_schema
from compactor.storage.byte_store import ByteStore
from compactor.storage.opening import byte_store_for

LOOKUP_ROWS: Final = 1024 * 1024
"""Rows of data files per look-up. Each look-up costs a pass over the deletes."""

_POSITION_BYTES: Final = 8

_REPLACEMENT: Final = "\ufffd"  # Java decodes bytes that are not UTF-8 to this

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EqualityDelete:
    """An equality delete file: location, bytes, data sequence number of its entry, compared columns."""

    location: str
    size: int
    sequence_number: int
    field_ids: tuple[int, ...]
    file_format: str = PARQUET


@dataclass(frozen=True, slots=True)
class EncodeInput:
    """A data file to rewrite.

    Attributes:
        location: As spelled in the manifest; position deletes name it byte for byte.
        size: Bytes, from the manifest.
        records: Rows, from the manifest.
        data_sequence_number: From its manifest entry; `_last_updated_sequence_number` of rows without a stored one.
        first_row_id: Row id of its first row (V3); None if none was assigned.
        position_deletes: Position delete files, or the deletion vector, that apply to it.
        equality_deletes: Equality delete files that apply to it, each once.
    """

    location: str
    size: int
    records: int
    data_sequence_number: int = 0
    first_row_id: int | None = None
    position_deletes: Sequence[DeleteFile] = ()
    equality_deletes: Sequence[EqualityDelete] = ()

    @property
    def has_deletes(self) -> bool:
        """Whether deletes apply to the file."""
        return bool(self.position_deletes or self.equality_deletes)

    def check_rows(self, found: int) -> None:
        """Check that the file holds as many rows as its manifest entry says: positions are counted by it.

        Raises:
            GiveUpError: `row_count_mismatch`.
        """
        if found != self.records:
            raise GiveUpError(
                f"{self.location} holds {found} rows, but its manifest entry says {self.records}",
                reason=Reason.ROW_COUNT_MISMATCH,
            )


@dataclass(frozen=True, slots=True)
class InputFiles:
    """Data files of one partition, with their deletes and what is needed to read them.

    Attributes:
        inputs: In arrival order.
        schema_json: The table's Iceberg schema at the planned snapshot.
        partition_constants: (source field id, value) of identity partition fields, for files that lack the column.
        name_mapping_json: The table's `schema.name-mapping.default`, for files without field ids.
        storage: FileIO properties.
        vended: The credential, if the catalog vends it.
    """

    inputs: tuple[EncodeInput, ...]
    schema_json: str
    partition_constants: tuple[tuple[int, object], ...] = ()
    name_mapping_json: str | None = None
    storage: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    vended: VendedCredential | None = None

    @property
    def schema(self) -> Schema:
        """Raises RefusedError `type_not_supported` if PyIceberg does not know it."""
        try:
            return parsed_schema(self.schema_json)
        except ValueError as error:
            raise refused(Reason.TYPE_NOT_SUPPORTED, f"PyIceberg does not know this table's schema: {error}") from error

    @property
    def equality_deletes(self) -> list[EqualityDelete]:
        """Of all files, each once."""
        return list(dict.fromkeys(of_all(each.equality_deletes for each in self.inputs)))

    @property
    def position_deletes(self) -> Mapping[str, Sequence[DeleteFile]]:
        """By data file."""
        return {each.location: each.position_deletes for each in self.inputs}

    @property
    def size(self) -> int:
        """Bytes of the data files."""
        return sum(each.size for each in self.inputs)

    def store_for(self, location: str) -> ByteStore:
        return byte_store_for(location, dict(self.storage), self.vended)

    def reader(self, store: ByteStore, written: WrittenSchema, whole_bytes: int = WHOLE_FILE_BYTES) -> FileReader:
        """Reads the files in this schema. `whole_bytes`: size up to which a file is fetched in one request."""
        mapping = None if self.name_mapping_json is None else list(parse_mapping_from_json(self.name_mapping_json))
        return FileReader(store, written, dict(self.partition_constants), mapping, whole_bytes)

    @property
    def deletes_memory(self) -> int:
        """Bytes of memory that the deletes take, estimated before any is read.

        Of a position delete file, or a file of vectors, only the positions of these files are kept.
        """
        by_position = set(of_all(self.position_deletes.values()))
        rows = sum(each.records for each in self.inputs if each.position_deletes)
        positions = min(UNPACKED_RATIO * sum(each.size for each in by_position), _POSITION_BYTES * rows)
        return UNPACKED_RATIO * sum(each.size for each in self.equality_deletes) + positions

    def deletes_refusal(self) -> Refusal | None:
        """Why the deletes cannot be applied here: `delete_file_format`, `equality_deletes`, or None. Reads no file.

        Raises:
            RefusedError: as `schema`.
        """
        found, schema = delete_refusal(of_all(self.position_deletes.values())), self.schema
        for delete in () if found else self.equality_deletes:
            if delete.file_format.lower() != PARQUET:
                sentence = f"only Iceberg's own reader applies equality deletes in {delete.file_format}"
                return Refusal(Reason.DELETE_FILE_FORMAT, sentence)
            obstacle = not_compared(schema, delete.field_ids)
            if obstacle is not None:
                return Refusal(Reason.EQUALITY_DELETES, obstacle)
        return found


class EqualityDeletes:
    """The equality deletes of data files of one partition: read once, each key with its newest sequence number."""

    def __init__(self, store: ByteStore, schema: Schema, deletes: Iterable[EqualityDelete]) -> None:
        """Read the delete files.

        Raises:
            RefusedError: `equality_deletes`: a delete file lacks a compared column, or has text that is not UTF-8.
            GiveUpError: a delete file is unreadable.
        """
        by_columns: dict[tuple[int, ...], list[EqualityDelete]] = {}
        for delete in deletes:
            by_columns.setdefault(tuple(sorted(set(delete.field_ids))), []).append(delete)
        self._keys = [_keys(store, schema, columns, files) for columns, files in by_columns.items()]

    @property
    def field_ids(self) -> frozenset[int]:
        """All compared columns."""
        return frozenset(field_id for keys in self._keys for field_id in keys.field_ids)

    @property
    def values(self) -> list[dict[int, Values | None]]:
        """For each set of compared columns, the values of each column in the deletes."""
        return [
            {field_id: Values.of(column.values) for field_id, column in zip(keys.column_ids, keys.columns, strict=True)}
            for keys in self._keys
        ]

    def deleted(self, rows: pa.Table, sequence_numbers: Numbers) -> npt.NDArray[np.bool_]:
        """A mask of the deleted rows.

        Args:
            rows: The compared columns, named by their field ids.
            sequence_numbers: Data sequence number of each row's file.
        """
        found = np.zeros(rows.num_rows, dtype=np.bool_)
        for keys in self._keys:
            found |= keys.newest_deletes(rows) > sequence_numbers
        return found


Piece = tuple[EncodeInput, int, pa.Table]
"""A data file, the position of the first row, and the compared columns of some rows, named by their field ids."""


def positions_by_equality(pieces: Iterable[Piece], deletes: EqualityDeletes) -> dict[str, Positions]:
    """Positions that equality deletes remove from each data file, ascending; files that lose none are left out.

    Args:
        pieces: Of data files of one partition, in the order of their rows. Each file must list all newer equality
            deletes of the partition (`check_same_deletes`).
        deletes: The deletes of all of them.

    Raises:
        GiveUpError: a data file is unreadable.
    """
    found: dict[str, Positions] = {}
    for part in _parts(pieces):
        numbers = np.concatenate([np.full(rows.num_rows, file.data_sequence_number) for file, _, rows in part])
        deleted = deletes.deleted(pa.concat_tables(rows for _, _, rows in part), numbers)
        start = 0
        for file, position, rows in part:
            positions = np.flatnonzero(deleted[start : start + rows.num_rows]) + position
            start += rows.num_rows
            if len(positions):
                found[file.location] = np.concatenate([found.get(file.location, positions[:0]), positions])
    return found


def check_same_deletes(files: Sequence[EncodeInput]) -> None:
    """Check that each file lists all newer equality deletes that another file of its partition lists.

    Raises:
        RefusedError: `equality_deletes`: one does not.
    """
    numbers = sorted(delete.sequence_number for delete in set(of_all(file.equality_deletes for file in files)))
    for file in files:
        newer = len(numbers) - bisect_right(numbers, file.data_sequence_number)
        oldest = min((delete.sequence_number for delete in file.equality_deletes), default=math.inf)
        if len(file.equality_deletes) != newer or oldest <= file.data_sequence_number:
            raise refused(
                Reason.EQUALITY_DELETES, f"{file.location} lacks equality deletes that apply to its partition"
            )


def _parts(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Lists of pieces with about `LOOKUP_ROWS` rows together."""
    part: list[Piece] = []
    waiting = 0
    for piece in pieces:
        part.append(piece)
        waiting += piece[2].num_rows
        if waiting >= LOOKUP_ROWS:
            yield part
            part, waiting = [], 0
    if part:
        yield part


def compared_schema(schema: Schema, field_ids: Iterable[int]) -> Schema:
    """Only the compared columns, named by their ids and optional: deletes may have nulls where data has none."""
    wanted = set(field_ids)
    return Schema(
        *(
            NestedField(field.field_id, str(field.field_id), field.field_type, initial_default=field.initial_default)
            for field in schema.fields
            if field.field_id in wanted
        )
    )


# --- keys -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Column:
    """A compared column: its distinct values in the deletes, each with a number."""

    name: str
    values: pa.Array

    def numbers(self, rows: pa.Table) -> pa.Array:
        """The number of each row's value; null for values that are not in the deletes."""
        numbers = pc.index_in(_storage(rows.column(self.name)), value_set=self.values)
        return numbers.combine_chunks().cast(pa.int64())


@dataclass(frozen=True)
class _Keys:
    """Distinct rows of delete files with the same columns: a number for each, with the newest sequence number.

    `field_ids` as the delete files name them; `column_ids` in the order of `columns`.

    Column by column, the number of the row so far and the number of the value form a pair, and each distinct pair gets
    a number. So numbers stay below the number of deletes, and products of two of them within 64 bits.
    """

    field_ids: tuple[int, ...]
    column_ids: tuple[int, ...]
    columns: tuple[_Column, ...]
    pairs: tuple[pa.Array, ...]
    newest: Numbers

    def newest_deletes(self, rows: pa.Table) -> Numbers:
        """For each row the sequence number of the newest delete with its values; -1 for none."""
        number = self.columns[0].numbers(rows)
        for column, pairs in zip(self.columns[1:], self.pairs, strict=True):
            number = _number_of_pair(_pair(number, column, rows), pairs)
        found = number.fill_null(-1).to_numpy(zero_copy_only=False)
        return np.where(found < 0, np.int64(-1), self.newest[found])


def _keys(store: ByteStore, schema: Schema, field_ids: tuple[int, ...], files: Sequence[EqualityDelete]) -> _Keys:
    written = written_schema(compared_schema(schema, field_ids), with_lineage=False)
    reader = FileReader(store, written, {}, None)
    read: list[pa.Table] = []
    numbers: list[Numbers] = []
    for file in files:
        opened, plan = reader.open(file.location, file.size)
        if any(column.position is None for column in plan.projection.columns):
            raise refused(Reason.EQUALITY_DELETES, f"{file.location} lacks a compared column")
        for table in tables(opened, file.location, plan.columns):
            read.append(plan.projection.apply(table))
            numbers.append(np.full(table.num_rows, file.sequence_number, dtype=np.int64))
    rows = pa.concat_tables(read) if read else written.arrow.empty_table()
    columns = tuple(_Column(name, _distinct(rows.column(name))) for name in rows.column_names)
    number = columns[0].numbers(rows)
    pairs: list[pa.Array] = []
    for column in columns[1:]:
        pair = _pair(number, column, rows)
        pairs.append(pair.unique())
        number = _number_of_pair(pair, pairs[-1])
    newest = np.full(rows.num_rows + 1, -1, dtype=np.int64)
    if numbers:
        np.maximum.at(newest, number.to_numpy(zero_copy_only=False), np.concatenate(numbers))
    ids = tuple(each.field_id for each in written.iceberg.fields)
    return _Keys(field_ids=field_ids, column_ids=ids, columns=columns, pairs=tuple(pairs), newest=newest)


def _pair(number: pa.Array, column: _Column, rows: pa.Table) -> pa.Array:
    return pc.add(pc.multiply(number, len(column.values)), column.numbers(rows))


def _number_of_pair(pair: pa.Array, pairs: pa.Array) -> pa.Array:
    """The number of each pair; null stays null, since `index_in` would look up null as a value."""
    return pc.index_in(pair, value_set=pairs).cast(pa.int64())


def _distinct(values: pa.ChunkedArray) -> pa.Array:
    distinct = _storage(values).unique()
    if pa.types.is_string(distinct.type):
        try:
            distinct.validate(full=True)
            strange = pc.any(pc.match_substring(distinct, _REPLACEMENT)).as_py()
        except pa.ArrowInvalid:
            strange = True
        if strange:
            raise refused(
                Reason.EQUALITY_DELETES, "an equality delete has text that is not UTF-8, or may not have been"
            )
    return distinct


def _storage(values: pa.ChunkedArray) -> pa.ChunkedArray:
    if isinstance(values.type, pa.BaseExtensionType):
        return pa.chunked_array([chunk.storage for chunk in values.chunks], values.type.storage_type)
    return values
