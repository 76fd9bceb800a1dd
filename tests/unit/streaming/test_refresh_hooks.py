"""Refresh hooks: what engines are sent, over their own protocols, and that nothing of it reaches a rewrite."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from compactor.events import Event, HookFinished, RunCommitted
from compactor.patience.backoff import Backoff
from compactor.settings.hooks import HookSettings
from compactor.settings.tree import load_settings
from compactor.table_names import TableName
from streaming.hooks.kinds import Hook, statement, trino_hook
from streaming.hooks.refresh_hooks import ATTEMPTS, NamedHook, RefreshHooks
from streaming.service.service import Service
from tests.services.serving import serving

TABLE = TableName("lake", ("db", 'in"ner'), "it's")
OTHER = TableName("lake", ("db",), "other")


def committed(table: TableName = TABLE, snapshot: int = 9) -> RunCommitted:
    return RunCommitted(
        run_id="run-1",
        table=table,
        snapshot_id=snapshot,
        groups=2,
        files_in=30,
        files_out=3,
        bytes_in=4_000,
        bytes_out=3_800,
        plan_seconds=0.5,
        rewrite_seconds=7.0,
        commit_seconds=0.25,
        event_to_compacted_seconds=None,
        delete_files_removed=6,
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"statement": "ANALYZE {table}"}, 'ANALYZE "lake"."db"."in""ner"."it\'s"'),
        ({"statement": "CALL f('{namespace}', '{name}')"}, "CALL f('db.in\"ner', 'it''s')"),
    ],
)
def test_statements_name_the_table_as_trino_does(given: dict[str, str], expected: str) -> None:
    settings = HookSettings.model_validate({"kind": "trino", "uri": "http://trino", **given})
    assert statement(settings, committed()) == expected


@contextmanager
def trino(answer: Callable[[str], dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """Trino's client protocol: a statement is posted, then its pages are fetched until there is no next one."""
    heard: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            statement = self.rfile.read(int(self.headers["Content-Length"])).decode()
            heard.append(f"{self.headers['X-Trino-User']}: {statement}")
            self._send({"nextUri": f"http://127.0.0.1:{server.server_port}/v1/statement/executing/q/1"})

        def do_GET(self) -> None:
            self._send(answer(heard[0]))

        def do_DELETE(self) -> None:
            heard.append("cancelled")
            self.send_response(204)
            self.end_headers()

        def _send(self, page: dict[str, Any]) -> None:
            text = json.dumps({"id": "q", "infoUri": "http://x", "stats": {"state": "FINISHED"}, **page})
            body = text.replace("{port}", str(server.server_port)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Silence."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with serving(server) as address:
        yield address, heard


CALL = "CALL {catalog}.system.flush_metadata_cache(schema_name => '{namespace}', table_name => '{name}')"


@pytest.mark.parametrize(("user", "expected"), [("", "firnline"), ("me%40corp@", "me@corp")])
def test_trino_runs_the_statement_as_the_user_of_the_address(user: str, expected: str) -> None:
    with trino(lambda _statement: {"updateType": "CALL"}) as (uri, heard):
        trino_hook(HookSettings(kind="trino", uri=uri.replace("://", f"://{user}"), statement=CALL))(committed(OTHER))
    assert heard == [f"{expected}: CALL lake.system.flush_metadata_cache(schema_name => 'db', table_name => 'other')"]


def test_a_statement_that_trino_leaves_in_its_queue_is_cancelled() -> None:
    """Each request is answered in time, and the next page is again: wait."""
    pages: list[int] = []

    def queued(_statement: str) -> dict[str, Any]:
        time.sleep(0.02)  # Trino: up to a second
        pages.append(len(pages))
        is_waiting = {"nextUri": "http://127.0.0.1:{port}/v1/statement/queued/q/1", "stats": {"state": "QUEUED"}}
        return is_waiting if len(pages) < 1_000 else {}

    with trino(queued) as (uri, heard):
        hook = trino_hook(HookSettings(kind="trino", uri=uri, statement=CALL, timeout_seconds=1.0))
        with pytest.raises(TimeoutError, match=r"took longer than 1 s"):
            hook(committed(OTHER))
    assert heard[1:] == ["cancelled"]


class Ear:
    """Listens, and can be waited for."""

    def __init__(self) -> None:
        self.heard: list[HookFinished] = []
        self._some = threading.Condition()

    def __call__(self, event: Event) -> None:
        assert isinstance(event, HookFinished)
        with self._some:
            self.heard.append(event)
            self._some.notify()

    def wait_for(self, count: int) -> list[HookFinished]:
        with self._some:
            assert self._some.wait_for(lambda: len(self.heard) >= count, 20)
        return self.heard


def running(ear: Ear, *calls: tuple[str, Hook, tuple[str, ...]]) -> RefreshHooks:
    hooks = RefreshHooks(
        [NamedHook(name, tables, call) for name, call, tables in calls], ear, backoff=Backoff(0.001, 0.002)
    )
    hooks.start()
    return hooks


def test_a_failing_hook_is_tried_three_times_counted_and_stops_no_other() -> None:
    attempts: list[int] = []
    told: list[TableName] = []

    def fails(event: RunCommitted) -> None:
        attempts.append(event.snapshot_id)
        raise ConnectionError("nobody there")

    ear = Ear()
    hooks = running(ear, ("bad", fails, ("*",)), ("good", lambda event: told.append(event.table), ("*.other",)))
    hooks.committed(committed(TABLE, 1))
    hooks.committed(committed(OTHER, 2))
    events = ear.wait_for(3)
    hooks.stop()
    assert (attempts, told) == ([1] * ATTEMPTS + [2] * ATTEMPTS, [OTHER])
    assert {(each.hook, each.table, each.error) for each in events} == {
        ("bad", TABLE, "ConnectionError: nobody there"),
        ("bad", OTHER, "ConnectionError: nobody there"),
        ("good", OTHER, ""),
    }


def test_while_a_hook_is_slow_commits_to_one_table_become_one_call() -> None:
    going = threading.Event()
    told: list[tuple[str, int]] = []

    def slow(event: RunCommitted) -> None:
        told.append((event.table.name, event.snapshot_id))
        going.wait(20)

    ear = Ear()
    hooks = running(ear, ("slow", slow, ("*",)))
    hooks.committed(committed(OTHER, 1))
    while not told:
        time.sleep(0.001)
    for snapshot in (2, 3, 4):
        hooks.committed(committed(OTHER, snapshot))
        hooks.committed(committed(TABLE, snapshot))
    going.set()
    ear.wait_for(3)
    hooks.stop()
    assert told == [("other", 1), ("other", 4), ("it's", 4)]


def test_each_hook_is_in_the_metrics_before_its_first_call() -> None:
    """A first failure that creates its series is no increase for Prometheus: on a quiet lake no alert would see it."""
    environment = {
        "FIRNLINE_CATALOGS": '{"lake": {"type": "sql", "uri": "sqlite:///:memory:"}}',
        "FIRNLINE_HTTP__PORT": "0",
        "FIRNLINE_HOOKS": '[{"kind": "kafka"}, {"kind": "kafka", "tables": ["db.*"]}]',
    }
    service = Service(load_settings(None, environment))
    service._start_hooks()
    (shown,) = service._recorder._counters["firnline_hook_calls_total"].collect()
    service.stop()
    assert {tuple(each.labels.values()) for each in shown.samples if each.name.endswith("_total")} == {
        (hook, result) for hook in ("0-kafka", "1-kafka", "history") for result in ("told", "failed")
    }
