"""Metrics of delete files and deleted rows: name, kind, labels, meaning, remedy."""

from __future__ import annotations

from typing import Final

from metrics.metric_definition import MetricDefinition, counter

COMMIT_REMOVED_DELETE_FILES = counter(
    "firnline_commit_removed_delete_files_total",
    "Delete files (not deletion vectors) that committed runs removed because all data files they apply to were "
    "rewritten.",
    "None although tables have many delete files: their data files are not due. Lower the delete thresholds.",
)
CARRIED_ROWS = counter(
    "firnline_carried_rows_total",
    "Deleted rows that rewrites copied and deleted in their outputs, because they were few "
    "(policy.carried_delete_ratio).",
    "Many of the rewritten rows: scans read them in vain. Lower policy.carried_delete_ratio.",
)
REBASED_ROWS = counter(
    "firnline_rebased_rows_total",
    "Rows that other commits deleted while their files were rewritten; the rewrites deleted them in their outputs.",
    "No action: without this the rewrites would have been lost. Many: the table's deletes are frequent.",
)
COMMITS_HELD = counter(
    "firnline_commits_held_total",
    "Finished rewrites that waited for a commit of another writer; `after`: what ended that (writer, time).",
    "Mostly `time`: the writers do not commit as regularly as before; lower commit.hold_seconds. Usual after the first "
    "MERGE of a table, and on a new table whose properties announce MERGE, UPDATE or DELETE.",
    labels=("after",),
)
COMMIT_HOLD_SECONDS = counter(
    "firnline_commit_hold_seconds_total",
    "Seconds that finished rewrites waited for a commit of another writer.",
    "A lane is occupied during that time. Large beside the run stages: lower commit.hold_seconds or raise "
    "service.concurrent_runs.",
)
COMMITS_ROLLED_BACK = counter(
    "firnline_commits_rolled_back_total",
    "Commits that the catalog rolled back for a writer, seen while they were watched; the run committed again.",
    "Usual beside a writer that commits every few seconds to a catalog with rollback (Apache Polaris). More than the "
    "commits of the table's writers: raise policy.min_input_files, so that rewrites are rarer.",
)
CONVERTED_DELETE_FILES = counter(
    "firnline_converted_delete_files_total",
    "Equality delete files that conversions replaced by deletes of positions.",
    "None although tables have many: set policy.convert_equality_deletes, or run `firnline convert`.",
)
CONVERTED_ROWS = counter(
    "firnline_converted_rows_total",
    "Rows that conversions found by value and deleted by position.",
    "Few for many delete files: writers delete keys that do not exist, as upserts of new keys do.",
)
CONVERSION_READ_BYTES = counter(
    "firnline_conversion_read_bytes_total",
    "Bytes of data files that conversions read: key columns, and footers.",
    "Close to the size of the tables: keys are not clustered. Sort by key, or raise policy.convert_equality_deletes.",
)
CONVERSION_SECONDS = counter(
    "firnline_conversion_seconds_total",
    "Seconds spent on conversions.",
    "A large share of the time: raise policy.convert_equality_deletes.",
)

DELETE_METRICS: Final[tuple[MetricDefinition, ...]] = (
    COMMIT_REMOVED_DELETE_FILES,
    CARRIED_ROWS,
    REBASED_ROWS,
    COMMITS_HELD,
    COMMIT_HOLD_SECONDS,
    COMMITS_ROLLED_BACK,
    CONVERTED_DELETE_FILES,
    CONVERTED_ROWS,
    CONVERSION_READ_BYTES,
    CONVERSION_SECONDS,
)
