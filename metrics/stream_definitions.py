"""Metrics of the stream of commit events: name, kind, labels, meaning, remedy."""

from __future__ import annotations

from typing import Final

from metrics.metric_definition import MetricDefinition, counter, gauge

EVENTS = counter(
    "firnline_events_total",
    "Commit events that reached the ledger, by source.",
    "Flat while writers commit: check the delivery of events. Sweeps find the missed commits.",
    labels=("source",),
)
UNANNOUNCED_COMMITS = counter(
    "firnline_unannounced_commits_total",
    "Looks that found commits without an event more than a minute later, though events of this source announced other "
    "commits of the table since the service started.",
    "Grows: the source has fallen silent, or one of the table's writers announces nothing. Check the listener or "
    "reporter of each, its topic and its permissions.",
    labels=("source",),
)
HTTP_EVENTS = counter(
    "firnline_http_events_total",
    "Events that came by HTTP, by result: accepted, ignored (no commit), refused (the answer says why), busy (the "
    "broker did not take it, or the service is not ready; the sender has to send it again), unauthorized, closed (the "
    "service runs with --observe).",
    "`refused` grows: the sender's log has the answers. `busy` grows: see the broker. `unauthorized` grows: the sender "
    "has no password of `http.basic_auth`. `closed` grows: send to a service without --observe.",
    labels=("result",),
)
EVENT_LAG_OFFSETS = gauge(
    "firnline_event_lag_offsets",
    "Offsets of all event topics and partitions that the query's last batch has not read.",
    "Grows: batches are slower than the arrival of events; see batch seconds and manifest read seconds.",
    labels=("query",),
)
DEAD_LETTERS = counter(
    "firnline_dead_letters_total",
    "Events that cannot be used; each is sent to the dead-letter topic.",
    "Read the dead-letter topic: the header firnline.reason of each message says why the event cannot be used.",
    labels=("reason",),
)
LAST_BATCH_TIMESTAMP_SECONDS = gauge(
    "firnline_last_batch_timestamp_seconds",
    "Time of the end of the last micro-batch, or when the query was last seen waiting for events, since the epoch.",
    "Older than a few trigger intervals: the stream hangs or has ended. Check /healthz and the log.",
    labels=("query",),
)
STREAM_ENDS = counter(
    "firnline_stream_ends_total",
    "Times that the query of the stream ended and was started again, by cause.",
    "`kafka_unavailable`: the brokers, the topics or the rights on them. `unavailable`: what a batch is kept in. "
    "`unexpected`: see the log; at the second end at the same offsets the query goes on from the end of the topics.",
    labels=("query", "cause"),
)
EVENTS_LOST = counter(
    "firnline_lost_events_total",
    "Offsets that were skipped because the query failed twice at the same place and went on from the topics' end. "
    "All tables are looked at; requested rewrites among them are lost.",
    "See the log: it has the place and the error. Correct the producer of the record.",
    labels=("query",),
)

STREAM_METRICS: Final[tuple[MetricDefinition, ...]] = (
    EVENTS,
    UNANNOUNCED_COMMITS,
    HTTP_EVENTS,
    EVENT_LAG_OFFSETS,
    DEAD_LETTERS,
    LAST_BATCH_TIMESTAMP_SECONDS,
    STREAM_ENDS,
    EVENTS_LOST,
)
