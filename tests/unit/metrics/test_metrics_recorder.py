"""Every event moves the right metrics by the right amounts, and no others."""

from __future__ import annotations

import math
import typing
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from compactor import events
from compactor.events import (
    BatchFinished,
    CatalogAnswers,
    CommitHeld,
    CommitRolledBack,
    CommitUnannounced,
    CommitWaits,
    DeadLettered,
    DeletionRefused,
    EqualityDeletesConverted,
    EventsHeard,
    EventsLost,
    FileDeleted,
    GroupCommitted,
    GroupDropped,
    GroupRewritten,
    HistoryWritten,
    HookFinished,
    HttpEventAnswered,
    LagChanged,
    LedgerUpdated,
    ManifestsRead,
    ManifestsRewritten,
    PartitionsSkipped,
    RunCommitted,
    RunFailed,
    RunMoved,
    RunPlanned,
    RunSkipped,
    RunWouldRewrite,
    StreamEnded,
    TableLooked,
    TableUnreadable,
)
from compactor.partitions import PartitionKey
from compactor.reasons import SIGNS_OF_DAMAGE, Reason
from compactor.table_names import TableName
from metrics.definitions import LOOK_OUTCOMES
from metrics.recorder import Recorder
from streaming.ledger.table_record import Outcome

NOW = 1_700_000_000.5
TABLE = TableName("lake", ("db",), "t")

# Every number is another one, so that a metric fed from a wrong field shows.
PLANNED = RunPlanned("r1", TABLE, groups=2, files=30, bytes=4_000, seconds=0.5)
WAITS = CommitWaits("r3", TABLE, 60.0)
MOVED = RunMoved("r1", TABLE, tasks_done=1, tasks=3, bytes_done=2_100, bytes=4_000)
DROPPED = GroupDropped(
    run_id="run-1",
    table=TABLE,
    key=PartitionKey(0, "[1]"),
    reason="row_count_mismatch",
    reaction="give_up",
    message="10 rows in, 9 written",
)
SKIPPED = RunSkipped(TABLE, "backing_off")
REWRITTEN = GroupRewritten(
    "r1",
    TABLE,
    PartitionKey(0, "[1]"),
    engine="splice",
    reason="same_schema",
    files_in=15,
    files_out=1,
    bytes_in=2_000,
    bytes_out=1_900,
    rows_in=100,
    rows_deleted=3,
    rows_out=97,
    seconds=1.5,
    bytes_decoded=1_200,
)
REPLACED = GroupCommitted(REWRITTEN, snapshot_id=9, delete_files_removed=6, rows_carried=4, rows_rebased=5)
LEFT = PartitionsSkipped(TABLE, 9, "not_due")
COMMITTED = RunCommitted(
    "r1",
    TABLE,
    snapshot_id=9,
    groups=2,
    files_in=30,
    files_out=3,
    bytes_in=4_000,
    bytes_out=3_800,
    plan_seconds=0.5,
    rewrite_seconds=7.0,
    commit_seconds=0.25,
    event_to_compacted_seconds=42.0,
    delete_files_removed=6,
)
FAILED = RunFailed("r1", TABLE, stage="commit", reason="conflict", reaction="replan", message="someone was faster")
WOULD = RunWouldRewrite(TABLE, groups=5, files=60, files_after=6, bytes=7_000)
MANIFESTS = ManifestsRead(TABLE, hits=8, misses=2, bytes_read=512, seconds=0.125, disk_hits=3, unusual=6)
LEDGER = LedgerUpdated(
    table=TABLE,
    snapshot_id=9,
    recount_reason="snapshot_expired",
    event_to_ledger_seconds=3.0,
)
HEARD = EventsHeard({"canonical": 4, "glue": 1})
UNANNOUNCED = CommitUnannounced(TABLE, "glue")
BY_HTTP = HttpEventAnswered("refused")
LOOKED = TableLooked(TABLE, "unchanged")
ANSWERS = CatalogAnswers("lake", available=True)
UNREADABLE = TableUnreadable(TABLE, "not_found", "no such table")
DEAD = DeadLettered("no_decoder", 6)
BATCH = BatchFinished("ledger", seconds=2.0, input_rows=11)
LAG = LagChanged("ledger", 13)
ENDED = StreamEnded("ledger", "kafka_unavailable")
LOST = EventsLost("ledger", 4)
MERGED = ManifestsRewritten(run_id="r2", table=TABLE, before=120, after=3, seconds=1.5)
CONVERTED = EqualityDeletesConverted("r3", TABLE, 12, delete_files=4, rows=90, files=7, bytes_read=4096, seconds=2.5)
HELD = CommitHeld("r3", TABLE, 12.5, after_writer=True)
UNDONE = CommitRolledBack("r3", TABLE, 9)
TOLD = HookFinished(hook="0-trino", table=TABLE, seconds=0.5, error="no answer")
KEPT = HistoryWritten(rows=7)
REMOVED = FileDeleted(TABLE, "r1", "s3://lake/t/data/00000-00000-firnline-r1.parquet", "ended_run")
REFUSED = DeletionRefused(TABLE, "r1", ("s3://lake/t/data/a.parquet",), "it lies outside the table's own locations")

EXAMPLES = (
    PLANNED, SKIPPED, MOVED, REWRITTEN, DROPPED, COMMITTED, FAILED, WOULD, MANIFESTS, LEDGER, UNREADABLE, DEAD, BATCH,
    REMOVED, REFUSED, ENDED, LOST, TOLD, MERGED, CONVERTED, REPLACED, LEFT, KEPT, HEARD, UNANNOUNCED, BY_HTTP,
    LOOKED, ANSWERS, HELD, WAITS, UNDONE, LAG,
)  # fmt: skip

SPLICE = '{engine="splice",reason="same_schema"}'

EXPECTED = {
    RunPlanned: {'run_stage_seconds_sum{stage="plan"}': 0.5, 'run_stage_seconds_count{stage="plan"}': 1},
    HttpEventAnswered: {'http_events_total{result="refused"}': 1},
    HistoryWritten: {'hook_calls_total{hook="history",result="told"}': 1},
    GroupDropped: {
        'dropped_groups_total{reaction="give_up",reason="row_count_mismatch"}': 1,
        'table_damage_total{reason="row_count_mismatch"}': 1,
    },
    RunSkipped: {'runs_skipped_total{reason="backing_off"}': 1},
    GroupRewritten: {f"rewrite_groups_total{SPLICE}": 1, f"rewrite_input_bytes_total{SPLICE}": 2_000},
    RunCommitted: {
        "commits_total": 1,
        "commit_input_files_total": 30,
        "commit_output_files_total": 3,
        "commit_input_bytes_total": 4_000,
        'run_stage_seconds_sum{stage="rewrite"}': 7.0,
        'run_stage_seconds_count{stage="rewrite"}': 1,
        'run_stage_seconds_sum{stage="commit"}': 0.25,
        'run_stage_seconds_count{stage="commit"}': 1,
        "event_to_compacted_seconds_sum": 42.0,
        "event_to_compacted_seconds_count": 1,
    },
    RunFailed: {'run_failures_total{reaction="replan",reason="conflict",stage="commit"}': 1},
    ManifestsRead: {"manifest_cache_misses_total": 2},
    ManifestsRewritten: {"manifests_merged_total": 117},
    HookFinished: {'hook_calls_total{hook="0-trino",result="failed"}': 1},
    LedgerUpdated: {'ledger_recounts_total{reason="snapshot_expired"}': 1},
    EventsHeard: {'events_total{source="canonical"}': 4, 'events_total{source="glue"}': 1},
    CommitUnannounced: {'unannounced_commits_total{source="glue"}': 1},
    TableLooked: {'looks_total{outcome="unchanged"}': 1},
    CatalogAnswers: {'catalog_available{catalog="lake"}': 1},
    StreamEnded: {'stream_ends_total{cause="kafka_unavailable",query="ledger"}': 1},
    EventsLost: {'lost_events_total{query="ledger"}': 4},
    DeadLettered: {'dead_letters_total{reason="no_decoder"}': 6},
    BatchFinished: {'last_batch_timestamp_seconds{query="ledger"}': NOW},
    FileDeleted: {'unreferenced_files_removed_total{reason="ended_run"}': 1},
    LagChanged: {'event_lag_offsets{query="ledger"}': 13},
}
"""Of each event that is counted. All others are for the log, the history or the status page."""


def moved(*told, kinds=("_bucket", "_created")) -> dict[str, float]:
    """Every sample that is not 0 after `told`, without the namespace."""
    registry = CollectorRegistry()
    recorder = Recorder(registry, clock=lambda: NOW)
    for event in told:
        recorder(event)
    found = {}
    for family in registry.collect():
        for sample in family.samples:
            if sample.value and not sample.name.endswith(kinds):
                labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
                found[sample.name.removeprefix("firnline_") + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


def test_examples_hold_every_event_type():
    assert {type(event) for event in EXAMPLES} == set(typing.get_args(events.Event)) >= EXPECTED.keys()


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: type(event).__name__)
def test_event_moves_its_metrics_and_no_others(event):
    assert moved(event) == EXPECTED.get(type(event), {})


def test_a_catalog_that_does_not_answer_is_0_until_it_answers_again():
    registry = CollectorRegistry()
    recorder = Recorder(registry)
    shown = []
    for available in (True, False, True):
        recorder(replace(ANSWERS, available=available))
        shown.append(registry.get_sample_value("firnline_catalog_available", {"catalog": "lake"}))
    assert shown == [1, 0, 1]


def test_every_outcome_of_a_look_is_shown_from_the_start():
    """Prometheus sees the first increase only after a zero."""
    registry = CollectorRegistry()
    Recorder(registry)
    shown = [registry.get_sample_value("firnline_looks_total", {"outcome": outcome}) for outcome in Outcome]
    assert shown == [0] * len(Outcome)
    assert set(LOOK_OUTCOMES) == set(Outcome)


def test_signs_of_damage_are_shown_from_the_start_and_counted_at_the_first_one():
    registry = CollectorRegistry()
    recorder = Recorder(registry)

    def shown() -> dict[str, float | None]:
        return {
            reason: registry.get_sample_value("firnline_table_damage_total", {"reason": reason})
            for reason in SIGNS_OF_DAMAGE
        }

    assert set(shown().values()) == {0}  # Prometheus sees the first increase only after a zero
    recorder(replace(FAILED, reason=Reason.COMMIT_DIFFERS, reaction="give_up"))
    recorder(replace(DROPPED, reason="input_missing"))
    recorder(replace(DROPPED, reason="conflict"))
    recorder(replace(FAILED, reason="unavailable", reaction="retry"))
    recorder(replace(DROPPED, reason="input_missing", reaction="replan"))  # another commit had removed the file
    assert {reason for reason, count in shown().items() if count} == {"commit_differs", "input_missing"}


def test_the_history_counts_as_a_hook_that_fails_for_failed_appends_and_dropped_decisions():
    found = moved(HistoryWritten(rows=0, error="no answer"), HistoryWritten(rows=0, dropped=3))
    assert found == {'hook_calls_total{hook="history",result="failed"}': 2}


@pytest.mark.parametrize("seconds", [-0.2, math.nan, math.inf, -math.inf])
def test_clocks_that_disagree_cost_neither_the_event_nor_the_sum(seconds):
    found = moved(replace(COMMITTED, event_to_compacted_seconds=seconds), COMMITTED)
    assert found["event_to_compacted_seconds_sum"] == 42.0
    assert found["event_to_compacted_seconds_count"] == 2


def test_odd_reasons_share_one_series():
    odd = [RunSkipped(TABLE, f"table {number} is at s3://bucket/{number}") for number in range(50)]
    assert moved(*odd) == {'runs_skipped_total{reason="other"}': 50}


@pytest.mark.parametrize("run_id", ["", "x" * 200])
def test_a_run_id_that_says_nothing_or_too_much_is_no_exemplar(run_id):
    registry = CollectorRegistry()
    Recorder(registry)(replace(REWRITTEN, run_id=run_id))
    labels = {"engine": "splice", "reason": "same_schema"}
    assert registry.get_sample_value("firnline_rewrite_groups_total", labels) == 1
    assert not any(sample.exemplar for family in registry.collect() for sample in family.samples)
