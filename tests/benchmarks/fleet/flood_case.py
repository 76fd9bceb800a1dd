"""Case g: large events of unknown tables, then one valid event."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from streaming.commit_events import canonical
from streaming.commit_events.decoder import TableChanged
from tests.benchmarks.fleet.catalog_calls import by_kind
from tests.benchmarks.fleet.commits import commits_of
from tests.benchmarks.fleet.processes import peaks, settle
from tests.benchmarks.fleet.site import CATALOG, Site, new_topic
from tests.benchmarks.fleet.sizes import Sizes
from tests.benchmarks.fleet.waits import counted_at, first_counts, wait_until

OTHERS = "db[1-9]*.*"
SETTLE_SECONDS = 120.0
PADDING = "commit event "
REQUEST_BYTES = 16 * 1024 * 1024
SENT_AT_ONCE = 50  # the producer's memory has no limit
PLACE = "unknown-000000"


def flood(site: Site, sizes: Sizes, say: Callable[[str], None]) -> dict[str, Any]:
    """Seconds until the valid event is counted, the most memory on the way, and dead letters."""
    shown = [name for name in site.fleet.shape.names if name[0] == "db0"]
    topic = new_topic("flood")
    with site.service("flood", topic=topic, tables={"exclude": [OTHERS]}) as (service, _):
        first_counts(service, {f"{CATALOG}.{'.'.join(name)}" for name in shown}, sizes.start_seconds)
        settle(service.tree, SETTLE_SECONDS)
        idle = {name: each.rss for name, each in service.tree.memory().items()}
        start = time.time()
        with peaks(service.tree) as most:
            seconds = _publish(site, topic, sizes)
            say(f"{sizes.bad_events} events of {sizes.bad_bytes} bytes are published after {seconds:.0f} s")
            (valid,) = commits_of(site.fleet, shown[0], 1)
            published = site.publish(topic, valid)
            site.producer.flush()
            name = f"{CATALOG}.{'.'.join(valid.table)}"

            def counted() -> float | None:
                return counted_at(service, name, valid.snapshot_id)

            wait_until(service, lambda: counted() is not None, sizes.flood_seconds)
            at = counted()
            say(f"the valid event is {'counted' if at else 'not counted'}; waiting for dead letters …")
            wait_until(service, lambda: _letters(site, topic) >= sizes.bad_events, sizes.flood_seconds, every=2.0)
        return {
            "events": sizes.bad_events,
            "bytes_each": sizes.bad_bytes,
            "unknown_tables": sizes.unknown_tables,
            "publishing_seconds": seconds,
            "valid_event_counted_after_seconds": None if at is None else at - published.at,
            "dead_letters": _letters(site, topic),
            "seconds": time.time() - start,
            "memory_before": idle,
            "most_memory": most.rss,
            "most_total_pss": most.total_pss,
            "calls": by_kind(site.proxy.between(start, time.time())),
            **service.end,
        }


def _publish(site: Site, topic: str, sizes: Sizes) -> float:
    """Publish the bad events, compressed by the producer; returns the seconds it took."""
    template = _event(sizes.bad_bytes)
    producer = KafkaProducer(
        bootstrap_servers=site.broker.split(","),
        acks=1,
        compression_type="zstd",
        max_request_size=REQUEST_BYTES,
    )
    started = time.monotonic()
    for number in range(sizes.bad_events):
        name = f"unknown-{number % sizes.unknown_tables:06d}"
        producer.send(topic, key=name.encode(), value=template.replace(PLACE.encode(), name.encode(), 1))
        if number % SENT_AT_ONCE == 0:
            producer.flush()
    producer.flush()
    producer.close()
    return time.monotonic() - started


def _event(size: int) -> bytes:
    """An event of about `size` bytes that compress well."""
    changed = TableChanged(
        source="bench",
        event_id="bad",
        catalog="of others",
        namespace=("db0",),
        name=PLACE,
        timestamp_ms=int(time.time() * 1000),
        operation="append",
    )
    tree = json.loads(canonical.encode(changed, sender="bench")[1])
    bare = len(json.dumps(tree))
    return json.dumps(
        {**tree, "summary": {"note": (PADDING * (size // len(PADDING) + 1))[: size - bare - 30]}}
    ).encode()


def _letters(site: Site, topic: str) -> int:
    consumer = KafkaConsumer(bootstrap_servers=site.broker.split(","))
    try:
        partition = TopicPartition(f"{topic}-dead", 0)
        return int(consumer.end_offsets([partition])[partition])
    finally:
        consumer.close()
