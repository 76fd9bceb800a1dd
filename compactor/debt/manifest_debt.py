"""Manifest debt: the number, size and overlap of a table's manifests, and when a rewrite of manifests pays. Pure.

Writers that append without merging (`newFastAppend`, e.g. Spark's streaming) leave one manifest per commit. A planner
opens each manifest whose partition ranges match its filter. Merging reduces the number of manifests and their ranges.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyiceberg.manifest import ManifestContent, ManifestFile

from compactor.filters.where import summary_bounds
from compactor.iceberg.manifest_lists import ROW_LINEAGE_VERSION
from compactor.iceberg.tables import TableView
from compactor.partitions import PartitionLayout
from compactor.settings.tree import ManifestSettings
from compactor.whole_numbers import whole_number

TARGET_PROPERTY: Final = "commit.manifest.target-size-bytes"
DEFAULT_TARGET: Final = 8 * 1024 * 1024  # Iceberg's default of the property


@dataclass(frozen=True)
class ManifestCounts:
    """Counts of the manifests of one snapshot.

    Attributes:
        manifests: Data and delete manifests.
        bytes: Their total size.
        delete_manifests: How many of them list delete files.
        depth: The number of data manifests that a filter on one value of the first partition field opens, on average
            over the manifests' own bounds; 1 is perfectly clustered, 0 an empty or unpartitioned table.
        due_specs: Specs whose manifests are worth rewriting.
        why: The reason, for people; empty if no spec is due.
    """

    manifests: int = 0
    bytes: int = 0
    delete_manifests: int = 0
    depth: float = 0.0
    due_specs: tuple[int, ...] = ()
    why: str = ""

    @property
    def due(self) -> bool:
        return bool(self.due_specs)

    def to_list(self) -> list[Any]:
        """As a list for JSON; `from_list` is the inverse."""
        return [self.manifests, self.bytes, self.delete_manifests, self.depth, list(self.due_specs), self.why]

    @classmethod
    def from_list(cls, values: Sequence[Any]) -> ManifestCounts:
        manifests, size, deletes, depth, specs, why = values
        return cls(manifests, size, deletes, depth, tuple(specs), why)


def count_manifests(
    manifests: Sequence[ManifestFile],
    layouts: Mapping[int, PartitionLayout],
    settings: ManifestSettings,
    properties: Mapping[str, str],
    format_version: int,
) -> ManifestCounts:
    """Count the manifests of one snapshot and find due specs; manifests of different specs are never merged.

    On V3, delete manifests are not rewritten (manifest_rewrite.py), so they make no spec due.
    """
    target = _target(properties)
    sizes: dict[int, list[int]] = defaultdict(list)
    for manifest in manifests:
        if manifest.content == ManifestContent.DATA or format_version < ROW_LINEAGE_VERSION:
            sizes[manifest.partition_spec_id].append(manifest.manifest_length)
    due = tuple(spec_id for spec_id, of_spec in sorted(sizes.items()) if _due(of_spec, target, settings))
    fewer = sum(_fewest(sizes[spec_id], target) for spec_id in due)
    many = sum(len(sizes[spec_id]) for spec_id in due)
    return ManifestCounts(
        manifests=len(manifests),
        bytes=sum(manifest.manifest_length for manifest in manifests),
        delete_manifests=sum(manifest.content == ManifestContent.DELETES for manifest in manifests),
        depth=_depth(manifests, layouts),
        due_specs=due,
        why=f"{many} manifests, {fewer} would be enough" if due else "",
    )


def manifests_of(table: TableView, settings: ManifestSettings) -> ManifestCounts:
    """`count_manifests` for a table's current snapshot."""
    version = table.metadata.format_version
    return count_manifests(table.manifests(), table.layouts(), settings, table.properties, version)


def _target(properties: Mapping[str, str]) -> int:
    return whole_number(properties.get(TARGET_PROPERTY, "")) or DEFAULT_TARGET


def _due(sizes: Sequence[int], target: int, settings: ManifestSettings) -> bool:
    return (
        settings.rewrite
        and len(sizes) >= settings.min_count
        and len(sizes) >= settings.min_reduction * _fewest(sizes, target)
    )


def _fewest(sizes: Sequence[int], target: int) -> int:
    """The number of manifests of the target size that hold these bytes."""
    return max(1, -(-sum(sizes) // target))


def _depth(manifests: Iterable[ManifestFile], layouts: Mapping[int, PartitionLayout]) -> float:
    """The number of ranges of the same spec that hold a manifest's lower bound, on average over all manifests."""
    ranges: dict[int, list[tuple[Any, Any]]] = defaultdict(list)
    for manifest in manifests:
        layout = layouts[manifest.partition_spec_id]
        if manifest.content != ManifestContent.DATA or not layout.types or not manifest.partitions:
            continue
        bounds = summary_bounds(layout.types[0], manifest.partitions[0])
        if bounds.lower is not None and bounds.upper is not None:
            ranges[manifest.partition_spec_id].append((bounds.lower, bounds.upper))
    opened = sum(_opened(of_spec) for of_spec in ranges.values())
    counted = sum(map(len, ranges.values()))
    return opened / counted if counted else 0.0


def _opened(ranges: Sequence[tuple[Any, Any]]) -> int:
    lowers, uppers = sorted(low for low, _ in ranges), sorted(high for _, high in ranges)
    return sum(times * (bisect_right(lowers, low) - bisect_left(uppers, low)) for low, times in Counter(lowers).items())
