"""Small tables and other writers' commits, for tests that need real ones."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.io.pyarrow import schema_to_pyarrow

from compactor.commit.in_flight import new_run_id
from compactor.events import Listener, ignore
from compactor.lease.right import UNLIMITED, CommitRight
from compactor.locations import plain_path
from compactor.locks.flink_locks import NO_LOCKS, Locks
from compactor.manifests.cache import ManifestCache
from compactor.planning.budget import Charge, uncharged
from compactor.planning.conversion import plan_conversion
from compactor.planning.inventory import take_inventory
from compactor.planning.plan_table import Request, TablePlan, plan_table
from compactor.runs.convert import Converting
from compactor.runs.results import RunResult
from compactor.runs.rewriter import Rewriter
from compactor.runs.run_tools import RunTools
from compactor.runs.slots import SlotPool
from compactor.settings.tree import CommitSettings
from compactor.spark.java_table import activate
from tests.conftest import Lake
from tests.correctness.java_writers import JavaWriter
from tests.correctness.metadata_oracle import check_run

MERGE_ON_READ = "'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read'"
BY_A = "PARTITIONED BY (a)"


def unquoted(table: str) -> str:
    return table.replace("`", "")


def replaces(lake: Lake, table: str) -> int:
    """How many `replace` snapshots the table lists."""
    return sum(
        (each.get("summary") or {}).get("operation") == "replace"
        for each in lake.metadata(unquoted(table)).snapshots.values()
    )


def unreferenced(lake: Lake, table: str) -> set[str]:
    """Data files below the table's folders that no retained snapshot knows."""
    view = lake.view(unquoted(table))
    folders = {plain_path(view.metadata.location), plain_path(view.properties.get("write.data.path", ""))}
    files = {str(path) for folder in folders if folder for path in Path(folder).rglob("*") if path.is_file()}
    data = {
        path for path in files if path.endswith((".parquet", ".orc", ".avro", ".puffin")) and "/metadata/" not in path
    }
    metadata = lake.metadata(unquoted(table))
    known = {plain_path(entry.path) for each in metadata.snapshots for entry in metadata.state(each).live}
    return {path for path in data if not Path(path).name.startswith(".")} - known


def unused_metadata(lake: Lake, table: str) -> set[str]:
    """Manifests and manifest lists that no retained snapshot knows."""
    folder = Path(plain_path(lake.view(table).metadata.location)) / "metadata"
    metadata = lake.metadata(unquoted(table))
    manifests = {manifest.path for each in metadata.snapshots for manifest in metadata.state(each).manifests}
    lists = {each["manifest-list"] for each in metadata.snapshots.values()}
    return {path.name for path in folder.glob("*.avro")} - {Path(plain_path(path)).name for path in manifests | lists}


def records_of(lake: Lake, table: str) -> list[Any]:
    return [record for record in lake.in_flight().all() if record.name == lake.name(unquoted(table)).name]


def data_files(lake: Lake, table: str) -> int:
    return len(lake.live_files(table))


def snapshots(lake: Lake, table: str) -> list[Any]:
    return lake.sql(f"SELECT * FROM lake.{table}.snapshots ORDER BY committed_at")


def engines(result: RunResult) -> set[tuple[str, str]]:
    return {(group.rewritten.engine, group.rewritten.reason) for group in result.groups}


def create(lake: Lake, table: str, version: int = 2, properties: str = "", by: str = "", commits: int = 0) -> None:
    """A table, with what `commits` calls of `insert` append."""
    more = f", {properties}" if properties else ""
    lake.sql(
        f"CREATE TABLE lake.{table} (id int, a string, k int) USING iceberg {by} "
        f"TBLPROPERTIES ('format-version'='{version}'{more})"
    )
    insert(lake, table, commits)


def insert(lake: Lake, table: str, commits: int = 1) -> None:
    """Ids 0 to 9, `a` p0 or p1, one file per commit (and partition)."""
    rows = [(each, f"p{each % 2}", each) for each in range(10)]
    for _ in range(commits):
        append_rows(lake, table, rows)


def hundreds(lake: Lake, table: str, files: int = 6) -> None:
    """Ids from 0, a hundred in each file."""
    for first in range(0, files * 100, 100):
        append_rows(lake, table, [(each, "p0", each) for each in range(first, first + 100)])


def append_rows(lake: Lake, table: str, rows: Sequence[tuple[int, str, int]]) -> None:
    """Commit rows of a table made by `create`, one file per partition, with Iceberg's Java writers, as Flink does.

    An INSERT of Spark takes several times as long.
    """
    writer = JavaWriter(lake, unquoted(table))
    arrow = schema_to_pyarrow(writer.schema)
    given = [dict(zip(arrow.names, row, strict=False)) for row in rows]
    file_format = writer.metadata.properties.get("write.format.default", "parquet")
    writer.append(pa.Table.from_pylist(given, schema=arrow), file_format)


def java_table(lake: Lake, table: str) -> Any:
    activate(lake.session)
    spark3_util = lake.session._jvm.org.apache.iceberg.spark.Spark3Util
    return spark3_util.loadIcebergTable(lake.session._jsparkSession, lake.name(unquoted(table)).spark)


def delete_equal(
    lake: Lake, table: str, column: str, values: Sequence[Any], spec_id: int = 0, partition: Sequence[Any] = ()
) -> None:
    """Commit an equality delete as Iceberg's Java writers (Flink, Kafka Connect) do."""
    jvm, loaded = lake.session._jvm, java_table(lake, table)
    iceberg, spec = jvm.org.apache.iceberg, loaded.specs()[spec_id]
    schema = loaded.schema().select([column])
    ids = lake.session.sparkContext._gateway.new_array(jvm.int, 1)
    ids[0] = schema.findField(column).fieldId()
    appenders = iceberg.data.GenericAppenderFactory(loaded.schema(), spec, ids, schema, None)
    name = loaded.locationProvider().newDataLocation(f"equality-{uuid.uuid4()}.parquet")
    file = iceberg.encryption.EncryptedFiles.plainAsEncryptedOutput(loaded.io().newOutputFile(name))
    place = iceberg.PartitionData(spec.partitionType()) if partition else None
    for position, value in enumerate(partition):
        place.set(position, value)
    writer = appenders.newEqDeleteWriter(file, iceberg.FileFormat.PARQUET, place)
    record = iceberg.data.GenericRecord.create(schema)
    for value in values:
        row = record.copy()
        row.setField(column, value)
        writer.write(row)
    writer.close()
    loaded.newRowDelta().addDeletes(writer.toDeleteFile()).commit()


def planned(lake: Lake, table: str, **request: Any) -> TablePlan:
    view = lake.view(table)
    policy = lake.settings.policy.for_table(view.name)
    return plan_table(view, policy, ManifestCache(1 << 24), Request(force=True, **request))


def of_three_files(plan: TablePlan) -> TablePlan:
    """The plan of one file group, without all but its first three files."""
    (group,) = plan.groups
    less = replace(group, file_group=replace(group.file_group, tasks=(group.file_group.tasks[0][:3],)))
    paths = {file.entry.path for file in less.file_group.files}
    coverable = tuple(each for each in plan.coverable_deletes if each.covers <= paths)
    return replace(plan, groups=(less,), coverable_deletes=coverable)


def run(
    lake: Lake,
    plan: TablePlan,
    slots: int = 2,
    commit: CommitSettings | None = None,
    listener: Listener = ignore,
    right: CommitRight = UNLIMITED,
    locks: Locks = NO_LOCKS,
    most_replaces: int | None = None,
    **more: Any,
) -> RunResult:
    commit = commit or CommitSettings()
    if "hold_seconds" not in commit.model_fields_set:  # the tests' own deletes are no writer to wait for
        commit = commit.model_copy(update={"hold_seconds": 0.0})
    rewriter = Rewriter(
        lake.session,
        lake.catalogs,
        ManifestCache(1 << 24),
        lake.in_flight(),
        slots=SlotPool(slots),
        lease_seconds=60,
        check_seconds=3600,  # else the watch may be the first to ask `enabled`
        commit=commit,
        listener=listener,
        right=right,
        locks=locks,
        most_replaces=lambda _table: most_replaces,
    )
    result = rewriter.run(plan, **more)
    findings = check_run(lake, plan.table.name.short, result, whole_table=plan.selection is None).findings
    assert not findings, "\n".join(findings)
    return result


def before_first(monkeypatch: pytest.MonkeyPatch, owner: object, name: str, other: Callable[[], object]) -> None:
    """Let another writer in before the function `name` of a module or class is called for the first time."""
    real, waiting = getattr(owner, name), [other]

    def late(*arguments: Any, **more: Any) -> Any:
        while waiting:
            waiting.pop()()
        return real(*arguments, **more)

    monkeypatch.setattr(owner, name, late)


def before_commit(other: Callable[[], None]) -> Callable[[], bool]:
    """An `enabled` that lets another writer in: it is asked between the row check and the commit."""
    waiting: Iterator[None] = iter([None])

    def meanwhile() -> bool:
        for _ in waiting:
            other()
        return True

    return meanwhile


def conversion(lake: Lake, table: str, commit: CommitSettings | None = None, charge: Charge = uncharged) -> Converting:
    """A conversion of the table's equality deletes as they are now. `commit`: without it, no writer is waited for."""
    tools = RunTools(
        lake.session,
        lake.catalogs,
        ManifestCache(1 << 24),
        lake.in_flight(),
        slots=SlotPool(2),
        lease_seconds=60,
        check_seconds=3600,  # else the watch may be the first to ask `enabled`
        commit=commit or CommitSettings(hold_seconds=0),
    )
    view = lake.view(table)
    plan = plan_conversion(take_inventory(view, tools.cache))
    return Converting(tools, view, plan, new_run_id(view), charge=charge)


def append(lake: Lake, table: str) -> None:
    append_rows(lake, table, [(77, "p0", 77)])


def overwrite(lake: Lake, table: str) -> None:
    lake.sql(f"DELETE FROM lake.{table} WHERE id = 5")


def delete_by_position(lake: Lake, table: str) -> None:
    lake.sql(f"ALTER TABLE lake.{table} SET TBLPROPERTIES ({MERGE_ON_READ})")
    lake.sql(f"DELETE FROM lake.{table} WHERE id = 5")


def delete_by_equality(lake: Lake, table: str) -> None:
    delete_equal(lake, table, "id", [5])


def expire(lake: Lake, table: str) -> None:
    loaded = java_table(lake, table)
    pinned = loaded.currentSnapshot().snapshotId()
    append(lake, table)
    loaded.refresh()
    loaded.expireSnapshots().expireSnapshotId(pinned).commit()


def expire_history(lake: Lake, table: str, *, clean: bool = True) -> None:
    """All snapshots but the newest; with `clean` also the files that only they need. Nessie shows tables like this."""
    expiry = java_table(lake, table).expireSnapshots().expireOlderThan(2**53).retainLast(1)
    expiry.cleanExpiredFiles(clean).commit()


def append_and_expire(lake: Lake, table: str) -> None:
    """What the service of a table does: the next commit, then all snapshots before it expire."""
    append(lake, table)
    expire_history(lake, table)
    lake.sql(f"REFRESH TABLE lake.{table}")


def upgrade(lake: Lake, table: str) -> None:
    lake.sql(f"ALTER TABLE lake.{table} SET TBLPROPERTIES ('format-version'='3')")


def roll_back(lake: Lake, table: str) -> None:
    loaded = java_table(lake, table)
    loaded.manageSnapshots().rollbackTo(loaded.currentSnapshot().parentId()).commit()
