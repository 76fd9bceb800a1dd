"""Spliced files with row lineage: their metadata, and the position of the two columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compactor.rewrite.parquet.thrift import I64, STRUCT, Struct, encode_struct
from compactor.rewrite.splice.lineage_chunks import RowLineage
from tests.unit.rewrite.lineage_files import (
    COMPLETE,
    IDS,
    MERGED,
    PLAIN,
    File,
    arrow_table,
    chunks,
    join,
    lineage_of,
    with_last_chunk,
    write,
)
from tests.unit.rewrite.splice_files import footer_of, noted_copies, with_key_values

# --- what describes the file ---


FIELDS = '{"id":1,"name":"id","required":false,"type":"long"}'
ADDED = (
    ',{"id":2147483540,"name":"_row_id","required":false,"type":"long"}'
    ',{"id":2147483539,"name":"_last_updated_sequence_number","required":false,"type":"long"}'
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            f'{{"type":"struct","schema-id":0,"fields":[{FIELDS}]}}',
            f'{{"type":"struct","schema-id":0,"fields":[{FIELDS}{ADDED}]}}',
        ),
        (f'{{"type":"struct","fields":[{FIELDS}{ADDED}]}}', f'{{"type":"struct","fields":[{FIELDS}{ADDED}]}}'),
        ("[1]", "[1]"),
        ("noise", "noise"),
    ],
)
def test_the_iceberg_schema_names_the_columns_once(tmp_path: Path, given: str, expected: str) -> None:
    path = write(tmp_path / "a", PLAIN)
    join(
        tmp_path / "out",
        [(path, PLAIN.inherited)],
        footers=[with_key_values(footer_of(path), **{"iceberg.schema": given})],
    )
    assert footer_of(tmp_path / "out").key_values == [(b"iceberg.schema", expected.encode())]


@pytest.mark.parametrize("first", [PLAIN, MERGED])
def test_arrow_keeps_its_types(tmp_path: Path, first: File) -> None:
    """PyArrow stores its own schema beside Parquet's, and ignores it if it does not list every column."""
    order = ["_row_id", "id", "text", "_last_updated_sequence_number"]
    files = [first, MERGED, PLAIN]
    parts = [
        (write(tmp_path / f"{number}", file, order, store_schema=True), file.inherited)
        for number, file in enumerate(files)
    ]
    join(tmp_path / "out", parts)
    found = pq.read_table(tmp_path / "out")
    assert found.schema.field("text").type == pa.large_string()
    assert found.schema.names == list(IDS)
    assert [field.metadata[b"PARQUET:field_id"] for field in found.schema] == [str(n).encode() for n in IDS.values()]
    assert lineage_of(tmp_path / "out") == [pair for file in files for pair in file.expected]


def test_an_unreadable_arrow_schema_stays(tmp_path: Path) -> None:
    path = write(tmp_path / "a", PLAIN)
    for number, value in enumerate(["?", "AAAA", "//////////8="]):
        output = tmp_path / f"out{number}"
        join(output, [(path, PLAIN.inherited)], footers=[with_key_values(footer_of(path), **{"ARROW:schema": value})])
        assert footer_of(output).key_values == [(b"ARROW:schema", value.encode())]


def test_files_without_column_orders_get_none(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a", PLAIN), write(tmp_path / "b", COMPLETE)]
    footers = [replace(footer, tree=footer.tree.without(7)) for footer in map(footer_of, paths)]
    parts = list(zip(paths, [PLAIN.inherited, COMPLETE.inherited], strict=True))
    join(tmp_path / "out", parts, footers=footers)
    assert 7 not in footer_of(tmp_path / "out").tree.fields
    assert lineage_of(tmp_path / "out") == PLAIN.expected + COMPLETE.expected


def test_sorting_columns_name_the_same_columns(tmp_path: Path) -> None:
    order = ["_row_id", "id", "_last_updated_sequence_number", "text"]
    sorting = [pq.SortingColumn(1), pq.SortingColumn(3, descending=True), pq.SortingColumn(0), pq.SortingColumn(1)]
    join(tmp_path / "out", [(write(tmp_path / "a", MERGED, order, sorting_columns=sorting), MERGED.inherited)])
    found = pq.ParquetFile(tmp_path / "out").metadata.row_group(0).sorting_columns
    assert found == (pq.SortingColumn(0), pq.SortingColumn(1, descending=True))


def test_statistics_and_indexes_of_made_columns_are_right(tmp_path: Path) -> None:
    output = tmp_path / "out.parquet"
    join(output, [(write(tmp_path / "a", PLAIN), PLAIN.inherited)])
    metadata = pq.ParquetFile(output).metadata
    bounds = [metadata.row_group(number).column(2).statistics for number in range(3)]
    found = [(each.min, each.max, each.null_count) for each in bounds]
    assert found == [(100, 124, 0), (125, 149, 0), (150, 159, 0)]
    query = f"SELECT id, _last_updated_sequence_number FROM '{output}' WHERE _row_id IN (100, 131, 159)"
    assert duckdb.connect().execute(query).fetchall() == [(0, 5), (31, 5), (59, 5)]


# --- where the chunks lie ---


def test_each_file_is_copied_in_one_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with complete lineage columns, in its row groups or after them."""
    copies = noted_copies(monkeypatch)
    plain = write(tmp_path / "plain", PLAIN, bloom_filter_options=None)
    complete = write(tmp_path / "complete", COMPLETE, bloom_filter_options=None)
    parts = [(plain, PLAIN.inherited), (complete, COMPLETE.inherited)]
    first = join(tmp_path / "out", parts)
    assert [location for location, _, _ in copies] == [str(plain), str(complete)]
    copies.clear()
    second = join(tmp_path / "again", [(tmp_path / "out", RowLineage(0, 1)), *parts])
    out = str(tmp_path / "out")
    assert [location for location, _, _ in copies] == [out, str(plain), str(complete), out]
    assert second.lineage_bytes == first.lineage_bytes
    assert lineage_of(tmp_path / "again") == 2 * (PLAIN.expected + COMPLETE.expected)
    copies.clear()
    join(tmp_path / "alone", [(tmp_path / "out", RowLineage(0, 1))])
    assert [location for location, _, _ in copies] == [str(tmp_path / "out")]


def test_made_chunks_lie_behind_all_pages(tmp_path: Path) -> None:
    join(tmp_path / "out", [(write(tmp_path / f"{number}", PLAIN), PLAIN.inherited) for number in range(2)])
    groups = footer_of(tmp_path / "out").row_groups
    data_end = max(chunk.pages.end for group in groups for chunk in group.chunks[:2])
    made = [chunk.pages for group in groups for chunk in group.chunks[2:]]
    assert [pages.offset for pages in made] == [data_end, *(pages.end for pages in made[:-1])]


def test_a_null_in_one_row_group_leaves_the_others_copied(tmp_path: Path) -> None:
    values = [*range(25), *[None] * 25, *range(50, 60)]
    file = File(60, values, [4] * 60)
    path = write(tmp_path / "a", file)
    result = join(tmp_path / "out", [(path, file.inherited)])
    groups = footer_of(tmp_path / "out").row_groups
    assert result.lineage_bytes == groups[1].chunks[2].pages.length
    assert lineage_of(tmp_path / "out") == file.expected
    before = footer_of(path).row_groups
    for number in (0, 2):
        old, new = before[number].chunks[2], groups[number].chunks[2]
        assert encode_struct(old.metadata.without(9, 11)) == encode_struct(new.metadata.without(9, 11))


SILENT: dict[str, Callable[[Struct], Struct]] = {
    "no statistics": lambda metadata: metadata.without(12),
    "no null count": lambda metadata: metadata.with_fields({12: (STRUCT, metadata.require(12, STRUCT).without(3))}),
}


@pytest.mark.parametrize("edit", SILENT.values(), ids=SILENT.keys())
def test_chunks_that_may_hold_nulls_are_read(tmp_path: Path, edit: Callable[[Struct], Struct]) -> None:
    path = write(tmp_path / "a", MERGED)
    metadata = chunks(footer_of(path))[-1].metadata
    footer = with_last_chunk(footer_of(path), {3: (STRUCT, edit(metadata))})
    join(tmp_path / "out", [(path, MERGED.inherited)], footers=[footer])
    assert lineage_of(tmp_path / "out") == MERGED.expected


def test_a_chunk_with_another_number_of_values_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a", COMPLETE)
    footer = with_last_chunk(footer_of(path), {}, {5: (I64, 3)})
    assert join(tmp_path / "out", [(path, COMPLETE.inherited)], footers=[footer]).lineage_bytes > 0
    assert lineage_of(tmp_path / "out") == COMPLETE.expected


def test_without_lineage_the_columns_are_columns_like_others(tmp_path: Path) -> None:
    path = write(tmp_path / "a", MERGED, store_schema=True)
    result = join(tmp_path / "out", [(path, None), (path, None)])
    assert result.lineage_bytes == 0
    assert pq.read_table(tmp_path / "out").equals(pa.concat_tables([arrow_table(MERGED)] * 2))
