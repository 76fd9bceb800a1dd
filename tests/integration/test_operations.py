"""The steps of docs/operations.md on working services: upgrade, backup, restore, a lost checkpoint, an old catalog."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from compactor.locations import plain_path
from compactor.spark.session import spark_session
from tests.integration.service_process import ServiceProcess, Site, firnline, label, wait_for
from tests.integration.test_service_ends import MANY, wait_until_mid_rewrite
from tests.integration.test_service_lease import wait_standby

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

DAY_SECONDS = 86_400


def checkpoint(place: Site) -> Path:
    return Path(plain_path(place.settings.state.checkpoint))


def command(place: Site, *arguments: str) -> None:
    done = firnline(place.config, *arguments)
    assert done.returncode == 0, done.stderr


def appended(place: Site, table: str, **size: int) -> None:
    place.publish(*place.append(table, **size))


def rewrites(place: Site, table: str) -> int:
    return place.operations(table).count("replace")


def wait_rewritten(place: Site, table: str, times: int = 1) -> None:
    wait_for(f"rewrite {times} of {table}", lambda: rewrites(place, table) >= times)


def wait_counted(place: Site, service: ServiceProcess, *tables: str) -> None:
    for table in tables:
        files = len(place.live_files(table))
        service.wait_metric("firnline_table_files", 1, **label(table))
        wait_for(
            f"the count of {table} to be {files}",
            lambda table=table, files=files: service.metrics().total("firnline_table_files", **label(table)) == files,
        )


def test_upgrade_the_new_process_waits_beside_the_old_one_which_drains(place: Site) -> None:
    place.create("t")
    place.create("held")
    old = place.started()
    command(place, "pause", "db.held")
    appended(place, "t")
    appended(place, "held", commits=2)
    wait_rewritten(place, "t")
    wait_counted(place, old, "t", "held")
    wait_standby(drained := place.start(), old)
    os.kill(drained.pid, signal.SIGUSR1)
    assert drained.ended() == 0, drained.log_text[-3000:]
    wait_standby(new := place.start(), old)
    os.kill(old.pid, signal.SIGUSR1)
    assert old.ended() == 0, old.log_text[-3000:]
    new.wait_ready()
    appended(place, "held")
    appended(place, "t")
    wait_rewritten(place, "t", 2)
    wait_counted(place, new, "t", "held")
    assert rewrites(place, "held") == 0, "pauses outlive the upgrade"
    assert new.metrics().total("firnline_ledger_recounts_total") == 0, "no table is counted anew"


def test_a_backup_keeps_pauses_and_requests_and_its_old_counts_are_brought_up_to_date(
    place: Site, tmp_path: Path
) -> None:
    for table in ("t", "held"):
        place.create(table)
    first = place.started()
    command(place, "pause", "db.held")
    appended(place, "t")
    appended(place, "held", commits=2)
    wait_rewritten(place, "t")
    command(place, "request", "db.held")
    requests = checkpoint(place) / "requests.json"
    wait_for("the request", lambda: requests.exists() and "held" in requests.read_text())
    assert first.terminate()[0] == 0
    backup = tmp_path / "backup"
    shutil.copytree(checkpoint(place), backup)
    second = place.started()
    appended(place, "t")
    wait_rewritten(place, "t", 2)
    assert second.terminate()[0] == 0
    rows = place.rows("t"), place.rows("held")
    shutil.rmtree(checkpoint(place))
    shutil.copytree(backup, checkpoint(place))
    third = place.started()
    wait_counted(place, third, "t", "held")
    assert rewrites(place, "held") == 0
    command(place, "resume")
    wait_rewritten(place, "held")  # two files of each partition: below the threshold, so this is the request
    assert (place.rows("t"), place.rows("held")) == rows
    assert third.terminate()[0] == 0


def test_a_lost_checkpoint_costs_a_count_and_leaves_files_that_iceberg_removes(place: Site) -> None:
    for table in ("t", "held", "earlier"):
        place.create(table)
    first = place.started()
    appended(place, "earlier")
    wait_rewritten(place, "earlier")
    appended(place, "t", **MANY)
    wait_until_mid_rewrite(place, first)
    first.kill()
    shutil.rmtree(checkpoint(place))
    left = place.unreferenced("t")
    assert left, "killed too early to test anything"
    rows = place.rows("t")
    place.append("held")
    checkpoint(place).mkdir()
    command(place, "pause", "db.held")
    second = place.started()
    wait_rewritten(place, "t")
    wait_counted(place, second, "t", "held", "earlier")
    assert rewrites(place, "held") == 0
    assert second.metrics().total("firnline_other_firnline_tables") == 1, "the deployment has a new id"
    assert second.terminate()[0] == 0
    assert place.unreferenced("t") == left, "nobody knows them any more"
    for path in left:
        os.utime(path, (time.time() - 4 * DAY_SECONDS,) * 2)  # the procedure spares files of the last three days
    session = spark_session(place.settings)
    try:
        session.sql("CALL lake.system.remove_orphan_files(table => 'db.t')").collect()
    finally:
        session.stop()
    assert place.unreferenced("t") == set()
    assert place.rows("t") == rows


def test_a_catalog_that_was_restored_to_an_earlier_moment_is_followed(place: Site, tmp_path: Path) -> None:
    place.create("t")
    appended(place, "t", commits=2)
    before = place.rows("t")
    service = place.started()
    wait_counted(place, service, "t")
    catalog, backup = place.folder / "catalog.db", tmp_path / "catalog.backup"
    shutil.copyfile(catalog, backup)
    appended(place, "t")
    wait_rewritten(place, "t")
    command(place, "pause")
    service.wait_metric("firnline_paused_tables")
    shutil.copyfile(backup, catalog)
    assert place.rows("t") == before
    command(place, "resume")
    wait_counted(place, service, "t")
    appended(place, "t")
    rows = place.rows("t")
    wait_rewritten(place, "t")
    assert place.rows("t") == rows
    assert service.terminate()[0] == 0
