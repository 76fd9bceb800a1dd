"""One member of a shard group in a process of its own: `… -m tests.integration.shard_member ADDRESS TOPIC GROUP ME`.

Writes what it owns of 200 tables to stdout, one JSON line per sample. SIGTERM stops it cleanly.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time

from compactor.settings.kafka import KafkaSettings
from compactor.table_names import TableName
from streaming.kafka.shard_group import ShardGroup

TABLES = tuple(TableName("lake", ("db",), f"t{number}") for number in range(200))
SAMPLE_SECONDS = 0.2


def main(address: str, topic: str, group: str, me: str) -> None:
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    kafka = KafkaSettings(bootstrap_servers=address, commit_topic=topic)
    member = ShardGroup(kafka, group, me, lambda _: None)
    member.start()
    while not ending.is_set():
        # The clock is shared by all processes of a machine. Both times: `current` holds for one moment in between.
        before, shard = time.monotonic(), member.current
        after = time.monotonic()
        owned = [number for number, table in enumerate(TABLES) if shard.owns(table)]
        sample = {"from": before, "until": after, "joined": member.joined, "members": member.members, "owned": owned}
        print(json.dumps(sample), flush=True)
        ending.wait(SAMPLE_SECONDS)
    member.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
