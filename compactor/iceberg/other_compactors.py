"""Who else compacts a table: known by `replace` snapshots that took data files and carry no run id of ours. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

RUN_ID = "firnline.run-id"
"""The key of our run's id in the summaries of our snapshots."""
NAME_KEYS = ("engine-name", "app-id", "spark.app.id", "flink.job-id")
DAY_SECONDS = 86_400.0


@dataclass(frozen=True)
class OtherCompactor:
    """One that rewrote data files of the table within the last day.

    Attributes:
        name: What its commits say of it, as key=value; `unknown` if nothing.
        commits: How many rewrites are retained.
        files: Data files they took.
    """

    name: str
    commits: int
    files: int


def other_compactors(metadata: TableMetadata, now: float) -> tuple[OtherCompactor, ...]:
    """Everybody but us, the busiest first; `now` in seconds since the epoch. Rewrites of manifests are none."""
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
