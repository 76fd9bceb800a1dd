"""Files that are not spliced: encrypted, damaged, too small or not alike; and footers that cannot be read."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow._parquet
import pyarrow.parquet as pq
import pytest

from compactor.rewrite.parquet.footer import Footer, read_footer
from compactor.rewrite.parquet.thrift import BINARY, I32, I64, LIST, STRUCT, Struct, ThriftList, encode_struct, structs
from compactor.rewrite.splice.checks import SpliceLimits, refusal
from compactor.rewrite.tasks.output_task import ENCODABLE
from tests.unit.failing import fails
from tests.unit.rewrite.splice_files import (
    ANY_SIZE,
    ROWS,
    STORE,
    footer_of,
    join,
    with_chunk,
    with_fields,
    with_key_values,
    with_metadata,
    with_schema,
    write,
)


@pytest.fixture
def footer(tmp_path: Path) -> Footer:
    return footer_of(write(tmp_path / "given.parquet"))


def reason(*footers: Footer, limits: SpliceLimits = ANY_SIZE) -> str | None:
    found = refusal(footers, limits)
    assert found is None or found.sentence
    return found.reason if found else None


# --- refusals ---


def test_like_files_are_accepted(footer: Footer) -> None:
    assert reason(footer) is None
    assert reason(footer, footer, footer) is None


@pytest.mark.parametrize("field", [8, 9])
def test_plaintext_footers_of_encrypted_files(footer: Footer, field: int) -> None:
    value = (STRUCT, Struct({1: (STRUCT, Struct({}))})) if field == 8 else (BINARY, b"key")
    assert reason(footer, with_fields(footer, {field: value})) == "encrypted"


@pytest.mark.parametrize("field", [8, 9])
def test_encrypted_columns(footer: Footer, field: int) -> None:
    value = (STRUCT, Struct({1: (STRUCT, Struct({}))})) if field == 8 else (BINARY, b"metadata")
    assert reason(footer, with_chunk(footer, lambda chunk: chunk.with_fields({field: value}))) == "encrypted"
    hidden = with_chunk(footer, lambda chunk: chunk.without(3).with_fields({field: value}))
    assert reason(footer, hidden) == "encrypted"


def test_encrypted_footers(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet")
    path.write_bytes(path.read_bytes()[:-4] + b"PARE")
    with fails("encrypted"):
        footer_of(path)


def test_bytes_behind_the_footer_struct(footer: Footer) -> None:
    assert reason(replace(footer, trailing_bytes=28)) == "unreadable_footer"


def test_columns_in_other_files(footer: Footer) -> None:
    elsewhere = with_chunk(footer, lambda chunk: chunk.with_fields({1: (BINARY, b"other.parquet")}))
    assert reason(footer, elsewhere) == "external_column_files"


SCHEMA_EDITS: dict[str, Callable[[Struct], Struct]] = {
    "field id": lambda element: element.with_fields({9: (I32, 77)}),
    "no field id": lambda element: element.without(9),
    "name": lambda element: element.with_fields({4: (BINARY, b"TEXT")}),
    "logical type": lambda element: element.without(10),
    "converted type": lambda element: element.without(6),
    "repetition": lambda element: element.with_fields({3: (I32, 0)}),
    "unknown field": lambda element: element.with_fields({90: (I32, 0)}),
}


@pytest.mark.parametrize("edit", SCHEMA_EDITS.values(), ids=SCHEMA_EDITS.keys())
def test_schemas_must_be_identical(footer: Footer, edit: Callable[[Struct], Struct]) -> None:
    assert reason(footer, with_schema(footer, edit)) == "schema_differs"


def test_columns_need_field_ids(footer: Footer) -> None:
    without = with_schema(footer, lambda element: element.without(9))
    assert reason(without, without) == "no_field_ids"
    assert reason(without, without, limits=replace(ANY_SIZE, require_field_ids=False)) is None


def variant_footer(footer: Footer, group_id: int | None) -> Footer:
    """A schema of one VARIANT group, whose two columns have no ids."""
    leaf = Struct({1: (I32, 6), 3: (I32, 0)})
    group = Struct({3: (I32, 1), 4: (BINARY, b"v"), 5: (I32, 2), 10: (STRUCT, Struct({16: (STRUCT, Struct({}))}))})
    if group_id is not None:
        group = group.with_fields({9: (I32, group_id)})
    leaves = [leaf.with_fields({4: (BINARY, name)}) for name in (b"metadata", b"value")]
    root = footer.schema[0].with_fields({5: (I32, 1)})
    return with_fields(footer, {2: structs([root, group, *leaves])})


def test_columns_of_a_variant_share_its_field_id(footer: Footer) -> None:
    leaves = variant_footer(footer, 5).leaves
    assert [(leaf.path, leaf.field_id) for leaf in leaves] == [((b"v", b"metadata"), 5), ((b"v", b"value"), 5)]
    without = variant_footer(footer, None)
    assert reason(without) == "no_field_ids"


def test_created_by_must_agree(footer: Footer) -> None:
    assert reason(footer, with_fields(footer, {6: (BINARY, b"other")})) == "created_by_differs"
    another_version = footer.created_by.replace(b"version ", b"version 9")
    assert another_version != footer.created_by
    assert reason(footer, with_fields(footer, {6: (BINARY, another_version)})) == "created_by_differs"
    assert reason(footer, replace(footer, tree=footer.tree.without(6))) == "created_by_differs"


@pytest.mark.parametrize(
    ("writer", "expected"),
    [
        (b"parquet-mr version 1.8.0 (build 1)", "unsupported_writer"),
        (b"parquet-mr version 1.2.8", "unsupported_writer"),
        (b"parquet-mr", "unsupported_writer"),
        (b"parquet-mr (build 1)", "unsupported_writer"),
        (b"parquet-mr-trino version 435 (build n/a)", None),
        (b"parquet-mr compatible Photon version 0.2 (build 14.3)", None),
        (b"parquet-mr version 1.8.1", None),
        (b"parquet-mr version 1.10.0 (build 2)", None),
        (b"parquet-cpp version 1.0.0", None),
    ],
)
def test_old_parquet_java_files_stay_apart(footer: Footer, writer: bytes, expected: str | None) -> None:
    assert reason(with_fields(footer, {6: (BINARY, writer)})) == expected


def test_column_orders_must_agree(footer: Footer) -> None:
    assert reason(footer, replace(footer, tree=footer.tree.without(7))) == "column_orders_differ"


@pytest.mark.parametrize(
    "key",
    [
        "parquet.avro.schema",
        "org.apache.spark.version",
        "org.apache.spark.legacyDateTime",
        "org.apache.spark.legacyINT96",
        "org.apache.spark.timeZone",
        "ARROW:schema",
        "some.unknown.key",
    ],
)
def test_metadata_that_readers_interpret_must_agree(footer: Footer, key: str) -> None:
    one, other = with_key_values(footer, **{key: "1"}), with_key_values(footer, **{key: "2"})
    assert reason(one, one) is None
    assert reason(one, other) == reason(one, footer) == reason(footer, one) == "metadata_differs"


@pytest.mark.parametrize("key", ["iceberg.schema", "pandas"])
def test_metadata_that_may_differ(footer: Footer, key: str) -> None:
    one, other = with_key_values(footer, **{key: "1"}), with_key_values(footer, **{key: "2"})
    assert reason(one, other) is reason(one, footer) is None


def test_the_order_of_key_values_does_not_matter(footer: Footer) -> None:
    assert reason(with_key_values(footer, a="1", b="2"), with_key_values(footer, b="2", a="1")) is None


def test_other_facts_about_the_file_must_agree(footer: Footer) -> None:
    assert reason(footer, with_fields(footer, {1: (I32, 99)})) == "metadata_differs"
    assert reason(footer, with_fields(footer, {32000: (I32, 1)})) == "metadata_differs"


@pytest.mark.parametrize("rows", [ROWS - 1, ROWS + 1, -1])
def test_row_counts_must_add_up(footer: Footer, rows: int) -> None:
    assert reason(footer, with_fields(footer, {3: (I64, rows)})) == "row_count_mismatch"


BAD_PLACES: dict[str, Callable[[Footer], dict[int, tuple[int, Any]]]] = {
    "before the magic": lambda _: {9: (I64, 3)},
    "no offset": lambda _: {9: (I64, 0), 11: (I64, 0)},
    "into the footer": lambda footer: {7: (I64, footer.file_size)},
    "negative size": lambda _: {7: (I64, -5)},
    "no bytes": lambda _: {7: (I64, 0)},
    "data pages past the chunk": lambda footer: {9: (I64, footer.data_end - 1)},
    "an index page past the chunk": lambda footer: {10: (I64, footer.data_end - 1)},
    "the bytes of the first row group": lambda _: {9: (I64, 4), 11: (I64, 4), 7: (I64, 10)},
}


@pytest.mark.parametrize("changes", BAD_PLACES.values(), ids=BAD_PLACES.keys())
def test_chunks_must_lie_in_the_file_and_apart(footer: Footer, changes: Callable[[Footer], dict[int, Any]]) -> None:
    assert reason(footer, with_metadata(footer, changes(footer))) == "bad_offsets"


def test_row_groups_must_follow_the_schema(footer: Footer) -> None:
    swapped = with_metadata(footer, {3: (LIST, ThriftList(BINARY, [b"id"]))})
    assert reason(swapped) == "malformed_row_group"
    groups = footer.tree.elements(4, STRUCT)
    short = groups[0].with_fields({1: structs(list(groups[0].elements(1, STRUCT))[:2])})
    assert reason(with_fields(footer, {4: structs([short, *groups[1:]])})) == "malformed_row_group"


def test_row_ids_are_made_for_no_more_rows_than_arrow_writes_into_one_row_group(footer: Footer) -> None:
    assert SpliceLimits().max_lineage_rows == pyarrow._parquet._MAX_ROW_GROUP_SIZE
    most = max(group.num_rows for group in footer.row_groups)
    found = refusal([footer], replace(ANY_SIZE, max_lineage_rows=most - 1), lineage=True)
    assert [found and found.reason] == ["too_many_rows"]
    assert "too_many_rows" in ENCODABLE
    assert refusal([footer], replace(ANY_SIZE, max_lineage_rows=most), lineage=True) is None
    assert refusal([footer], replace(ANY_SIZE, max_lineage_rows=most - 1)) is None


def test_a_chunk_without_metadata_is_unreadable(footer: Footer) -> None:
    assert reason(with_chunk(footer, lambda chunk: chunk.without(3))) == "unreadable_footer"


def test_size_limits(footer: Footer) -> None:
    pages = [chunk.pages.length for group in footer.row_groups for chunk in group.chunks]
    group, chunk = sum(pages) // 3, sum(pages) // 9
    at_limit = replace(ANY_SIZE, min_row_group_bytes=group, min_chunk_bytes=chunk)
    assert reason(footer, footer, limits=at_limit) is None
    assert reason(footer, limits=replace(at_limit, min_row_group_bytes=group + 1)) == "row_groups_too_small"
    assert reason(footer, limits=replace(at_limit, min_chunk_bytes=chunk + 1)) == "chunks_too_small"
    full = replace(at_limit, min_chunk_bytes=chunk + 1, full_row_group_bytes=group)
    assert reason(footer, limits=full) is None
    assert reason(footer, footer, limits=replace(ANY_SIZE, max_row_groups=5)) == "too_many_row_groups"
    assert reason(footer, footer, limits=replace(ANY_SIZE, max_row_groups=6)) is None
    assert reason(footer, limits=SpliceLimits()) == "row_groups_too_small"


def test_the_estimated_footer_is_close(footer: Footer, tmp_path: Path) -> None:
    join(tmp_path, *[write(tmp_path / f"{n}.parquet") for n in range(3)])
    actual = footer_of(tmp_path / "out.parquet").length
    near = int(actual * 0.97), int(actual * 1.03)
    assert reason(footer, footer, footer, limits=replace(ANY_SIZE, max_footer_bytes=near[0])) == "footer_too_large"
    assert reason(footer, footer, footer, limits=replace(ANY_SIZE, max_footer_bytes=near[1])) is None
    assert reason(footer, limits=replace(ANY_SIZE, max_footer_fraction=0.01)) == "footer_too_large"


def test_nothing_to_splice() -> None:
    assert reason() == "no_inputs"


def test_files_without_rows_need_not_agree(footer: Footer, tmp_path: Path) -> None:
    empty = footer_of(write(tmp_path / "empty.parquet", rows=0))
    odd = with_key_values(with_fields(empty, {6: (BINARY, b"other")}), a="b")
    assert reason(odd, footer) is reason(footer, odd) is reason(odd) is None


# --- reading footers ---


@pytest.mark.parametrize(
    "content",
    [b"", b"PAR1", b"PAR1PAR1", b"PAR1" + b"\0" * 20, b"PAR1\0\0\0\0PAR1", b"PAR1\xff\xff\xff\xffPAR1"],
    ids=repr,
)
def test_what_is_no_parquet_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    with fails("unreadable_footer"):
        footer_of(path)


def test_a_wrong_size_is_noticed(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet")
    size = path.stat().st_size
    for wrong, expected in ((size - 1, "unreadable_footer"), (size + 1, "input_truncated")):
        with fails(expected):
            read_footer(STORE, str(path), wrong)


def test_large_footers_take_a_second_read(tmp_path: Path) -> None:
    path = tmp_path / "wide.parquet"
    pq.write_table(pa.table({f"column {n}": [n] for n in range(1500)}), path)
    footer = footer_of(path)
    assert footer.length > 64 * 1024
    assert len(footer.leaves) == 1500
    raw = path.read_bytes()
    assert encode_struct(footer.tree) == raw[footer.data_end : -8]


def test_schemas_that_are_no_tree(footer: Footer) -> None:
    for children in (2, 4, 2**31 - 1):
        odd = with_schema(footer, lambda root, count=children: root.with_fields({5: (I32, count)}), element=0)
        assert reason(odd) == "unreadable_footer"
    deep = [Struct({4: (BINARY, b"x"), 5: (I32, 1)})] * 5000
    assert reason(with_fields(footer, {2: structs(deep)})) == "unreadable_footer"
