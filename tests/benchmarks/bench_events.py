"""How many commit events of each format does one core decode in a second?

The events are the fixtures of `tests/contracts/fixtures/` that announce a commit, in turn. Decoding is what Spark's
Python worker does with each record: find the decoder, parse, check, build the result. `mixed` has events of all
formats, `ignored` valid events about no commit, `damaged` mutations of all fixtures. "Only asked" is the part of
decoding that asks all decoders whether they recognise the event. The time is the processor's, and the best of several
rounds.

    python -m tests.benchmarks.bench_events [--events 20000] [--rounds 5]
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice

from streaming.commit_events.decoder import RawEvent, changes_of, decode
from streaming.commit_events.formats import BY_NAME, DECODERS
from tests.benchmarks.harness import bench_folder, options_of, show
from tests.contracts.commit_event_fixtures import FIXTURES
from tests.contracts.commit_event_mutations import mutated_events


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--events", type=int, default=20_000, help="Events of each kind in a round.")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with bench_folder(options.folder) as (_, console):
        rows = [_measured(kind, events, options.rounds) for kind, events in _kinds(options.events)]
        show(console, "", ("events", "bytes", "events/s", "events/s, format set", "events/s, only asked"), rows)


def _kinds(count: int) -> Iterator[tuple[str, Sequence[RawEvent]]]:
    commits = [fixture for fixture in FIXTURES if changes_of(fixture.answer)]
    for source in BY_NAME:
        yield source, _times(count, [fixture.event for fixture in commits if fixture.source == source])
    yield "mixed", _times(count, [fixture.event for fixture in commits])
    yield "ignored", _times(count, [fixture.event for fixture in FIXTURES if not changes_of(fixture.answer)])
    yield "damaged", tuple(mutated_events(1, count))


def _times(count: int, events: Sequence[RawEvent]) -> Sequence[RawEvent]:
    return tuple(islice(cycle(events), count))


def _measured(kind: str, events: Sequence[RawEvent], rounds: int) -> list[str]:
    """Average size, then events in a second of one core: of a topic without a format, with one, and only asked."""
    decoders = {"": DECODERS, **({"own": (BY_NAME[kind],)} if kind in BY_NAME else {})}
    found = {
        name: _per_second(events, lambda event, own=own: decode(event, own), rounds) for name, own in decoders.items()
    }
    asked = _per_second(events, lambda event: [each.recognises(event) for each in DECODERS], rounds)
    size = sum(len(event.value or b"") for event in events) / len(events)
    fixed = f"{found['own']:,.0f}" if "own" in found else ""
    return [kind, f"{size:,.0f}", f"{found['']:,.0f}", fixed, f"{asked:,.0f}"]


def _per_second(events: Sequence[RawEvent], work: Callable[[RawEvent], object], rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        started = time.process_time()
        for event in events:
            work(event)
        seconds.append(time.process_time() - started)
    return len(events) / min(seconds)


if __name__ == "__main__":
    main()
