"""Real writers beside one service: is each commit heard within 3 s, does no writer fail, is every row there at the end?

    python -m tests.writers [--minutes 5] [--seed 1] [--output json]

Kafka Connect with Iceberg's sink, a Flink job with upserts, Spark Structured Streaming and PyIceberg, each as its users
run it: only catalog properties and connector settings announce commits to firnline, and for PyIceberg three lines. A
real broker, Iceberg's REST catalog and an S3 server; one service that compacts meanwhile, whose sweeps come too rarely
to find a commit. Latency: from the timestamp of a snapshot to the count of it, or of a later one, in the ledger.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.benchmarks.fleet.processes import machine_seconds
from tests.benchmarks.machine import description
from tests.services.waiting import wait_for
from tests.writers.announced import announced, read
from tests.writers.connect_writer import ConnectWriter
from tests.writers.flink_writer import FlinkWriter
from tests.writers.judgement import Facts, counts_of, differences, heard, wrong_with, wrong_with_service
from tests.writers.pyiceberg_writers import PyIcebergWriter
from tests.writers.report import Outcome, document, shown
from tests.writers.rows_topic import RowsTopic
from tests.writers.spark_writer import SparkWriter
from tests.writers.stage import CATALOG, COMMIT_TOPIC, CONTROL_TOPIC, Stage, Target, staged
from tests.writers.writer import Writer

COMMIT_SECONDS = 5.0
RATE = 100.0  # rows a second on the topic, and changes a second in Flink
LAST_COUNT_SECONDS = 30.0
KINDS: Sequence[type[Writer]] = (ConnectWriter, FlinkWriter, SparkWriter, PyIcebergWriter)


def writers_of(stage: Stage, source: RowsTopic, seed: int) -> list[Writer]:
    return [
        ConnectWriter(stage, source),
        FlinkWriter(stage, RATE, seed),
        SparkWriter(stage, source),
        PyIcebergWriter(stage, COMMIT_SECONDS, seed),
    ]


def run(stage: Stage, options: argparse.Namespace, say: Callable[[str], None]) -> Outcome:
    """Start the writers one after the other, let them write, end them, and judge."""
    with ExitStack() as stack:
        source = RowsTopic(stage.broker, RATE, options.seed)
        stack.callback(source.close)
        writers = writers_of(stage, source, options.seed)
        for writer in writers:
            stack.callback(writer.close)
        source.start()
        for writer in writers:
            start(stage, writer, say)
        begin, used = time.time(), machine_seconds()
        say(f"all commit; measured for {options.minutes:g} minutes")
        while (left := begin + options.minutes * 60 - time.time()) > 0:
            stage.service.must_run()
            time.sleep(min(left, 5.0))
        end, used = time.time(), machine_seconds() - used
        say("the writers end …")
        source.stop()
        for writer in reversed(writers):  # sinks of the topic need time for their last rows
            writer.finish()
        wait_for_last_counts(stage, writers)
        say("rows are compared …")
        facts = facts_of(stage, writers, begin, end)
    events = stage.events()
    wrong = {what: seen for each in facts for what, seen in wrong_with(each).items()}
    wrong |= wrong_with_service(events)
    if source.failures:
        wrong["every row is sent to the topic"] = source.failures[0]
    rewrites = sum(event["event"] == "RunCommitted" for event in events)
    return Outcome(facts, wrong, end - begin, used / (end - begin), rewrites)


def start(stage: Stage, writer: Writer, say: Callable[[str], None]) -> None:
    """Start a writer and wait for its first commits, so that no start of a process falls into the measured time."""
    started = time.monotonic()
    writer.start()
    names = " and ".join(target.name for target in writer.targets)

    def all_commit() -> bool:
        assert not writer.failures, f"{names}: {writer.failures[0]}"
        return all(stage.commits(target.table) for target in writer.targets)

    wait_for(f"{names} to commit", all_commit, every=1.0)
    say(f"{names}: commits {time.monotonic() - started:.0f} s after the start")


def wait_for_last_counts(stage: Stage, writers: Sequence[Writer]) -> None:
    """Give the service time for the last commits. What it has not counted then is judged as never heard."""
    tables = [target.table for writer in writers for target in writer.targets]

    def all_counted() -> bool:
        events = stage.events()
        return all(
            each.seconds is not None
            for table in tables
            for each in heard(stage.commits(table), counts_of(f"{CATALOG}.db.{table}", events))
        )

    deadline = time.monotonic() + LAST_COUNT_SECONDS
    while not all_counted() and time.monotonic() < deadline:
        time.sleep(0.5)


def facts_of(stage: Stage, writers: Sequence[Writer], begin: float, end: float) -> list[Facts]:
    named = announced(read(stage.broker, [COMMIT_TOPIC, CONTROL_TOPIC]))
    events = stage.events()
    return [
        _facts(stage, writer, target, events, named.get(target.table, frozenset()), (begin, end))
        for writer in writers
        for target in writer.targets
    ]


def _facts(
    stage: Stage,
    writer: Writer,
    target: Target,
    events: Sequence[dict[str, Any]],
    named: frozenset[int],
    measured: tuple[float, float],
) -> Facts:
    table = f"{CATALOG}.db.{target.table}"
    found = heard(stage.commits(target.table), counts_of(table, events))
    return Facts(
        name=target.name,
        table=target.table,
        announced_by=target.announced_by,
        heard=[each for each in found if measured[0] <= each.commit.at],
        starting=[each for each in found if each.commit.at < measured[0]],
        announced=named,
        rows=len(writer.rows),
        differences=differences(writer.rows, stage.rows(target.table)),
        retries=writer.retries if target is writer.targets[0] else None,
        failures=writer.failures,
        rewrites=sum(event["event"] == "RunCommitted" and event["table"] == table for event in events),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5, help="of the measured time, after all writers have started")
    parser.add_argument("--seed", type=int, default=1, help="of rows, keys and deletions")
    parser.add_argument("--folder", type=Path, help="keep logs and tables here; else in a temporary folder")
    parser.add_argument("--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    console = Console(stderr=True, width=220, highlight=False)
    targets = [target for kind in KINDS for target in kind.targets]
    with ExitStack() as stack:
        if options.folder is not None:
            options.folder.mkdir(parents=True)
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="writers-")))
        machine = description(folder)
        console.print(machine)
        stage = stack.enter_context(staged(folder.resolve(), targets))
        console.print(f"the service is ready; tables: {', '.join(target.table for target in targets)}")
        outcome = run(stage, options, console.print)
    if options.output == "json":
        print(json.dumps(document(outcome, options.seed, machine), indent=1))
    else:
        Console(width=220, highlight=False).print(shown(outcome))
    console.print(
        f"the service rewrote {outcome.rewrites} times; {outcome.busy_cores:.1f} cores were busy on the whole machine"
    )
    for what, seen in outcome.wrong.items():
        console.print(f"[red]wrong[/] {what}: {seen}")
    return int(bool(outcome.wrong))


if __name__ == "__main__":
    sys.exit(main())
