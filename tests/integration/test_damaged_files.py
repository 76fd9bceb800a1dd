"""Files that cannot be read and tables that are gone: what the error of a run says, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compactor.errors import GiveUpError, RetryError
from compactor.iceberg.tables import TableMissingError
from compactor.locations import plain_path
from compactor.reasons import Reason
from compactor.rewrite.tasks import runner
from compactor.rewrite.tasks.output_task import run_task
from compactor.runs.failures import RESTORE
from compactor.storage.byte_store import PERMIT
from tests.conftest import Lake
from tests.integration.table_kit import create, planned, run
from tests.slow import slow

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("damage", ["missing", "overwritten"])
def test_the_error_names_partition_and_file_and_the_remedy(lake: Lake, table_name: str, damage: str) -> None:
    create(lake, table_name, by="PARTITIONED BY (a)", commits=3)
    plan = planned(lake, table_name, where="a = 'p0'")
    file = Path(plain_path(plan.groups[0].file_group.files[0].entry.path))
    if damage == "missing":
        file.unlink()
    else:
        whole = file.read_bytes()
        file.write_bytes(whole[:10] + b"\x55" * 50 + whole[60:])
        Path(file.parent, f".{file.name}.crc").unlink(missing_ok=True)
    with pytest.raises(GiveUpError) as raised:
        run(lake, plan)
    said = str(raised.value)
    assert said.startswith(f"rewriting a file group of lake.{table_name} (a=p0) failed: ")
    assert said.endswith(RESTORE)
    assert str(file) in said
    assert "Job aborted" not in said
    assert raised.value.reason is (Reason.INPUT_MISSING if damage == "missing" else Reason.UNEXPECTED)


@pytest.mark.parametrize("reason", [Reason.OUT_OF_MEMORY, *slow(Reason.UNAVAILABLE, Reason.TASK_LOST)])
def test_a_task_that_fails_each_time_costs_its_group_and_no_other(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch, reason: Reason
) -> None:
    create(lake, table_name, by="PARTITIONED BY (a)", commits=3)
    before = sorted(map(tuple, lake.sql(f"SELECT * FROM lake.{table_name}")))

    def fails_for_p0(work: Any) -> Any:
        if "a=p0" in (work.splice or work.encode).output:
            raise RetryError("a task's own failure", reason=reason)
        return run_task(work)

    monkeypatch.setattr(runner, "run_task", fails_for_p0)
    result = run(lake, planned(lake, table_name))
    assert [group.rewritten.plan.partition for group in result.groups] == [{"a": "p1"}]
    (drop,) = result.dropped
    assert isinstance(drop.error, GiveUpError if reason is Reason.OUT_OF_MEMORY else RetryError)
    assert drop.error.reason == reason
    assert sorted(map(tuple, lake.sql(f"SELECT * FROM lake.{table_name}"))) == before


@pytest.mark.parametrize("engine", ["auto", "spark"])
def test_a_place_where_nothing_may_be_written_is_said_by_each_engine(lake: Lake, table_name: str, engine: str) -> None:
    """Nobody may write to /sys, not even root."""
    create(lake, table_name, commits=3)
    lake.sql(f"ALTER TABLE lake.{table_name} SET TBLPROPERTIES ('write.data.path'='file:///sys/denied')")
    with pytest.raises(GiveUpError) as raised:
        run(lake, planned(lake, table_name, engine=engine))
    assert raised.value.reason is Reason.ACCESS_DENIED
    assert "/sys/denied" in str(raised.value)
    assert str(raised.value).endswith(PERMIT)


def test_a_table_that_was_dropped_since_the_plan_does_not_exist(lake: Lake, table_name: str) -> None:
    create(lake, table_name, commits=2)
    plan = planned(lake, table_name)
    lake.sql(f"DROP TABLE lake.{table_name} PURGE")
    with pytest.raises(
        TableMissingError, match=f"table lake.{table_name} does not exist for Spark: it was dropped since"
    ):
        run(lake, plan)
