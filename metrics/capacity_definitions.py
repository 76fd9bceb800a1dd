"""Metrics of capacity and its control: rewrite slots, budgets of the hour, memory, space for state, drain, settings."""

from __future__ import annotations

from typing import Final

from metrics.metric_definition import MetricDefinition, gauge

SLOTS = gauge(
    "firnline_slots",
    "Rewrite tasks that may run at once: cores of the executors less the stream's.",
    "Below the cores of the cluster: executors are missing. Zero: see executors on the status page.",
)
SLOTS_IN_USE = gauge(
    "firnline_slots_in_use",
    "Slots that runs hold, each for one Spark task.",
    "Always all of them, with runs waiting: add executors. Few while runs are queued: raise service.concurrent_runs.",
)

QUIET = gauge(
    "firnline_quiet",
    "1 during the quiet hours of the settings, in which no run starts, else 0.",
    "One at the wrong time: limits.quiet_hours are in UTC.",
)
LIMITED_TABLES = gauge(
    "firnline_limited_tables",
    "Due tables that the limits of the hour hold back. Quiet hours, and the limit of commits per table, do not count.",
    "Always above zero: the limits are below what writers add. See the remaining ratio of each limit.",
)
MEMORY_BYTES = gauge(
    "firnline_memory_bytes",
    "Resident memory of the service's processes on this host: the driver, its JVM, Spark's Python workers, others. "
    "Pages that workers share count in each. Executors of a cluster are not included.",
    "Grows for days: see which process. JVM: spark.driver.memory bounds its heap. Workers: row groups of rewrites. "
    "Driver: service.manifest_cache_bytes.",
    labels=("process",),
)
FREE_MEMORY_BYTES = gauge(
    "firnline_free_memory_bytes",
    "Memory that processes may still take: of the container, or of the host if that is less.",
    "Low: raise the container's memory, or lower spark.driver.memory, service.manifest_cache_bytes or the slots.",
)
STATE_UNSAVED = gauge(
    "firnline_state_unsaved",
    "1 while the ledger cannot save its state; counts are right all the same. Else 0.",
    "Open /readyz, which has the error: usually the volume of state.checkpoint is full or read-only.",
)
STATE_FREE_BYTES = gauge(
    "firnline_state_free_bytes",
    "Free bytes of the volume with the ledger's state: that of a local checkpoint.",
    "Low: enlarge the volume, or remove what matches *.damaged* in the folder of the checkpoint.",
)
UNREADABLE_RECORDS = gauge(
    "firnline_unreadable_records",
    "In-flight records that cannot be read and were set aside: the outputs of their runs are not deleted.",
    "The log names each. Remove the record, and its run's files by remove_orphan_files of the table.",
)
SETTINGS_REFUSED = gauge(
    "firnline_settings_refused",
    "1 if the settings file has changed and cannot be used, so that the old settings hold. Else 0.",
    "The log names the key and the remedy; `firnline check-config` does too. Correct the file, it is read again.",
)

SLOT_METRICS: Final[tuple[MetricDefinition, ...]] = (
    SLOTS,
    SLOTS_IN_USE,
)
RESERVE_METRICS: Final[tuple[MetricDefinition, ...]] = (
    QUIET,
    LIMITED_TABLES,
    MEMORY_BYTES,
    FREE_MEMORY_BYTES,
    STATE_UNSAVED,
    STATE_FREE_BYTES,
    UNREADABLE_RECORDS,
    SETTINGS_REFUSED,
)
