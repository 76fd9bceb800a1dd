"""A table is upgraded to V3 while a merge of its manifests is on its way: every row keeps the id that it got."""

from __future__ import annotations

import pytest

from compactor.commit.manifest_rewrite import rewrite_manifests
from compactor.errors import FirnlineError
from tests.integration.table_kit import append, create, insert, upgrade
from tests.services.faulty_catalog import FaultyCatalog
from tests.services.rest_lake import RestLake
from tests.slow import slow

pytestmark = pytest.mark.spark
UNMERGED = "'commit.manifest-merge.enabled'='false'"


@pytest.mark.slow
@pytest.mark.parametrize("upgraded", ["meanwhile", "before"])
@pytest.mark.parametrize("by", ["", *slow("PARTITIONED BY (a)")])
def test_the_first_commit_after_an_upgrade_gives_the_row_ids(
    rest_lake: RestLake, faulty: FaultyCatalog, table_name: str, upgraded: str, by: str
) -> None:
    """Iceberg sends a merge again that another commit has beaten, with the manifests that it has written."""
    create(rest_lake, table_name, 2, UNMERGED, by)
    insert(rest_lake, table_name, 6)
    if upgraded == "before":
        upgrade(rest_lake, table_name)
    view, before = rest_lake.view(table_name), list[object]()

    def visit() -> None:
        if upgraded != "before":
            upgrade(rest_lake, table_name)
        append(rest_lake, table_name)
        before.extend(rest_lake.rows(table_name, "_row_id, *"))

    faulty.before_commit = visit
    with pytest.raises(FirnlineError) as error:
        rewrite_manifests(rest_lake.session, view, (0,), "run-of-test")
    assert error.value.reason == "format_changed"
    rest_lake.sql(f"REFRESH TABLE lake.{table_name}")
    assert len(before) == 61
    assert rest_lake.rows(table_name, "_row_id, *") == before
    rewrite_manifests(rest_lake.session, rest_lake.view(table_name), (0,), "run-of-test")
    rest_lake.sql(f"REFRESH TABLE lake.{table_name}")
    assert rest_lake.rows(table_name, "_row_id, *") == before
    assert len(rest_lake.view(table_name).manifests()) == 1


def test_manifests_are_merged_before_the_first_commit_after_an_upgrade(rest_lake: RestLake, table_name: str) -> None:
    create(rest_lake, table_name, 2, UNMERGED)
    insert(rest_lake, table_name, 6)
    upgrade(rest_lake, table_name)
    done = rewrite_manifests(rest_lake.session, rest_lake.view(table_name), (0,), "run-of-test")
    assert (done.before, done.after) == (6, 1)
    rest_lake.sql(f"REFRESH TABLE lake.{table_name}")
    before = rest_lake.rows(table_name, "_row_id, *")
    assert sorted(row[0] for row in before) == list(range(60))
    append(rest_lake, table_name)
    assert [row for row in rest_lake.rows(table_name, "_row_id, *") if row[0] < 60] == before
