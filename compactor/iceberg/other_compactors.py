"""Find other compactors of a table: `replace` snapshots that removed data files and carry no run id of ours. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

RUN_ID = "firnline.run-id"
"""The property of our snapshots' summaries that holds the run id."""
NAME_KEYS = ("engine-name", "app-id", "spark.app.id", "flink.job-id")
DAY_SECONDS = 86_400.0


@dataclass(frozen=True)
class OtherCompactor:
    """A compactor that rewrote data files of the table within the last day.

    Attributes:
        name: A property that identifies it in its snapshots, as key=value; else `unknown`.
        commits: The number of its rewrites in retained snapshots.
        files: The number of data files that they removed.
    """

    name: str
    commits: int
    files: int


def other_compactors(metadata: TableMetadata, now: float) -> tuple[OtherCompactor, ...]:
    """The other compactors, the busiest first; `now` in seconds since the epoch. Manifest rewrites do not count."""
    commits: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for snapshot in metadata.snapshots:
        summary = snapshot.summary
        if summary is None or summary.operation is not Operation.REPLACE:
            continue
        properties = summary.additional_properties
        taken = properties.get("deleted-data-files", "0")
        recent = snapshot.timestamp_ms / 1000 > now - DAY_SECONDS
        if RUN_ID in properties or not recent or not taken.isdigit() or not int(taken):
            continue
        name = next((f"{key}={properties[key]}" for key in NAME_KEYS if key in properties), "unknown")
        commits[name] += 1
        files[name] += int(taken)
    return tuple(OtherCompactor(name, times, files[name]) for name, times in commits.most_common())
