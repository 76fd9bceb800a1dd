"""`where` keeps no partition that Spark's own scan leaves out, and all that hold matching rows.

Real tables of all transforms, and of specs that followed each other; filters made at random.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from py4j.protocol import Py4JJavaError

from compactor.filters.where import bind_where
from compactor.manifests.cache import ManifestCache
from compactor.partitions import PartitionKey
from compactor.planning.inventory import Inventory, take_inventory
from tests.conftest import Lake
from tests.slow import slow

pytestmark = pytest.mark.spark

ROWS = 60
FILTERS, MANY_FILTERS = 6, 400
Constant = Callable[[random.Random], str]


def whole(low: int, high: int) -> Constant:
    return lambda chance: str(chance.randint(low, high))


def date(chance: random.Random) -> str:
    return f"DATE '{chance.randint(1968, 1972)}-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}'"


def moment(kind: str, zone: str = "") -> Constant:
    def made(chance: random.Random) -> str:
        clock = chance.choice(["00:00:00", "23:59:59.999999", f"{chance.randint(0, 23):02}:30:00"])
        day = f"19{chance.choice([69, 69, 70, 70, 71])}-{chance.choice([1, 1, 2, 12]):02}-{chance.randint(1, 28):02}"
        return f"{kind} '{day} {clock}{zone}'"

    return made


@dataclass(frozen=True)
class Kind:
    """A column: its type, its value in row `id` as Spark's SQL says it, and constants to compare it with."""

    type: str
    value: str
    constant: Constant
    has_prefixes: bool = False


COLUMNS = {
    "i": Kind("int", "CAST((id - 30) * 7 AS int)", whole(-230, 230)),
    "l": Kind("bigint", "IF(id % 13 = 0, NULL, id * 3 - 40)", whole(-50, 150)),
    "d": Kind("date", "date_add(DATE '1970-01-03', CAST((id - 30) * 11 AS int))", date),
    "ts": Kind(
        "timestamp", "IF(id % 9 = 0, NULL, timestamp_micros((id - 30) * 1300000000000 - 1))", moment("TIMESTAMP", "Z")
    ),
    "ntz": Kind(
        "timestamp_ntz",
        "CAST(timestamp_micros((id - 30) * 40000000001) AS timestamp_ntz)",
        moment("TIMESTAMP_NTZ"),
    ),
    "s": Kind(
        "string",
        "IF(id % 11 = 0, NULL, concat(chr(97 + CAST(id % 4 AS int)), id))",
        lambda chance: f"'{chance.choice('abcd')}{chance.choice(['', str(chance.randint(0, 60))])}'",
        has_prefixes=True,
    ),
    "p": Kind(
        "decimal(9, 2)", "CAST((id - 30) * 1.37 AS decimal(9, 2))", lambda chance: f"{chance.uniform(-45, 45):.2f}"
    ),
    "b": Kind("boolean", "id % 3 = 0", lambda chance: chance.choice(["true", "false"])),
    "x": Kind("binary", "unhex(lpad(hex(id * 4), 4, '0'))", lambda chance: f"X'00{chance.randint(0, 255):02x}'"),
    "f": Kind("double", "IF(id % 7 = 0, NULL, CAST(id - 30 AS double))", whole(-32, 32)),
}
"""No column of rows that Spark cannot read back or filter as it is written here."""


@dataclass(frozen=True)
class Shape:
    """A table: its columns, and its partition fields, spec after spec; the same rows are written under each."""

    name: str
    columns: tuple[str, ...]
    specs: tuple[tuple[str, ...], ...]
    version: int = 2


SHAPES = (
    Shape(
        "times",
        ("d", "ts", "ntz"),
        (("years(d)", "days(ts)"), ("months(d)", "hours(ntz)"), ("days(d)", "months(ts)"), ("years(ts)",), ()),
    ),
    Shape(
        "buckets",
        ("i", "l", "s"),
        (("bucket(4, l)",), ("bucket(16, l)", "bucket(3, s)"), ("i", "bucket(8, i)"), ("bucket(5, s)",)),
    ),
    Shape(
        "truncated",
        ("i", "s", "p", "x"),
        (
            ("truncate(50, i)",),
            ("truncate(7, i)", "truncate(1, s)"),
            ("truncate(2, s)",),
            ("truncate(1000, p)",),
            ("truncate(2, x)",),
        ),
    ),
    Shape("as_they_are", ("b", "f", "d", "s"), (("b",), ("f",), ("d", "b"), ("s",))),
    Shape(
        "with_void_fields", ("l", "d", "b"), (("l", "years(d)"), ("years(d)",), ("bucket(4, l)",), ("b",)), version=1
    ),
    Shape("a_user_a_day", ("ts", "l"), (("days(ts)", "bucket(16, l)"), ("hours(ts)", "bucket(4, l)"))),
)


def make(lake: Lake, shape: Shape) -> str:
    """No column bounds: what Spark leaves out, it leaves out by partitions alone."""
    table = f"precision.{shape.name}"
    columns = ", ".join(f"{name} {COLUMNS[name].type}" for name in shape.columns)
    lake.sql(
        f"CREATE TABLE lake.{table} ({columns}) USING iceberg "
        f"TBLPROPERTIES ('format-version'='{shape.version}', 'write.metadata.metrics.default'='none')"
    )
    values = ", ".join(f"{COLUMNS[name].value} AS {name}" for name in shape.columns)
    now: tuple[str, ...] = ()
    for fields in shape.specs:
        for field in now:
            if field not in fields:
                lake.sql(f"ALTER TABLE lake.{table} DROP PARTITION FIELD {field}")
        for field in fields:
            if field not in now:
                lake.sql(f"ALTER TABLE lake.{table} ADD PARTITION FIELD {field}")
        lake.sql(f"INSERT INTO lake.{table} SELECT {values} FROM range({ROWS})")
        now = fields
    return table


def column_test(chance: random.Random, name: str) -> str:
    kind = COLUMNS[name]
    one, other = kind.constant(chance), kind.constant(chance)
    made = [f"{name} {operator} {one}" for operator in ("=", "=", "!=", "<", "<=", ">", ">=")]
    made += [
        f"{name} IN ({one}, {other})",
        f"{name} NOT IN ({one}, {other})",
        f"{name} BETWEEN {one} AND {other}",
        f"{name} IS NULL",
        f"{name} IS NOT NULL",
    ]
    if kind.has_prefixes:
        made += [f"{name} LIKE '{one[1:-1]}%'", f"{name} NOT LIKE '{one[1:-1]}%'"]
    return chance.choice(made)


def random_filter(chance: random.Random, columns: tuple[str, ...], depth: int = 2) -> str:
    if depth == 0 or chance.random() < 0.45:
        return column_test(chance, chance.choice(columns))
    parts = [random_filter(chance, columns, depth - 1) for _ in range(2)]
    joined = chance.choice([" AND ", " OR "]).join(f"({part})" for part in parts)
    return f"NOT ({joined})" if chance.random() < 0.15 else joined


@pytest.fixture(scope="module", params=SHAPES, ids=lambda shape: shape.name)
def made(lake: Lake, request: pytest.FixtureRequest) -> Iterator[tuple[Shape, str]]:
    lake.sql("CREATE NAMESPACE IF NOT EXISTS lake.precision")
    table = make(lake, request.param)
    yield request.param, table
    lake.sql(f"DROP TABLE lake.{table}")


def planned_by_spark(lake: Lake, table: str, where: str) -> set[str]:
    """The files of Spark's scan of a query, before it reads any."""
    query = lake.session.sql(f"SELECT * FROM lake.{table} WHERE {where}")
    leaves = query._jdf.queryExecution().sparkPlan().collectLeaves()
    found = set()
    for index in range(leaves.size()):
        if leaves.apply(index).getClass().getSimpleName() != "BatchScanExec":
            continue  # Spark has found out that nothing can match
        for partition in leaves.apply(index).scan().toBatch().planInputPartitions():
            tasks = partition.taskGroup().tasks().iterator()
            while tasks.hasNext():
                found.add(tasks.next().file().location())
    return found


def partitions_of(inventory: Inventory, paths: set[str]) -> set[PartitionKey]:
    return {key for key, files in inventory.partitions.items() if any(file.entry.path in paths for file in files)}


def planned_if_it_can(lake: Lake, table: str, where: str) -> set[str] | None:
    """None: Iceberg 1.11 cannot ask a partition value that is null whether it is in a set of texts."""
    try:
        return planned_by_spark(lake, table, where)
    except Py4JJavaError as error:
        if "Invalid object: null" not in str(error):
            raise
        return None


@pytest.mark.parametrize("count", [FILTERS, *slow(MANY_FILTERS)])
def test_what_is_kept_lies_between_what_matches_and_what_spark_scans(
    lake: Lake, made: tuple[Shape, str], count: int
) -> None:
    shape, table = made
    chance = random.Random(f"{shape.name} {count}")
    filters = [random_filter(chance, shape.columns) for _ in range(count)]
    columns = ", ".join(f"collect_set(IF({where}, _file, NULL)) AS f{index}" for index, where in enumerate(filters))
    (matching,) = lake.sql(f"SELECT {columns} FROM lake.{table}")
    view, cache = lake.view(table), ManifestCache(1 << 24)
    inventory = take_inventory(view, cache)
    narrowed, unplanned = 0, 0
    for index, where in enumerate(filters):
        bound = bind_where(view, where)
        kept = {
            key
            for key, files in inventory.partitions.items()
            if bound.keeps_partition(key.spec_id, files[0].entry.partition)
        }
        assert partitions_of(inventory, set(matching[index])) <= kept, f"{where} loses rows"
        skipped = [each for each in view.manifests() if not bound.keeps_manifest(each)]
        assert not kept & {entry.key for entries in cache.read(view, skipped) for entry in entries}, where
        planned = planned_if_it_can(lake, table, where)
        if planned is None:
            unplanned += 1
            continue
        assert kept <= partitions_of(inventory, planned), f"{where} keeps too much"
        narrowed += len(kept) < len(inventory.partitions)
    print(f"{shape.name}: {len(inventory.partitions)} partitions, {narrowed} of {count} filters leave some out")
    assert narrowed + unplanned > count / 3
    assert unplanned < count / 4
