"""Read the columns of a table so that Spark raises an error where it would change a value.

Spark does not look for nulls where the table requires a value: a null becomes 0, false or 1970. A decimal with too many
digits becomes null, or is rounded. Files may hold both: Iceberg does not look at the rows of files that are added to a
table. So all columns are read as optional, and checked before they are written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from compactor.errors import GiveUpError
from compactor.reasons import Reason
from compactor.spark.java_table import JavaTable

_DECIMAL: Final = re.compile(r"decimal\((\d+),\s*(\d+)\)")
LAST_ADDED: Final = -1  # what Iceberg calls the id of the schema that was added last
_ROUNDED: Final = "a decimal has more digits after its point than the column"
_SIGNS: Final = {
    "NOT_NULL_ASSERT_VIOLATION": Reason.NULL_IN_REQUIRED_FIELD,
    "NUMERIC_VALUE_OUT_OF_RANGE": Reason.VALUE_OUT_OF_RANGE,
    _ROUNDED: Reason.VALUE_OUT_OF_RANGE,
}
"""What Spark's messages hold: names of its errors, or our text."""

Type = str | Mapping[str, Any]
"""An Iceberg type as in JSON (Iceberg spec, Appendix C)."""


def schema_of(table: JavaTable, copy: Any) -> Mapping[str, Any]:
    """The schema of a Java table, as in JSON."""
    found: Mapping[str, Any] = json.loads(table.jvm.org.apache.iceberg.SchemaParser.toJson(copy.schema()))
    return found


def with_optional_columns(table: JavaTable, copy: Any, schema: Mapping[str, Any]) -> Any:
    """A copy of `copy`, a table that never refreshes, with no required columns: Spark reads their nulls as nulls."""
    if not _has_required(schema):
        return copy
    iceberg = table.jvm.org.apache.iceberg
    fields = {key: value for key, value in _optional(schema).items() if key != "identifier-field-ids"}
    optional = iceberg.SchemaParser.fromJson(json.dumps(fields))
    current = copy.operations().current()
    earlier = next((each.schemaId() for each in current.schemas() if each.sameSchema(optional)), None)
    changed = iceberg.TableMetadata.buildFrom(current)
    if earlier is None:
        changed = changed.addSchema(optional)
    metadata = (
        changed.setCurrentSchema(LAST_ADDED if earlier is None else earlier)
        .discardChanges()
        .withMetadataLocation(current.metadataFileLocation())
        .build()
    )
    locations = copy.locationProvider()
    return iceberg.BaseTable(iceberg.StaticTableOperations(metadata, copy.io(), locations), copy.name())


def checked(table: JavaTable, rows: DataFrame, schema: Mapping[str, Any]) -> DataFrame:
    """`rows`, read as optional columns, in the types of `schema`: a value that does not fit it raises an error."""
    fields = schema["fields"]
    if not any(_is_checked(field["type"], required=field["required"]) for field in fields):
        return rows
    jvm = table.jvm
    output = rows._jdf.queryExecution().analyzed().output()  # noqa: SLF001 - names may differ in case alone
    columns = []
    for index in range(output.size()):  # row ids come after the table's own columns
        attribute = output.apply(index)
        column = Column(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(attribute))
        if index < len(fields) and _is_checked(fields[index]["type"], required=fields[index]["required"]):
            name = str(attribute.name())
            column = _Checks(jvm, name).checked(column, fields[index]["type"], required=fields[index]["required"])
            column = column.alias(name)
        columns.append(column)
    return rows.select(*columns)


def misfit(error: Exception, name: object) -> GiveUpError | None:
    """The error to raise if Spark failed because a value did not fit its column in table `name`; else None."""
    reason = next((reason for sign, reason in _SIGNS.items() if sign in str(error)), None)
    if reason is None:
        return None
    message = " ".join(line.strip() for line in str(error).strip().splitlines()[:2])
    return GiveUpError(
        f"a file group of {name} is not rewritten: a data file has a value that its column in the table does not "
        f"allow: {message}; repair the file, or change the column",
        reason=reason,
    )


class _Checks:
    """The checks of one column."""

    def __init__(self, jvm: Any, name: str) -> None:
        self._jvm = jvm
        self._path = jvm.org.apache.spark.api.python.PythonUtils.toSeq([name])

    def checked(self, column: Column, kind: Type, *, required: bool) -> Column:
        """`column` with its checks at every level, and as nullable as the type says."""
        catalyst = self._jvm.org.apache.spark.sql.catalyst.expressions
        decimal = _DECIMAL.fullmatch(kind) if isinstance(kind, str) else None
        if decimal is not None:
            exact = self._jvm.org.apache.spark.sql.types.DecimalType(*map(int, decimal.groups()))
            fitted = self._wrapped(catalyst.CheckOverflow, column, exact, False)  # raises an error, or rounds
            column = F.when(fitted.eqNullSafe(column), fitted).otherwise(F.raise_error(_ROUNDED))
        if not isinstance(kind, str) and kind["type"] == "map" and _is_checked(kind["key"]):
            fit = F.forall(
                F.map_keys(column), lambda key: self.checked(key, kind["key"], required=False).eqNullSafe(key)
            )
            column = F.when(column.isNull() | fit, column).otherwise(F.raise_error(_ROUNDED))
        if required:
            column = self._wrapped(catalyst.objects.AssertNotNull, column, self._path)
        return column if isinstance(kind, str) or not _is_checked(kind) else self._nested(column, kind, required)

    def _nested(self, column: Column, kind: Mapping[str, Any], required: bool) -> Column:
        if kind["type"] == "list":
            element = kind["element"]
            return F.transform(column, lambda each: self.checked(each, element, required=kind["element-required"]))
        if kind["type"] == "map":  # its keys are checked before, and stay as they are
            value, needed = kind["value"], kind["value-required"]
            if not _is_checked(value, required=needed):
                return column
            return F.transform_values(column, lambda _, each: self.checked(each, value, required=needed))
        built = F.struct(*(self._field(column, index, field) for index, field in enumerate(kind["fields"])))
        return built if required else F.when(column.isNotNull(), built)

    def _field(self, column: Column, index: int, field: Mapping[str, Any]) -> Column:
        name = self._jvm.scala.Option.apply(field["name"])
        child = self._wrapped(self._jvm.org.apache.spark.sql.catalyst.expressions.GetStructField, column, index, name)
        return self.checked(child, field["type"], required=field["required"]).alias(field["name"])

    def _wrapped(self, expression: Any, column: Column, *more: Any) -> Column:
        utils = self._jvm.org.apache.spark.sql.classic.ExpressionUtils
        return Column(utils.column(expression(utils.expression(column._jc), *more)))  # noqa: SLF001


def _is_checked(kind: Type, *, required: bool = False) -> bool:
    """Whether Spark might change a value of this type."""
    if isinstance(kind, str):
        return required or _DECIMAL.fullmatch(kind) is not None
    if kind["type"] == "map" and _is_checked(kind["key"]):
        return True
    return required or any(_is_checked(child, required=needed) for child, needed in _children(kind))


def _has_required(kind: Type) -> bool:
    return not isinstance(kind, str) and any(needed or _has_required(child) for child, needed in _children(kind))


def _children(kind: Mapping[str, Any]) -> list[tuple[Type, bool]]:
    """(type, whether it is required) of what is nested in a type, without keys of maps: they are always required."""
    if kind["type"] == "list":
        return [(kind["element"], kind["element-required"])]
    if kind["type"] == "map":
        return [(kind["value"], kind["value-required"])]
    return [(field["type"], field["required"]) for field in kind["fields"]]


def _optional(kind: Any) -> Any:
    """The type, and what is nested in it, without required fields."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "list":
        return {**kind, "element": _optional(kind["element"]), "element-required": False}
    if kind["type"] == "map":
        return {**kind, "value": _optional(kind["value"]), "value-required": False}
    fields = [{**field, "type": _optional(field["type"]), "required": False} for field in kind["fields"]]
    return {**kind, "fields": fields}
