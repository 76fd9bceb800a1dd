"""The kinds of tables of the matrix, each a script whose appends are made by the cell's writer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from tests.correctness.raw_writers import RAW_WRITERS, WITHOUT_IDS
from tests.correctness.scripts import (
    AddColumn,
    Append,
    DeleteEqual,
    DeletePositions,
    DropColumn,
    EvolveSpec,
    MoveFirst,
    Operation,
    Overwrite,
    RenameColumn,
    RollBack,
    Script,
    SetProperties,
    SortBy,
    Sql,
    Upsert,
    WidenColumn,
)

Columns = tuple[tuple[str, IcebergType], ...]


def struct(**members: IcebergType) -> StructType:
    """A struct type; ids are assigned when the table is created."""
    return StructType(*(NestedField(number, name, kind) for number, (name, kind) in enumerate(members.items(), 1)))


def listed(kind: IcebergType) -> ListType:
    """A list type of optional elements."""
    return ListType(1, kind, element_required=False)


def mapped(key: IcebergType, value: IcebergType) -> MapType:
    """A map type of optional values."""
    return MapType(1, key, 2, value, value_required=False)


PLAIN: Columns = (("id", LongType()), ("k", StringType()), ("v", DoubleType()), ("t", StringType()))
TIMES: Columns = (("id", LongType()), ("kt", TimestamptzType()), ("kd", DateType()), ("kn", TimestampType()))
NESTED: Columns = (
    ("id", LongType()),
    ("s", struct(x=IntegerType(), y=StringType(), z=struct(w=DoubleType(), d=DecimalType(9, 2)))),
    ("l", listed(LongType())),
    ("ls", listed(struct(a=IntegerType(), b=StringType()))),
    ("m", mapped(StringType(), DoubleType())),
    ("mm", mapped(IntegerType(), listed(StringType()))),
)
EVERY_TYPE: Columns = (
    ("id", LongType()), ("a", BooleanType()), ("b", IntegerType()), ("c", LongType()), ("d", FloatType()),
    ("e", DoubleType()), ("f", DecimalType(4, 1)), ("g", DecimalType(9, 2)), ("h", DecimalType(18, 6)),
    ("i", DecimalType(38, 10)), ("j", DateType()), ("l", TimestampType()), ("m", TimestamptzType()),
    ("n", StringType()), ("o", UUIDType()), ("p", FixedType(7)), ("q", BinaryType()),
)  # fmt: skip
THREE = (Append(8, 1), Append(8, 2), Append(6, 3))
TWO = (Append(8, 1), Append(8, 2))
SPLICED_WRITERS = ("spark", "pyiceberg", "java", *RAW_WRITERS)
ENGINE_WRITERS = ("spark", "pyiceberg", "java")
BY_ID = ("spark", "pyiceberg", "java", *(name for name in RAW_WRITERS if name not in WITHOUT_IDS))


@dataclass(frozen=True)
class Kind:
    """A kind of table: what it is about, how it comes to be, and the writers that can be asked for it."""

    about: str
    script: Script
    writers: tuple[str, ...] = ENGINE_WRITERS


def kind(about: str, columns: Columns, *operations: Operation, writers: tuple[str, ...] = ENGINE_WRITERS,
         partition: tuple[str, ...] = (), version: int = 2, **properties: str) -> Kind:  # fmt: skip
    """A kind; properties are given with `__` for a dot and `_` for a dash."""
    pairs = tuple((name.replace("__", ".").replace("_", "-"), value) for name, value in properties.items())
    return Kind(about, Script(columns, operations, partition, version, pairs), writers)


def _partitioned() -> Iterator[tuple[str, Kind]]:
    by = {
        "unpartitioned": (PLAIN, ()), "identity": (PLAIN, ("k",)), "day": (TIMES, ("day(kt)",)),
        "hour": (TIMES, ("hour(kn)",)), "month": (TIMES, ("month(kd)",)), "year": (TIMES, ("year(kt)",)),
        "truncate": (PLAIN, ("truncate(3, k)",)), "bucket": (PLAIN, ("bucket(3, id)",)),
        "day_bucket": (TIMES, ("day(kt)", "bucket(2, id)")),
    }  # fmt: skip
    for name, (columns, partition) in by.items():
        writers = SPLICED_WRITERS if name in {"unpartitioned", "identity", "day_bucket"} else ENGINE_WRITERS
        yield name, kind(f"partitioned by {', '.join(partition) or 'nothing'}", columns, *THREE, partition=partition,
                         writers=writers)  # fmt: skip
    yield "odd_partitions", kind(
        "partition values with /, spaces, unicode, empty, null", (("id", LongType()), ("p", StringType())),
        Append(40, 1), Append(40, 2), partition=("p",))  # fmt: skip
    columns: Columns = (("id", LongType()), ("kf", FloatType()), ("kb", BinaryType()), ("kc", DecimalType(9, 2)),
                        ("kz", BooleanType()))  # fmt: skip
    yield "typed_partitions", kind("identity of float, binary, decimal, boolean", columns, *TWO,
                                   partition=("kf", "kb", "kc", "kz"))  # fmt: skip
    yield "nan_partitions", kind("partition values NaN, infinite and both zeros",
                                 (("id", LongType()), ("f", DoubleType())), Append(30, 1), Append(30, 2),
                                 partition=("f",))  # fmt: skip
    evolved = (*TWO, EvolveSpec(("k",), ("bucket(2, id)",)), *TWO, EvolveSpec(("bucket(2, id)",), ()), *TWO)
    for version in (1, 2, 3):
        yield f"evolved_specs_v{version}", kind(
            f"three specs, {'void' if version == 1 else 'dropped'} fields, format version {version}", PLAIN, *evolved,
            partition=("k",), version=version)  # fmt: skip
    yield "object_storage", kind("object storage layout", PLAIN, *THREE, partition=("k",),
                                 write__object_storage__enabled="true")  # fmt: skip
    yield "data_path", kind("write.data.path elsewhere", PLAIN, *THREE, partition=("k",),
                            write__data__path="{folder}/else where")  # fmt: skip


def _schemas() -> Iterator[tuple[str, Kind]]:
    later = (Append(6, 7), Append(6, 8))
    changes: Mapping[str, tuple[Operation, ...]] = {
        "added": (AddColumn("n", StringType()),),
        "dropped": (DropColumn("v"),),
        "renamed": (RenameColumn("t", "renamed"),),
        "reordered": (MoveFirst("t"),),
        "replaced": (DropColumn("t"), AddColumn("t", StringType())),
    }
    for name, change in changes.items():
        yield f"schema_{name}", kind(f"a column {name}, files before and after", PLAIN, *TWO, *change, *later)
        yield f"schema_{name}_predates", kind(f"a column {name}, all files before", PLAIN, *TWO, *change)
    numbers: Columns = (("id", LongType()), ("b", IntegerType()), ("d", FloatType()), ("c", DecimalType(9, 2)))
    widened = (WidenColumn("b", LongType()), WidenColumn("d", DoubleType()), WidenColumn("c", DecimalType(20, 2)))
    yield "schema_widened", kind("int, float and decimal widened", numbers, *TWO, *widened, *later)
    yield "schema_widened_predates", kind("int, float, decimal widened, all files before", numbers, *TWO, *widened)
    nested = (AddColumn("n", LongType(), parent="s"), RenameColumn("s.y", "yy"), WidenColumn("s.x", LongType()),
              DropColumn("ls.element.b"))  # fmt: skip
    yield "nested", kind("structs, lists and maps within each other", NESTED, *THREE, writers=BY_ID)
    yield "nested_evolved", kind("members added, renamed, widened, dropped", NESTED, *TWO, *nested, *later)
    yield "every_type", kind("every type that Spark can read", EVERY_TYPE, *THREE, writers=BY_ID,
                             read__parquet__vectorization__enabled="false")  # fmt: skip
    yield "time", kind("time, which Spark cannot read", (("id", LongType()), ("x", TimeType())), *THREE,
                       writers=("pyiceberg", "java"))  # fmt: skip
    nanos: Columns = (("id", LongType()), ("n", TimestampNanoType()), ("z", TimestamptzNanoType()))
    yield "nanoseconds", kind("timestamps in ns, which Spark cannot read", nanos, *THREE, version=3, writers=("java",))
    yield "v3_defaults", kind(
        "a V3 default for files that predate it", PLAIN, *TWO, AddColumn("n", IntegerType(), default=34),
        AddColumn("x", StringType(), default="preset"), *later, version=3, writers=("java", "spark"))  # fmt: skip


def _deletes() -> Iterator[tuple[str, Kind]]:
    positions = (*THREE, DeletePositions(0.3, 4), Append(5, 5))
    for name, per_file in (("file", True), ("partition", False)):
        wide = tuple(replace(op, per_file=per_file) if isinstance(op, DeletePositions) else op for op in positions)
        for where, partition in (("", ()), ("_by_k", ("k",))):
            yield f"positions_{name}{where}", kind(f"V2 position deletes, {name}-scoped", PLAIN, *wide,
                                                   partition=partition)  # fmt: skip
    equal = (*TWO, DeleteEqual(("id",), 6, 4), Append(6, 5))
    yield "equality", kind("equality deletes between older and newer data", PLAIN, *equal)
    yield "equality_same_spec", kind("equality deletes within partitions", PLAIN, *equal, partition=("k",))
    yield "equality_two_columns", kind("equality deletes of strings and nulls", PLAIN, *TWO,
                                       DeleteEqual(("k", "t"), 8, 4), DeleteEqual(("t",), 2, 5),
                                       Append(6, 5))  # fmt: skip
    yield "equality_newest", kind("equality deletes newer than all data", PLAIN, *TWO, DeleteEqual(("id",), 6, 4))
    yield "equality_oldest", kind("equality deletes older than all data", PLAIN, Append(2, 9), Overwrite(99),
                                  DeleteEqual(("id",), 6, 4), *TWO)  # fmt: skip
    yield "equality_everywhere", kind(
        "an unpartitioned spec's equality deletes are global", PLAIN, EvolveSpec((), ("k",)), *TWO,
        DeleteEqual(("id",), 6, 4, everywhere=True), Append(6, 5))  # fmt: skip
    yield "equality_and_positions", kind("both, over evolved specs", PLAIN, *TWO, DeleteEqual(("id",), 4, 4),
                                         DeletePositions(0.2, 5), EvolveSpec((), ("k",)), *TWO,
                                         DeleteEqual(("id",), 5, 6, everywhere=True),
                                         DeletePositions(0.2, 7))  # fmt: skip
    v3 = {"version": 3, "writers": ("java", "spark", "pyarrow")}
    yield "v3", kind("format version 3: every row keeps its id", PLAIN, *THREE, **v3)
    yield "v3_by_k", kind("format version 3, partitioned", PLAIN, *THREE, partition=("k",), **v3)
    yield "vectors", kind("deletion vectors", PLAIN, *positions, **v3)
    yield "vectors_twice", kind("deletion vectors over deletion vectors", PLAIN, *positions, DeletePositions(0.3, 6),
                                partition=("k",), **v3)  # fmt: skip
    yield "vectors_and_equality", kind("deletion vectors and equality deletes", PLAIN, *positions,
                                       DeleteEqual(("id",), 5, 6), Append(4, 7), **v3)  # fmt: skip
    yield "upgraded", kind("V2 with position deletes, upgraded to V3, then vectors", PLAIN, *positions,
                           SetProperties((("format-version", "3"),)), DeletePositions(0.3, 6),
                           Append(5, 8, "java"))  # fmt: skip
    in_turn = tuple(Sql(f"DELETE FROM {{table}} WHERE id % 3 <> 0 AND k = '{k}'") for k in ("a", "", "b"))
    for name, version in (("vectors", 3), ("positions", 2)):
        yield f"{name}_in_turn", kind(
            f"V{version} deletes of a partition each, in manifests of several commits", PLAIN, *THREE, *in_turn,
            partition=("k",), version=version, write__delete__mode="merge-on-read",
            commit__manifest_merge__enabled="false")  # fmt: skip
    updated = Sql("UPDATE {table} SET v = 99.5 WHERE id % 3 = 1")
    yield "v3_updated", kind("rows updated in V3 keep their id", PLAIN, *TWO,
                             SetProperties((("write.update.mode", "merge-on-read"),)), updated, Append(4, 5),
                             **v3)  # fmt: skip
    yield "merge_on_read", kind(
        "Spark's DELETE and UPDATE, merge on read", PLAIN, *TWO, Sql("DELETE FROM {table} WHERE id % 5 = 1"), updated,
        partition=("k",), write__delete__mode="merge-on-read", write__update__mode="merge-on-read")  # fmt: skip
    yield "all_rows_deleted", kind("a partition loses all its rows", PLAIN, *TWO, DeletePositions(1.0, 1), Append(5, 5),
                                   partition=("k",))  # fmt: skip
    yield "delete_heavy", kind("large files, half of whose rows are deleted", PLAIN, Append(60, 1), Append(60, 2),
                               DeletePositions(0.5, 3), write__target_file_size_bytes="1500")  # fmt: skip
    yield "upsert", kind("PyIceberg's upsert and overwrite", PLAIN, *TWO, Overwrite(6), Upsert(5, 9),
                         writers=("pyiceberg",))  # fmt: skip


def _layouts() -> Iterator[tuple[str, Kind]]:
    for name in ("orc", "avro"):
        yield name, kind(f"{name.upper()} files", NESTED, *THREE, DeletePositions(0.2, 4),
                         writers=(f"java-{name}",), write__format__default=name)  # fmt: skip
    yield "mixed_formats", kind("Parquet, ORC and Avro in one partition", PLAIN, *TWO, Append(5, 3, "java-orc"),
                                Append(5, 4, "java-avro"))  # fmt: skip
    yield "mixed_writers", kind("one partition, files by every writer", PLAIN,
                                *(Append(5, number, name) for number, name in enumerate(BY_ID)),
                                writers=("java",))  # fmt: skip
    yield "sorted", kind("a table with a sort order", PLAIN, SortBy(("k", "id")), *THREE)
    yield "sorted_by_k", kind("a sort order within partitions", PLAIN, SortBy(("v",)), *THREE, partition=("k",))
    for mode in ("none", "counts", "truncate(2)", "full"):
        slug = mode.partition("(")[0]
        yield f"metrics_{slug}", kind(f"metrics mode {mode}", EVERY_TYPE[:15], *THREE, partition=(),
                                      write__metadata__metrics__default=mode)  # fmt: skip
    yield "metrics_changed", kind(
        "files with and without metrics", PLAIN, *TWO, SetProperties((("write.metadata.metrics.default", "none"),)),
        Append(6, 4), SetProperties((("write.metadata.metrics.column.t", "full"),)), Append(6, 5))  # fmt: skip
    codecs = tuple(
        part for number, codec in enumerate(("zstd", "snappy", "gzip", "uncompressed"))
        for part in (SetProperties((("write.parquet.compression-codec", codec),)), Append(6, number))
    )  # fmt: skip
    yield "codecs", kind("a codec per file", PLAIN, *codecs)
    yield "bloom_filters", kind("bloom filters by Iceberg's writer", PLAIN, *THREE,
                                write__parquet__bloom_filter_enabled__column__id="true")  # fmt: skip
    yield "rolled_back", kind("a table rolled back, then written again", PLAIN, *THREE, RollBack(), Append(5, 9))
    yield "target_size", kind("a small target: several outputs", PLAIN, *(Append(1000, number) for number in range(6)),
                              write__target_file_size_bytes="30000")  # fmt: skip


KINDS: Mapping[str, Kind] = {**dict(_partitioned()), **dict(_schemas()), **dict(_deletes()), **dict(_layouts())}
