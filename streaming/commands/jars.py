"""`firnline jars`: fetch the pinned jars in advance."""

from __future__ import annotations

from pathlib import Path

import click

from compactor.settings.tree import load_settings
from compactor.spark.java import JAR_SETS, KAFKA_BROKER_JARS, JarSet, fetch_jars, jars_folder

BY_NAME = {jar_set.name: jar_set for jar_set in JAR_SETS}


@click.command("jars")
@click.argument("sets", nargs=-1, type=click.Choice(list(BY_NAME)), metavar="[SET]...")
@click.option("--list", "only_list", is_flag=True, help="Show which jars are present and where. Fetch nothing.")
@click.pass_obj
def jars(config: Path | None, /, sets: tuple[str, ...], only_list: bool) -> None:
    """Fetch jars from Maven Central, or from Ivy's configured mirror, into this environment or the user's cache.

    \b
    SETs: spark        Iceberg's runtime, Kafka's source, SQLite's driver: always needed
          aws gcp azure  clients of S3 and Glue, GCS, ADLS
          kafka-broker   the broker of the demo
          s3proxy rest-catalog  the servers of the demo on a REST catalog and S3

    Without SETs: the jars that the settings need (-c FILE), else spark, aws and kafka-broker. Other commands fetch
    missing jars themselves. For hosts without network access, run this command when you build their image.
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
        from compactor.spark.session import jar_sets  # noqa: PLC0415 - start-up time: imports Spark

        return jar_sets(load_settings(config))
    return (BY_NAME["spark"], BY_NAME["aws"], KAFKA_BROKER_JARS)
