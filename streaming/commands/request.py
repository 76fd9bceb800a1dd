"""`firnline request`: ask the running service for a rewrite, by an event on the commit topic."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path

import click

from compactor.errors import InputError, RetryError
from compactor.filters.where import bind_where
from compactor.iceberg.tables import Catalogs
from compactor.settings.tree import load_settings
from compactor.table_names import TableName
from streaming.commands.options import OUTPUT
from streaming.commit_events import canonical
from streaming.commit_events.decoder import TableChanged
from streaming.kafka.clients import producer
from streaming.kafka.topic_sample import check_commit_topic

SENDER = "firnline-request"
SEND_SECONDS = 30


@click.command("request")
@click.argument("table")
@click.option("--where", metavar="EXPR", default="", help="Only partitions that can hold matching rows, e.g. "
              "\"day = '2024-01-15'\". Selects files, never rows.")  # fmt: skip
@OUTPUT
@click.pass_obj
def request_rewrite(config: Path | None, /, table: str, where: str, output: str) -> None:
    """Ask the running service to merge all small files of TABLE now, whatever its policy would wait for.

    The service does it in the table's own lane, from a fresh look at the table: no file is rewritten twice, and asking
    twice is asking once. `compact` does the same without a service.
    """
    settings = load_settings(config)
    catalogs = Catalogs(settings.catalogs)
    view = catalogs.load(TableName.parse(table, catalogs.names))
    bind_where(view, where)  # refused here, where somebody reads it
    if not settings.tables.acts_on(view.name, view.properties):
        raise InputError(
            f"the service does not rewrite {view.name}: add it to tables.include or set its property "
            "firnline.enabled=true, or use `firnline compact`"
        )
    if not settings.kafka.bootstrap_servers:
        raise InputError("kafka.bootstrap_servers is not set: a request is an event on the commit topic")
    changed = TableChanged(
        source=SENDER,
        event_id=str(uuid.uuid4()),
        catalog=view.name.catalog,
        namespace=view.name.namespace,
        name=view.name.name,
        timestamp_ms=int(time.time() * 1000),
        request=where.strip(),
    )
    check_commit_topic(settings.kafka)
    key, value = canonical.encode(changed, sender=SENDER)
    client = producer(settings.kafka)
    try:
        client.send(settings.kafka.commit_topic, key=key, value=value).get(timeout=SEND_SECONDS)
    except Exception as error:
        raise RetryError(f"topic {settings.kafka.commit_topic} takes no event: {error}") from error
    finally:
        client.close(timeout=SEND_SECONDS)
    if output == "json":
        click.echo(json.dumps({"table": str(view.name), "where": where or None, "event_id": changed.event_id}))
    else:
        click.echo(f"asked for {view.name}{f' where {where}' if where else ''}; the service's /metrics and log show it")
