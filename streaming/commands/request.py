"""`firnline request`: request a rewrite from the running service, by an event on the commit topic."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import click

from compactor.errors import InputError
from compactor.filters.where import bind_where
from compactor.iceberg.tables import Catalogs
from compactor.settings.tree import load_settings
from compactor.table_names import TableName
from streaming.commands.options import OUTPUT, not_empty, print_result
from streaming.commit_events import canonical
from streaming.commit_events.decoder import TableChanged
from streaming.kafka.clients import publish, waits_for_transaction
from streaming.kafka.commit_topic import check_commit_topic

SENDER = "firnline-request"


@click.command("request")
@click.argument("table")
@click.option("--where", metavar="EXPR", callback=not_empty("the whole table"), help="Only partitions that can contain "
              "matching rows, e.g. \"day = '2024-01-15'\". Selects files, never rows.")  # fmt: skip
@OUTPUT
@click.pass_obj
def request_rewrite(config: Path | None, /, table: str, where: str | None, output: str) -> None:
    """Request from the running service that it merges all small files of TABLE now, without waiting for its policy.

    The service plans the table again and never runs two rewrites of one table at the same time. Two equal requests have
    the effect of one. `compact` does the same without a service.
    """
    settings = load_settings(config)
    catalogs = Catalogs(settings.catalogs)
    view = catalogs.load(TableName.parse(table, catalogs.names))
    bind_where(view, where, "--where")  # raises here for an invalid filter: the service could only log it
    if not settings.tables.acts_on(view.name, view.properties):
        raise InputError(
            f"the service does not rewrite {view.name}: add it to tables.include or set its property "
            "firnline.enabled=true, or use `firnline compact`"
        )
    if not settings.kafka.bootstrap_servers:
        raise InputError(
            "kafka.bootstrap_servers is not set; it is needed, because a request is an event on the commit topic"
        )
    changed = TableChanged(
        source=SENDER,
        event_id=str(uuid.uuid4()),
        catalog=view.name.catalog,
        namespace=view.name.namespace,
        name=view.name.name,
        timestamp_ms=int(time.time() * 1000),
        request=(where or "").strip(),
    )
    key, value = canonical.encode(changed, sender=SENDER)
    check_commit_topic(settings.kafka)
    sent = publish(settings.kafka, key, value, what="the request")
    waits = waits_for_transaction(settings.kafka, *sent)
    after = "follow it in the service's log and /metrics"
    if waits:
        after = (
            f"the service cannot read it yet: on partition {sent[0].partition} of topic {sent[0].topic} another "
            "producer has an open transaction. It is read when that ends"
        )
    text = f"requested: {view.name}{f' where {where}' if where else ''}; {after}"
    document = {"table": str(view.name), "where": where, "event_id": changed.event_id, "waits_for_transaction": waits}
    print_result(output, document, lambda: click.echo(text))
