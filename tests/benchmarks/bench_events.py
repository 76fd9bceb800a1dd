"""How many commit events of each format does one core decode in a second?

The events are the fixtures of `tests/contracts/fixtures/` that announce a commit, in turn. Decoding is what Spark's
Python worker does with each record: find the decoder, parse, check, build the result. `mixed` has events of all
formats, `ignored` valid events about no commit, `damaged` mutations of all fixtures. "Only asked" is the part of
decoding that asks all decoders whether they recognise the event. The time is the processor's, and the best of several
rounds.

    python -m tests.benchmarks.bench_events [--events 20000] [--rounds 5] [--output json]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path

from rich.console import Console
from rich.table import Table

from streaming.commit_events.decoder import RawEvent, changes_of, decode
from streaming.commit_events.formats import BY_NAME, DECODERS
from tests.benchmarks.machine import description
from tests.contracts.commit_event_fixtures import FIXTURES
from tests.contracts.commit_event_mutations import mutated_events


@dataclass(frozen=True)
class Throughput:
    """Events of one kind: their average size, and events in a second of one core. `per_second`: of a topic without a
    format. `with_format`: of a topic whose format is set; None for kinds of several formats.
    """

    kind: str
    bytes_per_event: float
    per_second: float
    with_format: float | None
    detect_per_second: float


def main() -> None:
    options = _options()
    console = Console(width=120, stderr=options.output == "json")
    console.print(description(Path()))
    found = [_measured(kind, events, options.rounds) for kind, events in _kinds(options.events)]
    if options.output == "json":
        print(json.dumps([asdict(each) for each in found]))
    else:
        console.print(_table(found))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=20_000, help="Events of each kind in a round.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", choices=["text", "json"], default="text")
    return parser.parse_args()


def _kinds(count: int) -> Iterator[tuple[str, Sequence[RawEvent]]]:
    commits = [fixture for fixture in FIXTURES if changes_of(fixture.answer)]
    for source in BY_NAME:
        yield source, _times(count, [fixture.event for fixture in commits if fixture.source == source])
    yield "mixed", _times(count, [fixture.event for fixture in commits])
    yield "ignored", _times(count, [fixture.event for fixture in FIXTURES if not changes_of(fixture.answer)])
    yield "damaged", tuple(mutated_events(1, count))


def _times(count: int, events: Sequence[RawEvent]) -> Sequence[RawEvent]:
    return tuple(islice(cycle(events), count))


def _measured(kind: str, events: Sequence[RawEvent], rounds: int) -> Throughput:
    own = (BY_NAME[kind],) if kind in BY_NAME else None
    return Throughput(
        kind=kind,
        bytes_per_event=sum(len(event.value or b"") for event in events) / len(events),
        per_second=_per_second(events, lambda event: decode(event, DECODERS), rounds),
        with_format=None if own is None else _per_second(events, lambda event: decode(event, own), rounds),
        detect_per_second=_per_second(events, lambda event: [each.recognises(event) for each in DECODERS], rounds),
    )


def _per_second(events: Sequence[RawEvent], work: Callable[[RawEvent], object], rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        started = time.process_time()
        for event in events:
            work(event)
        seconds.append(time.process_time() - started)
    return len(events) / min(seconds)


def _table(found: Sequence[Throughput]) -> Table:
    table = Table("events", "bytes", "events/s", "events/s, format set", "events/s, only asked")
    for each in found:
        fixed = "" if each.with_format is None else f"{each.with_format:,.0f}"
        asked = f"{each.detect_per_second:,.0f}"
        table.add_row(each.kind, f"{each.bytes_per_event:,.0f}", f"{each.per_second:,.0f}", fixed, asked)
    return table


if __name__ == "__main__":
    main()
