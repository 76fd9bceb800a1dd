"""Commits whose fate is unknown, and writers that lose a race, against a real REST catalog behind a faulty proxy."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError

from compactor.commit.decisions import SEARCHES, Found, Searched
from compactor.commit.sweep import sweep
from compactor.commit.updates import Replacement
from compactor.errors import CommitUnknownError, FirnlineError, ReplanError, StoppedError
from compactor.lease.right import CommitRight
from compactor.locations import plain_path
from compactor.manifests.cache import ManifestCache
from compactor.runs import committing as commit_module
from compactor.runs.committing import CommitLoop
from compactor.settings.tree import CommitSettings
from compactor.spark.java_table import JavaTable
from tests.conftest import Lake
from tests.integration.table_kit import (
    MERGE_ON_READ,
    append,
    create,
    expire_history,
    planned,
    records_of,
    replaces,
    run,
    unreferenced,
)
from tests.services.faulty_catalog import Fault, FaultyCatalog, in_front_of
from tests.services.rest_lake import RestLake, rest_lake_of
from tests.services.waiting import wait_for
from tests.slow import slow

pytestmark = pytest.mark.spark


def sweep_at(lake: Lake, now: float) -> None:
    sweep(lake.in_flight(), lake.catalogs, ManifestCache(1 << 20), now=now, grace_seconds=3600)


def sweep_until_settled(lake: Lake, table: str) -> None:
    """What the service does every so often; a writer has committed since, which changes no row here."""
    records = lake.in_flight()
    lake.sql(f"INSERT INTO lake.{table} SELECT * FROM lake.{table} WHERE false")
    for hours in range(4):
        sweep(records, lake.catalogs, ManifestCache(1 << 20), now=time.time() + 3600 * hours, grace_seconds=1800)
    assert [record for record in records.all() if record.name == lake.name(table).name] == []


@pytest.mark.parametrize("status", [500, *slow(502, 503, 504)])
def test_a_commit_that_landed_although_an_error_was_answered_is_found(
    rest_lake: RestLake, faulty: FaultyCatalog, table_name: str, status: int
) -> None:
    create(rest_lake, table_name, commits=3)
    rows, plan = rest_lake.rows(table_name), planned(rest_lake, table_name)
    with faulty.failing(Fault.ANSWER_LOST, status):
        result = run(rest_lake, plan)
    assert replaces(rest_lake, table_name) == 1
    assert rest_lake.view(table_name).snapshot.snapshot_id == result.snapshot_after
    assert rest_lake.rows(table_name) == rows
    assert len(rest_lake.live_files(table_name)) == 1
    sweep_until_settled(rest_lake, table_name)
    assert rest_lake.rows(table_name) == rows
    assert unreferenced(rest_lake, table_name) == set()


@pytest.mark.parametrize(
    ("fault", "status"),
    [(Fault.NOT_SENT, 401), (Fault.NOT_SENT, 400), *slow((Fault.NOT_SENT, 403)), *slow((Fault.ANSWER_LOST, 401))],
)
def test_a_commit_that_was_refused_is_sent_again_unless_it_had_landed(
    rest_lake: RestLake, faulty: FaultyCatalog, table_name: str, fault: Fault, status: int
) -> None:
    """A login has ended; or a server before Iceberg 1.11, where a commit to another branch came first."""
    create(rest_lake, table_name, commits=3)
    rows, plan = rest_lake.rows(table_name), planned(rest_lake, table_name)
    with faulty.failing(fault, status):
        result = run(rest_lake, plan)
    assert replaces(rest_lake, table_name) == 1
    assert rest_lake.view(table_name).snapshot.snapshot_id == result.snapshot_after
    assert rest_lake.rows(table_name) == rows
    sweep_until_settled(rest_lake, table_name)
    assert unreferenced(rest_lake, table_name) == set()


@pytest.mark.parametrize("moved", [*slow(False), True])
def test_a_run_that_ends_after_a_refusal_deletes_nothing_unless_the_head_has_moved(
    rest_lake: RestLake, faulty: FaultyCatalog, table_name: str, moved: bool
) -> None:
    """The refused request may still be under way; for the head it was made for, and for no other."""
    create(rest_lake, table_name, commits=3)
    plan, asked = planned(rest_lake, table_name), list[None]()

    def confirm() -> None:
        asked.append(None)
        if len(asked) == 2:
            if moved:
                append(rest_lake, table_name)
            raise StoppedError("the service ends")

    with (
        faulty.failing(Fault.NOT_SENT, 401),
        pytest.raises(StoppedError if moved else CommitUnknownError, match="the service ends"),
    ):
        run(rest_lake, plan, right=CommitRight(confirm=confirm))
    assert len(asked) == 2 + moved
    assert (unreferenced(rest_lake, table_name) == set()) == moved
    sweep_until_settled(rest_lake, table_name)
    assert unreferenced(rest_lake, table_name) == set()


@pytest.mark.parametrize("hidden", [True, *slow(False)])
def test_a_refused_commit_that_lands_before_the_next_attempt_is_found(
    rest_lake: RestLake, faulty: FaultyCatalog, table_name: str, monkeypatch: pytest.MonkeyPatch, hidden: bool
) -> None:
    """The next snapshot would add the outputs a second time: Iceberg's update knows its own manifests again."""
    create(rest_lake, table_name, commits=3)
    rows, plan, real, asked = rest_lake.rows(table_name), planned(rest_lake, table_name), CommitLoop._search, []

    def early(*arguments: Any) -> Searched:
        asked.append(None)
        if len(asked) > SEARCHES:
            return real(*arguments)
        if hidden and len(asked) == 1:  # as by Nessie
            append(rest_lake, table_name)
            expire_history(rest_lake, table_name, clean=False)
        return Searched(Found.MISSING)

    monkeypatch.setattr(CommitLoop, "_search", early)
    with faulty.failing(Fault.ANSWER_LOST, 401):
        result = run(rest_lake, plan)
    assert result.snapshot_after is not None
    assert not result.dropped
    assert replaces(rest_lake, table_name) == 1 - hidden
    assert rest_lake.rows(table_name) == sorted([*rows, *[(77, "p0", 77)] * hidden], key=repr)


@pytest.mark.parametrize("status", [409, *slow(200)])
def test_a_commit_is_found_behind_a_later_one_that_hides_it(
    rest_lake: RestLake, faulty: FaultyCatalog, table_name: str, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """Nessie lists the newest snapshot alone. 409 answers a second request of the HTTP client."""
    create(rest_lake, table_name, commits=3)
    rows, plan, landed = rest_lake.rows(table_name), planned(rest_lake, table_name), list[Any]()
    real = CommitLoop._search

    def late(loop: CommitLoop[Any], accepted: bool) -> Searched:
        table = loop.java
        if not landed:
            table.refresh()
            landed.append(table.handle.currentSnapshot())
            append(rest_lake, table_name)
            expire_history(rest_lake, table_name, clean=False)
        return real(loop, accepted)

    monkeypatch.setattr(CommitLoop, "_search", late)
    with faulty.failing(Fault.ANSWER_LOST, status, times=int(status == 409)):
        result = run(rest_lake, plan)
    assert [each.snapshotId() for each in landed] == [result.snapshot_after]
    assert Path(plain_path(landed[0].manifestListLocation())).exists(), "a tag of Nessie may name this commit"
    assert rest_lake.view(table_name).snapshot.snapshot_id != result.snapshot_after
    assert rest_lake.rows(table_name) == sorted([*rows, (77, "p0", 77)], key=repr)


def test_manifests_that_the_head_lists_stay_although_their_commit_was_not_found(
    rest_lake: RestLake, faulty: FaultyCatalog, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(rest_lake, table_name, commits=3)
    rows, plan, asked = rest_lake.rows(table_name), planned(rest_lake, table_name), list[None]()

    def blind(*_: Any) -> None:
        if not asked:
            append(rest_lake, table_name)
            expire_history(rest_lake, table_name, clean=False)
        asked.append(None)

    monkeypatch.setattr(commit_module, "committed_id", blind)
    with faulty.failing(Fault.ANSWER_LOST, 409), pytest.raises(ReplanError):
        run(rest_lake, plan)
    assert rest_lake.rows(table_name) == sorted([*rows, (77, "p0", 77)], key=repr)


@pytest.mark.parametrize("honours", [True, *slow(False)])
def test_a_writer_whose_commit_is_on_its_way_wins_where_the_catalog_lets_it(
    rest_lake: RestLake, faulty: FaultyCatalog, table_name: str, honours: bool
) -> None:
    """A row-level DELETE is on its way when our rewrite of its files lands. Elsewhere its validation fails."""
    create(rest_lake, table_name, properties=MERGE_ON_READ, commits=3)
    rows, plan = rest_lake.rows(table_name), planned(rest_lake, table_name)
    faulty.before_commit = lambda: run(rest_lake, plan, commit=CommitSettings(polaris_rollback="always")) and None
    faulty.honours_rollback, before = honours, faulty.rolled_back
    delete = f"DELETE FROM lake.{table_name} WHERE id = 5"
    try:
        if honours:
            rest_lake.sql(delete)
        else:
            with pytest.raises(Exception, match=r"Cannot commit|Missing required files|data files"):
                rest_lake.sql(delete)
    finally:
        faulty.honours_rollback = False
    expected = [row for row in rows if row[0] != 5] if honours else rows
    assert rest_lake.rows(table_name) == expected
    assert faulty.rolled_back - before == int(honours)
    assert replaces(rest_lake, table_name) == int(not honours)
    (record,) = records_of(rest_lake, table_name)
    assert len(unreferenced(rest_lake, table_name)) == int(honours)
    sweep_at(rest_lake, record.settles_at - 1)
    assert len(unreferenced(rest_lake, table_name)) == int(honours), "another writer may still be under way"
    sweep_at(rest_lake, record.settles_at)
    assert unreferenced(rest_lake, table_name) == set()
    if not honours:
        (record,) = records_of(rest_lake, table_name)  # no writer has committed since
        rest_lake.sql(delete)
        expected = [row for row in rows if row[0] != 5]
        sweep_at(rest_lake, record.settles_at)
    assert records_of(rest_lake, table_name) == []
    rest_lake.compact(table_name, force=True)
    assert rest_lake.rows(table_name) == expected
    assert len(rest_lake.live_files(table_name)) == 1


def test_an_interrupt_while_the_commit_is_on_its_way_deletes_nothing(
    rest_lake: RestLake, faulty: FaultyCatalog, table_name: str
) -> None:
    """Ctrl-C: the JVM commits all the same. Py4J tells it as a plain error, not as an interrupt.

    PySpark's handler calls the JVM by the connection that waits for the commit's answer. On a busy machine, the handler
    can get that answer; then the run ends as without an interrupt.
    """
    create(rest_lake, table_name, commits=3)
    rows, plan = rest_lake.rows(table_name), planned(rest_lake, table_name)
    commits = faulty.commits

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(3)

    faulty.before_commit = interrupt
    with suppress(CommitUnknownError, KeyboardInterrupt):
        run(rest_lake, plan)
    wait_for("the commit", lambda: faulty.commits > commits)
    assert replaces(rest_lake, table_name) == 1
    assert rest_lake.rows(table_name) == rows
    sweep_until_settled(rest_lake, table_name)
    assert rest_lake.rows(table_name) == rows


def test_a_jvm_that_is_lost_while_the_answer_is_judged_deletes_nothing(
    rest_lake: RestLake, faulty: FaultyCatalog, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(rest_lake, table_name, commits=3)
    rows, plan = rest_lake.rows(table_name), planned(rest_lake, table_name)

    def lost(_error: object) -> str:
        raise Py4JNetworkError("the JVM does not answer")

    monkeypatch.setattr(commit_module, "exception_class", lost)
    with faulty.failing(Fault.ANSWER_LOST, 409), pytest.raises(CommitUnknownError, match="was interrupted"):
        run(rest_lake, plan)
    assert replaces(rest_lake, table_name) == 1
    assert rest_lake.rows(table_name) == rows
    sweep_until_settled(rest_lake, table_name)
    assert rest_lake.rows(table_name) == rows


# --- what was reported is looked for ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_success_without_a_commit_is_not_believed(lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Iceberg's own rewrite has reported success with nothing committed (apache/iceberg 17202)."""
    create(lake, table_name, commits=3)
    rows = lake.rows(table_name)
    monkeypatch.setattr(JavaTable, "send", lambda *_: None)
    with pytest.raises(CommitUnknownError, match="reported success, but the table does not show"):
        run(lake, planned(lake, table_name))
    assert replaces(lake, table_name) == 0
    sweep_until_settled(lake, table_name)
    assert lake.rows(table_name) == rows
    assert unreferenced(lake, table_name) == set()


@pytest.mark.parametrize("kind", ["CommitStateUnknownException", *slow("CommitFailedException")])
def test_a_commit_that_landed_is_found_by_its_run_whatever_was_answered(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The answer is lost, or is that to an HTTP client's second try. REST catalogs settle some of this themselves."""
    create(lake, table_name, commits=3)
    rows, real = lake.rows(table_name), JavaTable.send

    def answered_by_an_error(table: JavaTable, snapshot: Any) -> None:
        real(table, snapshot)
        jvm = table.jvm
        cause = jvm.java.lang.RuntimeException("the answer is lost")
        if kind == "CommitStateUnknownException":
            error = jvm.org.apache.iceberg.exceptions.CommitStateUnknownException(cause)
        else:
            nothing = lake.session.sparkContext._gateway.new_array(jvm.java.lang.Object, 0)
            error = jvm.org.apache.iceberg.exceptions.CommitFailedException(cause, "conflict", nothing)
        raise Py4JJavaError("commit", error)

    monkeypatch.setattr(JavaTable, "send", answered_by_an_error)
    result = run(lake, planned(lake, table_name))
    assert lake.view(table_name).snapshot.snapshot_id == result.snapshot_after
    assert replaces(lake, table_name) == 1
    assert lake.rows(table_name) == rows
    assert unreferenced(lake, table_name) == set()


@pytest.mark.parametrize(("looked_at", "reason"), [(True, "conflict"), (False, "commit_differs")])
def test_a_commit_of_other_files_than_planned_is_not_sent_and_if_it_were_would_be_told(
    lake: Lake, table_name: str, monkeypatch: pytest.MonkeyPatch, looked_at: bool, reason: str
) -> None:
    create(lake, table_name, commits=3)
    rows = lake.rows(table_name)

    def one_file_more(scan_tasks: Any, outputs: Any, files_in: int) -> Replacement:
        return Replacement(scan_tasks, outputs, files_in + 1)

    monkeypatch.setattr("compactor.runs.commit_groups.Replacement", one_file_more)
    if not looked_at:
        monkeypatch.setattr("compactor.commit.updates._check_counts", lambda *_: None)
    with pytest.raises(FirnlineError) as raised:
        run(lake, planned(lake, table_name))
    assert raised.value.reason == reason
    assert replaces(lake, table_name) == (0 if looked_at else 1)
    assert lake.rows(table_name) == rows


@pytest.mark.slow
@pytest.mark.parametrize("lifetime", ["PT30M", *slow(None)])
def test_commits_bring_an_idempotency_key_where_the_catalog_knows_them(
    lake: Lake, faulty: FaultyCatalog, table_name: str, lifetime: str | None
) -> None:
    """A server that is asked twice answers twice, and commits once. An answer that is lost costs nothing either."""
    with in_front_of(faulty.upstream, faulty.warehouse) as catalog:
        catalog.keys_for = lifetime
        rest = rest_lake_of(lake, catalog, "keyed" if lifetime else "unkeyed")
        create(rest, table_name, commits=3)
        rows, plan = rest.rows(table_name), planned(rest, table_name)
        catalog.keys.clear()
        with catalog.failing(Fault.ANSWER_LOST, 504):
            run(rest, plan)
        assert len(catalog.keys) >= 1
        assert all((key is not None) == (lifetime is not None) for key in catalog.keys)
        assert replaces(rest, table_name) == 1
        assert rest.rows(table_name) == rows
