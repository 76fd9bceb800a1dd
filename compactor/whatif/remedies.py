"""Settings that make a writer add fewer files, by engine. Pure.

Spark and Flink read the table property write.distribution-mode. For a partitioned table, Spark's default is `hash` and
Flink's is `none`. Without partitions, `hash` has no effect, except that Flink distributes upserts by key. Kafka
Connect's sink ignores the property: a task writes the rows of its topic partitions.
"""

from __future__ import annotations

from collections.abc import Sequence

from compactor.iceberg.writers import WriterEngine

HASH = "hash"
_WITH_PARTITIONS = {
    WriterEngine.CONNECT: (
        "key the topic's records by bucket, so that each topic partition holds the rows of few buckets, or lower "
        "tasks.max (the sink ignores write.distribution-mode)"
    ),
    WriterEngine.TRINO: "insert more rows with each statement, and leave Trino's use_preferred_write_partitioning on",
}
_WITHOUT_PARTITIONS = {
    WriterEngine.CONNECT: "lower tasks.max (the sink ignores write.distribution-mode)",
    WriterEngine.FLINK: "lower the sink's write-parallelism (the table has no partitions to distribute rows by)",
    WriterEngine.SPARK: "let fewer tasks write, e.g. coalesce before the write (the table has no partitions to "
    "distribute rows by)",
    WriterEngine.TRINO: "insert more rows with each statement",
}
_BY_BUCKET = "distribute rows by bucket before writing (write.distribution-mode = 'hash'; "
_OVERRIDDEN = {
    WriterEngine.FLINK: "look for a job that overrides it by its option distribution-mode, or that was started before "
    "it was set",
    WriterEngine.SPARK: "look for a job that overrides it by its option distribution-mode, and for adaptive execution "
    "that splits tasks",
}
_INTERVAL = {
    WriterEngine.CONNECT: "the sink's iceberg.control.commit.interval-ms",
    WriterEngine.FLINK: "the job's checkpoint interval",
    WriterEngine.SPARK: "a stream's trigger, a batch job's schedule",
}


def one_task_per_bucket(engines: Sequence[WriterEngine], mode: str, *, partitioned: bool) -> str:
    """How to make one task write each bucket; `mode`: the table's write.distribution-mode, empty if not set."""
    found = [_one_task_per_bucket(engine, mode, partitioned=partitioned) for engine in engines]
    if len(found) == 1:
        return found[0]
    return "; ".join(f"{engine}: {remedy}" for engine, remedy in zip(engines, found, strict=True))


def _one_task_per_bucket(engine: WriterEngine, mode: str, *, partitioned: bool) -> str:
    by_engine = _WITH_PARTITIONS if partitioned else _WITHOUT_PARTITIONS
    if engine in by_engine:
        return by_engine[engine]
    now = f"it is {mode!r} now" if mode else "it is not set"
    if engine is WriterEngine.SPARK and not mode:
        return f"{_BY_BUCKET}{now}, which means 'hash' in Spark: {_OVERRIDDEN[engine]})"
    if engine in _OVERRIDDEN and mode == HASH:
        return f"{_BY_BUCKET}{now}: {_OVERRIDDEN[engine]})"
    if engine is WriterEngine.UNKNOWN:
        return f"let one task write a bucket (in Spark and Flink: write.distribution-mode = 'hash'; {now})"
    return f"{_BY_BUCKET}{now})"


def less_often(engines: Sequence[WriterEngine]) -> str:
    """The settings of the interval between commits, in parentheses; empty if the engines have none."""
    found = [_INTERVAL[engine] for engine in engines if engine in _INTERVAL]
    return f" ({'; '.join(found)})" if found else ""
