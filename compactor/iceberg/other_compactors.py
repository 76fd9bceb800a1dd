"""Find other compactors of a table: `replace` snapshots that removed data files and are not ours. Pure.

Snapshots without our run id are another program's. Snapshots with it name the deployment that made them: another id is
another firnline, e.g. a second installation by mistake. Commits of `firnline compact` may have no id.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from compactor.whole_numbers import whole_number

RUN_ID = "firnline.run-id"
"""The property of our snapshots' summaries that holds the run id."""
DEPLOYMENT = "firnline.deployment-id"
"""The property of our snapshots' summaries that holds the id of the deployment."""
NAME_KEYS = ("engine-name", "app-id", "spark.app.id", "flink.job-id")
UNNAMED = "unknown"
"""A compactor that names itself nowhere, as the optimizer of AWS Glue."""
DAY_SECONDS = 86_400.0
AMORO = ("snapshot.producer", "OPTIMIZE")
"""In the summaries of Apache Amoro's optimizers."""
POLARIS_ROLLBACK = "polaris.internal.conflict-resolution.by-operation-type.replace"
"""In the summaries of compactors that ask Apache Polaris to roll them back rather than fail a writer."""
S3_TABLES = "--table-s3"
"""At the end of the bucket's name of a table in Amazon S3 Tables, whose own compaction names itself nowhere."""
FLINK_CONVERTER = "equality-convert-staging-snapshot"
"""In the summaries of Flink's converter of equality deletes: the snapshot that it converted."""
CONVERTER_LOOKED_AT = 64
CONVERTER_PAUSES = 3
CONVERTER_NAME = "Flink's converter of equality deletes"


@dataclass(frozen=True)
class OtherCompactor:
    """A compactor that rewrote data files of the table within the last day.

    Attributes:
        name: A property that identifies it in its snapshots, as key=value; else `unknown`.
        commits: The number of its rewrites in retained snapshots.
        files: The number of data files that they removed.
        last: When the last of them was committed, in seconds since the epoch.
    """

    name: str
    commits: int
    files: int
    last: float = 0.0

    def plus(self, files: int, at: float) -> OtherCompactor:
        """With one rewrite more."""
        return replace(self, commits=self.commits + 1, files=self.files + files, last=max(self.last, at))


def other_compactors(metadata: TableMetadata, now: float) -> tuple[OtherCompactor, ...]:
    """Other programs that rewrote data files, the busiest first; `now` in seconds since the epoch."""

    def name_of(properties: Mapping[str, str]) -> str | None:
        if RUN_ID in properties:
            return None
        return compactor_name(properties, metadata.location)

    return _found(metadata, now, name_of)


def unlisted_before(snapshots: Iterable[Snapshot], now: float, known: int | None = None) -> float | None:
    """When the oldest listed snapshot of a branch was committed, if others of the last day came before and are not
    listed any more: among them may be another compactor's. In seconds since the epoch; None: there are none.

    Args:
        snapshots: Of the branch, newest first.
        now: In seconds since the epoch.
        known: A snapshot; what came before it does not matter.
    """
    oldest: Snapshot | None = None
    for oldest in snapshots:
        if oldest.snapshot_id == known or oldest.timestamp_ms / 1000 <= now - DAY_SECONDS:
            return None
    if oldest is None or (oldest.parent_snapshot_id is None and (oldest.sequence_number or 0) <= 1):
        return None  # the table's first
    return oldest.timestamp_ms / 1000


def compactor_name(properties: Mapping[str, str], location: str) -> str:
    """The name of the compactor that made a snapshot, from the snapshot's summary and the table's location."""
    if properties.get(AMORO[0]) == AMORO[1]:
        return "Apache Amoro"
    named = next((f"{key}={properties[key]}" for key in NAME_KEYS if key in properties), UNNAMED)
    if named == UNNAMED and urlsplit(location).netloc.endswith(S3_TABLES):
        return "Amazon S3 Tables"
    return f"{named}, rolled back by Apache Polaris on conflict" if POLARIS_ROLLBACK in properties else named


def flink_converts(snapshots: Iterable[Snapshot]) -> bool:
    """Whether Flink's converter of equality deletes works on a branch, whose `snapshots` come newest first.

    It does if it made one of the newest 64; or if it has not been quiet for longer than three of its own pauses,
    because writers may commit more often than 64 times between two conversions. A day of snapshots is looked at.
    Two converters of one table would undo each other's work: each commit of ours makes Flink read all keys again.
    """
    newest, last = 0.0, 0.0
    for number, each in enumerate(snapshots):
        at = each.timestamp_ms / 1000
        newest = newest or at
        converted = each.summary is not None and FLINK_CONVERTER in each.summary.additional_properties
        if converted and number < CONVERTER_LOOKED_AT:
            return True
        if converted and last:
            return newest - last <= CONVERTER_PAUSES * (last - at)
        if number >= CONVERTER_LOOKED_AT and at <= newest - DAY_SECONDS:
            break
        last = at if converted else last
    return last > 0


def other_firnlines(metadata: TableMetadata, now: float, deployment: str) -> tuple[OtherCompactor, ...]:
    """Other deployments of firnline that rewrote data files, the busiest first.

    `deployment`: our id. Empty if it is unknown: then all are returned, if there are at least two.
    """

    def name_of(properties: Mapping[str, str]) -> str | None:
        found = properties.get(DEPLOYMENT, "")
        return f"{DEPLOYMENT}={found}" if RUN_ID in properties and found and found != deployment else None

    found = _found(metadata, now, name_of)
    return found if deployment or len(found) > 1 else ()


def flink_converters(metadata: TableMetadata, now: float) -> tuple[OtherCompactor, ...]:
    """Flink's converter of equality deletes, if it committed within the last day."""
    times = [
        each.timestamp_ms / 1000
        for each in metadata.snapshots
        if each.summary is not None and FLINK_CONVERTER in each.summary.additional_properties
    ]
    times = [at for at in times if at > now - DAY_SECONDS]
    return (OtherCompactor(CONVERTER_NAME, len(times), 0, max(times)),) if times else ()


def _found(
    metadata: TableMetadata, now: float, name_of: Callable[[Mapping[str, str]], str | None]
) -> tuple[OtherCompactor, ...]:
    """Rewrites of the last day by the name that `name_of` gives their snapshots. Manifest rewrites do not count."""
    found: dict[str, OtherCompactor] = {}
    for snapshot in metadata.snapshots:
        summary, at = snapshot.summary, snapshot.timestamp_ms / 1000
        if summary is None or summary.operation is not Operation.REPLACE or at <= now - DAY_SECONDS:
            continue
        properties = summary.additional_properties
        taken = whole_number(properties.get("deleted-data-files", "0")) or 0
        name = name_of(properties) if taken else None
        if name is not None:
            found[name] = found.get(name, OtherCompactor(name, 0, 0)).plus(taken, at)
    return tuple(sorted(found.values(), key=lambda other: -other.commits))
