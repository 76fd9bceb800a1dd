"""Random tables: a seed in, a script out. hypothesis draws the shape (schema, partitioning, operations), the seeds in
the script draw the values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
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
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from tests.correctness.kinds import listed, mapped, struct
from tests.correctness.scripts import (
    AddColumn,
    Append,
    DeleteEqual,
    DeletePositions,
    DropColumn,
    EvolveSpec,
    MoveFirst,
    Operation,
    RenameColumn,
    RollBack,
    Script,
    SetProperties,
    SortBy,
    Sql,
    WidenColumn,
)

EXAMPLES_PER_SEED = 6  # hypothesis begins with the simplest example; later ones differ by seed
MOST_OPERATIONS = 7
PRIMITIVES: tuple[IcebergType, ...] = (
    BooleanType(), IntegerType(), LongType(), FloatType(), DoubleType(), DecimalType(4, 1), DecimalType(9, 2),
    DecimalType(18, 6), DecimalType(38, 10), DateType(), TimestampType(), TimestamptzType(), StringType(), UUIDType(),
    FixedType(5), BinaryType(),
)  # fmt: skip
NARROW: tuple[IcebergType, ...] = (
    StringType(), IntegerType(), LongType(), DecimalType(9, 2), DateType(), BinaryType(), BooleanType(), DoubleType(),
)  # fmt: skip
TEMPORAL: tuple[IcebergType, ...] = (TimestamptzType(), TimestampType(), DateType())
WIDER: dict[str, IcebergType] = {"int": LongType(), "float": DoubleType(), "decimal(9, 2)": DecimalType(20, 2)}
SEEDS = st.integers(0, 2**31 - 1)
SCALAR_READS = ("read.parquet.vectorization.enabled", "false")
"""Iceberg's vectorized reader in Spark cannot read booleans in version 2 pages (1.11: "encoding RLE")."""
METRICS = ("none", "counts", "truncate(3)", "truncate(16)", "full")
CODECS = ("zstd", "snappy", "gzip", "uncompressed")


def column_types() -> st.SearchStrategy[IcebergType]:
    """Primitive types mostly, some nested in each other."""
    anywhere = st.sampled_from(PRIMITIVES)
    primitive = st.sampled_from(tuple(kind for kind in PRIMITIVES if not isinstance(kind, UUIDType)))  # as for Arrow
    nested = st.one_of(
        st.builds(listed, primitive),
        st.builds(mapped, st.sampled_from((StringType(), IntegerType(), DateType())), primitive),
        st.builds(lambda first, second: struct(x=first, y=second), primitive, primitive),
        st.builds(lambda inner: struct(z=struct(w=inner), l=listed(inner)), primitive),
        st.builds(lambda inner: listed(struct(a=inner, b=StringType())), primitive),
    )
    return st.one_of(anywhere, anywhere, anywhere, nested)


@dataclass
class _Table:
    """What the strategy knows of the table while it writes the script."""

    version: int
    columns: dict[str, IcebergType]
    partition: list[str]
    sorted: bool = False
    serial: int = 0
    operations: list[Operation] = field(default_factory=list)

    def fresh(self) -> str:
        """A column name not used before."""
        self.serial += 1
        return f"n{self.serial}"

    def evolvable(self) -> list[str]:
        """Columns that may be dropped or renamed."""
        return [name for name in self.columns if name[0] in "nc"]


def _partitions(kind: IcebergType, when: IcebergType) -> st.SearchStrategy[tuple[str, ...]]:
    choices: list[tuple[str, ...]] = [(), (), ("bucket(2, id)",), ("k",), ("month(kt)",), ("day(kt)", "bucket(2, id)"),
                                      ("year(kt)",), ("day(kt)",)]  # fmt: skip
    if not isinstance(when, DateType):
        choices.append(("hour(kt)",))
    if isinstance(kind, StringType | IntegerType | LongType | DecimalType):
        choices += [("truncate(2, k)",), ("k", "year(kt)"), ("bucket(3, k)",)]
    return st.sampled_from(choices)


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """A table of any kind with at least two appends."""
    version = draw(st.sampled_from((2, 2, 2, 2, 3, 3, 1)))
    narrow, when = draw(st.sampled_from(NARROW)), draw(st.sampled_from(TEMPORAL))
    columns: dict[str, IcebergType] = {"id": LongType(), "k": narrow, "kt": when}
    columns |= {f"c{number}": kind for number, kind in enumerate(draw(st.lists(column_types(), max_size=4)))}
    partition = draw(_partitions(narrow, when))
    table = _Table(version, dict(columns), list(partition))
    table.operations.append(draw(_append(table)))
    for _ in range(draw(st.integers(1, MOST_OPERATIONS))):
        table.operations.append(draw(_operation(table)))
    if sum(isinstance(operation, Append) for operation in table.operations) < 2:
        table.operations.append(draw(_append(table)))
    properties = tuple(pair for pair in draw(_properties()) if version > 1 or pair[1] != "merge-on-read")
    if any("page-version" in name for name, _ in properties) or "pyarrow-pages" in {
        operation.writer for operation in table.operations if isinstance(operation, Append)
    }:
        properties += (SCALAR_READS,)
    return Script(tuple(columns.items()), tuple(table.operations), partition, version, properties)


def _properties() -> st.SearchStrategy[tuple[tuple[str, str], ...]]:
    choices = st.sampled_from(
        (
            ("write.parquet.compression-codec", "snappy"), ("write.metadata.metrics.default", "none"),
            ("write.metadata.metrics.default", "counts"), ("write.metadata.metrics.default", "truncate(2)"),
            ("write.metadata.metrics.default", "full"), ("write.object-storage.enabled", "true"),
            ("write.parquet.page-row-limit", "3"), ("write.parquet.bloom-filter-enabled.column.id", "true"),
            ("write.parquet.row-group-size-bytes", "1"), ("write.parquet.page-version", "v2"),
            ("write.delete.mode", "merge-on-read"), ("write.update.mode", "merge-on-read"),
        )
    )  # fmt: skip
    return st.lists(choices, max_size=3, unique_by=lambda pair: pair[0]).map(tuple)


@st.composite
def _append(draw: st.DrawFn, table: _Table) -> Append:
    writers = ["java"] * 7 + ["pyarrow", "pyarrow-pages", "pyarrow-gzip", "pyarrow-bare", "java-avro", "spark"]
    if all("(kt)" not in part for part in table.partition):
        writers.append("java-orc")  # ORC reads 1969-12-31 23:59:59.999999 a second late: in another partition
    zeros = "k" in table.partition and isinstance(table.columns["k"], DoubleType)  # PyIceberg: one partition for both
    if all("(" not in part for part in table.partition) and table.version == 2 and not zeros:
        writers += ["pyiceberg"] * 4
    if not any("fixed" in str(kind) for kind in table.columns.values()):
        writers.append("duckdb")
    return Append(draw(st.integers(1, 14)), draw(SEEDS), draw(st.sampled_from(writers)))


@st.composite
def _operation(draw: st.DrawFn, table: _Table) -> Operation:
    """The next operation, valid for the table as it will be then."""
    makers: list[Callable[[st.DrawFn, _Table], Operation | None]] = [
        _delete_positions, _delete_positions, _delete_equal, _delete_equal, _add_column, _drop_column, _rename_column,
        _widen_column, _move, _evolve_spec, _set_property, _sort, _statement, _roll_back,
    ]  # fmt: skip
    if draw(st.sampled_from((True, True, False, False, False))):
        return draw(_append(table))
    made = draw(st.sampled_from(makers))(draw, table)
    return made if made is not None else draw(_append(table))


def _delete_positions(draw: st.DrawFn, table: _Table) -> Operation | None:
    if table.version == 1:
        return None
    return DeletePositions(draw(st.sampled_from((0.1, 0.4, 0.4, 1.0))), draw(SEEDS), draw(st.booleans()))


def _delete_equal(draw: st.DrawFn, table: _Table) -> Operation | None:
    if table.version == 1:
        return None
    usable = [
        name
        for name, kind in table.columns.items()
        if kind.is_primitive and not isinstance(kind, FloatType | DoubleType)
    ]  # the spec forbids floating point numbers in equality deletes
    columns = draw(st.lists(st.sampled_from(usable), min_size=1, max_size=2, unique=True))
    return DeleteEqual(tuple(columns), draw(st.integers(1, 6)), draw(SEEDS), draw(st.booleans()))


def _needed(table: _Table) -> set[str]:
    """Columns that equality deletes compare: Iceberg cannot read the table once they are dropped."""
    return {name for made in table.operations if isinstance(made, DeleteEqual) for name in made.columns}


def _add_column(draw: st.DrawFn, table: _Table) -> Operation | None:
    name, kind = table.fresh(), draw(column_types())
    table.columns[name] = kind
    if table.version >= 3 and isinstance(kind, IntegerType | StringType | DoubleType | BooleanType):
        defaults = {IntegerType: 7, StringType: "preset", DoubleType: 0.5, BooleanType: True}
        return AddColumn(name, kind, default=draw(st.sampled_from((None, defaults[type(kind)]))))
    return AddColumn(name, kind)


def _drop_column(draw: st.DrawFn, table: _Table) -> Operation | None:
    names = [name for name in table.evolvable() if name not in _needed(table)]
    if not names or table.sorted:
        return None
    name = draw(st.sampled_from(names))
    del table.columns[name]
    return DropColumn(name)


def _rename_column(draw: st.DrawFn, table: _Table) -> Operation | None:
    names = [name for name in table.evolvable() if name not in _needed(table)]
    if not names:
        return None
    name, new = draw(st.sampled_from(names)), table.fresh()
    table.columns[new] = table.columns.pop(name)
    return RenameColumn(name, new)


def _widen_column(draw: st.DrawFn, table: _Table) -> Operation | None:
    names = [name for name in table.evolvable() if str(table.columns[name]) in WIDER]
    if not names:
        return None
    name = draw(st.sampled_from(names))
    table.columns[name] = WIDER[str(table.columns[name])]
    return WidenColumn(name, table.columns[name])


def _move(draw: st.DrawFn, table: _Table) -> Operation:
    return MoveFirst(draw(st.sampled_from(sorted(table.columns))))


def _evolve_spec(draw: st.DrawFn, table: _Table) -> Operation:
    candidates = [text for text in ("k", "bucket(2, id)", "month(kt)") if text not in table.partition]
    drop = tuple(draw(st.sampled_from(((), tuple(table.partition)))))
    add = (draw(st.sampled_from(candidates)),) if candidates and (not drop or draw(st.booleans())) else ()
    if "month(kt)" in add and any("(kt)" in part for part in table.partition):
        add = ()
    if not add and not drop:
        return MoveFirst("id")
    table.partition = [part for part in table.partition if part not in drop] + list(add)
    return EvolveSpec(drop, add)


def _set_property(draw: st.DrawFn, table: _Table) -> Operation:
    pairs = [("write.parquet.compression-codec", codec) for codec in CODECS]
    pairs += [("write.metadata.metrics.default", mode) for mode in METRICS]
    return SetProperties((draw(st.sampled_from(pairs)),))


def _sort(draw: st.DrawFn, table: _Table) -> Operation:
    table.sorted = True
    return SortBy(draw(st.sampled_from((("k", "id"), ("id",), ("kt",)))))


def _statement(draw: st.DrawFn, table: _Table) -> Operation:
    divisor, rest = draw(st.integers(2, 7)), draw(st.integers(0, 2))
    condition = f"id % {divisor} = {rest}"
    return Sql(draw(st.sampled_from((f"DELETE FROM {{table}} WHERE {condition}",
                                     f"UPDATE {{table}} SET id = id + 1 WHERE {condition}"))))  # fmt: skip


def _roll_back(draw: st.DrawFn, table: _Table) -> Operation:
    return RollBack()


def script_of(number: int) -> Script:
    """The script of a seed, always the same one."""
    drawn: list[Script] = []

    @seed(number)
    @settings(
        max_examples=EXAMPLES_PER_SEED, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(scripts())
    def draw(script: Script) -> None:
        drawn.append(script)

    draw()
    return drawn[-1]


def distinct_scripts(first_seed: int, count: int) -> dict[int, Script]:
    """`count` scripts of consecutive seeds, no two alike; seeds that repeat an earlier script are passed over."""
    found: dict[int, Script] = {}
    seen: set[str] = set()
    number = first_seed
    while len(found) < count:
        script = script_of(number)
        if repr(script) not in seen:
            seen.add(repr(script))
            found[number] = script
        number += 1
    return found
