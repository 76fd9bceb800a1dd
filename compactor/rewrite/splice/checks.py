"""Decide from footers alone whether files can and should be spliced.

Metadata that affects how a reader interprets the copied bytes must agree in all files. Sources: apache/parquet-format
(parquet.thrift), apache/parquet-java for the bugs of its old versions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from compactor.reasons import Reason, Refusal
from compactor.rewrite.parquet.footer import ChunkField, ColumnChunk, FileField, Footer
from compactor.rewrite.parquet.thrift import Struct, ThriftError, encode_struct
from compactor.rewrite.splice.lineage_schema import misused_lineage, without_lineage

PANDAS: Final = b"pandas"
_MAX_ORDINAL: Final = 2**15 - 1  # RowGroup.ordinal is an i16
# With equal schema elements these keys do not affect how values are read; any other key may.
_MAY_DIFFER: Final = frozenset({b"iceberg.schema", PANDAS})
# Not "parquet-mr-trino version 435" nor "parquet-mr compatible Photon": these writers are others.
_PARQUET_JAVA: Final = re.compile(rb"parquet-mr(?: version(?: (\d+)\.(\d+)\.(\d+))?| *\(| *$)")
# Before 1.8.1 delta strings depend on the row group before theirs (PARQUET-246), before 1.2.9 sizes lack the
# dictionary's header (PARQUET-816).
_FIRST_SOUND_PARQUET_JAVA: Final = (1, 8, 1)


@dataclass(frozen=True, slots=True)
class SpliceLimits:
    """Limits of what is worth splicing.

    Attributes:
        min_row_group_bytes: Average compressed bytes per row group. Below, readers spend more on seeks than on bytes.
        min_chunk_bytes: Average compressed bytes per column chunk. A chunk costs about 300 bytes of metadata and one
            range request. Compared with one row group, a scan of 3 of 200 columns took 1.3 times as long with chunks
            of 46 KB; of 3 of 100 columns with chunks of 92 KB it took no longer (bench_width).
        full_row_group_bytes: Row groups of this average size are as large as after re-encoding. Their chunks are small
            because the table is wide, so `min_chunk_bytes` does not apply.
        max_footer_fraction: Footer bytes per data byte; readers fetch and parse the whole footer first.
        max_footer_bytes: Footer bytes at most.
        max_row_groups: Row groups at most; RowGroup.ordinal is an i16.
        max_lineage_rows: Rows of a row group at most, if row ids are made for it: Arrow writes no more into one.
        require_field_ids: Refuse files whose columns have no field ids (they need the table's name mapping).
    """

    min_row_group_bytes: int = 4 * 1024 * 1024
    min_chunk_bytes: int = 64 * 1024
    full_row_group_bytes: int = 64 * 1024 * 1024
    max_footer_fraction: float = 0.01
    max_footer_bytes: int = 8 * 1024 * 1024
    max_row_groups: int = _MAX_ORDINAL
    max_lineage_rows: int = 64 * 1024 * 1024
    require_field_ids: bool = True


def refusal(footers: Sequence[Footer], limits: SpliceLimits, *, lineage: bool = False) -> Refusal | None:
    """Why the files with these footers cannot or should not be spliced; None if they can.

    Of files without rows only the row count is checked.

    Args:
        footers: One per file.
        limits: Refuse splices that exceed these limits.
        lineage: Whether row lineage is written; the files may then differ in their lineage columns.
    """
    if not footers:
        return Refusal(Reason.NO_INPUTS, "There are no files to splice.")
    try:
        found = wrong_row_count(footers)
        contributing = [footer for footer in footers if footer.filled_row_groups] or footers[:1]
        if lineage and found is None:
            found = _first(check(contributing, limits) for check in _LINEAGE_CHECKS)
            contributing = contributing if found else [without_lineage(footer) for footer in contributing]
        return found or _first(check(contributing, limits) for check in _CHECKS)
    except ThriftError as error:
        return Refusal(error.reason, str(error))


def files_too_small(sizes: Sequence[int], limits: SpliceLimits) -> Refusal | None:
    """Refuse small files by their sizes alone: each has at least one row group. Saves reading thousands of footers."""
    average = sum(sizes) // max(1, len(sizes))
    if average >= limits.min_row_group_bytes:
        return None
    return Refusal(Reason.ROW_GROUPS_TOO_SMALL, f"Files average {average} bytes: too small to copy.")


def _first(found: Iterable[Refusal | None]) -> Refusal | None:
    return next((refused for refused in found if refused), None)


def _misused_lineage(footers: Sequence[Footer], _limits: SpliceLimits) -> Refusal | None:
    return _first(misused_lineage(footer) for footer in footers)


def wrong_row_count(footers: Sequence[Footer]) -> Refusal | None:
    """Refuse a file whose row groups have another number of rows than the file."""
    for footer in footers:
        counts = [group.num_rows for group in footer.row_groups]
        if sum(counts) != footer.num_rows or min(counts, default=0) < 0:
            sentence = f"A file claims {footer.num_rows} rows, but its row groups have {sum(counts)}."
            return Refusal(Reason.ROW_COUNT_MISMATCH, sentence)
    return None


def _encrypted(footers: Sequence[Footer], _limits: SpliceLimits) -> Refusal | None:
    if any(footer.is_encrypted for footer in footers):
        return Refusal(Reason.ENCRYPTED, "Columns or footers are encrypted or signed.")
    if any(footer.trailing_bytes for footer in footers):
        return Refusal(ThriftError.reason, "A footer is followed by bytes that no specification names.")
    return None


def _external_columns(footers: Sequence[Footer], _limits: SpliceLimits) -> Refusal | None:
    if any(ChunkField.FILE_PATH in chunk.tree.fields for chunk in _chunks(footers)):
        return Refusal(Reason.EXTERNAL_COLUMN_FILES, "Columns are stored in other files.")
    return None


def _schema(footers: Sequence[Footer], limits: SpliceLimits) -> Refusal | None:
    if any(footer.schema != footers[0].schema for footer in footers):
        return Refusal(Reason.SCHEMA_DIFFERS, "The files' Parquet schemas are not identical.")
    without_id = [leaf for leaf in footers[0].leaves if leaf.field_id is None]
    if limits.require_field_ids and without_id:
        name = b".".join(without_id[0].path).decode(errors="replace")
        return Refusal(
            Reason.NO_FIELD_IDS, f"Column {name} has no field id; only the table's name mapping identifies it."
        )
    return None


def _writer(footers: Sequence[Footer], _limits: SpliceLimits) -> Refusal | None:
    first = footers[0].created_by
    if any(footer.created_by != first for footer in footers):
        return Refusal(
            Reason.CREATED_BY_DIFFERS, "Different programs wrote the files; readers trust statistics by the program."
        )
    found = _PARQUET_JAVA.match(first)
    if found and (found[1] is None or tuple(map(int, found.groups())) < _FIRST_SOUND_PARQUET_JAVA):
        return Refusal(
            Reason.UNSUPPORTED_WRITER, f"{first.decode(errors='replace')} wrote files that cannot be joined."
        )
    return None


def _metadata(footers: Sequence[Footer], _limits: SpliceLimits) -> Refusal | None:
    orders = [footer.tree.fields.get(FileField.COLUMN_ORDERS) for footer in footers]
    if any(order != orders[0] for order in orders):
        return Refusal(Reason.COLUMN_ORDERS_DIFFER, "The files use different sort orders for the values of a column.")
    first = _semantic_metadata(footers[0])
    if any(_semantic_metadata(footer) != first for footer in footers):
        return Refusal(
            Reason.METADATA_DIFFERS, "The files' key-value metadata differ in keys that may affect how values are read."
        )
    return None


def _semantic_metadata(footer: Footer) -> tuple[Counter[tuple[bytes, bytes | None]], Struct]:
    """Metadata that must agree: key-values that readers may interpret, and all other fields about the whole file."""
    pairs = Counter(pair for pair in footer.key_values if pair[0] not in _MAY_DIFFER)
    judged_elsewhere = (FileField.SCHEMA, FileField.NUM_ROWS, FileField.ROW_GROUPS, FileField.KEY_VALUES)
    return pairs, footer.tree.without(*judged_elsewhere)


def layout_fault(footers: Sequence[Footer], _limits: SpliceLimits) -> Refusal | None:
    """Refuse row groups that do not match their schema, and column chunks outside their file or overlapping."""
    for footer in footers:
        paths = [leaf.path for leaf in footer.leaves]
        ranges = []
        for group in footer.filled_row_groups:
            chunks = group.chunks
            if not paths or [chunk.path for chunk in chunks] != paths:
                return Refusal(Reason.MALFORMED_ROW_GROUP, "A row group's columns differ from the schema or its order.")
            ranges += [chunk.pages for chunk in chunks]
            if not all(chunk.lies_within(footer.data_end) for chunk in chunks):
                return Refusal(Reason.BAD_OFFSETS, "A column chunk's offsets are outside the chunk or the file.")
        ranges.sort(key=lambda pages: pages.offset)
        if any(before.end > after.offset for before, after in pairwise(ranges)):
            return Refusal(Reason.BAD_OFFSETS, "Two column chunks overlap.")
    return None


def _lineage_rows(footers: Sequence[Footer], limits: SpliceLimits) -> Refusal | None:
    most = max((group.num_rows for footer in footers for group in footer.row_groups), default=0)
    if most <= limits.max_lineage_rows:
        return None
    return Refusal(
        Reason.TOO_MANY_ROWS, f"A row group has {most} rows; row ids are made for {limits.max_lineage_rows} at most."
    )


def _sizes(footers: Sequence[Footer], limits: SpliceLimits) -> Refusal | None:
    groups = sum(len(footer.filled_row_groups) for footer in footers)
    if groups > limits.max_row_groups:
        return Refusal(Reason.TOO_MANY_ROW_GROUPS, f"{groups} row groups; one file can have {limits.max_row_groups}.")
    if not groups:
        return None
    data_bytes = sum(chunk.compressed_size for chunk in _chunks(footers))
    chunk_bytes = data_bytes // (groups * len(footers[0].leaves))
    footer_bytes = _estimated_footer(footers)
    if data_bytes < groups * limits.min_row_group_bytes:
        return Refusal(
            Reason.ROW_GROUPS_TOO_SMALL, f"Row groups average {data_bytes // groups} bytes: too small to copy."
        )
    if chunk_bytes < limits.min_chunk_bytes and data_bytes < groups * limits.full_row_group_bytes:
        return Refusal(Reason.CHUNKS_TOO_SMALL, f"Column chunks average {chunk_bytes} bytes: too small to copy.")
    if footer_bytes > min(limits.max_footer_bytes, limits.max_footer_fraction * data_bytes):
        return Refusal(
            Reason.FOOTER_TOO_LARGE, f"The footer would have {footer_bytes} bytes for {data_bytes} bytes of data."
        )
    return None


def _estimated_footer(footers: Sequence[Footer]) -> int:
    """Bytes of all footers, without the parts that every footer after the first repeats."""
    heads = [len(encode_struct(footer.tree.without(FileField.ROW_GROUPS))) for footer in footers]
    return heads[0] + sum(footer.length - head for footer, head in zip(footers, heads, strict=True))


def _chunks(footers: Sequence[Footer]) -> Iterator[ColumnChunk]:
    return (chunk for footer in footers for group in footer.filled_row_groups for chunk in group.chunks)


_Check = Callable[[Sequence[Footer], SpliceLimits], Refusal | None]
_CHECKS: Final[tuple[_Check, ...]] = (_encrypted, _external_columns, _schema, _writer, _metadata, layout_fault, _sizes)
_LINEAGE_CHECKS: Final[tuple[_Check, ...]] = (
    _encrypted, _external_columns, layout_fault, _misused_lineage, _lineage_rows,
)  # fmt: skip
