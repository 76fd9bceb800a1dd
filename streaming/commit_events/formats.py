"""The decoders of all supported formats, in detection order and by name.

Formats that the first bytes or the headers tell come first, then JSON objects with several marks. The canonical event,
recognised by one key, comes last.
"""

from __future__ import annotations

from collections.abc import Mapping

from streaming.commit_events import canonical, commit_report, glue, nessie, openlineage, polaris, s3_notification
from streaming.commit_events.decoder import Decoder
from streaming.commit_events.kafka_connect import KafkaConnectDecoder
from streaming.commit_events.lakekeeper import LakekeeperDecoder

DECODERS: tuple[Decoder, ...] = (
    KafkaConnectDecoder(),
    LakekeeperDecoder(),
    polaris.DECODER,
    s3_notification.DECODER,
    glue.DECODER,
    nessie.DECODER,
    openlineage.DECODER,
    commit_report.DECODER,
    canonical.DECODER,
)

BY_NAME: Mapping[str, Decoder] = {decoder.source: decoder for decoder in DECODERS}
"""Decoders by their `source`, for topics whose format is set: `decode(event, (BY_NAME[name],))`."""
