"""The collector shows the board as it is, bounded, and forgets what the board forgets."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import DuplicateTimeseries

from compactor.debt.board import DebtBoard, PartitionCounts, PartitionDebt, Remainder, TableDebt
from compactor.debt.manifest_debt import ManifestCounts
from compactor.iceberg.other_compactors import OtherCompactor
from compactor.partitions import PartitionKey
from compactor.runs.dispatcher import Work
from compactor.runs.work_order import STARVING_SECONDS
from compactor.shards import Shard
from compactor.table_names import TableName
from metrics.debt_collector import (
    DebtCollector,
    table_label,
)

NOW = 1_000_000.0
HOSTILE = 'ev"il\\\n<script>alert(1)</script>{a="b"}\ud800.x'


def partition(values, counts, *, spec_id=0, bucket=None, due=False) -> PartitionDebt:
    key = PartitionKey(spec_id, json.dumps(list(values.values())))
    return PartitionDebt(key, values, bucket, counts, due, "because")


def debt(name, *partitions, **more) -> TableDebt:
    table = name if isinstance(name, TableName) else TableName("lake", ("db",), name)
    return TableDebt(table, 1, {one.key: one for one in partitions}, **more)


def small(files: int) -> PartitionCounts:
    return PartitionCounts(data_files=files, small_files=files, data_bytes=files, small_bytes=files)


def hostile_board() -> DebtBoard:
    board = DebtBoard()
    counts = PartitionCounts(5, 4, 50, 40, 1, 500, 2)
    board.put(debt(TableName("lake", (HOSTILE, ""), HOSTILE), partition({HOSTILE: HOSTILE, "b": 3}, counts, bucket=3)))
    return board


def exposed(board, *, work=Work, ready=lambda: True, **more):
    """(name without namespace, label values) → value."""
    collector = DebtCollector(board, work, ready, version="1.2", clock=lambda: NOW, **more)
    return samples(collector)


def samples(collector):
    found = {}
    for family in collector.collect():
        for sample in family.samples:
            series = (sample.name.removeprefix("firnline_"), *sample.labels.values())
            assert series not in found, "a series twice would spoil the whole scrape"
            found[series] = sample.value
    return found


def test_table_series_hold_the_sums_of_all_partitions():
    board = DebtBoard()
    board.put(
        debt(
            "t",
            partition({"day": "1"}, PartitionCounts(10, 8, 1_000, 400, 3, 70, 6), due=True),
            partition({"day": "2"}, PartitionCounts(5, 1, 2_000, 30, 4, 80, 0)),
            acted_on=True,
            due_since=NOW - 40,
            manifests=ManifestCounts(12, 3_400, 5, 2.5),
            target_bytes=150,
        )
    )
    found = exposed(board)
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


def test_each_table_has_its_own_target_size():
    board = DebtBoard()
    for name, target in (("big", 1_000), ("tiny", 200), ("unknown", None)):
        board.put(debt(name, partition({}, PartitionCounts(6, 6, 600, 600, 0, 1, 0), due=True), target_bytes=target))
    found = exposed(board)
    assert found["table_debt_files", "lake", "lake.db.big"] == 5
    assert found["table_debt_files", "lake", "lake.db.tiny"] == 3
    assert found["table_debt_files", "lake", "lake.db.unknown"] == 5, "Iceberg's default target holds all of them"


def test_partitions_without_an_object_of_their_own_are_in_the_sums():
    """Of a million partitions, the board keeps the worst and sums over the others."""
    board = DebtBoard()
    kept = partition({"day": "1"}, PartitionCounts(6, 6, 600, 600, 0, 1, 0), due=True)
    others = Remainder(partitions=4, small_files=20, small_bytes=100, due_partitions=3, due_files=18, due_bytes=90)
    board.put(debt("t", kept, others=others, counted=small(50), target_bytes=1_000))
    found = exposed(board)
    assert found["table_due_partitions", "lake", "lake.db.t"] == 1 + 3
    assert found["table_debt_files", "lake", "lake.db.t"] == 5 + (18 - 3), "each of the others keeps one file"
    assert found["table_small_files", "lake", "lake.db.t"] == 50
    board.put(debt("t", kept, others=others, counted=small(50), target_bytes=10))
    assert exposed(board)["table_debt_files", "lake", "lake.db.t"] == 0 + (18 - 9), "or as many as the target asks"


@pytest.mark.parametrize(
    ("counts", "removable"),
    [
        (PartitionCounts(9, 0, 900, 0, 0, 1, 0), 0),
        (PartitionCounts(4, 4, 0, 0, 0, 0, 0), 3),
        (PartitionCounts(3, 3, 300, 300, 0, 1, 0), 0),
        (PartitionCounts(2, 2, 500, 500, 0, 1, 0), 0),
    ],
)
def test_debt_is_never_negative_and_a_rewrite_leaves_one_file(counts, removable):
    board = DebtBoard()
    board.put(debt("t", partition({}, counts, due=True), target_bytes=100))
    assert exposed(board)["table_debt_files", "lake", "lake.db.t"] == removable


def test_small_files_that_are_not_due_are_no_debt():
    """Else a partition that still fills up, or is left alone for a reason, would be a backlog for ever."""
    board = DebtBoard()
    others = Remainder(partitions=4, small_files=20, small_bytes=100)
    board.put(debt("t", partition({}, small(5_000)), others=others, target_bytes=1_000))
    assert exposed(board)["table_debt_files", "lake", "lake.db.t"] == 0


def test_a_table_is_late_only_outside_quiet_hours_and_while_no_run_works_on_it():
    board = DebtBoard()
    for name in ("waits", "runs"):
        board.put(debt(name, partition({}, small(4), due=True), due_since=NOW - 100))
    board.put(debt("not_due", partition({}, small(4))))
    work = Work(working=frozenset({TableName("lake", ("db",), "runs")}), late=7)
    found = exposed(board, work=lambda: work, uncounted=lambda: 12, open_seconds=lambda since, now: (now - since) / 2)
    due = {name: found["table_due_seconds", "lake", f"lake.db.{name}"] for name in ("waits", "runs", "not_due")}
    assert due == {"waits": 50, "runs": 0, "not_due": 0}
    assert (found["late_tables",], found["uncounted_tables",]) == (7, 12)


def test_a_table_whose_count_goes_on_is_not_unreadable():
    """A first start with large tables counts for an hour: no catalog is silent."""
    board = DebtBoard()
    table = TableName("lake", ("db",), "t")
    board.mark_stale(table, "a recount is under way (first_sight)", recounting=True)
    assert (exposed(board)["table_stale", "lake", "lake.db.t"], exposed(board)["stale_tables",]) == (0, 0)
    board.mark_stale(table, "no answer")
    assert (exposed(board)["table_stale", "lake", "lake.db.t"], exposed(board)["stale_tables",]) == (1, 1)


def test_stale_table_keeps_its_last_counts_and_says_so():
    board = DebtBoard()
    board.put(debt("t", partition({}, small(4))))
    board.mark_stale(TableName("lake", ("db",), "t"), "catalog does not answer")
    board.mark_stale(TableName("lake", ("db",), "never_read"), "not found")
    found = exposed(board)
    assert found["table_stale", "lake", "lake.db.t"] == 1
    assert found["table_files", "lake", "lake.db.t"] == 4
    assert found["table_stale", "lake", "lake.db.never_read"] == 1
    assert found["stale_tables",] == 2


def test_work_readiness_and_build_are_read_at_scrape_time():
    work, ready = [Work(3, 2, 61.5)], [False]
    collector = DebtCollector(DebtBoard(), lambda: work[0], lambda: ready[0], version="1.2", clock=lambda: NOW)
    first = samples(collector)
    assert (first["queued_runs",], first["running_runs",], first["oldest_due_seconds",]) == (3, 2, 61.5)
    assert first["service_ready",] == 0
    assert next(labels for (name, *labels) in first if name == "build_info")[0] == "1.2"
    work[0], ready[0] = Work(), True
    second = samples(collector)
    assert (second["queued_runs",], second["service_ready",]) == (0, 1)


def test_the_services_that_divide_the_tables_are_shown_by_their_number():
    assert exposed(DebtBoard())["shard_members", "0"] == 1  # a service without others
    collector = DebtCollector(DebtBoard(), Work, lambda: True, version="1", shard=Shard(2, 4))
    assert samples(collector)["shard_members", "2"] == 4


@pytest.mark.parametrize("observing", [False, True])
def test_a_service_that_only_observes_says_so(observing: bool):
    collector = DebtCollector(DebtBoard(), Work, lambda: True, version="1", observing=observing)
    assert samples(collector)["observing",] == observing


def test_whether_the_service_is_active_is_read_at_scrape_time():
    active = [False]
    collector = DebtCollector(DebtBoard(), Work, lambda: True, version="1", active=lambda: active[0])
    assert samples(collector)["active",] == 0
    active[0] = True
    assert samples(collector)["active",] == 1


def test_tables_of_another_firnline_count_for_a_day_after_its_last_rewrite():
    board = DebtBoard()
    for name, ages in {"a": [60], "b": [90_000, 80_000], "c": [90_000], "d": []}.items():
        others = tuple(OtherCompactor(f"firnline.deployment-id={age}", 1, 5, NOW - age) for age in ages)
        board.put(TableDebt(TableName("lake", ("db",), name), other_firnlines=others))
    assert exposed(board)["other_firnline_tables",] == 2


def test_waiting_looks_are_read_at_scrape_time_by_catalog() -> None:
    """Labelled as `firnline_catalog_available` is: an alert leaves out the tables of catalogs that do not answer."""
    waiting = {"lake": 7, "sé": 2, "sò": 3}
    collector = DebtCollector(DebtBoard(), Work, lambda: True, version="1", waiting_looks=lambda: waiting)
    found = samples(collector)
    assert (found["waiting_looks", "lake"], found["waiting_looks", "other"]) == (7, 5)
    waiting["lake"] = 0
    assert samples(collector)["waiting_looks", "lake"] == 0


def test_a_catalog_that_cannot_be_listed_is_0_also_among_those_without_a_name_of_their_own() -> None:
    listed = {"lake": True, "sé": True, "sò": False, "old": False}
    found = exposed(DebtBoard(), listed=lambda: listed)
    assert {key[1]: value for key, value in found.items() if key[0] == "catalog_listed"} == {
        "lake": 1, "other": 0, "old": 0
    }  # fmt: skip
    assert not [key for key in exposed(DebtBoard()) if key[0] == "catalog_listed"], "not before a listing has ended"


def test_empty_board_is_a_clean_exposition():
    found = exposed(DebtBoard())
    assert (found["tables",], found["late_tables",]) == (0, 0)
    assert not [series for series in found if len(series) > 1 and series[0] not in ("build_info", "shard_members")]


def test_a_vanished_table_vanishes_from_the_exposition():
    board = DebtBoard()
    board.put(debt("t", partition({}, small(2))))
    board.put(debt("dropped", partition({}, small(1))))
    registry = CollectorRegistry()
    registry.register(DebtCollector(board, Work, lambda: True, version="1", clock=lambda: NOW))
    before = generate_latest(registry).decode()
    assert 'table="lake.db.dropped"' in before
    board.forget(TableName("lake", ("db",), "dropped"))
    after = generate_latest(registry).decode()
    assert "dropped" not in after
    assert 'firnline_table_files{catalog="lake",table="lake.db.t"} 2.0' in after


def test_rewritten_table_is_summed_again_and_an_unchanged_one_is_not():
    board = DebtBoard()
    collector = DebtCollector(board, Work, lambda: True, version="1")
    board.put(debt("a", partition({}, small(5))))
    board.put(debt("b", partition({}, small(5))))
    first = {summary.table.name: summary for summary in collector.summaries()}
    board.put(debt("b", partition({}, small(1))))
    assert samples(collector)["table_files", "lake", "lake.db.b"] == 1
    second = {summary.table.name: summary for summary in collector.summaries()}
    assert second["a"] is first["a"]
    assert second["b"] is not first["b"]


def test_worst_tables_come_first():
    board = DebtBoard()
    for number in range(7):
        board.put(debt(f"t{number}", partition({}, small(number % 5))))
    found = exposed(board, max_tables=3)
    assert [series[2] for series in found if series[0] == "table_files"] == ["lake.db.t4", "lake.db.t3", "lake.db.t2"]
    assert found["tables",] == 7


def test_table_left_out_still_counts_as_stale():
    board = DebtBoard()
    board.put(debt("shown", partition({}, small(9)), stale="gone"))
    board.put(debt("stale", stale="gone", acted_on=True))
    found = exposed(board, max_tables=1)
    assert not [series for series in found if "lake.db.stale" in series]
    assert found["stale_tables",] == 2


def test_tables_that_alerts_are_about_have_series_before_those_with_most_small_files():
    board = DebtBoard()
    board.put(debt("worst", partition({}, small(9))))
    board.put(debt("second", partition({}, small(8)), due_since=NOW - STARVING_SECONDS, acted_on=True))
    board.put(debt("watched", due_since=NOW - 9_000))
    board.put(debt("recounting", stale="a recount is under way", recounting=True))
    board.put(debt("late", due_since=NOW - 5_000, acted_on=True))
    board.put(debt("latest", due_since=NOW - 9_000, acted_on=True))
    board.mark_stale(TableName("lake", ("db",), "unreadable"), "never counted")

    def named(limit):
        found = exposed(board, max_tables=limit)
        return [series[2].removeprefix("lake.db.") for series in found if series[0] == "table_files"]

    assert named(5) == ["unreadable", "latest", "late", "worst", "second"]
    assert len(named(100)) == 7


@pytest.mark.parametrize("limit", [0, 1])
def test_limits_hold_at_their_edges(limit):
    board = DebtBoard()
    for name in "ab":
        board.put(debt(name, partition({"p": 1}, small(1)), partition({"p": 2}, small(1))))
    found = exposed(board, max_tables=limit)
    assert len([series for series in found if series[0] == "table_files"]) == limit


def test_ten_thousand_tables_are_bounded_and_quick():
    board = DebtBoard()
    for number in range(10_000):
        days = (partition({"day": day}, small(number + day), due=True) for day in range(5))
        board.put(debt(f"t{number:05}", *days))
    registry = CollectorRegistry()
    registry.register(DebtCollector(board, Work, lambda: True, version="1"))
    generate_latest(registry)
    started = time.process_time()
    text = generate_latest(registry).decode()
    assert time.process_time() - started < 5, "a scrape times out after 10 seconds"
    lines = text.splitlines()
    tables = [line for line in lines if line.startswith("firnline_table_small_files{")]
    assert len(tables) == 5_000
    assert 'table="lake.db.t09999"' in tables[0]
    assert sum("firnline_" in line and not line.startswith("#") for line in lines) < 5_000 * 11 + 25


def test_hostile_names_keep_the_exposition_readable():
    registry = CollectorRegistry()
    registry.register(DebtCollector(hostile_board(), Work, lambda: True, version='1"\n'))
    families = list(text_string_to_metric_families(generate_latest(registry).decode()))
    generate_openmetrics(registry).decode()
    tables = [sample for family in families for sample in family.samples if family.name == "firnline_table_files"]
    hostile = 'ev"il\\%0A<script>alert(1)</script>{a="b"}%D800%2Ex'
    assert [sample.labels for sample in tables] == [{"catalog": "lake", "table": f"lake.{hostile}..{hostile}"}]


def test_labels_of_different_tables_differ():
    names = [
        (("a", "b"), "c"),
        (("a.b",), "c"),
        (("a",), "b.c"),
        (("a%2Eb",), "c"),
        (("a\nb",), "c"),
        (("a%0Ab",), "c"),
    ]
    tables = [TableName("lake", *name) for name in names]
    assert len({table_label(table) for table in tables}) == len(names)


parts = st.text(alphabet='ab./%=" \n\ud800', max_size=3)


@given(st.tuples(parts, parts, parts), st.tuples(parts, parts, parts))
def test_table_label_tells_tables_of_one_depth_apart(first, second):
    labels = {table_label(TableName(one[0], (one[1],), one[2])) for one in (first, second)}
    assert len(labels) == len({first, second})


def test_registering_reads_no_board_and_refuses_a_second_collector():
    class Unread(DebtBoard):
        def tables(self):
            raise AssertionError("read")

    registry = CollectorRegistry()
    registry.register(DebtCollector(Unread(), Work, lambda: True, version="1"))
    with pytest.raises(DuplicateTimeseries):
        registry.register(DebtCollector(Unread(), Work, lambda: True, version="1"))


def test_paused_tables_are_those_that_would_be_rewritten():
    board = DebtBoard()
    for name, acted_on in (("a", True), ("b", True), ("seen", False)):
        board.put(debt(name, acted_on=acted_on, due_since=NOW - 9))
    assert exposed(board)["paused_tables",] == 0
    found = exposed(board, paused=lambda table: table.name != "b")
    assert found["paused_tables",] == 1
    acted_on, due = (
        [found[metric, "lake", f"lake.db.{name}"] for name in ("a", "b", "seen")]
        for metric in ("table_acted_on", "table_due_seconds")
    )
    assert (acted_on, due) == ([0, 1, 0], [0, 9, 0]), "nobody is paged for what a person wanted"
    assert exposed(board, held_until=lambda _: NOW - 2)["table_due_seconds", "lake", "lake.db.a"] == 2
