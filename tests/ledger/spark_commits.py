"""What Spark and Iceberg's Java library do to a table: one commit or more, or none where Iceberg refuses.

Tables are named as in SQL, without the catalog.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyiceberg.table import Table
from pyspark.errors import PySparkException

from tests.conftest import Lake
from tests.correctness.java_writers import JavaWriter
from tests.ledger.files import PARTS, rows, values_of

SIDE = "side"
VECTORS = 3  # the format version that has deletion vectors
REFUSED = (
    "CherrypickAncestorCommitException",
    "DuplicateWAPCommitException",
    "Cannot cherry-pick",
    "not append, dynamic overwrite, or fast-forward",
    "Cannot fast-forward",
    "is not an ancestor",
    "Cannot replay changes",
)
"""Words of Iceberg's refusals that leave the table as it is."""


@contextmanager
def refusal_allowed() -> Iterator[None]:
    """Iceberg refuses to publish what is published already, or what does not fit main any more."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        if not any(words in str(error) for words in REFUSED):
            raise


def sql_name(table: Table) -> str:
    """`namespace.name`."""
    return ".".join(table.name()[-2:])


def _call(lake: Lake, procedure: str, table: Table, options: str = "") -> None:
    lake.sql(f"CALL lake.system.{procedure}(table => '{sql_name(table)}'{options})")


# --- rows -------------------------------------------------------------------------------------------------------------


def _select(table: Table, part: str, first: int, count: int) -> tuple[str, str]:
    """The columns of an INSERT, and a query of new rows in one file."""
    values = values_of(part)
    given = {1: "id", 2: f"'{part}'", 3: f"DATE'{values['day']}'", 4: str(values["k"])}
    fields = table.schema().fields
    columns = ", ".join(field.name for field in fields)
    query = ", ".join(given.get(field.field_id, "NULL") for field in fields)
    return columns, f"SELECT {query} FROM range({first}, {first + count}, 1, 1)"


def insert(lake: Lake, table: Table, part: str, count: int, branch: str = "") -> None:
    columns, query = _select(table, part, PARTS.index(part) * 1000, count)
    lake.sql(f"INSERT INTO lake.{sql_name(table)}{branch} ({columns}) {query}")


def insert_overwrite(lake: Lake, table: Table, part: str, count: int, mode: str) -> None:
    """`mode`: static replaces all rows, dynamic the partitions of the new ones."""
    _, query = _select(table, part, 0, count)
    lake.session.conf.set("spark.sql.sources.partitionOverwriteMode", mode)
    lake.sql(f"INSERT OVERWRITE lake.{sql_name(table)} {query}")


def may_delete(table: Table) -> bool:
    """Whether the table may have delete files."""
    return bool(table.format_version > 1)


def _set_mode(lake: Lake, table: Table, mode: str) -> None:
    """How DELETE and MERGE write: copy-on-write or merge-on-read."""
    if not may_delete(table):
        return
    mode = _possible(table, mode)
    properties = ", ".join(f"'write.{verb}.mode'='{mode}'" for verb in ("delete", "update", "merge"))
    lake.sql(f"ALTER TABLE lake.{sql_name(table)} SET TBLPROPERTIES ({properties})")


def _possible(table: Table, mode: str) -> str:
    """Spark (Iceberg 1.11) cannot write deletes once a column of an old spec is dropped: "Cannot find field"."""
    columns = {field.field_id for field in table.schema().fields}
    sources = {field.source_id for spec in table.specs().values() for field in spec.fields}
    return mode if sources <= columns else "copy-on-write"


def delete(lake: Lake, table: Table, where: str, mode: str) -> None:
    _set_mode(lake, table, mode)
    lake.sql(f"DELETE FROM lake.{sql_name(table)} WHERE {where}")


def merge(lake: Lake, table: Table, part: str, first: int, mode: str) -> None:
    """Some rows move to another partition, some are new."""
    _set_mode(lake, table, mode)
    columns, query = _select(table, part, first, 3)
    inserted = ", ".join(f"s.{name.strip()}" for name in columns.split(","))
    names = [name.strip() for name in columns.split(",")]
    source = f"SELECT * FROM ({query}) AS q({', '.join(names)})"
    lake.sql(
        f"MERGE INTO lake.{sql_name(table)} t USING ({source}) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET t.p = s.p "
        f"WHEN NOT MATCHED THEN INSERT ({columns}) VALUES ({inserted})"
    )


# --- files, by Iceberg's Java library ---------------------------------------------------------------------------------


def append(lake: Lake, table: Table, part: str, counts: Sequence[int], fast: bool) -> None:
    writer = JavaWriter(lake, sql_name(table))
    commit = writer.table.newFastAppend() if fast else writer.table.newAppend()
    for count in counts:
        commit.appendFile(writer.data_file(rows(table, part, count), "parquet"))
    commit.commit()


def delete_positions(lake: Lake, table: Table, seed: int) -> None:
    """Position deletes, or deletion vectors that replace earlier ones."""
    if table.current_snapshot() is None:
        return
    writer = JavaWriter(lake, sql_name(table))
    if table.format_version >= VECTORS:
        writer.delete_by_vectors(0.3, seed)
    else:
        writer.delete_positions(0.3, seed, per_file=seed % 2 == 0)


def delete_equal(lake: Lake, table: Table, count: int) -> None:
    columns = {field.field_id for field in table.schema().fields}
    if any(field.source_id not in columns for field in table.spec().fields):
        return  # a void field whose column was dropped
    column = next(field.name for field in table.schema().fields if field.field_id == 1)
    made = rows(table, PARTS[count % len(PARTS)], count)
    JavaWriter(lake, sql_name(table)).delete_equal(pa.table(made), [column])


def overwrite_files(lake: Lake, table: Table, part: str, count: int) -> None:
    """One commit of Iceberg's OverwriteFiles: by a filter on rows, with a new file."""
    writer = JavaWriter(lake, sql_name(table))
    expressions = writer.iceberg.expressions.Expressions
    commit = writer.table.newOverwrite().overwriteByRowFilter(expressions.alwaysTrue())
    commit.addFile(writer.data_file(rows(table, part, count), "parquet")).commit()


# --- maintenance ------------------------------------------------------------------------------------------------------


def rewrite_data_files(lake: Lake, table: Table, everything: bool) -> None:
    options = "'rewrite-all', 'true'" if everything else "'min-input-files', '2'"
    _call(lake, "rewrite_data_files", table, f", options => map({options}, 'remove-dangling-deletes', 'true')")


def rewrite_position_deletes(lake: Lake, table: Table) -> None:
    _call(lake, "rewrite_position_delete_files", table, ", options => map('rewrite-all', 'true')")


def rewrite_manifests(lake: Lake, table: Table) -> None:
    if table.current_snapshot() is not None:
        _call(lake, "rewrite_manifests", table)


def expire(lake: Lake, table: Table, keep: int, clean: bool) -> None:
    """`clean`: also schemas and partition specs that nothing needs any more."""
    options = f", older_than => timestamp'2999-01-01', retain_last => {keep}"
    _call(lake, "expire_snapshots", table, options + (", clean_expired_metadata => true" if clean else ""))


# --- snapshots and branches -------------------------------------------------------------------------------------------


def _ids(table: Table) -> list[int]:
    return [snapshot.snapshot_id for snapshot in table.snapshots()]


def roll_back(lake: Lake, table: Table) -> None:
    current = table.current_snapshot()
    parent = None if current is None else current.parent_snapshot_id
    if parent is not None and table.snapshot_by_id(parent) is not None:
        _call(lake, "rollback_to_snapshot", table, f", snapshot_id => {parent}")


def set_current(lake: Lake, table: Table, which: int) -> None:
    ids = _ids(table)
    if ids:
        _call(lake, "set_current_snapshot", table, f", snapshot_id => {ids[which % len(ids)]}")


def cherry_pick(lake: Lake, table: Table, which: int) -> None:
    """Any snapshot that is not on main: a staged one, one of the branch, or one that was rolled back."""
    ids = _ids(table)
    if ids:
        with refusal_allowed():
            _call(lake, "cherrypick_snapshot", table, f", snapshot_id => {ids[-1 - which % len(ids)]}")


def stage(lake: Lake, table: Table, part: str, overwrites: bool, publish: bool) -> None:
    """Write, audit, publish: Spark's write goes to a snapshot that no branch names, until it is published."""
    lake.sql(f"ALTER TABLE lake.{sql_name(table)} SET TBLPROPERTIES ('write.wap.enabled'='true')")
    lake.session.conf.set("spark.wap.id", f"wap{len(table.snapshots())}")
    try:
        if overwrites:
            insert_overwrite(lake, table, part, 2, "dynamic")
        else:
            insert(lake, table, part, 2)
    finally:
        lake.session.conf.unset("spark.wap.id")
    if publish:
        cherry_pick(lake, table.refresh(), 0)


def insert_into_branch(lake: Lake, table: Table, part: str, count: int) -> None:
    if table.current_snapshot() is None:
        return
    if SIDE not in table.metadata.refs:
        lake.sql(f"ALTER TABLE lake.{sql_name(table)} CREATE BRANCH {SIDE}")
    insert(lake, table, part, count, f".branch_{SIDE}")


def fast_forward(lake: Lake, table: Table) -> None:
    """Main moves to the head of the branch, if that descends from it."""
    if SIDE in table.metadata.refs:
        with refusal_allowed():
            _call(lake, "fast_forward", table, f", branch => 'main', to => '{SIDE}'")


# --- metadata ---------------------------------------------------------------------------------------------------------


FIELDS = {"p": "{c2}", "day_day": "days({c3})", "k_bucket": "bucket(2, {c4})", "id_trunc": "truncate(100, {c1})"}


def change_spec(lake: Lake, table: Table, name: str) -> None:
    """Add the field, or drop it where it is."""
    text = FIELDS[name]
    fields = {field.name: field for field in table.spec().fields}
    columns = {field.field_id: field.name for field in table.schema().fields}
    made = text.format(**{f"c{number}": column for number, column in columns.items()}) if _has(text, columns) else None
    if name in fields and str(fields[name].transform) != "void":
        lake.sql(f"ALTER TABLE lake.{sql_name(table)} DROP PARTITION FIELD {name}")
    elif made is not None and name not in fields:
        lake.sql(f"ALTER TABLE lake.{sql_name(table)} ADD PARTITION FIELD {made} AS {name}")


def _has(text: str, columns: dict[int, Any]) -> bool:
    return all(f"{{c{number}}}" not in text or number in columns for number in range(1, 5))


def change_column(lake: Lake, table: Table, what: str) -> None:
    names = {field.field_id: field.name for field in table.schema().fields}
    sources = {field.source_id for field in table.spec().fields if str(field.transform) != "void"}
    alter = f"ALTER TABLE lake.{sql_name(table)}"
    if what == "note" and "note" in names.values():
        lake.sql(f"{alter} DROP COLUMN note")
    elif what == "note":
        lake.sql(f"{alter} ADD COLUMN note string")
    elif what == "widen" and 4 in names:
        lake.sql(f"{alter} ALTER COLUMN {names[4]} TYPE bigint")
    elif what == "drop" and 3 in names and 3 not in sources:
        lake.sql(f"{alter} DROP COLUMN {names[3]}")


def set_property(lake: Lake, table: Table, key: str, value: str) -> None:
    lake.sql(f"ALTER TABLE lake.{sql_name(table)} SET TBLPROPERTIES ('{key}'='{value}')")


def set_fewest(lake: Lake, table: Table, fewest: str) -> None:
    set_property(lake, table, "firnline.policy.min_input_files", fewest)


def upgrade(lake: Lake, table: Table) -> None:
    if table.format_version < VECTORS:
        set_property(lake, table, "format-version", str(table.format_version + 1))


def replace_table(lake: Lake, table: Table, count: int, by: str) -> None:
    """CREATE OR REPLACE TABLE … AS SELECT: the same table with other columns, another spec and no history.

    A wide `k` stays wide: by an old snapshot, files from before can be live again, and no engine reads them as narrow.
    """
    kinds = {field.name: str(field.field_type) for field in table.schema().fields}
    k = "0L" if kinds.get("k") == "long" else "0"
    query = f"SELECT id, 'a' AS p, DATE'2024-01-15' AS day, {k} AS k FROM range(0, {count}, 1, 1)"
    lake.sql(f"CREATE OR REPLACE TABLE lake.{sql_name(table)} USING iceberg {by} AS {query}")
