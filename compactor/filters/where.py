"""`where`: a filter bound to a table. It selects files by partition, never rows.

A filter selects at three levels and never loses a matching row: manifests by their partition summaries (before they are
read), partitions by the filter's projection onto their spec, and, only if requested, files by their column bounds.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final
from uuid import UUID

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, ManifestFile, PartitionFieldSummary
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType, PrimitiveType, TimestampNanoType, TimestamptzNanoType, UUIDType
from pyiceberg.utils.datetime import date_to_days, datetime_to_micros, datetime_to_nanos, time_to_micros

from compactor.errors import InputError
from compactor.filter_syntax import parse_filter
from compactor.filters.binding import bind
from compactor.filters.predicates import EVERYTHING, UNKNOWN_BOUNDS, Bounds, Predicate, matches, may_match, narrowed
from compactor.filters.projection import Projection, project
from compactor.filters.values import example
from compactor.iceberg.tables import TableView
from compactor.partitions import PartitionKey, PartitionLayout
from compactor.reasons import Reason


@dataclass(frozen=True)
class KeptPartitions:
    """What a filter says of a table's partitions, by spec. It holds no metadata of the table, so many can be kept."""

    predicates: Mapping[int, Predicate]
    layouts: Mapping[int, PartitionLayout]

    def keeps(self, key: PartitionKey) -> bool:
        """Whether the partition may hold a matching row."""
        layout = self.layouts[key.spec_id]
        return _keeps(self.predicates[key.spec_id], layout.types, layout.values(key))


@dataclass(frozen=True)
class Where:
    """A filter over one table. `predicate`: over field ids of the current schema. `text`: None without a filter.

    The projection onto a spec is made once and cached.
    """

    table: TableView
    text: str | None
    predicate: Predicate = EVERYTHING
    _projections: dict[int, Projection] = field(default_factory=dict, repr=False, compare=False)

    @property
    def keeps_everything(self) -> bool:
        """Whether every row matches: there is no filter, or a filter that is always true."""
        return self.predicate == EVERYTHING

    def projection(self, spec_id: int) -> Projection:
        """The filter over the partitions of one spec.

        Raises:
            GiveUpError: the table has no such spec.
        """
        if spec_id not in self._projections:
            self._projections[spec_id] = project(self.predicate, self.table.spec(spec_id), self._kinds)
        return self._projections[spec_id]

    def keeps_partition(self, spec_id: int, partition: Sequence[Any]) -> bool:
        """Whether the partition may hold a matching row. `partition` is the tuple as PyIceberg decodes it."""
        return _keeps(self.projection(spec_id).predicate, self._layouts[spec_id].types, partition)

    def keeps(self, key: PartitionKey) -> bool:
        """Whether the partition may hold a matching row."""
        return self.keeps_partition(key.spec_id, self._layouts[key.spec_id].values(key))

    def kept_partitions(self) -> KeptPartitions:
        """The filter over the partitions of all specs."""
        return KeptPartitions({number: self.projection(number).predicate for number in self._layouts}, self._layouts)

    def keeps_manifest(self, manifest: ManifestFile) -> bool:
        """Whether a manifest may list a file of a kept partition, judged by its partition summaries alone.

        Delete manifests too: a delete applies to data files of its own spec and partition, or it is global, and the
        spec of a global delete keeps everything (spec: scan planning, as in Java's DeleteFileIndex). Some writers give
        a delete file another partition than the data file that it names: `without_strays` handles these.
        """
        if self.keeps_everything:
            return True
        predicate = self.projection(manifest.partition_spec_id).predicate
        kinds = self._layouts[manifest.partition_spec_id].types
        summaries = manifest.partitions
        if not summaries or len(summaries) != len(kinds):
            return may_match(predicate, lambda _position: UNKNOWN_BOUNDS)
        return may_match(predicate, lambda position: summary_bounds(kinds[position], summaries[position]))

    def keeps_file(self, file: DataFile) -> bool:
        """Whether the column bounds of a data file allow a matching row; for files of kept partitions."""
        return may_match(self.predicate, lambda field_id: _column_bounds(self._kinds[field_id], field_id, file))

    @cached_property
    def _kinds(self) -> Mapping[int, PrimitiveType]:
        schema = self.table.metadata.schema()
        fields = (schema.find_field(name) for name in schema.column_names)
        return {each.field_id: each.field_type for each in fields if isinstance(each.field_type, PrimitiveType)}

    @cached_property
    def _layouts(self) -> Mapping[int, PartitionLayout]:
        return self.table.layouts()


def _keeps(predicate: Predicate, kinds: Sequence[PrimitiveType], partition: Sequence[Any]) -> bool:
    return matches(predicate, lambda position: stored_value(kinds[position], partition[position]))


def bind_where(table: TableView, text: str | None, origin: str = "where") -> Where:
    """Bind a filter's text to the table's current schema; without text, everything matches.

    `origin`: what the filter was given as, for messages.

    Raises:
        InputError: `bad_filter`: the text cannot be read, names no column of the table, or compares one with a constant
            that its type does not accept. The message names the position and shows an example for this table.
    """
    if text is None or not text.strip():
        return Where(table, None)
    schema = table.metadata.schema()
    try:
        return Where(table, text, narrowed(bind(schema, parse_filter(text), table.metadata.partition_specs)))
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise InputError(
            f"{origin} {text!r} is not a filter over {table.name}: {error or 'it is nested too deeply'}\n"
            f"write e.g. {_example(schema)}; columns: {', '.join(schema.column_names)}{_partition_fields(table)}",
            reason=Reason.BAD_FILTER,
        ) from None


_COLUMNS_OF_EXAMPLE: Final = 2


def _example(schema: Schema) -> str:
    fields = [each for each in schema.fields if isinstance(each.field_type, PrimitiveType)][:_COLUMNS_OF_EXAMPLE]
    texts = [f"{_quoted(each.name)} >= {example(each.field_type)}".split(" (")[0] for each in fields]  # type: ignore[arg-type]
    return f"`{' AND '.join(texts)}`" if texts else "`true`"


def _quoted(name: str) -> str:
    return name if name.isidentifier() else '"' + name.replace('"', '""') + '"'


def _partition_fields(table: TableView) -> str:
    """The table's partition fields, which can be named as columns can."""
    schema = table.metadata.schema()
    names = {
        f"{each.name} = {each.transform}({schema.find_column_name(each.source_id)})"
        for spec in table.metadata.partition_specs
        for each in spec.fields
        if each.name not in schema.column_names and schema.find_column_name(each.source_id)
    }
    return f"; partition fields: {', '.join(sorted(names))}" if names else ""


def stored_value(kind: PrimitiveType, value: Any) -> Any:
    """A partition value as filters store values; PyIceberg decodes some types to several Python types."""
    match value:
        case UUID():
            return value.bytes
        case dt.datetime():
            is_nano = isinstance(kind, TimestampNanoType | TimestamptzNanoType)
            return datetime_to_nanos(value) if is_nano else datetime_to_micros(value)
        case dt.date():
            return date_to_days(value)
        case dt.time():
            return time_to_micros(value)
        case bytearray() | memoryview():
            return bytes(value)
        case _:
            return value


def summary_bounds(kind: PrimitiveType, summary: PartitionFieldSummary) -> Bounds:
    """The bounds of one partition field in a manifest list. Nulls or NaN without a bound: there are no other values."""
    is_float = isinstance(kind, FloatType | DoubleType)
    has_nans = is_float and summary.contains_nan is True
    nothing_else = summary.lower_bound is None and (summary.contains_null or has_nans)
    return _bounds(
        kind,
        summary.lower_bound,
        summary.upper_bound,
        nulls=summary.contains_null is not False,
        nans=is_float and summary.contains_nan is not False,
        values=not nothing_else,
    )


def _column_bounds(kind: PrimitiveType, field_id: int, file: DataFile) -> Bounds:
    """The bounds of one column from a data file's metrics; a missing count means unknown."""
    values = (file.value_counts or {}).get(field_id)
    nulls = (file.null_value_counts or {}).get(field_id)
    nans = (file.nan_value_counts or {}).get(field_id)
    is_float = isinstance(kind, FloatType | DoubleType)
    return _bounds(
        kind,
        (file.lower_bounds or {}).get(field_id),
        (file.upper_bounds or {}).get(field_id),
        nulls=nulls != 0,
        nans=is_float and nans != 0 and (values is None or values != nulls),
        values=values is None or values > (nulls or 0) + (nans or 0),
    )


def _bounds(
    kind: PrimitiveType, lower: bytes | None, upper: bytes | None, *, nulls: bool, nans: bool, values: bool
) -> Bounds:
    low, high = _decoded(kind, lower), _decoded(kind, upper)
    if isinstance(kind, UUIDType):
        low, high = _of_either_order(low, high)
    return Bounds(lower=low, upper=high, nulls=nulls, nans=nans, values=values)


def _decoded(kind: PrimitiveType, bound: bytes | None) -> Any:
    """A bound's value; None if it is missing, NaN, or not readable as this type (the column may have been promoted)."""
    if bound is None:
        return None
    try:
        value = stored_value(kind, from_bytes(kind, bound))
    except Exception:  # noqa: BLE001 - bytes of any writer; an unreadable bound is unknown
        return None
    return None if isinstance(value, float) and math.isnan(value) else value


_HALF: Final = 8


def _of_either_order(lower: bytes | None, upper: bytes | None) -> tuple[bytes | None, bytes | None]:
    """UUID bounds that hold for both orders: unsigned bytes (the spec) and two signed longs (Java)."""
    if lower is None or upper is None or lower > upper:
        return None, None
    return lower[:_HALF] + bytes(_HALF), upper[:_HALF] + b"\xff" * _HALF
