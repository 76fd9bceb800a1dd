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
SLOT_WAITING_RUNS = gauge(
    "firnline_slot_waiting_runs",
    "Runs that wait for a slot.",
    "Always above zero: add executors. Runs share the slots; the next free one goes to the run that holds the fewest.",
)
EXECUTOR_CORES = gauge(
    "firnline_executor_cores",
    "Tasks that Spark's executors run at once, the stream's included.",
    "Falls: executors were lost. Check the cluster manager's page and the memory of executors.",
)
EXECUTORS = gauge(
    "firnline_executors",
    "Spark's executors; 1 in local mode.",
    "Zero while runs wait: check the cluster manager, and that executors reach the driver.",
)
NO_EXECUTOR_SECONDS = gauge(
    "firnline_no_executor_seconds",
    "Time that work has waited without any executor; 0 if there is one or nothing waits.",
    "Check that the master is reachable and has free cores and memory for one executor.",
)
HOST_TASKS = gauge(
    "firnline_host_tasks",
    "Running Spark tasks of each host, those of the stream included. Beyond 100 hosts, those with the fewest tasks are "
    "added up as `other`.",
    "One host always without tasks: its executors are excluded or cannot import packages. See their logs.",
    labels=("host",),
)

QUIET = gauge(
    "firnline_quiet",
    "1 during the quiet hours of the settings, in which no run starts, else 0.",
    "One at the wrong time: limits.quiet_hours are in UTC.",
)
LIMIT_REMAINING_RATIO = gauge(
    "firnline_limit_remaining_ratio",
    "Part of a limit of the hour that further runs may use now, from 0 to 1. Only limits that are set have a series. "
    "`tables` is `*`, or the glob of a budget in limits.namespaces.",
    "Low all the time, with limited tables: the limit is below what writers add. Raise it, or fix the writers.",
    labels=("limit", "tables"),
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
STATE_VOLUME_BYTES = gauge(
    "firnline_state_volume_bytes",
    "Size of the volume with the ledger's state.",
    "Compare with the free bytes.",
)
UNREADABLE_RECORDS = gauge(
    "firnline_unreadable_records",
    "In-flight records that cannot be read and were set aside: the outputs of their runs are not deleted.",
    "The log names each. Remove the record, and its run's files by remove_orphan_files of the table.",
)
DRAINING = gauge(
    "firnline_draining",
    "1 while the service drains: no run starts, and the service ends with the last running one. Else 0.",
    "For hours: see the running rewrites on the status page. SIGTERM ends the service within 30 seconds.",
)
SETTINGS_REFUSED = gauge(
    "firnline_settings_refused",
    "1 if the settings file has changed and cannot be used, so that the old settings hold. Else 0.",
    "The log names the key and the remedy; `firnline check-config` does too. Correct the file, it is read again.",
)
SETTINGS_NEED_RESTART = gauge(
    "firnline_settings_need_restart",
    "Keys whose values in the settings file differ from those in force, because they need a restart.",
    "/readyz names the keys. Restart the service, or take the change back.",
)

SLOT_METRICS: Final[tuple[MetricDefinition, ...]] = (
    SLOTS,
    SLOTS_IN_USE,
    SLOT_WAITING_RUNS,
    EXECUTOR_CORES,
    EXECUTORS,
    NO_EXECUTOR_SECONDS,
    HOST_TASKS,
)
RESERVE_METRICS: Final[tuple[MetricDefinition, ...]] = (
    QUIET,
    LIMIT_REMAINING_RATIO,
    LIMITED_TABLES,
    MEMORY_BYTES,
    FREE_MEMORY_BYTES,
    STATE_UNSAVED,
    STATE_FREE_BYTES,
    STATE_VOLUME_BYTES,
    UNREADABLE_RECORDS,
    DRAINING,
    SETTINGS_REFUSED,
    SETTINGS_NEED_RESTART,
)
