"""docs/where.md: what filters can be written, and what each says of partitions by year, month, day and hour.

The code that plans makes the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, HourTransform, MonthTransform, Transform, YearTransform
from pyiceberg.types import NestedField, TimestamptzType

from compactor.filters.binding import bind
from compactor.filters.projection import project
from compactor.filters.syntax import parse_filter

_COLUMN: Final = NestedField(field_id=1, name="ts", field_type=TimestamptzType(), required=False)
_TRANSFORMS: Final[dict[str, Transform[Any, Any]]] = {
    "year": YearTransform(),
    "month": MonthTransform(),
    "day": DayTransform(),
    "hour": HourTransform(),
}
MOMENTS: Final = {
    "The first moment of a year": ("2024-01-01 00:00:00", "2025-01-01 00:00:00"),
    "The first moment of an hour": ("2024-01-15 10:00:00", "2024-01-16 10:00:00"),
    "Within an hour": ("2024-01-15 10:30:00", "2024-02-29 23:59:59.999999"),
    "Before 1970": ("1969-12-31 23:30:00", "1969-12-31 23:45:00"),
    "The first moment of 1970": ("1970-01-01 00:00:00", "1970-01-01 00:30:00"),
    "Summer time begins: 01:30 UTC, and half an hour of UTC later": (
        "2024-03-31 03:30:00+02:00",
        "2024-03-31 04:00:00+02:00",
    ),
    "Summer time ends: 02:30 twice, an hour apart": ("2024-10-27 02:30:00+02:00", "2024-10-27 02:30:00+01:00"),
}
"""Two moments each, the earlier one first, as they are written in a filter."""

_COMPARISONS: Final = ("=", "!=", "<", "<=", ">", ">=")
_HEAD: Final = """# `--where`: files, never rows

A filter narrows `plan` and `compact` to the partitions that can hold a matching row. What is chosen is always whole
partitions: every file of a chosen partition counts, rows that do not match are rewritten with the others and stay.
This page is generated: `make generate` writes it.

## What can be written

SQL, or PyIceberg's filter strings: `=` (`==`), `!=` (`<>`), `<`, `<=`, `>`, `>=`, `IN (...)`, `BETWEEN a AND b`,
`LIKE 'abc%'` (with `_`, `%` anywhere and `ESCAPE`), `IS NULL`, `IS NAN`, their `NOT` forms, `true`, `false`, joined by
`AND`, `OR`, `NOT` and parentheses. A test compares a column with constants, in either order. Keywords are
case-insensitive; so are columns, unless two differ in case alone. Names with odd characters go in double quotes or
backticks, fields of structs are written `a.b`.

| column | constant | notes |
|---|---|---|
| int, long | `12`, `'12'` | `id < 3.5` is `id <= 3`; `id = 3.5` matches nothing |
| decimal | `12.50`, `'12.5'` | compared exactly, whatever the scale |
| float, double | `1.5`, `'NaN'`, `'-Infinity'` | NaN is greater than every number and equal to itself, as in Spark |
| date | `'2024-01-15'`, `DATE '2024-01-15'` | |
| timestamp | `'2024-01-15 10:00:00'`, `'2024-01-15'` | a zone is refused: the column has none |
| timestamp with zone | `'2024-01-15 10:00:00+01:00'`, `'...Z'` | UTC where no offset is written |
| time | `'10:00:00'` | |
| string | `'it''s'` | |
| uuid | `'f79c3e09-677c-4bbd-a479-3f349cb785e7'` | |
| binary, fixed | `X'0aff'` | |
| boolean | `true` | |

Null satisfies `IS NULL` alone: `a != 1` and `a NOT IN (1)` do not match null, as in SQL.

## What it says of partitions

A filter is projected onto every partition spec of the table, *inclusively*: if a row matches, its partition matches.
`identity` keeps the test as it is; `year`, `month`, `day` and `hour` turn it as in the table below; `truncate` turns
`<` and `>` into `<=` and `>=` over the truncated value; `bucket` turns `=` and `IN` into a set of bucket numbers. Where
a transform cannot tell (`!=` of all but `identity`, `<` of `bucket`), only the partition of null values is left out. A
test of a column that the spec does not know, of a `void` field, or one that cannot be projected keeps every partition.

Then manifests are left out by their partition summaries, before they are read. `plan` shows both, per spec:

```
SelectedBucketsCount: 1 out of 3
partitions 3 of 365, manifests read 2 of 120, files 41 of 9,800, projected: day >= 2024-01-15 AND user_bucket IN (2)
```

How many partitions skipped manifests hold is known as far as their summaries tell; where it is not, two numbers are
shown, as in `partitions 1 of 365 to 5,840`.

Before 1970, one value more is kept: Iceberg 0.10 and before gave such times a year, month, day or hour one too late,
and their files may still be there.

## Times
"""


def where_page() -> str:
    """The text of docs/where.md."""
    return f"{_HEAD}\n" + "\n".join(_table()).rstrip("\n") + "\n"


def _table() -> Iterator[str]:
    for title, moments in MOMENTS.items():
        yield f"### {title}\n"
        yield "| `ts` (timestamp with zone) | year(ts) | month(ts) | day(ts) | hour(ts) |\n|---|---|---|---|---|"
        for text in time_filters(*moments):
            yield f"| `{text}` | " + " | ".join(f"`{projected(text, name)}`" for name in _TRANSFORMS) + " |"
        yield ""


def time_filters(moment: str, later: str) -> Iterator[str]:
    """Every operator over `ts`, for two moments."""
    for operator in _COMPARISONS:
        yield f"ts {operator} '{moment}'"
    yield f"ts IN ('{moment}', '{later}')"
    yield f"ts BETWEEN '{moment}' AND '{later}'"


def projected(text: str, transform: str) -> str:
    """What a filter over `ts` says of partitions by `year`, `month`, `day` or `hour` of it; the field has that name."""
    field = PartitionField(source_id=1, field_id=1000, transform=_TRANSFORMS[transform], name=transform)
    predicate = bind(Schema(_COLUMN), parse_filter(text))
    return project(predicate, PartitionSpec(field), {1: TimestamptzType()}).text
