"""Find other compactors of a table: `replace` snapshots that removed data files and are not ours. Pure.

Snapshots without our run id are another program's. Snapshots with it name the deployment that made them: another id is
another firnline, e.g. a second installation by mistake. Commits of `firnline compact` may have no id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

RUN_ID = "firnline.run-id"
"""The property of our snapshots' summaries that holds the run id."""
DEPLOYMENT = "firnline.deployment-id"
"""The property of our snapshots' summaries that holds the id of the deployment."""
NAME_KEYS = ("engine-name", "app-id", "spark.app.id", "flink.job-id")
DAY_SECONDS = 86_400.0


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
        return next((f"{key}={properties[key]}" for key in NAME_KEYS if key in properties), "unknown")

    return _found(metadata, now, name_of)


def other_firnlines(metadata: TableMetadata, now: float, deployment: str) -> tuple[OtherCompactor, ...]:
    """Other deployments of firnline that rewrote data files, the busiest first.

    `deployment`: our id. Empty if it is unknown: then all are returned, if there are at least two.
    """

    def name_of(properties: Mapping[str, str]) -> str | None:
        found = properties.get(DEPLOYMENT, "")
        return f"{DEPLOYMENT}={found}" if RUN_ID in properties and found and found != deployment else None

    found = _found(metadata, now, name_of)
    return found if deployment or len(found) > 1 else ()


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
        taken = properties.get("deleted-data-files", "0")
        name = name_of(properties) if taken.isdigit() and int(taken) else None
        if name is not None:
            found[name] = found.get(name, OtherCompactor(name, 0, 0)).plus(int(taken), at)
    return tuple(sorted(found.values(), key=lambda other: -other.commits))
