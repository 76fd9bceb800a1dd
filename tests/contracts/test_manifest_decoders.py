"""Decoders of manifests: PyIceberg, which decodes everything, and the one that decodes what planning needs, agree."""

from __future__ import annotations

import bz2
import json
import subprocess
import sys
import uuid
import zlib
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import cramjam
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.io import load_file_io
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from compactor.errors import RetryError
from compactor.iceberg.manifest_entries import DELETE_FILE_PATH_FIELD, file_entry, read_entries
from compactor.manifests.avro_container import Container, ContainerError, join_containers, open_container
from compactor.manifests.columns import EntryColumns
from compactor.manifests.decoder import RawManifest, UnusualManifestError, decode_manifests
from compactor.manifests.disk import ManifestDisk
from compactor.manifests.reads import Wanted, decode
from compactor.partitions import PartitionLayout
from tests.properties.examples import examples
from tests.unit.manifests.manifest_files import record

INTS, LONGS = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
MICROS = st.integers(-(2**60), 2**60)
VALUES: list[tuple[PrimitiveType, st.SearchStrategy[Any]]] = [
    (BooleanType(), st.booleans()),
    (IntegerType(), INTS),
    (LongType(), LONGS),
    (FloatType(), st.floats(width=32)),
    (DoubleType(), st.floats() | st.sampled_from([0.0, -0.0])),
    (DateType(), st.integers(-800_000, 3_000_000)),
    (TimeType(), st.integers(0, 86_399_999_999)),
    (TimestampType(), MICROS),
    (TimestamptzType(), MICROS),
    (StringType(), st.text(max_size=5)),
    (UUIDType(), st.uuids()),
    (FixedType(3), st.binary(min_size=3, max_size=3)),
    (BinaryType(), st.binary(max_size=4)),
    (DecimalType(9, 2), st.integers(-(10**9) + 1, 10**9 - 1).map(lambda unscaled: Decimal(unscaled).scaleb(-2))),
    (FixedType(16), st.binary(min_size=16, max_size=16)),
    (TimestampNanoType(), MICROS),
    (DecimalType(38, 0), st.integers(-(10**37), 10**37).map(Decimal)),
]
ENTRY = MANIFEST_ENTRY_SCHEMAS[3]


@st.composite
def partitions(draw: st.DrawFn) -> tuple[tuple[PrimitiveType, ...], st.SearchStrategy[tuple[Any, ...]]]:
    fields = draw(st.lists(st.sampled_from(VALUES), max_size=3))
    pools = [draw(st.lists(st.none() | values, min_size=1, max_size=3)) for _, values in fields]
    return tuple(kind for kind, _ in fields), st.tuples(*map(st.sampled_from, pools))


@st.composite
def files(draw: st.DrawFn, values: st.SearchStrategy[tuple[Any, ...]], content: DataFileContent) -> dict[str, Any]:
    deleted = [draw(st.sampled_from([b"a", b"b"])) for _ in range(2)]
    bounds = draw(st.booleans())
    is_positions = content == DataFileContent.POSITION_DELETES
    return {
        "content": content,
        "file_path": draw(st.text(max_size=8)),
        "file_format": draw(st.sampled_from(FileFormat)),
        "partition": Record(*draw(values)),
        "record_count": draw(st.integers(0, 2**40)),
        "file_size_in_bytes": draw(st.integers(0, 2**40)),
        "column_sizes": draw(st.none() | st.dictionaries(st.integers(1, 9), st.integers(0, 99), max_size=3)),
        "lower_bounds": {1: b"x", DELETE_FILE_PATH_FIELD: deleted[0]} if bounds else None,
        "upper_bounds": {DELETE_FILE_PATH_FIELD: deleted[1], 1: b"y"} if bounds else draw(st.sampled_from([None, {}])),
        "key_metadata": draw(st.none() | st.binary(max_size=2)),
        "split_offsets": draw(st.none() | st.lists(LONGS, max_size=2)),
        "equality_ids": draw(st.none() | st.lists(st.integers(1, 9), max_size=2)),
        "sort_order_id": draw(st.none() | st.integers(0, 3)),
        "first_row_id": draw(st.none() | st.integers(0, 99)) if content == DataFileContent.DATA else None,
        "referenced_data_file": draw(st.sampled_from([None, "", "data"])) if is_positions else None,
    }


@st.composite
def manifests(draw: st.DrawFn) -> tuple[dict[str, Any], tuple[PrimitiveType, ...], list[dict[str, Any]]]:
    """A line of the manifest list, the partition's types, and the entries."""
    kinds, values = draw(partitions())
    of_deletes = draw(st.booleans())
    contents = (
        [DataFileContent.POSITION_DELETES, DataFileContent.EQUALITY_DELETES] if of_deletes else [DataFileContent.DATA]
    )
    entries = [
        {
            "status": draw(st.sampled_from(ManifestEntryStatus)),
            "snapshot_id": draw(st.none() | LONGS),
            "sequence_number": draw(st.none() | st.integers(0, 9)),
            "file": draw(files(values, draw(st.sampled_from(contents)))),
        }
        for _ in range(draw(st.integers(0, 5)))
    ]
    line = {
        "content": ManifestContent.DELETES if of_deletes else ManifestContent.DATA,
        "sequence_number": draw(st.integers(0, 9)),
        "added_snapshot_id": draw(LONGS),
        "first_row_id": None if of_deletes else draw(st.none() | st.integers(0, 99)),
    }
    return line, kinds, entries


def written(
    path: Path,
    line: dict[str, Any],
    kinds: tuple[PrimitiveType, ...],
    entries: list[dict[str, Any]],
    order: Sequence[int] | None = None,
) -> ManifestFile:
    """`order`: in which the partition records list their fields; the values of the entries are in this order."""
    partition = StructType(
        *(
            NestedField(1000 + number, f"p {number}", kinds[number], required=False)
            for number in (range(len(kinds)) if order is None else order)
        )
    )
    data_file = data_file_with_partition(partition, 3)
    schema = manifest_entry_schema_with_data_file(3, data_file)
    made = [
        record(
            ManifestEntry,
            schema,
            **{key: value for key, value in entry.items() if key != "file"},
            data_file=record(DataFile, data_file, **entry["file"]),
        )
        for entry in entries
    ]
    with AvroOutputFile[ManifestEntry](load_file_io({}).new_output(str(path)), schema, "manifest_entry", schema) as out:
        for one in made:
            out.write_block([one])
    return record(  # type: ignore[no-any-return]
        ManifestFile,
        MANIFEST_LIST_FILE_SCHEMAS[3],
        manifest_path=str(path),
        manifest_length=path.stat().st_size,
        partition_spec_id=4,
        **line,
    )


def reference(manifest: ManifestFile, layout: PartitionLayout) -> list[Any]:
    entries = read_entries(load_file_io({}), manifest, layout)
    return [file_entry(each, manifest.manifest_path, layout) for each in entries]


@settings(max_examples=examples(300), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(given_manifests=st.lists(manifests(), min_size=1, max_size=3))
def test_decoders_agree_on_any_manifest(tmp_path: Path, given_manifests: list[Any]) -> None:
    """Alone and joined with others, as columns of objects, and after a stay on disk. Texts: NaN equals NaN."""
    disk = ManifestDisk(tmp_path / "disk", 10**9)
    kinds = given_manifests[0][1]
    layout = layout_of(kinds)
    same = [each for each in given_manifests if each[1] == kinds]
    made = [written(tmp_path / f"{uuid.uuid4()}.avro", *each) for each in same]
    raws = [RawManifest(manifest, Path(manifest.manifest_path).read_bytes()) for manifest in made]
    for manifest, columns in zip(made, decode_manifests(raws, {4: layout}), strict=True):
        expected = reference(manifest, layout)
        assert repr(list(columns)) == repr(expected)
        assert repr(list(EntryColumns.of(manifest.manifest_path, layout, expected))) == repr(expected)
        disk.put(manifest.manifest_path, columns)
        kept = disk.get(manifest.manifest_path, layout, manifest.manifest_path)
        assert repr(list(kept or ())) == repr(expected)
        assert len({entry.key for entry in expected}) == len(
            set(columns.partitions.hashes[columns.numbers("partition")].tolist())
        )


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(given=manifests(), data=st.data())
def test_partition_values_are_matched_by_field_id(tmp_path: Path, given: Any, data: st.DataObject) -> None:
    """A manifest may list the fields of its partition records in another order, and more of them than the spec."""
    line, kinds, entries = given
    layout = layout_of(kinds)
    expected = [(each.path, each.key) for each in reference(written(tmp_path / "in_order.avro", *given), layout)]
    order = data.draw(st.permutations(range(len(kinds) + 1)))
    for entry in entries:
        values = [*entry["file"]["partition"]._data, "x"]
        entry["file"]["partition"] = Record(*(values[number] for number in order))
    manifest = written(tmp_path / "other.avro", line, (*kinds, StringType()), entries, order)
    (columns,) = decode_manifests([RawManifest(manifest, (tmp_path / "other.avro").read_bytes())], {4: layout})
    assert [(each.path, each.key) for each in columns] == expected
    assert [(each.path, each.key) for each in reference(manifest, layout)] == expected


def test_a_manifest_without_a_partition_field_is_refused_by_name(tmp_path: Path) -> None:
    manifest = one_entry(tmp_path / "m.avro")
    layout = layout_of((StringType(),))
    with pytest.raises(RetryError, match=r"m\.avro.*no partition field name 0"):
        decode(
            load_file_io({}),
            [Wanted(manifest, layout, "key")],
            [RawManifest(manifest, (tmp_path / "m.avro").read_bytes())],
        )


def layout_of(kinds: tuple[PrimitiveType, ...]) -> PartitionLayout:
    names, ids = (tuple(f"name {number}" for number in range(len(kinds))), tuple(range(1000, 1000 + len(kinds))))
    return PartitionLayout(4, names, kinds, (), field_ids=ids)


def test_row_ids_start_anew_in_each_manifest(tmp_path: Path) -> None:
    """Files without an id continue from the first id of their own manifest, however many are decoded together."""
    made = [
        written(tmp_path / f"{first}.avro", {**LINE, "first_row_id": first}, (), [data_entry(record_count=7)] * 3)
        for first in (100, 500)
    ]
    raws = [RawManifest(manifest, Path(manifest.manifest_path).read_bytes()) for manifest in made]
    decoded = decode_manifests(raws, {4: PLAIN})
    assert [[entry.first_row_id for entry in columns] for columns in decoded] == [[100, 107, 114], [500, 507, 514]]


def data_entry(**changes: Any) -> dict[str, Any]:
    file = {"content": DataFileContent.DATA, "file_path": "f" * 100, "file_format": FileFormat.PARQUET}
    file |= {"partition": Record(), "record_count": 1, "file_size_in_bytes": 1, **changes}
    return {"status": ManifestEntryStatus.ADDED, "snapshot_id": 1, "sequence_number": None, "file": file}


LINE = {"content": ManifestContent.DATA, "sequence_number": 1, "added_snapshot_id": 1, "first_row_id": None}


@pytest.mark.parametrize(
    "damage",
    [
        lambda _content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: content.replace(b"Obj", b"Obi", 1),
        lambda content: content.replace(b'"field-id"', b'"fields_id"'),
        lambda content: content.replace(b'"field-id"', b'"field-id ', 1),
        lambda content: content[:-40] + bytes(40),
    ],
    ids=["empty", "half", "no Avro", "without ids", "no JSON", "its end lost"],
)
def test_what_is_damaged_or_unusual_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    manifest = written(tmp_path / "m.avro", LINE, (), [data_entry()])
    content = damage((tmp_path / "m.avro").read_bytes())
    with pytest.raises(UnusualManifestError):
        decode_manifests([RawManifest(manifest, content)], {4: PartitionLayout(4, (), (), ())})


@pytest.mark.parametrize("size", [-1, 2**20, "16"])
def test_partition_values_of_absurd_sizes_are_left_to_the_reference(tmp_path: Path, size: object) -> None:
    """A null takes as much memory as a value: a manifest of two kilobytes could ask for a gigabyte."""
    fixed = {"type": "fixed", "name": "f", "size": size}
    partition = {"type": "record", "name": "p", "fields": [{"name": "a", "type": fixed, "field-id": 1000}]}
    data_file = {"type": "record", "name": "d", "fields": [{"name": "partition", "type": partition, "field-id": 102}]}
    schema = {"type": "record", "name": "e", "fields": [{"name": "data_file", "type": data_file, "field-id": 2}]}
    manifest = written(tmp_path / "m.avro", LINE, (), [])
    content = join_containers(json.dumps(schema), [])
    with pytest.raises(UnusualManifestError, match="bytes each"):
        decode_manifests([RawManifest(manifest, content)], {4: PartitionLayout(4, (), (), ())})


def one_entry(path: Path, **changes: Any) -> ManifestFile:
    return written(path, LINE, (), [data_entry(**changes)])


def inflated(path: Path) -> Container:
    found = open_container(path.read_bytes())
    blocks = tuple((count, zlib.decompress(block, wbits=-15)) for count, block in found.stored)
    return Container(found.schema, blocks)


def changed(path: Path, change: Callable[[bytes], bytes], codec: str = "null") -> bytes:
    """The manifest with other bytes in its blocks, which are inflated before; `codec` is what its header says then."""
    found = inflated(path)
    blocks = tuple((count, change(block)) for count, block in found.stored)
    content = join_containers(found.schema, [Container(found.schema, blocks)], codec)
    path.write_bytes(content)
    return content


PLAIN = PartitionLayout(4, (), (), ())
UNKNOWN_CODE = b"\x06"  # 3


@pytest.mark.parametrize(
    "change",
    [
        lambda block: UNKNOWN_CODE + block[1:],
        lambda block: block.replace(b"\x0ePARQUET", b"\x0ePARQUEX"),
        lambda block: block.replace(b"\xc8\x01" + b"f" * 100, b"\xfe\xff\xff\xff\x0f" + b"f" * 97),
    ],
    ids=["status", "format", "length"],
)
def test_damage_is_an_error_that_names_the_manifest_and_ends_nothing(
    tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    manifest = one_entry(tmp_path / "m.avro")
    raw = RawManifest(manifest, changed(tmp_path / "m.avro", change))
    with pytest.raises(UnusualManifestError):
        decode_manifests([raw], {4: PLAIN})
    wanted = Wanted(manifest, PLAIN, "key")
    with pytest.raises(RetryError, match=r"m\.avro"):
        decode(load_file_io({}), [wanted], [raw])


def test_bounds_that_are_no_text_are_an_error_that_names_the_manifest(tmp_path: Path) -> None:
    bounds = {DELETE_FILE_PATH_FIELD: b"\xff"}
    of_deletes = {"content": DataFileContent.POSITION_DELETES, "lower_bounds": bounds, "upper_bounds": bounds}
    manifest = one_entry(tmp_path / "m.avro", **of_deletes)
    raw = RawManifest(manifest, (tmp_path / "m.avro").read_bytes())
    with pytest.raises(RetryError, match=r"m\.avro"):
        decode(load_file_io({}), [Wanted(manifest, PLAIN, "key")], [raw])


def test_bytes_behind_the_records_are_damage(tmp_path: Path) -> None:
    """For the reference; the next test shows what DataFusion does."""
    manifest = one_entry(tmp_path / "m.avro")
    changed(tmp_path / "m.avro", lambda block: block + b"x")
    for careful in (False, True):
        with pytest.raises(RetryError, match="after its last record"):
            read_entries(load_file_io({}), manifest, careful=careful)


ENDLESS = """
import sys
from pathlib import Path
from compactor.manifests.avro_datafusion import StuckError, read_avro
content = Path(sys.argv[1]).read_bytes()
for patience in (1.0, 3600.0):
    try:
        read_avro(content, ["status"], patience)
    except StuckError as error:
        print(error)
"""


def test_a_manifest_that_datafusion_does_not_come_to_an_end_with_is_waited_for_once(tmp_path: Path) -> None:
    """In a process of its own: the thread spins until that ends."""
    one_entry(tmp_path / "m.avro")
    changed(tmp_path / "m.avro", lambda block: block + b"x")
    done = subprocess.run(
        [sys.executable, "-c", ENDLESS, str(tmp_path / "m.avro")], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "DataFusion loops forever", "DataFusion still loops on an earlier manifest",
    ]  # fmt: skip


@pytest.mark.parametrize("careful", [False, True])
def test_the_reference_reads_everything_or_says_that_it_cannot(tmp_path: Path, careful: bool) -> None:
    """PyIceberg takes an empty block, and the end of a file that was cut off, for the end of the entries."""
    path = tmp_path / "m.avro"
    manifest = one_entry(path)
    found = inflated(path)
    ((count, block),) = found.stored
    content = join_containers(found.schema, [Container(found.schema, ((1, block), (0, b""), (1, block)))])
    path.write_bytes(content)
    assert len(read_entries(load_file_io({}), manifest, careful=careful)) == 2 * count
    for end in range(len(content) - len(block) - 16, len(content)):
        path.write_bytes(content[:end])
        with pytest.raises(RetryError):
            read_entries(load_file_io({}), manifest, careful=careful)


@pytest.mark.parametrize("careful", [False, True])
def test_an_uncompressed_block_with_a_wrong_count_does_not_end_the_process(tmp_path: Path, careful: bool) -> None:
    """PyIceberg's compiled decoder would read beyond the block: no compression says that it is damaged."""
    path = tmp_path / "m.avro"
    pair = b"\x02\xaa\xd5\xaa\xd5\x0a"  # 1, 1431655765
    manifest = one_entry(path, column_sizes={1: 1431655765})
    changed(path, lambda block: block.replace(b"\x02" + pair, b"\x80\x80\x80\x80\x01" + pair))  # 2**27 pairs
    with pytest.raises(RetryError):
        read_entries(load_file_io({}), manifest, careful=careful)


def test_a_file_without_codec_is_not_compressed(tmp_path: Path) -> None:
    path = tmp_path / "m.avro"
    manifest = one_entry(path)
    content = changed(path, lambda block: block).replace(b"\x14avro.codec", b"\x14avro.other")
    path.write_bytes(content)
    (found,) = decode_manifests([RawManifest(manifest, content)], {4: PLAIN})
    assert repr(list(found)) == repr(reference(manifest, PLAIN))


def raw_deflate(block: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(block) + packer.flush()


def snappy(block: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(block)) + zlib.crc32(block).to_bytes(4, "big")


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes, "deflate": raw_deflate, "snappy": snappy, "zstandard": zstandard.compress, "bzip2": bz2.compress,
}  # fmt: skip


@pytest.mark.parametrize("codec", COMPRESS)
def test_decoders_agree_on_every_codec(tmp_path: Path, codec: str) -> None:
    """Alone, and beside a manifest of another codec. Java writes all of these but bzip2, which PyIceberg reads."""
    manifests = [one_entry(tmp_path / name, file_path=name * 100_000) for name in ("a.avro", "b.avro")]
    raws = [
        RawManifest(manifests[0], changed(tmp_path / "a.avro", COMPRESS[codec], codec)),
        RawManifest(manifests[1], (tmp_path / "b.avro").read_bytes()),
    ]
    for count in (1, 2):
        found = decode_manifests(raws[:count], {4: PLAIN})
        assert [repr(list(each)) for each in found] == [repr(reference(each, PLAIN)) for each in manifests[:count]]


@pytest.mark.parametrize("codec", ["deflate", "snappy", "zstandard", "bzip2", "unknown"])
@pytest.mark.parametrize("stored", [b"", b"xy", b"\xff" * 100], ids=["empty", "short", "noise"])
def test_blocks_that_cannot_be_inflated_are_refused_at_once(tmp_path: Path, codec: str, stored: bytes) -> None:
    """DataFusion panics at a Snappy block of two bytes, which must not be taken for a decoder that does not end."""
    manifest = one_entry(tmp_path / "m.avro")
    raw = RawManifest(manifest, changed(tmp_path / "m.avro", lambda _block: stored, codec))
    with pytest.raises(UnusualManifestError):
        decode_manifests([raw], {4: PLAIN})
    intact = one_entry(tmp_path / "intact.avro")
    (found,) = decode_manifests([RawManifest(intact, (tmp_path / "intact.avro").read_bytes())], {4: PLAIN})
    assert repr(list(found)) == repr(reference(intact, PLAIN))


def test_a_number_without_end_is_no_container() -> None:
    with pytest.raises(ContainerError, match="64 bits"):
        open_container(b"Obj\x01" + b"\xff" * 1000)
