"""Columns that Spark would take for others, or for null, keep a file from Spark, whatever its format."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import orc
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from compactor.iceberg.manifest_entries import Content, FileEntry
from compactor.manifests.avro_container import join_containers
from compactor.manifests.live_files import LiveFile
from compactor.reasons import Refusal
from compactor.rewrite.parquet.footer import FileField, SchemaField
from compactor.rewrite.parquet.thrift import I32, Struct, structs
from compactor.rewrite.tasks import stored_ids
from compactor.rewrite.tasks.spark_checks import misread_files
from compactor.storage.opening import byte_store_for
from tests.unit.rewrite.encode_support import column
from tests.unit.rewrite.live_file import live
from tests.unit.rewrite.splice_files import footer_of, write_footer

S = StructType(NestedField(3, "x", "long"), NestedField(4, "y", "string"))
TABLE = Schema(NestedField(1, "b", "long"), NestedField(2, "s", S), NestedField(5, "a", "long"))
MAPPING = TABLE.name_mapping.model_dump_json()
IDS = {"a": 5, "s": 2, "b": 1, "x": 3, "y": 4}
NO_IDS = dict.fromkeys(IDS)


def reason(
    files: Sequence[LiveFile], schema: Schema = TABLE, mapping: str | None = None, earlier: Sequence[Schema] = ()
) -> str | None:
    found = refusal(files, schema, mapping, earlier)
    return None if found is None else found.reason


def refusal(
    files: Sequence[LiveFile], schema: Schema = TABLE, mapping: str | None = None, earlier: Sequence[Schema] = ()
) -> Refusal | None:
    return misread_files(byte_store_for("/", {}), [schema, *earlier], files, mapping)


def file_of(path: Path, fields: Sequence[pa.Field], **more: Any) -> LiveFile:
    pq.write_table(pa.schema(fields).empty_table(), path, store_schema=False)
    return live(str(path), path.stat().st_size, **more)


def rows(ids: dict[str, int | None]) -> list[pa.Field]:
    """The columns of a file in another order than the table's."""
    struct = pa.struct([column("x", pa.int64(), ids["x"]), column("y", pa.string(), ids["y"])])
    return [column("a", pa.int64(), ids["a"]), column("s", struct, ids["s"]), column("b", pa.int64(), ids["b"])]


# --- without field ids ------------------------------------------------------------------------------------------------


def test_a_file_without_ids_needs_a_name_mapping(tmp_path: Path) -> None:
    """Without one, Spark would take column `a` for `b`, and read the struct as null."""
    file = file_of(tmp_path / "a.parquet", rows(NO_IDS))
    found = refusal([file])
    assert found is not None
    assert found.reason == "no_field_ids"
    assert "set the table property schema.name-mapping.default" in found.sentence
    assert reason([file], mapping=MAPPING) is None
    assert reason([file_of(tmp_path / "b.parquet", rows(IDS))]) is None
    assert reason([file_of(tmp_path / "c.parquet", rows({**NO_IDS, "x": 3}))]) is None


def test_a_flat_file_without_ids_needs_a_name_mapping_too(tmp_path: Path) -> None:
    file = file_of(tmp_path / "a.parquet", [column("a", pa.int64(), None), column("b", pa.int64(), None)])
    flat = Schema(NestedField(1, "b", "long"), NestedField(2, "a", "long"))
    assert reason([file], flat) == "no_field_ids"
    assert reason([file], flat, flat.name_mapping.model_dump_json()) is None


def test_ids_of_the_groups_between_a_list_and_its_elements_do_not_count(tmp_path: Path) -> None:
    """Iceberg's Java code does not look at them, and finds a file without ids."""
    schema = Schema(NestedField(1, "l", ListType(2, "long")))
    file = file_of(tmp_path / "a.parquet", [column("l", pa.list_(column("element", pa.int64(), None)), None)])
    between = with_field_ids(file, {2: 2})
    assert reason([between], schema) == "no_field_ids"
    assert reason([with_field_ids(between, {3: 2})], schema) is None


def test_negative_ids_are_no_ids(tmp_path: Path) -> None:
    """Iceberg's Java code takes them for ids, so that it does not use the name mapping."""
    file = with_field_ids(file_of(tmp_path / "a.parquet", rows(NO_IDS)), dict.fromkeys(range(1, 6), -1))
    assert reason([file]) == "no_field_ids"
    assert reason([file], mapping=MAPPING) == "partial_field_ids"


def with_field_ids(file: LiveFile, ids: dict[int, int]) -> LiveFile:
    """The file with other field ids of some elements of its schema."""

    def numbered(field_id: int) -> Callable[[Struct], Struct]:
        return lambda element: element.with_fields({SchemaField.FIELD_ID: (I32, field_id)})

    return changed(file, {index: numbered(field_id) for index, field_id in ids.items()})


def changed(file: LiveFile, edits: dict[int, Callable[[Struct], Struct]]) -> LiveFile:
    """The file with some elements of its schema changed."""
    path = Path(file.entry.path)
    footer = footer_of(path)
    elements = [edits[index](each) if index in edits else each for index, each in enumerate(footer.schema)]
    write_footer(path, footer.tree.with_fields({FileField.SCHEMA: structs(elements)}))
    return live(file.entry.path, path.stat().st_size)


def avro_of(path: Path, schema: object, **more: Any) -> LiveFile:
    path.write_bytes(join_containers(json.dumps(schema), ()))
    return live(str(path), path.stat().st_size, file_format="avro", **more)


def avro_record(**ids: int) -> dict[str, Any]:
    """A list of structs, of which each part has an id only if it is named."""
    inner = [{"name": "x", "type": ["null", "long"], **({"field-id": ids["x"]} if "x" in ids else {})}]
    array: dict[str, Any] = {"type": "array", "items": {"type": "record", "name": "r", "fields": inner}}
    if "element" in ids:
        array["element-id"] = ids["element"]
    own = {"field-id": ids["l"]} if "l" in ids else {}
    return {"type": "record", "name": "table", "fields": [{"name": "l", "type": ["null", array], **own}]}


@pytest.mark.parametrize(
    ("ids", "expected"), [({}, "no_field_ids"), ({"l": 1}, None), ({"element": 2}, None), ({"x": 3}, None)]
)
def test_avro(tmp_path: Path, ids: dict[str, int], expected: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ids and mapping, Iceberg takes columns by the table's present names: renamed ones would become null."""
    monkeypatch.setattr(stored_ids, "HEADER_BYTES", 16)  # most schemas fit into the first request
    file = avro_of(tmp_path / "a.avro", avro_record(**ids))
    assert reason([file]) == expected
    assert reason([file], mapping=MAPPING) is None


@pytest.mark.parametrize("at", [None, "l", "m", "value", "x"])
def test_orc(tmp_path: Path, at: str | None) -> None:
    def field(name: str, kind: pa.DataType) -> pa.Field:
        return pa.field(name, kind, metadata={"iceberg.id": "7"} if name == at else None)

    struct = pa.struct([field("x", pa.int64())])
    fields = [field("l", pa.list_(struct)), field("m", pa.map_(pa.string(), field("value", struct)))]
    path = tmp_path / "a.orc"
    orc.write_table(pa.schema(fields).empty_table(), path)
    file = live(str(path), path.stat().st_size, file_format="orc")
    assert reason([file]) == ("no_field_ids" if at is None else None)
    assert reason([file], mapping=MAPPING) is None


# --- the same field id twice ------------------------------------------------------------------------------------------


def test_two_columns_with_one_id(tmp_path: Path) -> None:
    """Spark takes the last one."""
    first, *others = rows(IDS)
    twin = column("twin", pa.int64(), IDS["a"])
    assert reason([file_of(tmp_path / "a.parquet", [first, *others, twin])]) == "duplicate_field_ids"
    struct = pa.struct([column("x", pa.int64(), 3), column("x2", pa.int64(), 3)])
    assert reason([file_of(tmp_path / "b.parquet", [first, column("s", struct, 2)])]) == "duplicate_field_ids"
    lineage = [column("_row_id", pa.int64(), 2147483540), column("r", pa.int64(), 2147483540)]
    assert reason([file_of(tmp_path / "c.parquet", [first, *lineage])]) == "duplicate_field_ids"
    gone = [column("g", pa.int64(), 9), column("h", pa.int64(), 9)]
    assert reason([file_of(tmp_path / "d.parquet", [first, *gone])]) is None


def test_two_columns_with_one_id_by_name(tmp_path: Path) -> None:
    mapping = json.dumps([{"field-id": 5, "names": ["a", "alias"]}])
    file = file_of(tmp_path / "a.parquet", [column("a", pa.int64(), None), column("alias", pa.int64(), None)])
    assert reason([file], mapping=mapping) == "duplicate_field_ids"


def test_a_repeated_column_that_is_no_list(tmp_path: Path) -> None:
    """Spark would take one value for each row, whichever row it belongs to."""
    file = file_of(tmp_path / "a.parquet", [column("a", pa.list_(column("element", pa.int64(), 5)), 9)])
    without_logical_type = changed(
        file, {1: lambda element: element.without(SchemaField.CONVERTED_TYPE, SchemaField.LOGICAL_TYPE)}
    )
    assert reason([without_logical_type]) == "type_not_supported"


# --- deletes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "expected"), [((1, 3), None), ((1, None), "equality_deletes"), ((None, None), "equality_deletes")]
)
@pytest.mark.parametrize("file_format", ["parquet", "avro"])
def test_equality_deletes_need_the_ids_of_their_columns(
    tmp_path: Path, ids: tuple[int | None, int | None], expected: str | None, file_format: str
) -> None:
    """By their order, Spark would delete other rows; the name mapping does not hold for delete files."""
    path = tmp_path / "deletes"
    if file_format == "parquet":
        struct = pa.struct([column("x", pa.int64(), ids[1])])
        entry = file_of(path, [column("b", pa.int64(), ids[0]), column("s", struct, None)]).entry
    else:
        entry = avro_of(path, avro_record(**{name: each for name, each in zip("lx", ids, strict=True) if each})).entry
    delete = entry._replace(content=Content.EQUALITY_DELETES, equality_ids=(1, 3))
    data = file_of(tmp_path / "data.parquet", rows(IDS))
    assert reason([with_deletes(data, delete)], mapping=MAPPING) == expected


def with_deletes(file: LiveFile, *deletes: FileEntry) -> LiveFile:
    return file._replace(deletes=deletes)


# --- defaults in structs ----------------------------------------------------------------------------------------------

P = NestedField(6, "p", "long")
N = NestedField(7, "n", "int", initial_default=34)
PLAIN = NestedField(8, "o", "int")
PLACES: dict[str, Any] = {
    "struct": (lambda struct: struct, lambda arrow: arrow),
    "list": (lambda struct: ListType(20, struct), lambda arrow: pa.list_(column("element", arrow, 20))),
    "map": (
        lambda struct: MapType(21, "long", 22, struct),
        lambda arrow: pa.map_(column("key", pa.int64(), 21, nullable=False), column("value", arrow, 22)),
    ),
    "nested": (
        lambda struct: StructType(NestedField(23, "inner", struct)),
        lambda arrow: pa.struct([column("inner", arrow, 23)]),
    ),
}
ORDERS: dict[str, tuple[tuple[NestedField, ...], str | None]] = {
    "first": ((N, P), "nested_default"),
    "after one without a default": ((PLAIN, N, P), "nested_default"),
    "behind": ((P, N), None),
    "no default": ((PLAIN, P), None),
}


def default_table(place: str, fields: Sequence[NestedField], *, required: bool = False) -> Schema:
    around, _ = PLACES[place]
    kind: IcebergType = around(StructType(*fields))
    return Schema(NestedField(1, "id", "long"), NestedField(10, "c", kind, required=required))


def default_file(path: Path, place: str, *fields: pa.Field) -> LiveFile:
    _, around = PLACES[place]
    return file_of(path, [column("id", pa.int64(), 1), column("c", around(pa.struct(fields)), 10)])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("required", [False, True])
def test_a_default_before_the_columns_of_a_struct(tmp_path: Path, place: str, order: str, required: bool) -> None:
    """Spark asks the first column whether the struct, or the list of structs, is there: a default always is."""
    fields, expected = ORDERS[order]
    schema = default_table(place, fields, required=required)
    old = default_file(tmp_path / "old.parquet", place, column("p", pa.int64(), 6))
    assert reason([old], schema) == expected
    new = default_file(tmp_path / "new.parquet", place, column("p", pa.int64(), 6), column("n", pa.int32(), 7))
    assert reason([new], schema) is None


def test_a_default_before_the_columns_of_a_struct_by_name(tmp_path: Path) -> None:
    struct = pa.struct([column("p", pa.int64(), None)])
    file = file_of(tmp_path / "a.parquet", [column("id", pa.int64(), None), column("c", struct, None)])
    schema = default_table("struct", (N, P))
    assert reason([file], schema, schema.name_mapping.model_dump_json()) == "nested_default"


def test_defaults_outside_structs_are_read_right(tmp_path: Path) -> None:
    schema = Schema(N, *default_table("struct", (P,)).fields)
    assert reason([default_file(tmp_path / "a.parquet", "struct", column("p", pa.int64(), 6))], schema) is None
    missing = file_of(tmp_path / "b.parquet", [column("id", pa.int64(), 1)])
    assert reason([missing], default_table("struct", (N, P))) is None


# --- encrypted files --------------------------------------------------------------------------------------------------


def test_an_encrypted_file_may_have_the_columns_of_any_schema() -> None:
    """Only Iceberg can read it, and it misreads structs all the same."""
    file = live("/nowhere", encrypted=True)
    old, current = default_table("list", (P,)), default_table("list", (N, P))
    assert reason([file], current) is None
    assert reason([file], current, earlier=[current, old]) == "nested_default"
    assert reason([file], default_table("list", (PLAIN,)), earlier=[old]) == "struct_fields_replaced"
    assert reason([file], old, earlier=[current]) is None
