"""What other writers do to the table. Each operation changes the real table first, then the model."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from compactor.errors import ReplanError
from tests.chaos.model import SerialModel
from tests.conftest import Lake
from tests.integration.table_kit import conversion, delete_equal

PARTITIONS = ("p0", "p1", "p2")
UNPARTITIONED, BY_PARTITION = 0, 1  # spec ids: the table was made without partitions
ROWS = 6
OWN_COLUMNS = 3  # id, v, p
ROW_LEVEL_COMMANDS = ("delete", "update", "merge")


@dataclass(frozen=True)
class Scene:
    """The table, its model, and the round's randomness."""

    lake: Lake
    table: str
    model: SerialModel
    rng: random.Random
    partitioned: bool = True

    def sql(self, statement: str) -> None:
        self.lake.sql(statement.format(t=f"lake.{self.table}"))

    def some_ids(self, most: int = 4) -> list[int]:
        """A few ids that are in the table, or none where it is empty."""
        known = sorted(self.model.rows)
        return self.rng.sample(known, min(len(known), self.rng.randint(1, most)))

    def columns_and_nulls(self) -> tuple[str, str]:
        """All columns, which Spark's INSERT must name, and a null for each that a schema change has added."""
        names = [field.name for field in self.lake.view(self.table).metadata.schema().fields]
        return ", ".join(names), ", NULL" * (len(names) - OWN_COLUMNS)

    @property
    def head(self) -> int | None:
        snapshot = self.lake.view(self.table).snapshot
        return snapshot.snapshot_id if snapshot else None


def new_rows(scene: Scene) -> dict[int, tuple[str, str]]:
    tag = f"v{scene.rng.randint(0, 999)}"
    return {number: (tag, scene.rng.choice(PARTITIONS)) for number in scene.model.new_ids(ROWS)}


def append_by_spark(scene: Scene) -> None:
    rows = new_rows(scene)
    names, rest = scene.columns_and_nulls()
    values = ", ".join(f"({number}, '{value}', '{part}'{rest})" for number, (value, part) in rows.items())
    scene.sql(f"INSERT INTO {{t}} ({names}) VALUES {values}")
    scene.model.rows.update(rows)


def append_by_pyiceberg(scene: Scene) -> None:
    rows = new_rows(scene)
    schema = pa.schema([("id", pa.int32()), ("v", pa.string()), ("p", pa.string())])
    found = [{"id": number, "v": value, "p": part} for number, (value, part) in rows.items()]
    scene.lake.catalog.load_table(scene.lake.name(scene.table).identifier).append(pa.Table.from_pylist(found, schema))
    scene.model.rows.update(rows)


def delete_rows(scene: Scene) -> None:
    ids = scene.some_ids()
    if ids:
        scene.sql(f"DELETE FROM {{t}} WHERE id IN ({', '.join(map(str, ids))})")
    for number in ids:
        del scene.model.rows[number]


def update_rows(scene: Scene) -> None:
    ids = scene.some_ids()
    if ids:
        scene.sql(f"UPDATE {{t}} SET v = 'updated' WHERE id IN ({', '.join(map(str, ids))})")
    for number in ids:
        scene.model.rows[number] = ("updated", scene.model.rows[number][1])


def merge_rows(scene: Scene) -> None:
    """Some rows move to another partition, some are new."""
    part = scene.rng.choice(PARTITIONS)
    ids = [*scene.some_ids(2), *scene.model.new_ids(2)]
    source = " UNION ALL ".join(f"SELECT {number} AS id" for number in ids)
    names, rest = scene.columns_and_nulls()
    scene.sql(
        f"MERGE INTO {{t}} t USING ({source}) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET t.v = 'merged', "
        f"t.p = '{part}' WHEN NOT MATCHED THEN INSERT ({names}) VALUES (s.id, 'merged', '{part}'{rest})"
    )
    scene.model.rows.update(dict.fromkeys(ids, ("merged", part)))


def overwrite_partition(scene: Scene) -> None:
    part, (number,) = scene.rng.choice(PARTITIONS), scene.model.new_ids(1)
    scene.sql(f"DELETE FROM {{t}} WHERE p = '{part}'")
    scene.model.rows = {key: row for key, row in scene.model.rows.items() if row[1] != part}
    scene.model.note(scene.head)
    names, rest = scene.columns_and_nulls()
    scene.sql(f"INSERT INTO {{t}} ({names}) VALUES ({number}, 'overwritten', '{part}'{rest})")
    scene.model.rows[number] = ("overwritten", part)


def delete_by_equality(scene: Scene) -> None:
    if not scene.partitioned:
        delete_by_equality_everywhere(scene)
        return
    part = scene.rng.choice(PARTITIONS)
    ids = [number for number in scene.some_ids(6) if scene.model.rows[number][1] == part] or [-1]
    delete_equal(scene.lake, scene.table, "id", ids, BY_PARTITION, [part])
    for number in ids:
        scene.model.rows.pop(number, None)


def delete_by_equality_everywhere(scene: Scene) -> None:
    ids = scene.some_ids() or [-1]
    delete_equal(scene.lake, scene.table, "id", ids, UNPARTITIONED)
    for number in ids:
        scene.model.rows.pop(number, None)


def change_schema(scene: Scene) -> None:
    name = f"c{scene.model.new_ids(1)[0]}"
    scene.sql(f"ALTER TABLE {{t}} ADD COLUMN {name} string")
    if scene.rng.random() < 0.5:
        scene.sql(f"ALTER TABLE {{t}} RENAME COLUMN {name} TO {name}x")
    else:
        scene.sql(f"ALTER TABLE {{t}} DROP COLUMN {name}")


def expire_snapshots(scene: Scene) -> None:
    catalog, _, rest = str(scene.lake.name(scene.table)).partition(".")
    scene.lake.session.sql(
        f"CALL {catalog}.system.expire_snapshots(table => '{rest}', older_than => timestamp'2999-01-01', "
        "retain_last => 1)"
    ).collect()


def roll_back(scene: Scene) -> None:
    retained = {snapshot.snapshot_id for snapshot in scene.lake.view(scene.table).metadata.snapshots}
    view = scene.lake.view(scene.table).metadata
    ancestors, current = [], view.current_snapshot()
    while current is not None and len(ancestors) < 4:
        parent = current.parent_snapshot_id
        current = view.snapshot_by_id(parent) if parent in retained else None
        if current is not None and current.snapshot_id in scene.model.at_snapshot:
            ancestors.append(current.snapshot_id)
    if not ancestors:
        return
    chosen = scene.rng.choice(ancestors)
    catalog, _, rest = str(scene.lake.name(scene.table)).partition(".")
    scene.lake.session.sql(f"CALL {catalog}.system.rollback_to_snapshot('{rest}', {chosen})").collect()
    scene.model.go_back(chosen)


def maintain(procedure: str, options: str) -> Callable[[Scene], None]:
    def call(scene: Scene) -> None:
        catalog, _, rest = str(scene.lake.name(scene.table)).partition(".")
        scene.lake.session.sql(f"CALL {catalog}.system.{procedure}(table => '{rest}'{options})").collect()

    return call


def convert_deletes(scene: Scene) -> None:
    """Equality deletes become positions. A race that it loses is no failure: the next conversion finds them."""
    converting = conversion(scene.lake, scene.table)
    with suppress(ReplanError):
        converting.convert()


def copy_on_write(operation: Callable[[Scene], None]) -> Callable[[Scene], None]:
    """The operation by a writer that replaces whole files."""

    def call(scene: Scene) -> None:
        modes = "'write.{0}.mode'='copy-on-write'"
        scene.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({', '.join(map(modes.format, ROW_LEVEL_COMMANDS))})")
        try:
            operation(scene)
        finally:
            modes = "'write.{0}.mode'='merge-on-read'"
            scene.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({', '.join(map(modes.format, ROW_LEVEL_COMMANDS))})")

    return call


ROW_LEVEL = {
    "append (Spark)": append_by_spark,
    "append (PyIceberg)": append_by_pyiceberg,
    "delete": delete_rows,
    "update": update_rows,
    "merge": merge_rows,
    "delete, copy on write": copy_on_write(delete_rows),
    "update, copy on write": copy_on_write(update_rows),
    "merge, copy on write": copy_on_write(merge_rows),
    "equality delete": delete_by_equality,
    "global equality delete": delete_by_equality_everywhere,
}
OTHERS = {
    "overwrite partition": overwrite_partition,
    "schema change": change_schema,
    "convert equality deletes": convert_deletes,
    "expire snapshots": expire_snapshots,
    "roll back": roll_back,
    "rewrite_data_files": maintain("rewrite_data_files", ", options => map('min-input-files', '2')"),
    "rewrite_position_delete_files": maintain(
        "rewrite_position_delete_files", ", options => map('rewrite-all', 'true')"
    ),
    "rewrite_manifests": maintain("rewrite_manifests", ""),
}
OPERATIONS: dict[str, Callable[[Scene], None]] = {**ROW_LEVEL, **OTHERS}
