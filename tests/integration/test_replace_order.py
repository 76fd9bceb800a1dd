"""`replace` snapshots in a row: what a reader that gives up at two of them sees of the service's work."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from compactor.errors import LaterError
from compactor.events import ManifestsRewritten, PartitionsSkipped
from compactor.iceberg.other_compactors import FLINK_CONVERTER, flink_converters
from compactor.locks.flink_locks import Locks
from compactor.settings.tree import Settings
from compactor.table_names import TableName
from streaming.ledger.table_record import Lane
from tests.conftest import Lake
from tests.integration.replayed_table import FollowedTable
from tests.integration.table_kit import MERGE_ON_READ, append, before_commit, create, delete_equal, planned, run

pytestmark = pytest.mark.spark


def service(lake: Lake, table: str, commit: object = None, **manifests: object) -> FollowedTable:
    given = {"catalogs": {"lake": {}}, "tables": {"include": ["*"]}, "manifests": manifests, "commit": commit or {}}
    return FollowedTable(lake, table, Settings.model_validate(given), now=time.time())


def in_a_row(lake: Lake, table: str) -> int:
    """The longest row of `replace` snapshots."""
    operations = [
        row.operation for row in lake.sql(f"SELECT operation FROM lake.{table}.snapshots ORDER BY committed_at")
    ]
    longest = row = 0
    for operation in operations:
        row = row + 1 if operation == "replace" else 0
        longest = max(longest, row)
    return longest


def look(followed: FollowedTable) -> str | None:
    """The reason why the service waits, if it does."""
    try:
        followed.look(Lane.EVENT)
    except LaterError as later:
        return str(later.reason)
    return None


def test_manifests_of_an_idle_table_follow_files_after_a_time(lake: Lake, table_name: str) -> None:
    create(lake, table_name, properties="'commit.manifest-merge.enabled'='false'", commits=12)
    followed = service(lake, table_name, min_count=2, min_reduction=1.5, wait_seconds=100)
    assert look(followed) == "replaces_in_a_row"
    followed.now += 1000
    assert look(followed) is None
    assert sum(isinstance(each, ManifestsRewritten) for each in followed.events) == 1


def test_a_finished_rewrite_waits_for_a_writer_if_another_one_came_before_it(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`firnline compact` of another partition, beside the service: the view would end at the second one."""
    create(lake, table_name, by="PARTITIONED BY (a)", commits=3)
    monkeypatch.setattr("compactor.commit.decisions.TURN_SECONDS", 0.1)
    other, asked = list[None](), list[None]()

    class Writer(Locks):
        """Looked at before each attempt to commit."""

        def holder(self, _: TableName) -> str | None:
            asked.append(None)
            if other and len(asked) == 4:
                append(lake, table_name)
            return None

    def compact_the_other() -> None:
        lake.compact(table_name, force=True, where="a = 'p1'")
        other.append(None)

    plan = planned(lake, table_name, where="a = 'p0'")
    result = run(lake, plan, enabled=before_commit(compact_the_other), locks=Writer(), most_replaces=1)
    assert len(asked) >= 4
    assert result.commits == 1
    assert in_a_row(lake, table_name) == 1
    assert len(replaces(lake, table_name)) == 2


def replaces(lake: Lake, table: str) -> list[object]:
    return list(lake.sql(f"SELECT snapshot_id FROM lake.{table}.snapshots WHERE operation = 'replace'"))


def upserts(lake: Lake, table: str) -> None:
    for key in range(12):
        delete_equal(lake, table, "id", [key])


def flink_has_converted(lake: Lake, table: str) -> None:
    """A commit with the marker of Flink's converter."""
    with lake.catalog.load_table(lake.name(table).identifier).transaction() as transaction:
        rows = lake.catalog.load_table(lake.name(table).identifier).scan().to_arrow()[:0]
        transaction.append(rows, snapshot_properties={FLINK_CONVERTER: "123"})


@pytest.mark.parametrize(("marked", "left"), [(flink_has_converted, True), (lambda *_: None, False)])
def test_equality_deletes_are_left_to_flinks_converter(
    lake: Lake, table_name: str, marked: Callable[[Lake, str], None], left: bool
) -> None:
    create(lake, table_name, properties=f"{MERGE_ON_READ}, 'firnline.policy.convert_equality_deletes'='5'", commits=2)
    marked(lake, table_name)
    upserts(lake, table_name)
    followed = service(lake, table_name)
    look(followed)
    skipped = [each for each in followed.events if isinstance(each, PartitionsSkipped)]
    assert any(each.reason == "flink_converter" for each in skipped) == left
    assert bool(followed.conversions) != left
    found = flink_converters(lake.view(table_name).metadata, time.time())
    assert [other.commits for other in found] == ([1] if left else [])
