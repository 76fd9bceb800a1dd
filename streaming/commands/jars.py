"""`firnline jars`: fetch the pinned jars now, so that nothing is fetched when work is to be done."""

from __future__ import annotations

from pathlib import Path

import click

from compactor.settings.tree import load_settings
from compactor.spark.java import JAR_SETS, KAFKA_BROKER_JARS, JarSet, fetch_jars, jars_folder

BY_NAME = {jar_set.name: jar_set for jar_set in JAR_SETS}


@click.command("jars")
@click.argument("sets", nargs=-1, type=click.Choice(list(BY_NAME)), metavar="[SET]...")
@click.option("--list", "only_list", is_flag=True, help="Only say what there is and where; fetch nothing.")
@click.pass_obj
def jars(config: Path | None, /, sets: tuple[str, ...], only_list: bool) -> None:
    """Fetch jars from Maven Central, or the mirror that Ivy is set to, into this environment or the user's cache.

    \b
    SETs: spark        Iceberg's runtime, Kafka's source, SQLite's driver: always needed
          aws gcp azure  clients of S3 and Glue, GCS, ADLS
          kafka-broker   the demo's broker
          s3proxy rest-catalog  what `firnline demo --on rest-s3` runs on

    Without SETs: what the settings need (-c FILE), and else spark, aws and kafka-broker. A start fetches what is
    missing by itself; where a host has no network, run this when its image is built.
    """  # noqa: D301 - \b keeps click from re-wrapping
    for jar_set in _chosen(config, sets):
        if not only_list:
            fetch_jars(jar_set)
        folder = jars_folder(jar_set)
        click.echo(f"{jar_set.name:14}{folder if folder.is_dir() else '(not fetched)'}")


def _chosen(config: Path | None, names: tuple[str, ...]) -> tuple[JarSet, ...]:
    if names:
        return tuple(BY_NAME[name] for name in names)
    if config is not None:
        from compactor.spark.session import jar_sets  # noqa: PLC0415 - imports Spark

        return jar_sets(load_settings(config))
    return (BY_NAME["spark"], BY_NAME["aws"], KAFKA_BROKER_JARS)
