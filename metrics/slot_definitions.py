"""Metrics of rewrite slots and of the executors that they come from: name, kind, labels, meaning, remedy."""

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

SLOT_METRICS: Final[tuple[MetricDefinition, ...]] = (
    SLOTS,
    SLOTS_IN_USE,
    SLOT_WAITING_RUNS,
    EXECUTOR_CORES,
    EXECUTORS,
    NO_EXECUTOR_SECONDS,
    HOST_TASKS,
)
