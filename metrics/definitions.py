"""All metrics: name, kind, labels, meaning, what to do when a value looks wrong, and how a gauge is read at a scrape.

No label has free text: tables are bounded, all other labels are slugs.
"""

from __future__ import annotations

import platform

from metrics.metric_definition import (
    MetricDefinition,
    counter,
    engine_counter,
    gauge,
    histogram,
    labelled_gauge,
    table_gauge,
)
from metrics.moment import Moment, by_catalog

# State of the tables, from the debt board.

TABLE_FILES = table_gauge(
    "firnline_table_files",
    "Live data files of the table.",
    "Grows while the record count does not: writers commit small files. Check due partitions and failed runs.",
    read=lambda _, debt: debt.total.data_files,
)
TABLE_SMALL_FILES = table_gauge(
    "firnline_table_small_files",
    "Live data files below the small-file threshold of the table.",
    "Grows without end: check that the table is rewritten (acted_on) and not stale, then runs skipped and run "
    "failures.",
    read=lambda _, debt: debt.total.small_files,
)
TABLE_DATA_BYTES = table_gauge(
    "firnline_table_data_bytes",
    "Bytes in live data files of the table.",
    "A sudden change comes from writers, never from a rewrite: check the table's snapshots.",
    read=lambda _, debt: debt.total.data_bytes,
)
TABLE_DELETE_FILES = table_gauge(
    "firnline_table_delete_files",
    "Live delete files and deletion vectors of the table.",
    "Grows while runs commit: reads become slower; lower the table's delete thresholds.",
    read=lambda _, debt: debt.total.delete_files,
)
TABLE_RECORDS = table_gauge(
    "firnline_table_records",
    "Records in live data files, before deletes are applied, of the table.",
    "A decrease without a writer's delete or overwrite is an error: stop rewrites and compare snapshots.",
    read=lambda _, debt: debt.total.records,
)
TABLE_DUE_PARTITIONS = table_gauge(
    "firnline_table_due_partitions",
    "Partitions of the table that are due for a rewrite.",
    "Does not fall: check queued runs, runs skipped by reason and run failures; add cores or raise "
    "service.concurrent_runs.",
    read=lambda _, debt: debt.due_partitions,
)
TABLE_DEBT_FILES = table_gauge(
    "firnline_table_debt_files",
    "Files that a rewrite of the due partitions would remove from the table.",
    "Grows for hours: rewrites are too slow. Compare queued and running runs; add cores.",
    read=lambda _, debt: debt.debt_files,
)
TABLE_DUE_SECONDS = table_gauge(
    "firnline_table_due_seconds",
    "Time that the table has been due, without quiet hours and since its last pause; 0 if it is not due, if it is "
    "paused, or while a run works on it whose predecessor did not fail.",
    "Hours: check queued runs, runs skipped and run failures.",
    read=Moment.due_seconds,
)
TABLE_STALE = table_gauge(
    "firnline_table_stale",
    "1 if the counts of the table may be old because the table could not be read, else 0. A long count that goes on is "
    "no reason.",
    "The status page shows the reason. Check the catalog, the store and the service's permissions.",
    read=lambda _, debt: debt.unreadable,
)
TABLE_ACTED_ON = table_gauge(
    "firnline_table_acted_on",
    "1 if due partitions of the table are rewritten, 0 if the table is only observed, or is paused.",
    "Add the table to tables.include once the figures of observe mode are convincing. Paused: `firnline resume`.",
    read=lambda moment, debt: debt.acted_on and not moment.service.paused(debt.table),
)

TABLE_MANIFESTS = table_gauge(
    "firnline_table_manifests",
    "Manifests of the table's current snapshot, of data and of deletes.",
    "Hundreds: every plan of every engine opens those whose partitions match. `firnline manifests TABLE` merges them.",
    read=lambda _, debt: debt.manifests.manifests if debt.manifests is not None else 0,
)


TABLES = gauge(
    "firnline_tables",
    "Tables on the debt board, including those without per-table metrics.",
    "Lower than expected: check the globs in tables.* and that sweeps reach the catalog.",
    read=lambda moment: len(moment.tables),
)
UNCOUNTED_TABLES = gauge(
    "firnline_uncounted_tables",
    "Tables that sweeps found and that were not looked at since the start.",
    "Falls within minutes of a start, in hours where tables are very large. Stays: a catalog or store is slow; see "
    "looks by outcome.",
    read=lambda moment: counting.left if (counting := moment.service.counting) is not None else 0,
)
STALE_TABLES = gauge(
    "firnline_stale_tables",
    "Tables that could not be read, so that their counts may be old, including those without per-table metrics.",
    "Many at once: a catalog or store does not answer. The status page and the log have the reasons.",
    read=lambda moment: sum(debt.unreadable for debt in moment.tables),
)

# State of the dispatcher and the service, read at scrape time.

QUEUED_RUNS = gauge(
    "firnline_queued_runs",
    "Due tables that wait for a free run.",
    "Always above zero: add cores or raise service.concurrent_runs.",
    read=lambda moment: moment.work.queued,
)
RUNNING_RUNS = gauge(
    "firnline_running_runs",
    "Rewrite runs in progress.",
    "Zero while runs are queued: check run failures (back-off), limits and quiet hours; look for a stuck Spark job.",
    read=lambda moment: moment.work.running,
)
OLDEST_DUE_SECONDS = gauge(
    "firnline_oldest_due_seconds",
    "Time since the longest-waiting due table became due, without quiet hours.",
    "Grows without end: one table waits too long or fails repeatedly. See run failures by reason.",
    read=lambda moment: moment.work.oldest_due_seconds,
)
LATE_TABLES = gauge(
    "firnline_late_tables",
    "Tables that have been due for more than an hour, without quiet hours, and on which no run works. A table whose "
    "last run failed counts always.",
    "Falls: a backlog is worked off. Does not fall: rewrites are slower than writers, or fail. See queued runs and run "
    "failures.",
    read=lambda moment: moment.work.late,
)
LOST_RUNS = gauge(
    "firnline_lost_runs",
    "Runs that hang, could not be stopped, and were given up. Their tables are not compacted until a restart.",
    "Restart firnline. Then find out what did not answer: the catalog, the store or Spark.",
    read=lambda moment: len(moment.work.lost),
)
PAUSED_TABLES = gauge(
    "firnline_paused_tables",
    "Tables that would be rewritten and are paused by `firnline pause`. They are counted, but no run of them starts.",
    "Forgotten: the status page shows who paused them why and until when; `firnline resume` ends it.",
    read=lambda moment: sum(debt.acted_on and moment.service.paused(debt.table) for debt in moment.tables),
)
BUILD_INFO = labelled_gauge(
    "firnline_build_info",
    "Always 1. The labels are the running version.",
    "Join with other metrics to see what a deployment changed.",
    labels=("version", "python"),
    read=lambda moment: [((moment.version, platform.python_version()), 1)],
)
SERVICE_READY = gauge(
    "firnline_service_ready",
    "1 if /readyz answers 200, else 0. The query of commit events is looked at about once a second.",
    "Open /readyz: its body names the failing part.",
    read=lambda moment: moment.service.ready,
)
ACTIVE = gauge(
    "firnline_active",
    "1 if this service holds the lease on its checkpoint, so that it may commit; 0 if it is standby, or could not "
    "renew the lease in time. `run --observe`, which needs no lease: 1 while it works.",
    "Zero on all services that share a checkpoint: open /readyz, which says who is active or why the lease cannot be "
    "written.",
    read=lambda moment: moment.service.active,
)
OBSERVING = gauge(
    "firnline_observing",
    "1 for `run --observe`, which rewrites nothing, else 0.",
    "1 where tables should be rewritten: start the service without --observe.",
    read=lambda moment: moment.service.observing,
)
OTHER_FIRNLINE_TABLES = gauge(
    "firnline_other_firnline_tables",
    "Tables that another deployment of firnline rewrote within the last day.",
    "Above zero: both do the same work, and their commits conflict. The log and `firnline debt --why` name the "
    "deployment. Stop one, or give each its own tables.",
    read=lambda moment: sum(bool(moment.other_firnlines(debt)) for debt in moment.tables),
)

SHARD_MEMBERS = labelled_gauge(
    "firnline_shard_members",
    "Services among which the tables are divided, by the number of this one (service.shard); 1 without service.shard.",
    "More than there are active services: the tables of those that are missing wait. Different on two services: "
    "correct service.shard.",
    labels=("shard",),
    read=lambda moment: [((str(moment.service.shard.number),), moment.service.shard.count)],
)

# The ledger.

RECOUNT_REASONS = (
    "first_sight",
    "taken_over",
    "history_gap",
    "not_listed",
    "table_replaced",
    "summary_mismatch",
    "thresholds_changed",
)
RECOUNTS = counter(
    "firnline_ledger_recounts_total",
    "Full recounts of a table, where reading the new snapshots was not enough.",
    "Frequent recounts read many manifests. Expired snapshots mean that events come too late; rollbacks come from "
    "writers. `taken_over`: its counts lie on another host. `not_listed`: the catalog lists the newest snapshot alone "
    "(Nessie).",
    labels=("reason",),
)
EVENT_TO_COMPACTED_SECONDS = histogram(
    "firnline_event_to_compacted_seconds",
    "Time from the oldest event that a run settles to the run's commit.",
    "High: check queued runs and stage seconds. Includes the policy's wait for more files.",
)
LOOK_OUTCOMES = ("counted", "unchanged", "counting", "missing", "unreadable")
LOOKS = counter(
    "firnline_looks_total",
    "Looks of the ledger at a table, by outcome. Each is one catalog call; `unchanged` reads nothing from the store.",
    "Mostly `unchanged` between commits. Many `missing`: events name tables that do not exist. `unreadable`: the "
    "status page and the log have the reasons.",
    labels=("outcome",),
)
WAITING_LOOKS = labelled_gauge(
    "firnline_waiting_looks",
    "Tables that wait for a look of the ledger.",
    "High during a sweep only. Stays high: raise service.looks_per_catalog, or add a service (service.shard).",
    labels=("catalog",),
    read=lambda moment: by_catalog(moment.service.waiting_looks, sum),
)
CATALOG_AVAILABLE = labelled_gauge(
    "firnline_catalog_available",
    "0 while the catalog does not answer, else 1. Then one table at a time tries it, and none of its tables is "
    "rewritten.",
    "Check the catalog and the network. Tables of other catalogs are not affected.",
    labels=("catalog",),
)
CATALOG_LISTED = labelled_gauge(
    "firnline_catalog_listed",
    "1 if the last listing of the catalog succeeded, 0 if it failed or hangs, or if a namespace could not be listed.",
    "Zero: /readyz names the error and the namespaces. Permit listing, repair the table that makes it fail, or name "
    "the namespace in tables.exclude.",
    labels=("catalog",),
    read=lambda moment: by_catalog(moment.service.listed, min),
)

# Refresh hooks.

HOOK_RESULTS = ("told", "failed")
HOOK_CALLS = counter(
    "firnline_hook_calls_total",
    "Calls of refresh hooks after a commit, and appends to the history of decisions (`history`), by hook and result "
    "(`told`: success, `failed`). All attempts are one call.",
    "Failures: the log has the error. Engines read old metadata until their caches expire; decisions wait in memory.",
    labels=("hook", "result"),
)

# Runs: planned, skipped, rewritten, committed, failed.

RUNS_SKIPPED = counter(
    "firnline_runs_skipped_total",
    "Times that a due table was deliberately not rewritten.",
    "The reason says why: a switch, another compactor, a lock, a branch to be published, too many `replace` snapshots "
    "in a row. Limits: see firnline_limited_tables. Failures: see firnline_run_failures_total.",
    labels=("reason",),
)
DROPPED_GROUPS = counter(
    "firnline_dropped_groups_total",
    "File groups that could not be rewritten and stay unchanged, while the rest of their run continued.",
    "The log names table, partition and cause. Reaction `replan`: the partition is planned again. `retry`: the store "
    "did not answer; the group is left out for a minute, then for longer each time. `give_up`: it is left out for an "
    "hour; new files of the partition are merged without it.",
    labels=("reason", "reaction"),
)
REWRITE_GROUPS = engine_counter(
    "firnline_rewrite_groups_total",
    "File groups rewritten, by engine and the reason for its choice.",
    "Many with a costly engine: the reason says why the cheaper engine was not used.",
)
REWRITE_INPUT_BYTES = engine_counter(
    "firnline_rewrite_input_bytes_total",
    "Bytes of the files read by rewrites.",
    "Many times the bytes that writers add: bytes are rewritten too often. Raise policy.growth.",
)
STAGE_SECONDS = histogram(
    "firnline_run_stage_seconds",
    "Duration of the stages of runs: plan for all planned runs, rewrite and commit for committed runs.",
    "Plan: check the manifest cache. Rewrite: add cores. Commit: the catalog is slow, or commits conflict.",
    labels=("stage",),
)
COMMITS = counter(
    "firnline_commits_total",
    "Runs that ended with a commit.",
    "Flat while tables are due: check run failures by stage and reason, and runs skipped.",
)
COMMIT_INPUT_FILES = counter(
    "firnline_commit_input_files_total",
    "Files that committed runs replaced.",
    "Less the output files, this is the reduction. Below the growth of small files: debt grows.",
)
COMMIT_OUTPUT_FILES = counter(
    "firnline_commit_output_files_total",
    "Files that committed runs added.",
    "Close to the replaced files: a rewrite gains little with these thresholds and target size.",
)
COMMIT_INPUT_BYTES = counter(
    "firnline_commit_input_bytes_total",
    "Bytes of the files that committed runs replaced.",
    "Far below the bytes read by rewrites: their work is lost to conflicts or failures. The files stay on the store "
    "until snapshots expire.",
)
RUN_FAILURES = counter(
    "firnline_run_failures_total",
    "Runs that failed, some after a part was committed, by stage, reason and reaction.",
    "Single ones with `retry` or `replan` need no action. `settle` or `give_up` for hours: see the runbook.",
    labels=("stage", "reason", "reaction"),
)
TABLE_DAMAGE = counter(
    "firnline_table_damage_total",
    "Signs that rows or files of a table are lost or wrong: a commit that differs from its plan, a live file that is "
    "missing, too short or unreadable, or that holds another number of rows than its manifest says.",
    "Any: see the runbook, FirnlineTableMayBeDamaged. The log has the table and the file.",
    labels=("reason",),
)
DELETED_BECAUSE = ("ended_run", "not_committed", "unused_metadata")
UNREFERENCED_FILES_REMOVED = counter(
    "firnline_unreferenced_files_removed_total",
    "Files that were deleted after proof that no snapshot references them; `reason`: outputs of crashed, failed or "
    "aborted runs (`ended_run`), outputs that a run did not commit (`not_committed`), manifests and manifest lists of "
    "attempts to commit (`unused_metadata`). The log and the history name each.",
    "Many: runs crash or conflict often. Check run failures and restarts of the service.",
    labels=("reason",),
)

MANIFEST_CACHE_MISSES = counter(
    "firnline_manifest_cache_misses_total",
    "Manifests that had to be read from the store.",
    "Many after the first hours: raise service.manifest_cache_bytes, or let writers merge manifests.",
)
MANIFESTS_MERGED = counter(
    "firnline_manifests_merged_total",
    "Manifests removed by merging: the number before less the number after.",
    "None for a table with hundreds: see runs skipped by reason.",
)

# Capacity: rewrite slots, budgets of the hour, memory, space for state, settings.

SLOTS = gauge(
    "firnline_slots",
    "Rewrite tasks that may run at once: cores of the executors less the stream's.",
    "Below the cores of the cluster: executors are missing. Zero: see executors on the status page.",
    read=lambda moment: moment.service.rewriting.slots,
)
SLOTS_IN_USE = gauge(
    "firnline_slots_in_use",
    "Slots that runs hold, each for one Spark task.",
    "Always all of them, with runs waiting: add executors. Few while runs are queued: raise service.concurrent_runs.",
    read=lambda moment: moment.service.rewriting.in_use,
)

QUIET = gauge(
    "firnline_quiet",
    "1 during the quiet hours of the settings, in which no run starts, else 0.",
    "One at the wrong time: limits.quiet_hours are in UTC.",
    read=lambda moment: moment.work.quiet,
)
LIMITED_TABLES = gauge(
    "firnline_limited_tables",
    "Due tables that the limits of the hour hold back. Quiet hours, and the limit of commits per table, do not count.",
    "Always above zero: the limits are below what writers add. See the remaining ratio of each limit.",
    read=lambda moment: moment.work.limited,
)
MEMORY_BYTES = labelled_gauge(
    "firnline_memory_bytes",
    "Resident memory of the service's processes on this host: the driver, its JVM, Spark's Python workers, others. "
    "Pages that workers share count in each. Executors of a cluster are not included.",
    "Grows for days: see which process. JVM: spark.driver.memory bounds its heap. Workers: row groups of rewrites. "
    "Driver: service.manifest_cache_bytes.",
    labels=("process",),
    read=lambda moment: [((process,), held) for process, held in sorted(moment.memory.resident.items())],
)
FREE_MEMORY_BYTES = gauge(
    "firnline_free_memory_bytes",
    "Memory that processes may still take: of the container, or of the host if that is less.",
    "Low: raise the container's memory, or lower spark.driver.memory, service.manifest_cache_bytes or the slots.",
    read=lambda moment: moment.memory.free,
)
STATE_UNSAVED = gauge(
    "firnline_state_unsaved",
    "1 while the ledger cannot save its state; counts are right all the same. Else 0.",
    "Open /readyz, which has the error: usually the volume of state.checkpoint is full or read-only.",
    read=lambda moment: moment.space.unsaved if moment.space is not None else None,
)
STATE_FREE_BYTES = gauge(
    "firnline_state_free_bytes",
    "Free bytes of the volume with the ledger's state: that of a local checkpoint.",
    "Low: enlarge the volume, or remove what matches *.damaged* in the folder of the checkpoint.",
    read=lambda moment: moment.space.free_bytes if moment.space is not None else None,
)
UNREADABLE_RECORDS = gauge(
    "firnline_unreadable_records",
    "In-flight records that cannot be read and were set aside: the outputs of their runs are not deleted.",
    "The log names each. Remove the record, and its run's files by remove_orphan_files of the table.",
    read=lambda moment: moment.service.unreadable,
)
SETTINGS_REFUSED = gauge(
    "firnline_settings_refused",
    "1 if the settings file has changed and cannot be used, so that the old settings hold. Else 0.",
    "The log names the key and the remedy; `firnline check-config` does too. Correct the file, it is read again.",
    read=lambda moment: moment.service.settings_refused,
)

# The stream of commit events.

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
EVENT_LAG_OFFSETS = labelled_gauge(
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
LAST_BATCH_TIMESTAMP_SECONDS = labelled_gauge(
    "firnline_last_batch_timestamp_seconds",
    "Time of the end of the last micro-batch, or when the query was last seen waiting for events, since the epoch.",
    "Older than a few trigger intervals: the stream hangs or has ended. Check /healthz and the log.",
    labels=("query",),
)
STREAM_ENDS = counter(
    "firnline_stream_ends_total",
    "Times that the query of the stream ended and was started again, by cause.",
    "`kafka_unavailable`: the brokers, the topics or the rights on them. `unavailable`: what a batch is kept in. "
    "`unexpected`: see the log; after a minute at the same offsets the query goes on from the end of the topics.",
    labels=("query", "cause"),
)
EVENTS_LOST = counter(
    "firnline_lost_events_total",
    "Offsets that were skipped because the query failed for a minute at the same place and went on from the end. "
    "All tables are looked at; requested rewrites among them are lost.",
    "See the log: it has the place and the error. Correct the producer of the record.",
    labels=("query",),
)

CATALOGUE = tuple(value for value in tuple(globals().values()) if isinstance(value, MetricDefinition))
"""Every definition above."""
