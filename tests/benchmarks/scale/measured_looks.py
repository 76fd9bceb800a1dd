"""Unit costs of looks at tables of a real REST catalog: unchanged, with a new snapshot, and the first count.

Iceberg's REST server runs in a process of its own; its processor time is not counted, it is the catalog's. Local files
stand for the store, so a look's reads cost no network.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compactor.locations import plain_path
from compactor.table_names import TableName
from deploy.demo.rest_catalog import rest_catalog
from streaming.ledger.driver_ledger import DriverLedger
from streaming.ledger.table_record import Asked, Lane, Outcome
from tests.benchmarks.fleet.commits import APART_MS, Chain
from tests.benchmarks.fleet.site import SERVER_CATALOG
from tests.benchmarks.fleet.tables import Fleet, Pointers, Shape, pointers, write_ahead
from tests.benchmarks.scale.measured import CATALOG, fitted, ledger, processor_seconds

SHAPE = Shape(tables=40, partitions=20, history=24)
WIDE = Shape(tables=4, partitions=500, history=0)
SNAPSHOTS = (25, 100, 1000)
COMMITS = 20
BEHIND, LATE_LOOKS = 10, 4
"""Commits that one look finds at once, for the cost of each further one. Few looks: a commit adds a manifest."""
MANY_MANIFESTS = (50, 200)
UNCHANGED_ROUNDS = 3
ASKED = Asked(Lane.EVENT)


@dataclass(frozen=True)
class Catalog:
    """A REST catalog of one fleet, and a ledger that looks at it."""

    folder: Path
    fleet: Fleet
    pointers: Pointers
    properties: dict[str, str]

    def ledger(self, name: str) -> DriverLedger:
        return ledger(self.folder / f"ledger-{name}", self.properties)


@contextmanager
def catalog(folder: Path, shape: Shape) -> Iterator[Catalog]:
    """The fleet behind Iceberg's REST server."""
    own = folder / f"{shape.tables}-{shape.partitions}"
    own.mkdir(parents=True, exist_ok=True)
    fleet = Fleet.make(own, shape)
    write_ahead(fleet.database)
    files = {"io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}
    with (
        rest_catalog(own, fleet.warehouse, files) as uri,
        pointers(fleet.database, SERVER_CATALOG) as tables,
    ):
        made = Catalog(own, fleet, tables, {"type": "rest", "uri": uri, "warehouse": fleet.warehouse})
        opened = made.ledger("namespaces")
        for namespace in sorted({namespace for namespace, _ in fleet.heads}):
            opened.looker.catalogs.catalog(CATALOG).create_namespace_if_not_exists(namespace)
        opened.stop(1.0)
        tables.reset(fleet.heads)
        yield made


def measure(folder: Path) -> dict[str, Any]:
    """Processor seconds of the driver for one look."""
    points = []
    with catalog(folder, SHAPE) as site:
        names = site.fleet.shape.names
        parts = site.ledger("unchanged")
        points.append(((1.0, _manifests(parts, names[0]), 20.0), _first_counts(parts, names)))

        def unchanged() -> None:
            for _ in range(UNCHANGED_ROUNDS):
                _look(parts, names, Outcome.UNCHANGED)

        found: dict[str, Any] = {"look_unchanged": processor_seconds(unchanged, UNCHANGED_ROUNDS * len(names))}
        found["look_new_snapshot"] = {
            str(snapshots): _new_snapshots(site, names[number], snapshots) for number, snapshots in enumerate(SNAPSHOTS)
        }
        found["look_further_snapshot"] = _further_snapshot(site, names[-1])
        for number, manifests in enumerate(MANY_MANIFESTS, len(SNAPSHOTS)):
            chain = Chain(site.fleet.heads[names[number]], "first", retained=10)
            for _ in range(manifests):
                _, location = chain.append()
            site.pointers.set(names[number], location)
            repeated = [site.ledger(f"first-{manifests}-{round_}") for round_ in range(5)]
            seconds = _sum_of_firsts(repeated, names[number])
            points.append(((1.0, _manifests(repeated[0], names[number]), 20.0), seconds))
            for each in repeated:
                each.stop(1.0)
        parts.stop(1.0)
    with catalog(folder, WIDE) as site:
        parts = site.ledger("wide")
        names = site.fleet.shape.names
        points.append(((1.0, _manifests(parts, names[0]), float(WIDE.partitions)), _first_counts(parts, names)))
        parts.stop(1.0)
    table, manifest, partition = fitted(points)
    return {
        **found,
        "first_count_table": table,
        "first_count_manifest": manifest,
        "first_count_partition": partition,
        "first_count_points": [[*each, seconds] for each, seconds in points],
    }


def _look(parts: DriverLedger, names: list[tuple[str, str]], outcome: Outcome) -> None:
    for namespace, name in names:
        looked = parts.driver.look(TableName(CATALOG, (namespace,), name), ASKED)
        assert looked is not None
        assert looked.outcome is outcome, looked


def _first_counts(parts: DriverLedger, names: list[tuple[str, str]]) -> float:
    """The first look also opens the catalog, so one table is left out."""
    _look(parts, names[:1], Outcome.COUNTED)
    return processor_seconds(lambda: _look(parts, names[1:], Outcome.COUNTED), len(names) - 1, rounds=1)


def _sum_of_firsts(repeated: list[DriverLedger], name: tuple[str, str]) -> float:
    for each in repeated:
        each.looker.catalogs.load(TableName(CATALOG, (name[0],), name[1]))  # opens the catalog

    def count() -> None:
        for each in repeated:
            _look(each, [name], Outcome.COUNTED)

    return processor_seconds(count, len(repeated), rounds=1)


def _manifests(parts: DriverLedger, name: tuple[str, str]) -> float:
    return float(len(parts.looker.catalogs.load(TableName(CATALOG, (name[0],), name[1])).manifests()))


def _new_snapshots(site: Catalog, name: tuple[str, str], snapshots: int) -> float:
    """One look per commit, on a table that keeps so many snapshots."""
    head = _with_snapshots(site.fleet.heads[name], snapshots)
    site.pointers.set(name, head)
    parts = site.ledger(f"new-{snapshots}")
    _look(parts, [name], Outcome.COUNTED)
    chain = Chain(head, f"new-{snapshots}", retained=snapshots)
    commits = [chain.append()[1] for _ in range(3 * COMMITS)]
    waiting = iter(commits)

    def count() -> None:
        for _ in range(COMMITS):
            site.pointers.set(name, next(waiting))
            _look(parts, [name], Outcome.COUNTED)

    seconds = processor_seconds(count, COMMITS)
    parts.stop(1.0)
    return seconds


def _further_snapshot(site: Catalog, name: tuple[str, str]) -> float:
    """What each further commit adds to a look that finds several at once."""
    parts = site.ledger("further")
    site.pointers.set(name, site.fleet.heads[name])
    _look(parts, [name], Outcome.COUNTED)
    chain = Chain(site.fleet.heads[name], "further")
    one = [[chain.append()[1]] for _ in range(COMMITS)]
    many = [[chain.append()[1] for _ in range(BEHIND)] for _ in range(LATE_LOOKS)]

    def count(commits: list[list[str]]) -> None:
        for each in commits:
            site.pointers.set(name, each[-1])
            _look(parts, [name], Outcome.COUNTED)

    single = processor_seconds(lambda: count(one), COMMITS, rounds=1)
    several = processor_seconds(lambda: count(many), LATE_LOOKS, rounds=1)
    parts.stop(1.0)
    return max(0.0, several - single) / (BEHIND - 1)


def _with_snapshots(location: str, wanted: int) -> str:
    """Metadata of the same table with older snapshots: nobody reads their manifest lists."""
    path = Path(plain_path(location))
    tree = json.loads(path.read_text())
    oldest = tree["snapshots"][0]
    missing = wanted - len(tree["snapshots"])
    more = []
    for number in range(missing):
        at = oldest["timestamp-ms"] - (missing - number) * APART_MS
        more.append({**oldest, "snapshot-id": uuid.UUID(int=number + 1).int, "timestamp-ms": at})
    log = [{name: each[name] for name in ("snapshot-id", "timestamp-ms")} for each in more]
    tree["snapshots"] = [*more, *tree["snapshots"]]
    tree["snapshot-log"] = [*log, *tree["snapshot-log"]]
    made = path.with_name(f"{path.name.split('-')[0]}-{uuid.uuid4()}.metadata.json")
    made.write_text(json.dumps(tree, separators=(",", ":")))
    return f"file://{made}"
