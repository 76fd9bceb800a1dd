"""The service beside four writers that never stop, with one random fault a minute. Does it keep up, does it grow, is
every row there at the end?

    python -m tests.soak [--minutes 30] [--faults] [--seed 1] [--commits-per-minute 60] [--output json]

A real broker, Iceberg's REST catalog and an S3 server, each behind a faulty proxy; `firnline run` as a process of its
own; a real Prometheus with the shipped rules. Each minute is a line. At the end the writers stop, and rows, debt,
in-flight records, alerts and growth (of one life, from ten minutes on) are judged.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from compactor.iceberg.tables import Catalogs, file_sizes
from compactor.settings.policy import PolicySettings
from compactor.settings.tree import Settings
from compactor.spark.session import spark_session
from deploy.demo.local_process import free_port
from tests.benchmarks.machine import commit, description
from tests.conftest import Lake
from tests.faults.scene import Scene
from tests.services.faulty_catalog import FaultyCatalog, OnV3, in_front_of
from tests.services.prometheus import Prometheus, prometheus
from tests.services.quick_java import SPARK_CONF
from tests.services.waiting import wait_for
from tests.soak.faults import Stage, broken, next_fault
from tests.soak.looks import GROWING, Minute, growth, look, slope, warm
from tests.soak.writers import PARTS, WRITERS, Writer, writing

SMALLEST_FILE = 1024  # bytes
GROWTH = 1.1
SCRAPE = "5s"
SETTINGS = {
    "policy": {"strategy": PolicySettings().strategy},  # as users'
    "commit": {"polaris_rollback": "always"},
    # A small cache is full in minutes: what grows then is no cache.
    "service": {"manifest_cache_bytes": 8 * 2**20, "sweep_seconds": 30},
}


@dataclass(frozen=True)
class Soaked:
    """What came out. `figures`: numbers by name; `wrong`: what was seen, by the expectation that it breaks."""

    seed: int
    minutes: list[Minute]
    figures: dict[str, float]
    alerts: list[str]
    wrong: dict[str, str]
    troubles: dict[str, int]


def writers_lake(scene: Scene, rollback: FaultyCatalog) -> Lake:
    """The catalog as the writers see it: through the proxy that rolls back, and with the store's own address."""
    properties = {
        "type": "rest",
        "uri": rollback.uri,
        **scene.store.properties,
        "spark.io-impl": "org.apache.iceberg.io.ResolvingFileIO",  # the Java writers' rows come from local files
    }
    conf = {**SPARK_CONF, "spark.sql.shuffle.partitions": "2"}
    settings = Settings(catalogs={"lake": properties}, spark={"master": "local[1]", "conf": conf})
    session = spark_session(settings, "firnline-soak-writers")
    return Lake(scene.folder, settings, session, Catalogs(settings.catalogs))


@contextmanager
def staged(folder: Path, seed: int) -> Iterator[tuple[Stage, Prometheus]]:
    """Everything, started."""
    port = free_port()
    scene = Scene(folder, SETTINGS, port)
    try:
        with in_front_of(scene.catalog_uri, "") as rollback, prometheus(folder, f"127.0.0.1:{port}", SCRAPE) as rules:
            rollback.honours_rollback, rollback.on_v3 = True, OnV3.KEEPS  # `auto` does not ask Polaris on V3
            rollback.files = scene.store.properties
            lake = writers_lake(scene, rollback)
            try:
                yield Stage(scene, [kind(scene.site, lake, seed) for kind in WRITERS], rollback), rules
            finally:
                lake.session.stop()
    finally:
        scene.close()


def firing(rules: Prometheus) -> set[str]:
    """Alerts that fire, with their severity."""
    found = rules.query('ALERTS{alertstate="firing"}')
    return {f"{each['metric']['severity']}: {each['metric']['alertname']}" for each in found}


def soak(stage: Stage, rules: Prometheus, options: argparse.Namespace, console: Console) -> Soaked:
    """Run it all."""
    scene, rng = stage.scene, random.Random(options.seed)
    minutes: list[Minute] = []
    alerts: dict[str, int] = {}
    started = life = time.monotonic()
    total = options.minutes * 60
    with writing(stage.writers, options.commits_per_minute):
        while (passed := time.monotonic() - started) < total:
            name, ends = "", time.monotonic() + 60
            if options.faults:
                fault, seconds = next_fault(rng, passed / total)
                name = f"{fault.component}: {fault.fault}"
                broken(stage, fault, seconds)
                life = time.monotonic() if fault.deadly else life
            time.sleep(max(0.0, ends - time.monotonic()))
            scene.service.must_run()
            minutes.append(look(scene, stage.writers, started, life, name))
            for alert in firing(rules):
                alerts[alert] = alerts.get(alert, 0) + 1
            console.print(shown(minutes[-1:]), *sorted(alerts), *(each.failures for each in stage.writers))
    wrong = judged(stage, minutes, alerts)
    if options.logs is not None:
        options.logs.mkdir(parents=True, exist_ok=True)
        for number, service in enumerate(scene.site.services):
            (options.logs / f"seed{options.seed}-service{number}.log").write_text(service.log_text)
    return Soaked(options.seed, minutes, figures(stage, rules, minutes, time.monotonic() - started), sorted(
        f"{name} ({count} looks)" for name, count in alerts.items()), wrong, troubles(scene))  # fmt: skip


def troubles(scene: Scene) -> dict[str, int]:
    """What the services could not do, by reason, from their logs."""
    found = Counter[str]()
    for text in (line for each in scene.site.services for line in each.log_text.splitlines()):
        with suppress(json.JSONDecodeError):  # the last line of a life that was killed
            line = json.loads(text)
            if line["message"] in {"run failed", "file group not rewritten"}:
                found[f"{line['message']}: {line['reason']}"] += 1
    return dict(found.most_common())


def judged(stage: Stage, minutes: Sequence[Minute], alerts: dict[str, int]) -> dict[str, str]:
    """What is wrong, by expectation."""
    scene, wrong = stage.scene, dict[str, str]()
    for writer in stage.writers:
        if writer.failures:
            wrong[f"{writer.table}: the writer never fails"] = f"{len(writer.failures)} times: {writer.failures[0]}"
        if writer.conflicts:
            wrong[f"{writer.table}: no commit fails because of a rewrite"] = f"{writer.conflicts} of {writer.commits}"
        found, count = writer.found()
        if found != writer.rows or count != len(found):
            wrong[f"{writer.table}: every row once"] = f"{count} rows, {len(found)} ids, {len(writer.rows)} written"
    for what, is_so in {
        "no partition is due at the end": lambda: scene.service.metrics().total("firnline_oldest_due_seconds") == 0,
        "no in-flight record is left": lambda: all(each.settles_at for each in scene.records.all()),
        "no upload is left": lambda: not scene.uploads(),
    }.items():
        try:
            wait_for(what, is_so)
        except AssertionError as error:
            wrong[what] = str(error)
    wrong |= {f"no false page: {name}": f"{count} looks" for name, count in alerts.items() if "critical" in name}
    judged_minutes = warm(minutes)
    for name in GROWING if len(judged_minutes) > 1 else ():
        by = growth(judged_minutes, attrgetter(name))
        if by > GROWTH:
            wrong[f"{name} does not grow"] = f"{by:.2f} x"
    bound = small_bound(stage.writers, minutes)
    if max(each.most_small for each in minutes) > bound:
        wrong["small files stay within the bound"] = f"{max(each.most_small for each in minutes)}, bound {bound}"
    return wrong


def small_bound(writers: Sequence[Writer], minutes: Sequence[Minute]) -> int:
    """Small files of one table: what the tiers may leave (`compactor/debt/tiers.py`), and what a faulty minute adds."""
    policy, target = PolicySettings(), file_sizes(PolicySettings(), {}).target
    tiers = 1 + math.log(target / SMALLEST_FILE, policy.growth / (policy.growth - 1))
    most = max(each.commits for each in writers) / (minutes[-1].at / 60)
    return round(PARTS * (tiers + most))


def figures(stage: Stage, rules: Prometheus, minutes: Sequence[Minute], seconds: float) -> dict[str, float]:
    """Latency, amplification and growth. Prometheus sums over the service's lives."""
    past = f"{int(seconds)}s"

    def value(expression: str) -> float:
        found = rules.query(expression)
        return float(found[0]["value"][1]) if found else float("nan")

    def quantile(which: float, name: str) -> float:
        return value(f"histogram_quantile({which}, sum by (le) (increase({name}_bucket[{past}])))")

    rewritten = value(f"sum(increase(firnline_rewrite_input_bytes_total[{past}]))")
    written = sum(each.written_bytes for each in stage.writers)
    found: dict[str, float] = {
        "commits": sum(each.commits for each in stage.writers),
        "rows": sum(len(each.rows) for each in stage.writers),
        "writer failures": sum(len(each.failures) for each in stage.writers),
        "commits made twice because of a rewrite": sum(each.conflicts for each in stage.writers),
        "rewrites rolled back for a writer": stage.rollback.rolled_back,
        "small files, most in a table": max(each.most_small for each in minutes),
        "small files, bound": small_bound(stage.writers, minutes),
        "write amplification": rewritten / max(1, written),
    }
    for each in stage.writers:
        found[f"write amplification, {each.table}"] = each.rewritten_bytes / max(1, each.written_bytes)
    for name in ("rebased_rows", "carried_rows"):
        found[name.replace("_", " ")] = value(f"sum(increase(firnline_{name}_total[{past}]))")
    for name in ("event_to_ledger", "event_to_compacted"):
        for which in (0.5, 0.99):
            found[f"{name} p{which * 100:.0f} seconds"] = quantile(which, f"firnline_{name}_seconds")
    judged_minutes = warm(minutes)
    for name in GROWING if len(judged_minutes) > 1 else ():
        found[f"{name}, growth"] = growth(judged_minutes, attrgetter(name))
        found[f"{name}, per hour"] = slope(judged_minutes, attrgetter(name))
    return found


def shown(minutes: Sequence[Minute]) -> Table:
    """A line a minute."""
    table = Table(*(name.replace("_", " ") for name in asdict(minutes[0])))
    for minute in minutes:
        cells: list[Any] = list(asdict(minute).values())
        table.add_row(*(cell if isinstance(cell, str) else f"{cell:.0f}" for cell in cells))
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--faults", action="store_true", help="one random fault a minute")
    parser.add_argument("--seed", type=int, default=1, help="of faults and writers")
    parser.add_argument(
        "--commits-per-minute", type=float, default=60, help="of all writers; PyIceberg and Flink 40%% each"
    )
    parser.add_argument("--logs", type=Path, help="folder that keeps the logs of the services")
    parser.add_argument("--output", choices=["table", "json"], default="table")
    options = parser.parse_args()
    console = Console(stderr=True, width=200)
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        machine = description(Path(name))
        console.print(machine)
        with staged(Path(name), options.seed) as (stage, rules):
            soaked = soak(stage, rules, options, console)
    if options.output == "json":
        print(json.dumps({**asdict(soaked), "machine": machine, "commit": commit()}, indent=1))
    else:
        Console(width=200).print(shown(soaked.minutes))
        for what, figure in soaked.figures.items():
            console.print(f"{what}: {figure:.2f}", highlight=False)
    for alert in soaked.alerts:
        console.print(f"fired {alert}")
    for what, seen in soaked.wrong.items():
        console.print(f"[red]wrong[/] {what}: {seen}", highlight=False)
    return int(bool(soaked.wrong))


if __name__ == "__main__":
    sys.exit(main())
