"""From snapshots, counts of the service and journals of the writers to a judgement. Pure.

Times are seconds since the epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tests.benchmarks.fleet.latency import Spread

WANTED_SECONDS = 3.0
"""From a commit to the ledger's count of it: 95 of 100 commits of each writer within this time."""
OWN_COMMITS = frozenset({"RunCommitted", "GroupCommitted", "ManifestsRewritten"})
"""Events of the service after which it looks at the table without an event of a writer."""
SHOWN = 3


class Found(StrEnum):
    """What made the service look at a table."""

    EVENT = "event"
    OWN_COMMIT = "look after a rewrite"
    SWEEP = "sweep"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Commit:
    """A snapshot of a table's main branch. `at`: its timestamp. `writes`: a writer's, not a rewrite of the service."""

    snapshot_id: int
    sequence_number: int
    at: float
    writes: bool = True


@dataclass(frozen=True)
class Count:
    """When the ledger had counted a table up to a snapshot, and what made the service look."""

    at: float
    snapshot_id: int
    found: Found


@dataclass(frozen=True)
class Heard:
    """A writer's commit, and after how many seconds the ledger had counted it; None: never."""

    commit: Commit
    seconds: float | None
    found: Found


def counts_of(table: str, events: Iterable[Mapping[str, Any]]) -> list[Count]:
    """The counts of a table, in order. `events`: the typed events of the service, as watched_service.py writes them.

    A count without a writer's event is the look after a rewrite if one was committed since the last count; else it was
    a sweep.
    """
    found: list[Count] = []
    committed = False
    for event in events:
        if event.get("table") != table:
            continue
        committed = committed or event["event"] in OWN_COMMITS
        if event["event"] != "LedgerUpdated" or event["snapshot_id"] is None:
            continue
        if event["event_to_ledger_seconds"] is not None:
            cause = Found.EVENT
        else:
            cause = Found.OWN_COMMIT if committed else Found.SWEEP
        found.append(Count(event["at"], event["snapshot_id"], cause))
        committed = False
    return found


def heard(commits: Sequence[Commit], counts: Iterable[Count]) -> list[Heard]:
    """Each writer's commit with the first count that covers it: of its snapshot, or of a later one of the table."""
    numbers = {commit.snapshot_id: commit.sequence_number for commit in commits}
    ordered = [(count, numbers.get(count.snapshot_id, -1)) for count in sorted(counts, key=lambda each: each.at)]
    result = []
    for commit in commits:
        if commit.writes:
            first = next((count for count, number in ordered if number >= commit.sequence_number), None)
            seconds = None if first is None else max(0.0, first.at - commit.at)
            result.append(Heard(commit, seconds, Found.NOTHING if first is None else first.found))
    return result


@dataclass(frozen=True)
class Differences:
    """What a table holds, and what its writer wrote. Each list has ids."""

    missing: Sequence[int] = ()
    extra: Sequence[int] = ()
    changed: Sequence[int] = ()
    twice: Sequence[int] = ()

    def __str__(self) -> str:
        named = {
            "missing": self.missing, "not written": self.extra, "with another value": self.changed,
            "more than once": self.twice,
        }  # fmt: skip
        return ", ".join(f"{len(ids)} {what} (e.g. {list(ids[:SHOWN])})" for what, ids in named.items() if ids)


def differences(wanted: Mapping[int, str], found: Iterable[tuple[int, str]]) -> Differences:
    """Compare a journal with the rows of its table. No text: they are equal."""
    rows = list(found)
    values = dict(rows)
    return Differences(
        missing=sorted(wanted.keys() - values.keys()),
        extra=sorted(values.keys() - wanted.keys()),
        changed=sorted(key for key in wanted.keys() & values.keys() if wanted[key] != values[key]),
        twice=sorted(key for key, count in Counter(key for key, _ in rows).items() if count > 1),
    )


@dataclass(frozen=True)
class Facts:
    """What is known of one writer's table at the end.

    Attributes:
        announced_by: How its commits are announced, in words.
        heard: Its commits of the measured time; `starting`: those before, while other writers still started.
        announced: Snapshots that events on the topics name.
        rows: How many its journal has.
        retries: Commits that the writer made again by itself, because another commit came first; None: counted with
            another table of the same program.
        failures: What the writer reported, or why it ended.
        rewrites: Commits of the service to the table.
    """

    name: str
    table: str
    announced_by: str
    heard: Sequence[Heard]
    starting: Sequence[Heard]
    announced: frozenset[int]
    rows: int
    differences: Differences
    retries: int | None
    failures: Sequence[str]
    rewrites: int

    @property
    def latency(self) -> Spread:
        """Seconds from commit to count, of the measured commits that were counted."""
        return Spread.of(each.seconds for each in self.heard if each.seconds is not None)

    @property
    def unannounced(self) -> int:
        """Commits without an event of their own."""
        return sum(each.commit.snapshot_id not in self.announced for each in (*self.starting, *self.heard))

    def found_by(self, found: Found) -> int:
        """Of all commits."""
        return sum(each.found is found for each in (*self.starting, *self.heard))


def wrong_with(facts: Facts, wanted_seconds: float = WANTED_SECONDS) -> dict[str, str]:
    """Broken expectations of one writer, each with what was seen."""
    wrong: dict[str, str] = {}
    if not facts.heard:
        wrong["the writer commits"] = "no commit in the measured time"
    elif facts.latency.p95 > wanted_seconds:
        wrong[f"95 % of the commits are heard within {wanted_seconds:g} s"] = str(facts.latency)
    if facts.found_by(Found.NOTHING):
        wrong["every commit is heard"] = f"{facts.found_by(Found.NOTHING)} were not"
    if facts.found_by(Found.SWEEP):
        wrong["no commit is found by a sweep"] = f"{facts.found_by(Found.SWEEP)} were"
    if facts.unannounced:
        wrong["every commit has an event of its own"] = f"{facts.unannounced} have none"
    if facts.failures:
        wrong["the writer does not fail"] = f"{len(facts.failures)} times: {facts.failures[0]}"
    if str(facts.differences):
        wrong["rows are as written"] = str(facts.differences)
    if not facts.rewrites:
        wrong["the service rewrites the table meanwhile"] = "no rewrite"
    return {f"{facts.name}: {what}": seen for what, seen in wrong.items()}


TROUBLES = ("RunFailed", "DeadLettered", "TableUnreadable", "CommitUnannounced", "StreamEnded", "EventsLost")
"""Events of the service that must not occur."""


def wrong_with_service(events: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Trouble that the service reported. A run that lost a race against a writer's commit is none: it plans again."""
    seen: dict[str, list[str]] = {}
    for event in events:
        if event["event"] in TROUBLES and event.get("reaction") != "replan":
            shown = {name: value for name, value in event.items() if name not in {"at", "event"}}
            seen.setdefault(event["event"], []).append(str(shown)[:500])
    return {f"service: no {name}": f"{len(texts)} times: {texts[0]}" for name, texts in seen.items()}
