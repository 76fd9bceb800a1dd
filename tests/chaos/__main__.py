"""Random interleavings of rewrites with appends, deletes, merges, schema changes, expiry, rollback and compactors.

    python -m tests.chaos [--interleavings 200] [--seed 1] [--catalog rolls-back|plain|both|polaris]
                          [--table v2|v3|flat] [--output json]

After every round the rows are compared with a serial model, and the metadata oracle judges what the run committed. On a
catalog that honours Apache Polaris' rollback property no writer may fail because of us; on any other, failures are
counted and shown. `rolls-back` stands in for it, also on V3 tables, which Polaris up to 1.7 cannot roll back; `polaris`
is a real server (`tests/services/polaris.py`), for V2.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from compactor.commit.sweep import SETTLE_SECONDS, sweep
from compactor.iceberg.tables import Catalogs
from compactor.manifests.cache import ManifestCache
from compactor.settings.tree import Settings
from compactor.spark.session import spark_session
from tests.chaos.rounds import Chaos, LostRowError, Round
from tests.conftest import Lake
from tests.integration.table_kit import unreferenced
from tests.services.faulty_catalog import FaultyCatalog, OnV3, faulty_catalog, in_front_of
from tests.services.polaris import ADDRESS, CATALOG, address, polaris_lake
from tests.services.rest_lake import RestLake, rest_lake_of

CONSOLE = Console(stderr=True)
TABLES = {"v2": (2, True), "v3": (3, True), "flat": (2, False)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interleavings", type=int, default=200, help="Per catalog.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--catalog", choices=["rolls-back", "plain", "both", "polaris"], default="both")
    parser.add_argument(
        "--table", choices=list(TABLES), default="v2", help="v2 and v3 are partitioned; flat is V2 without partitions."
    )
    parser.add_argument("--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    if options.catalog == "polaris" and options.table == "v3":
        parser.error("Apache Polaris up to 1.7 refuses the writer on V3 tables: see tests/integration/test_polaris.py")
    kinds = ["rolls-back", "plain"] if options.catalog == "both" else [options.catalog]
    documents = []
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        settings = Settings(
            catalogs={"lake": {"type": "sql", "uri": f"sqlite:///{folder}/x.db", "warehouse": f"file://{folder}/x"}},
            spark={"master": "local[2]"},
            policy={"min_row_group_size": 0, "min_input_files": 2},
        )
        session = spark_session(settings, "firnline-chaos")
        lake = Lake(Path(folder), settings, session, Catalogs(settings.catalogs))
        if options.catalog == "polaris":
            server = address() or parser.error(f"set {ADDRESS} to the address of an Apache Polaris server")
            with in_front_of(server, CATALOG) as proxy:
                documents.append(play(polaris_lake(lake, proxy, "polaris", server), proxy, "polaris", options))
        else:
            with faulty_catalog(Path(folder) / "rest") as faulty:
                rest = rest_lake_of(lake, faulty)
                for kind in kinds:
                    faulty.honours_rollback, faulty.on_v3 = kind == "rolls-back", OnV3.ROLLS_BACK
                    documents.append(play(rest, faulty, kind, options))
        session.stop()
    if options.output == "json":
        print(json.dumps(documents, indent=2))
    else:
        show(documents)
    return int(any(document["failed"] for document in documents))


def play(lake: RestLake, faulty: FaultyCatalog, kind: str, options: argparse.Namespace) -> dict[str, object]:
    """All rounds against one table, and what was left behind at the end."""
    seed, count = options.seed, options.interleavings
    table = f"db.chaos_{kind.replace('-', '_')}_{time.time_ns()}"
    version, partitioned = TABLES[options.table]
    chaos = Chaos(lake, faulty, table, seed, version, partitioned=partitioned)
    rounds: list[Round] = []
    failed: list[str] = []
    for number in track(range(count), description=f"catalog {kind}", console=CONSOLE):
        try:
            rounds.append(chaos.play(number))
            # No writer is under way between two rounds, so that it is certain what the catalog has rolled back.
            sweep_later(lake, SETTLE_SECONDS)
        except LostRowError as error:
            failed.append(str(error))
            break
    failed += [f"round {each.number}: {each.outcome}" for each in rounds if each.outcome.startswith("FAILED")]
    failures = [text for each in rounds for text in each.writer_failures]
    if kind != "plain":
        failed += [f"a writer failed because of us: {text}" for text in failures]
    # A writer's commit, which adds no row: what the last run has sent can no longer land.
    lake.sql(f"INSERT INTO lake.{table} SELECT * FROM lake.{table} WHERE false")
    for hours in (0, *(3**power for power in range(6))):  # ten days: until a rollback of the last run is settled
        sweep_later(lake, 3600 * hours)
    orphans = {path for path in unreferenced(lake, table) if "firnline" in path}
    failed += [f"left behind: {path}" for path in sorted(orphans)]
    failed += [f"in-flight record left: {record.run_id}" for record in lake.in_flight().all()]
    return {
        "catalog": kind,
        "table": options.table,
        "seed": seed,
        "interleavings": len(rounds),
        "outcomes": dict(Counter(each.outcome for each in rounds)),
        "operations": dict(
            Counter(name for each in rounds for moment, name in each.operations if moment != "before the plan")
        ),
        "moments": dict(
            Counter(moment for each in rounds for moment, _ in each.operations if moment != "before the plan")
        ),
        "rows": {
            "carried (deleted at the plan, copied, deleted in the output)": sum(each.carried for each in rounds),
            "rebased (deleted by others since the plan)": sum(each.rebased for each in rounds),
        },
        "groups left out": dict(Counter(_why(text) for each in rounds for text in each.dropped)),
        "deletes_others_left": chaos.others_dangling,
        "writer_failures": failures,
        "failed": failed,
    }


def sweep_later(lake: RestLake, seconds: float) -> None:
    """What a service does with the records of ended runs at a later time."""
    sweep(lake.in_flight(), lake.catalogs, ManifestCache(1 << 20), now=time.time() + seconds, grace_seconds=1800)


def _why(message: str) -> str:
    """The kind of a conflict: its text without names."""
    kinds = ("was removed from", "added once more", "taken back", "two deletion vectors", "was deleted", "were deleted")
    return next((kind for kind in kinds if kind in message), message)


def show(documents: list[dict[str, object]]) -> None:
    console = Console()
    for document in documents:
        what = f"catalog {document['catalog']}, table {document['table']}, seed {document['seed']}"
        table = Table(title=f"{what}: {document['interleavings']} interleavings")
        table.add_column("what")
        table.add_column("times", justify="right")
        for heading in ("outcomes", "rows", "groups left out", "operations", "moments"):
            counts = document[heading]
            assert isinstance(counts, dict)
            table.add_row(f"[bold]{heading}[/]", "")
            for name, times in sorted(counts.items(), key=lambda item: -item[1]):
                table.add_row(f"  {name}", str(times))
        console.print(table)
        failures, failed = document["writer_failures"], document["failed"]
        assert isinstance(failures, list)
        assert isinstance(failed, list)
        console.print(f"writers that failed because of us: {len(failures)}")
        for text in failures[:5]:
            console.print(f"  {text}", highlight=False)
        console.print(f"delete files that apply to nothing, left by other writers: {document['deletes_others_left']}")
        sound = "[green]rows equal the serial model after every round, and the metadata is sound[/]"
        console.print("[red]FAILED[/]" if failed else sound)
        for text in failed:
            console.print(f"  {text}", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
