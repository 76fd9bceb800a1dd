"""The decoders of all supported formats, in detection order.

Formats with a unique mark come first; the canonical event, recognised by one JSON key, comes last.
"""

from __future__ import annotations

from streaming.commit_events.canonical import CanonicalDecoder
from streaming.commit_events.kafka_connect import KafkaConnectDecoder

DECODERS = (KafkaConnectDecoder(), CanonicalDecoder())
