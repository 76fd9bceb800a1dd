"""`firnline emit`: announce a commit to the service, for writers that publish no event themselves."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import click

from compactor.errors import InputError
from compactor.reasons import Reason
from compactor.settings.kafka import KafkaSettings
from compactor.settings.tree import Settings, load_settings
from compactor.table_names import TableName
from streaming.commands.options import OUTPUT, print_result
from streaming.commit_events import canonical
from streaming.commit_events.decoder import BadEvent, RawEvent, TableChanged, decode
from streaming.commit_events.strict_json import INT64_MAX
from streaming.kafka.clients import publish
from streaming.kafka.commit_topic import check_commit_topic

SENDER = "firnline-emit"


@click.command("emit")
@click.argument("table")
@click.option("--snapshot-id", metavar="ID", type=click.IntRange(0, INT64_MAX), help="The committed snapshot, if you "
              "know it: the service does not look at the table again if it has counted this snapshot.")  # fmt: skip
@OUTPUT
@click.pass_obj
def emit(config: Path | None, /, table: str, snapshot_id: int | None, output: str) -> None:
    """Announce a commit to TABLE: publish one event to kafka.commit_topic, so that the service counts its files now.

    Run it after each commit of a writer that announces none, e.g. as the last step of a job:

    \b
        firnline -c firnline.yaml emit db.events
        firnline -c firnline.yaml emit lake.db.events     (if several catalogs are configured)

    The table is not loaded: only the section kafka, tables and the names of the catalogs are used. If it does not
    exist, the service logs its name. An event that is lost or sent twice does no harm: sweeps of the catalogs find
    commits without events. Java writers announce themselves by catalog properties, see docs/writers/.
    """  # noqa: D301 - \b keeps click from re-wrapping
    settings = load_settings(config)
    name = _announceable(table, settings)
    changed = TableChanged(
        source=SENDER,
        event_id=str(uuid.uuid4()),
        catalog=name.catalog,
        namespace=name.namespace,
        name=name.name,
        timestamp_ms=int(time.time() * 1000),
        snapshot_id=snapshot_id,
    )
    key, value = canonical.encode(changed, sender=SENDER)
    decoded = decode(RawEvent(key, value, (), changed.timestamp_ms), (canonical.DECODER,))
    if isinstance(decoded, BadEvent):  # e.g. a control character in a name
        raise InputError(f"table name {table!r} cannot be used: {decoded.detail}")
    _check_topic(settings.kafka)
    publish(settings.kafka, key, value, what="the event")
    document = {"table": str(name), "snapshot_id": snapshot_id, "event_id": changed.event_id}
    print_result(output, document, lambda: click.echo(f"announced: {name}, on topic {settings.kafka.commit_topic}"))


def _announceable(table: str, settings: Settings) -> TableName:
    """The table's name.

    Raises:
        InputError: the name is none, the service would ignore the event, or no broker is configured.
    """
    name = TableName.parse(table, settings.catalogs)
    if settings.tables.ignores(name):
        raise InputError(f"the service ignores {name}: add it to tables.include or tables.observe")
    if not settings.kafka.bootstrap_servers:
        raise InputError(
            "kafka.bootstrap_servers is not set; it is needed, because `emit` writes an event to the commit topic"
        )
    return name


def _check_topic(kafka: KafkaSettings) -> None:
    """As the service does, if this principal may read the topic. A writer needs no more than the right to WRITE."""
    try:
        check_commit_topic(kafka)
    except InputError as error:
        if error.reason is not Reason.NOT_ALLOWED:
            raise
