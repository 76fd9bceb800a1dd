"""`firnline check-config`: show the settings with all defaults, or check the connections."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from compactor.settings.tree import Settings, load_settings
from streaming.commands import reports
from streaming.commands.options import BAD_INPUT, FAILED_SAFELY, OUTPUT, print_json


@click.command("check-config")
@click.option("--connect", is_flag=True, help="Check the connections instead: catalogs, stores, folders, Kafka.")
@click.option("--observe", is_flag=True, help="With --connect: check only what `run --observe` needs. Writes nothing.")
@OUTPUT
@click.pass_obj
def check_config(config: Path | None, connect: bool, observe: bool, output: str) -> None:
    """Check the settings and print them with all defaults. Environment variables win over -c FILE.

    With --connect, print one line per check: ok, failed (with the remedy) or skipped. Writes and deletes a probe object
    in each location of output files; writes nothing to Kafka.
    """
    settings = load_settings(config)
    if connect:
        _check_connections(settings, observe=observe, output=output)
    elif output == "json":
        print_json(reports.settings_document(settings))
    else:
        click.echo(reports.settings_yaml(settings), nl=False)


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
