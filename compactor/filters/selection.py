"""Count what a filter selected, per partition spec, from the manifests that were read and the manifest list.

Skipped manifests are not read. The number of their partitions follows from their summaries: exactly if each manifest
holds one partition, else between two numbers.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyiceberg.manifest import ManifestContent, ManifestFile, PartitionFieldSummary
from pyiceberg.types import PrimitiveType, UUIDType

from compactor.filters.projection import Buckets
from compactor.filters.where import Where, summary_bounds
from compactor.partitions import JsonValue, PartitionKey, PartitionLayout, to_json


@dataclass(frozen=True)
class Portion:
    """`chosen` out of a total between `at_least` and `at_most` (None: unknown)."""

    chosen: int
    at_least: int
    at_most: int | None

    @property
    def of(self) -> int | None:
        """The total, if it is known exactly."""
        return self.at_least if self.at_least == self.at_most else None

    def __str__(self) -> str:
        if self.at_least == self.at_most:
            return f"{self.chosen:,} of {self.at_least:,}"
        if self.at_most is None:
            return f"{self.chosen:,} of at least {self.at_least:,}"
        return f"{self.chosen:,} of {self.at_least:,} to {self.at_most:,}"

    def document(self) -> dict[str, int | None]:
        """As JSON: `of` is null where only bounds are known."""
        return {"chosen": self.chosen, "of": self.of, "of_at_least": self.at_least, "of_at_most": self.at_most}


@dataclass(frozen=True)
class SpecSelection:
    """What a filter selected of one spec: partitions, data and delete manifests, data files."""

    spec_id: int
    partitioned_by: str
    projected: str
    buckets: tuple[Buckets, ...]
    partitions: Portion
    manifests_read: Portion
    files: Portion

    def __str__(self) -> str:
        return (
            f"partitions {self.partitions}, manifests read {self.manifests_read}, files {self.files}, "
            f"projected: {self.projected}"
        )

    def document(self) -> dict[str, Any]:
        return {
            "spec_id": self.spec_id,
            "partitioned_by": self.partitioned_by,
            "projected": self.projected,
            "buckets": [{"field": each.field, "selected": each.selected, "of": each.of} for each in self.buckets],
            "partitions": self.partitions.document(),
            "manifests_read": self.manifests_read.document(),
            "files": self.files.document(),
        }


@dataclass(frozen=True)
class Selection:
    """What a filter selected of the whole table; `where` None: no filter."""

    where: str | None
    specs: tuple[SpecSelection, ...]

    def lines(self) -> tuple[str, ...]:
        """For people: one line per bucket field, and one per spec (with its id if there are several specs)."""
        lines = [f"where {self.where}"] if self.where else []
        for spec in self.specs:
            several = len(self.specs) > 1
            prefix = f"spec {spec.spec_id} ({spec.partitioned_by}): " if several else ""
            for each in spec.buckets:
                field = f" ({each.field})" if several or len(spec.buckets) > 1 else ""
                lines.append(f"{prefix}SelectedBucketsCount: {each.selected:,} out of {each.of:,}{field}")
            lines.append(f"{prefix}{spec}")
        return tuple(lines)

    def document(self) -> dict[str, Any]:
        return {"where": self.where, "specs": [spec.document() for spec in self.specs]}


def count_selection(
    where: Where,
    read: Sequence[ManifestFile],
    skipped: Sequence[ManifestFile],
    partitions: Mapping[PartitionKey, Sequence[object]],
    selected: Container[PartitionKey],
) -> Selection:
    """Count the partitions, manifests and files that `where` selects.

    Args:
        where: The filter.
        read: The manifests of the planned snapshot that `where` keeps.
        skipped: The other manifests of that snapshot.
        partitions: The live data files of the manifests that were read.
        selected: The partitions that `where` keeps.
    """
    specs = sorted({manifest.partition_spec_id for manifest in (*read, *skipped)})
    return Selection(
        where.text, tuple(_of_spec(where, spec_id, read, skipped, partitions, selected) for spec_id in specs)
    )


def _of_spec(
    where: Where,
    spec_id: int,
    read: Sequence[ManifestFile],
    skipped: Sequence[ManifestFile],
    partitions: Mapping[PartitionKey, Sequence[object]],
    selected: Container[PartitionKey],
) -> SpecSelection:
    read, skipped = ([each for each in part if each.partition_spec_id == spec_id] for part in (read, skipped))
    manifests = len(read) + len(skipped)
    seen = {key: files for key, files in partitions.items() if key.spec_id == spec_id}
    kept = [len(files) for key, files in seen.items() if key in selected]
    unread = [manifest for manifest in skipped if manifest.content == ManifestContent.DATA and _files(manifest) != 0]
    projection = where.projection(spec_id)
    layout = where.table.layout(spec_id)
    at_least, at_most = _distinct_partitions(layout, seen, unread)
    files = sum(len(files) for files in seen.values())
    unread_files = [_files(manifest) for manifest in unread]
    known = [count for count in unread_files if count is not None]
    return SpecSelection(
        spec_id=spec_id,
        partitioned_by=_partitioned_by(where, spec_id),
        projected=projection.text,
        buckets=projection.buckets,
        partitions=Portion(len(kept), at_least, at_most),
        manifests_read=Portion(len(read), manifests, manifests),
        files=Portion(sum(kept), files + sum(known), files + sum(known) if len(known) == len(unread_files) else None),
    )


def _partitioned_by(where: Where, spec_id: int) -> str:
    fields = where.table.spec(spec_id).fields
    return ", ".join(f"{each.name}: {each.transform}" for each in fields) or "unpartitioned"


def _files(manifest: ManifestFile) -> int | None:
    """The number of live files in a manifest; None if the manifest list does not say (V1)."""
    added, existing = manifest.added_files_count, manifest.existing_files_count
    return None if added is None or existing is None or min(added, existing) < 0 else added + existing


@dataclass(frozen=True)
class _Field:
    """Bounds of one partition field in a manifest; `width`: the number of possible values, bounds included."""

    lower: Any
    upper: Any
    width: float


_ANYTHING: Final = _Field(None, None, math.inf)


def _distinct_partitions(
    layout: PartitionLayout, seen: Iterable[PartitionKey], unread: Sequence[ManifestFile]
) -> tuple[int, int | None]:
    """The least and the most distinct partitions of `seen` and of the manifests in `unread`, from their summaries."""
    keys = set(seen)
    boxes: dict[tuple[_Field, ...], float] = defaultdict(float)
    counted: set[tuple[_Field, ...]] = set()
    attained: list[set[JsonValue]] = [set() for _ in layout.names]
    for manifest in unread:
        box, files = _box(layout, manifest), _files(manifest)
        boxes[box] += math.inf if files is None else files
        if manifest.deleted_files_count != 0:
            continue  # the summaries also cover files that are no longer live
        if all(field.width == 1 for field in box):
            keys.add(layout.key([field.lower for field in box]))
            counted.add(box)
        for field, kind, values in zip(box, layout.types, attained, strict=True):
            values.update(() if field.width == math.inf else (to_json(kind, field.lower), to_json(kind, field.upper)))
    for key in keys:
        for value, values in zip(key.tuple_json, attained, strict=True):
            values.add(value)
    least = max([len(keys), *(len(values) for values in attained)])
    most = len(keys) + sum(
        min(math.prod(field.width for field in box), files) for box, files in boxes.items() if box not in counted
    )
    return least, None if math.isinf(most) else max(least, int(most))


def _box(layout: PartitionLayout, manifest: ManifestFile) -> tuple[_Field, ...]:
    summaries = manifest.partitions or ()
    if len(summaries) != len(layout.types):
        return (_ANYTHING,) * len(layout.types)
    return tuple(_field(kind, summary) for kind, summary in zip(layout.types, summaries, strict=True))


def _field(kind: PrimitiveType, summary: PartitionFieldSummary) -> _Field:
    bounds = summary_bounds(kind, summary)
    if bounds.nulls and not bounds.values and not bounds.nans:
        return _Field(None, None, 1)
    lower, upper = bounds.lower, bounds.upper
    if lower is None or upper is None or bounds.nulls or bounds.nans or isinstance(kind, UUIDType):
        return _ANYTHING
    if isinstance(lower, int):
        return _Field(lower, upper, upper - lower + 1)
    return _Field(lower, upper, 1) if lower == upper else _ANYTHING
