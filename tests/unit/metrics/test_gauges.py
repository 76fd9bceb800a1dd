"""The gauges show board and service as they are, bounded, and forget what the board forgets."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import DuplicateTimeseries

from compactor.debt.board import DebtBoard, PartitionCounts, Remainder
from compactor.debt.manifest_debt import ManifestCounts
from compactor.iceberg.other_compactors import OtherCompactor
from compactor.runs.dispatcher import Work
from compactor.runs.pauses import Pause
from compactor.runs.work_order import STARVING_SECONDS
from compactor.shards import Shard
from compactor.table_names import TableName
from metrics.gauges import Gauges
from metrics.moment import table_label
from metrics.service_view import Counting, Memory, SlotUse, StateSpace
from metrics.status_page import OTHER_HOSTS, bounded
from tests.unit.metrics.support import NOW, Service, board_of, debt, hostile_board, partition, small


def exposed(board=None, *, service=None, most=5_000, **state):
    """(name without namespace, label values) → value."""
    found = {}
    service = service if service is not None else Service(**state)
    for family in Gauges(board or DebtBoard(), service, "1.2", most, clock=lambda: NOW).collect():
        for sample in family.samples:
            series = (sample.name.removeprefix("firnline_"), *sample.labels.values())
            assert series not in found, "a series twice would spoil the whole scrape"
            found[series] = sample.value
    return found


def of_tables(found, metric):
    return {series[2].removeprefix("lake.db."): value for series, value in found.items() if series[0] == metric}


def test_table_series_hold_the_sums_of_all_partitions():
    table = debt(
        "t",
        partition({"day": "1"}, PartitionCounts(10, 8, 1_000, 400, 3, 70, 6), due=True),
        partition({"day": "2"}, PartitionCounts(5, 1, 2_000, 30, 4, 80, 0)),
        acted_on=True,
        due_since=NOW - 40,
        manifests=ManifestCounts(12, 3_400, 5, 2.5),
        target_bytes=150,
    )
    found = exposed(board_of(table))
    assert {name: value for (name, *labels), value in found.items() if labels == ["lake", "lake.db.t"]} == {
        "table_files": 15,
        "table_small_files": 9,
        "table_data_bytes": 3_000,
        "table_delete_files": 7,
        "table_records": 150,
        "table_due_partitions": 1,
        "table_debt_files": 5,  # 8 files of 400 bytes fill three files of 150; a single small file cannot be merged
        "table_due_seconds": 40,
        "table_stale": 0,
        "table_acted_on": 1,
        "table_manifests": 12,
    }


@pytest.mark.parametrize(
    ("counts", "target", "removable"),
    [
        (PartitionCounts(6, 6, 600, 600, 0, 1, 0), 1_000, 5),
        (PartitionCounts(6, 6, 600, 600, 0, 1, 0), 200, 3),
        (PartitionCounts(6, 6, 600, 600, 0, 1, 0), None, 5),  # Iceberg's default target holds all of them
        (PartitionCounts(9, 0, 900, 0, 0, 1, 0), 100, 0),
        (PartitionCounts(4, 4, 0, 0, 0, 0, 0), 100, 3),
        (PartitionCounts(3, 3, 300, 300, 0, 1, 0), 100, 0),
        (PartitionCounts(2, 2, 500, 500, 0, 1, 0), 100, 0),
    ],
)
def test_debt_is_what_a_rewrite_to_the_target_removes_and_never_negative(counts, target, removable):
    board = board_of(debt("t", partition({}, counts, due=True), target_bytes=target))
    assert exposed(board)["table_debt_files", "lake", "lake.db.t"] == removable


def test_partitions_without_an_object_of_their_own_are_in_the_sums():
    """Of a million partitions, the board keeps the worst and sums over the others."""
    kept = partition({"day": "1"}, PartitionCounts(6, 6, 600, 600, 0, 1, 0), due=True)
    others = Remainder(partitions=4, small_files=20, small_bytes=100, due_partitions=3, due_files=18, due_bytes=90)
    found = exposed(board_of(debt("t", kept, others=others, counted=small(50), target_bytes=1_000)))
    assert found["table_due_partitions", "lake", "lake.db.t"] == 1 + 3
    assert found["table_debt_files", "lake", "lake.db.t"] == 5 + (18 - 3), "each of the others keeps one file"
    assert found["table_small_files", "lake", "lake.db.t"] == 50
    found = exposed(board_of(debt("t", kept, others=others, counted=small(50), target_bytes=10)))
    assert found["table_debt_files", "lake", "lake.db.t"] == 0 + (18 - 9), "or as many as the target asks"


def test_small_files_that_are_not_due_are_no_debt():
    """Else a partition that still fills up, or is left alone for a reason, would be a backlog for ever."""
    others = Remainder(partitions=4, small_files=20, small_bytes=100)
    board = board_of(debt("t", partition({}, small(5_000)), others=others, target_bytes=1_000))
    assert exposed(board)["table_debt_files", "lake", "lake.db.t"] == 0


def test_a_table_is_late_only_outside_quiet_hours_and_while_no_run_works_on_it():
    late = [debt(name, partition({}, small(4), due=True), due_since=NOW - 100) for name in ("waits", "runs")]
    board = board_of(*late, debt("not_due", partition({}, small(4))))
    work = Work(working=frozenset({TableName("lake", ("db",), "runs")}), late=7)
    found = exposed(board, work=work, counting=Counting(3, 15), open_share=0.5)
    assert of_tables(found, "table_due_seconds") == {"waits": 50, "runs": 0, "not_due": 0}
    assert (found["late_tables",], found["uncounted_tables",]) == (7, 12)


def test_a_stale_table_keeps_its_counts_and_one_whose_count_goes_on_is_not_stale():
    """A first start with large tables counts for an hour: no catalog is silent."""
    board = board_of(debt("t", partition({}, small(4))))
    board.mark_stale(TableName("lake", ("db",), "t"), "catalog does not answer")
    board.mark_stale(TableName("lake", ("db",), "never_read"), "not found")
    board.mark_stale(TableName("lake", ("db",), "counts"), "a recount is under way (first_sight)", recounting=True)
    found = exposed(board)
    assert of_tables(found, "table_stale") == {"t": 1, "never_read": 1, "counts": 0}
    assert found["table_files", "lake", "lake.db.t"] == 4
    assert found["stale_tables",] == 2


def test_every_scrape_shows_the_service_of_that_moment():
    service = Service(
        work=Work(3, 2, 61.5, quiet=True, limited=3),
        ready=False,
        active=False,
        observing=True,
        shard=Shard(2, 4),
        rewriting=SlotUse(slots=3, in_use=2),
        space=StateSpace(True, 10),
        memory=Memory({"jvm": 5}, 7),
        settings_refused=True,
        unreadable=2,
    )
    shown = {
        ("queued_runs",): 3,
        ("running_runs",): 2,
        ("oldest_due_seconds",): 61.5,
        ("quiet",): 1,
        ("limited_tables",): 3,
        ("service_ready",): 0,
        ("active",): 0,
        ("observing",): 1,
        ("shard_members", "2"): 4,
        ("slots",): 3,
        ("slots_in_use",): 2,
        ("state_unsaved",): 1,
        ("state_free_bytes",): 10,
        ("memory_bytes", "jvm"): 5,
        ("free_memory_bytes",): 7,
        ("settings_refused",): 1,
        ("unreadable_records",): 2,
    }
    assert exposed(service=service).items() >= shown.items()
    service.work, service.ready, service.rewriting = Work(), True, SlotUse()
    found = exposed(service=service)
    assert (found["queued_runs",], found["quiet",], found["service_ready",], found["slots",]) == (0, 0, 1, 0)


def test_an_empty_board_is_a_clean_exposition_without_what_nobody_knows():
    found = exposed()
    assert (found["tables",], found["late_tables",], found["shard_members", "0"]) == (0, 0, 1)
    assert {series[0] for series in found if len(series) > 1} == {"build_info", "shard_members"}
    assert next(series for series in found if series[0] == "build_info")[1] == "1.2"
    assert not {("state_free_bytes",), ("state_unsaved",), ("free_memory_bytes",)} & found.keys()


def test_tables_of_another_firnline_count_for_a_day_after_its_last_rewrite():
    tables = []
    for name, ages in {"a": [60], "b": [90_000, 80_000], "c": [90_000], "d": []}.items():
        others = tuple(OtherCompactor(f"firnline.deployment-id={age}", 1, 5, NOW - age) for age in ages)
        tables.append(debt(name, other_firnlines=others))
    assert exposed(board_of(*tables))["other_firnline_tables",] == 2


def test_catalogs_are_labelled_as_the_recorder_does_and_those_without_a_name_of_their_own_share_one() -> None:
    """As `firnline_catalog_available`: an alert leaves out the tables of catalogs that do not answer."""
    found = exposed(
        waiting_looks={"lake": 7, "sé": 2, "sò": 3}, listed={"lake": True, "sé": True, "sò": False, "old": False}
    )
    assert {key[1]: value for key, value in found.items() if key[0] == "waiting_looks"} == {"lake": 7, "other": 5}
    assert {key[1]: value for key, value in found.items() if key[0] == "catalog_listed"} == {
        "lake": 1, "other": 0, "old": 0
    }  # fmt: skip


def test_a_vanished_table_vanishes_from_the_exposition():
    board = board_of(debt("t", partition({}, small(2))), debt("dropped", partition({}, small(1))))
    assert of_tables(exposed(board), "table_files") == {"t": 2, "dropped": 1}
    board.forget(TableName("lake", ("db",), "dropped"))
    board.put(debt("t", partition({}, small(1))))
    assert of_tables(exposed(board), "table_files") == {"t": 1}


def test_worst_tables_come_first_and_all_count_in_the_sums():
    board = board_of(*(debt(f"t{number}", partition({}, small(number % 5))) for number in range(7)))
    board.put(debt("stale", partition({}, small(9)), stale="gone"))
    found = exposed(board, most=3)
    assert list(of_tables(found, "table_files")) == ["stale", "t4", "t3"]
    assert (found["tables",], found["stale_tables",]) == (8, 1)
    found = exposed(board, most=0)
    assert not of_tables(found, "table_files")
    assert found["stale_tables",] == 1


def test_tables_that_alerts_are_about_have_series_before_those_with_most_small_files():
    board = board_of(
        debt("worst", partition({}, small(9))),
        debt("second", partition({}, small(8)), due_since=NOW - STARVING_SECONDS, acted_on=True),
        debt("watched", due_since=NOW - 9_000),
        debt("recounting", stale="a recount is under way", recounting=True),
        debt("late", due_since=NOW - 5_000, acted_on=True),
        debt("latest", due_since=NOW - 9_000, acted_on=True),
    )
    board.mark_stale(TableName("lake", ("db",), "unreadable"), "never counted")
    named = list(of_tables(exposed(board), "table_files"))
    assert named[:5] == ["unreadable", "latest", "late", "worst", "second"]
    assert len(named) == 7


def test_ten_thousand_tables_are_bounded_and_quick():
    board = DebtBoard()
    for number in range(10_000):
        days = (partition({"day": day}, small(number + day), due=True) for day in range(5))
        board.put(debt(f"t{number:05}", *days))
    registry = CollectorRegistry()
    registry.register(Gauges(board, Service(), "1"))
    generate_latest(registry)
    started = time.process_time()
    text = generate_latest(registry).decode()
    assert time.process_time() - started < 5, "a scrape times out after 10 seconds"
    lines = text.splitlines()
    tables = [line for line in lines if line.startswith("firnline_table_small_files{")]
    assert len(tables) == 5_000
    assert 'table="lake.db.t09999"' in tables[0]
    assert sum("firnline_" in line and not line.startswith("#") for line in lines) < 5_000 * 11 + 40


def test_hostile_names_keep_the_exposition_readable():
    registry = CollectorRegistry()
    registry.register(Gauges(hostile_board(), Service(), '1"\n'))
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    generate_openmetrics(registry).decode()
    tables = [sample for family in families for sample in family.samples if family.name == "firnline_table_files"]
    hostile = 'ev"il\\%0A<script>alert(1)</script>{a="b"}%D800%2Ex'
    assert [sample.labels for sample in tables] == [{"catalog": "lake", "table": f"lake.{hostile}..{hostile}"}]


@pytest.mark.parametrize(
    "names",
    [[(("a", "b"), "c"), (("a.b",), "c"), (("a",), "b.c"), (("a%2Eb",), "c"), (("a\nb",), "c"), (("a%0Ab",), "c")]],
)
def test_labels_of_different_tables_differ(names):
    assert len({table_label(TableName("lake", *name)) for name in names}) == len(names)


parts = st.text(alphabet='ab./%=" \n\ud800', max_size=3)


@given(st.tuples(parts, parts, parts), st.tuples(parts, parts, parts))
def test_table_label_tells_tables_of_one_depth_apart(first, second):
    labels = {table_label(TableName(one[0], (one[1],), one[2])) for one in (first, second)}
    assert len(labels) == len({first, second})


def test_registering_asks_nobody_and_refuses_a_second_collector():
    class Unread(DebtBoard):
        def tables(self):
            raise AssertionError("read")

    registry = CollectorRegistry()
    registry.register(Gauges(Unread(), Service(), "1"))
    with pytest.raises(DuplicateTimeseries):
        registry.register(Gauges(Unread(), Service(), "1"))


def test_paused_tables_are_those_that_would_be_rewritten():
    named = {"a": True, "b": True, "seen": False}
    board = board_of(*(debt(name, acted_on=acted_on, due_since=NOW - 9) for name, acted_on in named.items()))
    found = exposed(board, current_pauses=(Pause("db.a", 0.0), Pause("db.seen", 0.0)))
    assert found["paused_tables",] == 1
    assert of_tables(found, "table_acted_on") == {"a": 0, "b": 1, "seen": 0}
    assert of_tables(found, "table_due_seconds") == {"a": 0, "b": 9, "seen": 0}, "nobody is paged for what is wanted"
    assert exposed(board, held_at=NOW - 2)["table_due_seconds", "lake", "lake.db.a"] == 2


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(0, 9)), st.integers(2, 5))
def test_hosts_are_bounded_and_no_task_is_lost(tasks: dict[str, int], most: int) -> None:
    shown = bounded(tasks, most)
    assert len(shown) <= most
    assert sum(count for _, count in shown) == sum(tasks.values())
    if len(tasks) > most:
        assert shown[-1][0] == OTHER_HOSTS
        named = {host for host, _ in shown[:-1]}
        assert all(tasks[host] <= min(tasks[each] for each in named) for host in tasks.keys() - named)
