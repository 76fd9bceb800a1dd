"""Iceberg's two ways to merge manifests, over a `World`: the core's update, and Spark's action in a transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from compactor.commit.history import REPLACE
from compactor.spark.java_table import VALIDATION
from tests.simulator.java_objects import Answers, JavaError
from tests.simulator.world import Manifest, Parts, Snapshot, State


class Merge:
    """Iceberg's RewriteManifests: data manifests as one cluster, or manifests that somebody has merged before.

    `show`: a snapshot as Java shows it.
    """

    def __init__(self, table: Any, show: Callable[[Snapshot], Any]) -> None:
        self.table, self._show, self.parts = table, show, Parts()
        self.summary: dict[str, str] = {}
        self.replaced: list[Manifest] = []
        self.merged: list[Manifest] = []
        self.clusters = False

    def clusterBy(self, _function: Any) -> Merge:  # noqa: N802 - as Java calls it
        self.clusters = True
        return self

    def set(self, name: str, value: str) -> None:
        self.summary[name] = value

    def deleteManifest(self, manifest: Any) -> None:  # noqa: N802
        self.replaced.append(manifest.made)

    def addManifest(self, manifest: Any) -> None:  # noqa: N802
        self.merged.append(manifest.made)

    def apply(self) -> Any:
        self.table.step("apply")
        self.table.reads()
        base, world = self.table.state, self.table.world
        self.table.meets("merge")
        now = base.newest.manifests if base.newest else ()
        paths = {each.path for each in now}
        gone = [each for each in self.replaced if each.path not in paths]
        if gone and not self.clusters:
            raise JavaError(VALIDATION, f"Deleted manifest {gone[0].path} could not be found in the latest snapshot")
        if self.clusters and (gone or not self.merged):
            for each in self.merged:  # Iceberg deletes what it has merged before
                world.store.delete(each.path)
            self.replaced = [each for each in now if each.is_data]
            self.merged = world.merged(self.replaced, self.parts)
        world.begin(self.parts)
        self.merged = [replace(each, added_by=self.parts.snapshot_id) for each in self.merged]
        made = _arranged(self.table, base, self.replaced, self.merged, self.summary, self.parts)
        self.table.step("applied")
        return self._show(made)


class Action:
    """Spark's action on a table in a transaction: it merges the manifests of one spec, data and deletes apart."""

    def __init__(self, staged: Any, show: Callable[[Snapshot], Any]) -> None:
        self._staged, self._show, self._spec_id = staged, show, 0
        self.summary: dict[str, str] = {}

    def specId(self, spec_id: int) -> Action:  # noqa: N802
        self._spec_id = spec_id
        return self

    def snapshotProperty(self, name: str, value: str) -> None:  # noqa: N802
        self.summary[name] = value

    def execute(self) -> Answers:
        staged, parts = self._staged, Parts()
        table = staged.table
        table.step("job")
        base, replaced = table.state, list[Manifest]()
        for is_data in (True, False):
            found = [each for each in base.newest.manifests if (each.is_data, each.spec_id) == (is_data, self._spec_id)]
            replaced += found if len(found) > 1 else []
        merged = table.world.merged(replaced, parts)
        if merged:
            staged.made = _arranged(table, base, replaced, merged, self.summary, parts)
        table.step("job done")
        shown = [[staged.manifest(each) for each in some] for some in (replaced, merged)]
        return Answers(rewrittenManifests=shown[0], addedManifests=shown[1])


def _arranged(
    table: Any,
    base: State,
    replaced: Sequence[Manifest],
    merged: Sequence[Manifest],
    summary: dict[str, str],
    parts: Parts,
) -> Snapshot:
    """The snapshot with the same files in other manifests."""
    paths = {each.path for each in replaced}
    kept = [each for each in base.newest.manifests if each.path not in paths] if base.newest else []
    made: Snapshot = table.world.listed(base, REPLACE, [*merged, *kept], summary, parts)
    return made
