"""`firnline check-config`: show the settings with all defaults, or check the connections."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from compactor.settings.tree import Settings, load_with_sources
from streaming.commands.options import BAD_INPUT, FAILED_SAFELY, OUTPUT, print_json
from streaming.commands.settings_report import settings_document, settings_yaml


@click.command("check-config")
@click.option("--connect", is_flag=True, help="Check the connections instead: catalogs, stores, folders, Kafka.")
@click.option("--observe", is_flag=True, help="With --connect: check only what `run --observe` needs. Writes nothing.")
@OUTPUT
@click.pass_obj
def check_config(config: Path | None, connect: bool, observe: bool, output: str) -> None:
    """Check the settings and print them with all defaults. Environment variables win over -c FILE.

    The output is a settings file. A comment on each line says where the value comes from: default, file or the
    environment variable; --output json also names the line of the file. Secrets are hidden: put them back, or set them
    in the environment, before you use the output as a settings file.

    With --connect, print one line per check: ok, failed (with the remedy) or skipped. Writes and deletes a probe object
    in each location of output files; writes nothing to Kafka.
    """
    loaded = load_with_sources(config)
    for notice in loaded.removed:
        click.echo(f"warning: {notice}", err=True)
    if connect:
        _check_connections(loaded.settings, observe=observe, output=output)
    elif output == "json":
        print_json(settings_document(loaded))
    else:
        click.echo(settings_yaml(loaded), nl=False)


def _check_connections(settings: Settings, *, observe: bool, output: str) -> None:
    from streaming.commands.connection_checks import Status, check_connections  # noqa: PLC0415 - start-up time: imports Spark

    checks = []
    for check in check_connections(settings, observe=observe):
        checks.append(check)
        if output != "json":
            remedy = f"; {check.remedy}" if check.status is Status.FAILED else ""
            click.echo(f"{check.status.value:8}{check.name}: {check.detail}{remedy}")
    if output == "json":
        print_json({"checks": [check.document() for check in checks]})
    failed = [check for check in checks if check.status is Status.FAILED]
    if failed:
        sys.exit(FAILED_SAFELY if all(check.again for check in failed) else BAD_INPUT)
