"""The decoders of all supported formats, in detection order."""

from __future__ import annotations

from streaming.commit_events.canonical import CanonicalDecoder
from streaming.commit_events.decoder import in_detection_order
from streaming.commit_events.kafka_connect import KafkaConnectDecoder

DECODERS = in_detection_order((KafkaConnectDecoder(), CanonicalDecoder()))
