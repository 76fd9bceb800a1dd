"""Rows on a Kafka topic, which Kafka Connect and Spark write to their tables: one journal for both."""

from __future__ import annotations

import json
import random
import threading
import time

from kafka import KafkaProducer

from tests.writers.stage import ROWS_TOPIC


class RowsTopic:
    """Sends `rate` rows a second until `stop`. `rows`: value by id, of the rows that the broker has."""

    def __init__(self, broker: str, rate: float, seed: int) -> None:
        self.rows: dict[int, str] = {}
        self.failures: list[str] = []
        self._rate = rate
        self._random = random.Random(f"{seed} rows")
        self._producer = KafkaProducer(bootstrap_servers=broker, acks="all", linger_ms=50)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._send_all, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Send no more, and wait for the broker's answers."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        self._producer.flush(timeout=60)

    def close(self) -> None:
        self._stopped.set()
        self._producer.close(timeout=5)

    def _send_all(self) -> None:
        number, started = 0, time.monotonic()
        while not self._stopped.wait(max(0.0, started + number / self._rate - time.monotonic())):
            self._send(number, self._random.randbytes(8).hex())
            number += 1

    def _send(self, number: int, value: str) -> None:
        def sent(_answer: object) -> None:
            self.rows[number] = value

        record = json.dumps({"id": number, "v": value}).encode()
        answer = self._producer.send(ROWS_TOPIC, key=str(number).encode(), value=record)
        answer.add_callback(sent)
        answer.add_errback(lambda error: self.failures.append(f"row {number} was not sent: {error}"))
