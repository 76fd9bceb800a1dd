"""All metrics: name, kind, labels, meaning, and what to do when a value looks wrong.

No label has free text: the collector limits tables and partitions; all other labels are slugs.
"""

from __future__ import annotations

from metrics.capacity_definitions import RESERVE_METRICS, SLOT_METRICS
from metrics.delete_definitions import DELETE_METRICS
from metrics.manifest_definitions import MANIFEST_METRICS
from metrics.metric_definition import (
    MetricDefinition,
    counter,
    engine_counter,
    gauge,
    histogram,
    of_partition,
    table_gauge,
)
from metrics.stream_definitions import STREAM_METRICS

# State of the tables, read from the debt board at scrape time.

TABLE_FILES = table_gauge(
    "firnline_table_files",
    "Live data files of the table.",
    "Grows while the record count does not: writers commit small files. Check due partitions and failed runs.",
)
TABLE_SMALL_FILES = table_gauge(
    "firnline_table_small_files",
    "Live data files below the small-file threshold of the table.",
    "Grows without end: check that the table is rewritten (acted_on) and not stale, then runs skipped and run "
    "failures.",
)
TABLE_DATA_BYTES = table_gauge(
    "firnline_table_data_bytes",
    "Bytes in live data files of the table.",
    "A sudden change comes from writers, never from a rewrite: check the table's snapshots.",
)
TABLE_SMALL_BYTES = table_gauge(
    "firnline_table_small_bytes",
    "Bytes in live data files below the small-file threshold of the table.",
    "About the bytes that a rewrite reads. If large, expect long runs and provide cores.",
)
TABLE_DELETE_FILES = table_gauge(
    "firnline_table_delete_files",
    "Live delete files and deletion vectors of the table.",
    "Grows while runs commit: reads become slower; lower the table's delete thresholds.",
)
TABLE_RECORDS = table_gauge(
    "firnline_table_records",
    "Records in live data files, before deletes are applied, of the table.",
    "A decrease without a writer's delete or overwrite is an error: stop rewrites and compare snapshots.",
)
TABLE_DUE_PARTITIONS = table_gauge(
    "firnline_table_due_partitions",
    "Partitions of the table that are due for a rewrite.",
    "Does not fall: check queued runs, runs skipped by reason and run failures; add cores or raise "
    "service.concurrent_runs.",
)
TABLE_DEBT_FILES = table_gauge(
    "firnline_table_debt_files",
    "Files that a rewrite of the due partitions would remove from the table.",
    "Grows for hours: rewrites are too slow. Compare queued and running runs; add cores.",
)
TABLE_DUE_SECONDS = table_gauge(
    "firnline_table_due_seconds",
    "Time that the table has been due, without quiet hours and since its last pause; 0 if it is not due, if it is "
    "paused, or while a run works on it whose predecessor did not fail.",
    "Hours: check queued runs, runs skipped and run failures.",
)
TABLE_WAITING_SECONDS = table_gauge(
    "firnline_table_waiting_seconds",
    "Age of the oldest commit event of the table that no rewrite has settled; 0 if there is none.",
    "Higher than the policy's longest wait on a rewritten table: check runs skipped and run failures.",
)
TABLE_STALE = table_gauge(
    "firnline_table_stale",
    "1 if the counts of the table may be old because the table could not be read, else 0. A long count that goes on is "
    "no reason.",
    "The status page shows the reason. Check the catalog, the store and the service's permissions.",
)
TABLE_ACTED_ON = table_gauge(
    "firnline_table_acted_on",
    "1 if due partitions of the table are rewritten, 0 if the table is only observed, or is paused.",
    "Add the table to tables.include once the figures of observe mode are convincing. Paused: `firnline resume`.",
)

TABLE_MANIFESTS = table_gauge(
    "firnline_table_manifests",
    "Manifests of the table's current snapshot, of data and of deletes.",
    "Hundreds: every plan of every engine opens those whose partitions match. See manifests.min_count.",
)
TABLE_MANIFEST_BYTES = table_gauge(
    "firnline_table_manifest_bytes",
    "Bytes of the table's manifests. Divide by their number for the mean size.",
    "Many manifests with a mean far below commit.manifest.target-size-bytes (8 MiB): merging them pays.",
)
TABLE_MANIFEST_DEPTH = table_gauge(
    "firnline_table_manifest_depth",
    "Mean number of data manifests that a filter on one value of the first partition field opens; 1 is perfectly "
    "clustered.",
    "Close to the number of manifests: each spans all partitions. A manifest rewrite orders them (up to format V2).",
)

PARTITION_FILES = of_partition(TABLE_FILES)
PARTITION_SMALL_FILES = of_partition(TABLE_SMALL_FILES)
PARTITION_DATA_BYTES = of_partition(TABLE_DATA_BYTES)
PARTITION_SMALL_BYTES = of_partition(TABLE_SMALL_BYTES)
PARTITION_DELETE_FILES = of_partition(TABLE_DELETE_FILES)
PARTITION_RECORDS = of_partition(TABLE_RECORDS)

TABLES = gauge(
    "firnline_tables",
    "Tables on the debt board, including those without per-table metrics.",
    "Lower than expected: check the globs in tables.* and that sweeps reach the catalog.",
)
UNCOUNTED_TABLES = gauge(
    "firnline_uncounted_tables",
    "Tables that sweeps found and that were not looked at since the start.",
    "Falls within minutes of a start, in hours where tables are very large. Stays: a catalog or store is slow; see "
    "looks by outcome.",
)
TABLES_LEFT_OUT = gauge(
    "firnline_tables_left_out",
    "Tables without per-table metrics. 5,000 tables have them: unreadable ones first, then those that have been due "
    "for more than an hour, then those with the most small files.",
    "No action needed: rewrites are not affected. The status page and `firnline debt` cover all tables.",
)
STALE_TABLES = gauge(
    "firnline_stale_tables",
    "Tables that could not be read, so that their counts may be old, including those without per-table metrics.",
    "Many at once: a catalog or store does not answer. See unreadable tables by reason.",
)
OLDEST_WAITING_SECONDS = gauge(
    "firnline_oldest_waiting_seconds",
    "Age of the oldest unsettled commit event of all rewritten tables; 0 if there is none.",
    "Find the table by its waiting seconds or on the status page, then check runs skipped and run failures.",
)

# State of the dispatcher and the service, read at scrape time.

QUEUED_RUNS = gauge(
    "firnline_queued_runs",
    "Due tables that wait for a free run.",
    "Always above zero: add cores or raise service.concurrent_runs.",
)
RUNNING_RUNS = gauge(
    "firnline_running_runs",
    "Rewrite runs in progress.",
    "Zero while runs are queued: check run failures (back-off), limits and quiet hours; look for a stuck Spark job.",
)
OLDEST_DUE_SECONDS = gauge(
    "firnline_oldest_due_seconds",
    "Time since the longest-waiting due table became due, without quiet hours.",
    "Grows without end: one table waits too long or fails repeatedly. See run failures by reason.",
)
LATE_TABLES = gauge(
    "firnline_late_tables",
    "Tables that have been due for more than an hour, without quiet hours, and on which no run works. A table whose "
    "last run failed counts always.",
    "Falls: a backlog is worked off. Does not fall: rewrites are slower than writers, or fail. See queued runs and run "
    "failures.",
)
OLDEST_RUN_SECONDS = gauge(
    "firnline_oldest_run_seconds",
    "Age of the oldest run in progress.",
    "Hours are usual for a large table. Compare it with silent run seconds.",
)
SILENT_RUN_SECONDS = gauge(
    "firnline_silent_run_seconds",
    "Longest time that a run has written no output and made no commit. Waiting for a slot counts as progress.",
    "Minutes: the store or an executor hangs. After 30 min the run is stopped, and tried again.",
)
LOST_RUNS = gauge(
    "firnline_lost_runs",
    "Runs that hang, could not be stopped, and were given up. Their tables are not compacted until a restart.",
    "Restart firnline. Then find out what did not answer: the catalog, the store or Spark.",
)
PAUSED_TABLES = gauge(
    "firnline_paused_tables",
    "Tables that would be rewritten and are paused by `firnline pause`. They are counted, but no run of them starts.",
    "Forgotten: the status page shows who paused them why and until when; `firnline resume` ends it.",
)
BUILD_INFO = gauge(
    "firnline_build_info",
    "Always 1. The labels are the running version.",
    "Join with other metrics to see what a deployment changed.",
    labels=("version", "python"),
)
SERVICE_READY = gauge(
    "firnline_service_ready",
    "1 if /readyz answers 200, else 0. The query of commit events is looked at about once a second.",
    "Open /readyz: its body names the failing part.",
)
ACTIVE = gauge(
    "firnline_active",
    "1 if this service holds the lease on its checkpoint, so that it may commit; 0 if it is standby, or could not "
    "renew the lease in time. `run --observe`, which needs no lease: 1 while it works.",
    "Zero on all services that share a checkpoint: open /readyz, which says who is active or why the lease cannot be "
    "written.",
)
OBSERVING = gauge(
    "firnline_observing",
    "1 for `run --observe`, which rewrites nothing, else 0.",
    "1 where tables should be rewritten: start the service without --observe.",
)
OTHER_FIRNLINE_TABLES = gauge(
    "firnline_other_firnline_tables",
    "Tables that another deployment of firnline rewrote within the last day.",
    "Above zero: both do the same work, and their commits conflict. The log and `firnline debt --why` name the "
    "deployment. Stop one, or give each its own tables.",
)

SHARD_MEMBERS = gauge(
    "firnline_shard_members",
    "Services among which the tables are divided, by the number of this one (service.shard); 1 without service.shard.",
    "More than there are active services: the tables of those that are missing wait. Different on two services: "
    "correct service.shard.",
    labels=("shard",),
)

# The ledger.

LEDGER_UPDATES = counter(
    "firnline_ledger_updates_total",
    "Times that the ledger counted a table up to a snapshot.",
    "Flat while events arrive: check batch seconds, unreadable tables and the log.",
)
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
EVENT_TO_LEDGER_SECONDS = histogram(
    "firnline_event_to_ledger_seconds",
    "Time from the oldest event of an update until the ledger counted it.",
    "High: check event lag, the trigger interval and manifest read seconds.",
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
    "Mostly `unchanged` between commits. Many `missing`: events name tables that do not exist. `unreadable`: see "
    "unreadable tables by reason.",
    labels=("outcome",),
)
WAITING_LOOKS = gauge(
    "firnline_waiting_looks",
    "Tables that wait for a look of the ledger.",
    "High during a sweep only. Stays high: raise service.looks_per_catalog, or add a service (service.shard).",
    labels=("catalog",),
)
UNLISTED_NAMESPACES = gauge(
    "firnline_unlisted_namespaces",
    "Namespaces that the last sweep could not list. Their tables are found by events only, once the service has "
    "restarted.",
    "Above 0: /readyz names them. Permit listing them, repair the table that makes the listing fail, or name them in "
    "tables.exclude.",
)
CATALOG_AVAILABLE = gauge(
    "firnline_catalog_available",
    "0 while the catalog does not answer, else 1. Then one table at a time tries it, and none of its tables is "
    "rewritten.",
    "Check the catalog and the network. Tables of other catalogs are not affected.",
    labels=("catalog",),
)
CATALOG_LISTED = gauge(
    "firnline_catalog_listed",
    "1 if the last listing of the catalog succeeded, 0 if it failed or hangs.",
    "Zero while its tables load: see /readyz, and permit the service to list the catalog.",
    labels=("catalog",),
)
UNREADABLE_TABLES = counter(
    "firnline_unreadable_tables_total",
    "Times that a table could not be loaded or counted.",
    "Check the catalog, the store and the permissions for the reason. The service retries.",
    labels=("reason",),
)

# Refresh hooks.

HOOK_RESULTS = ("told", "failed")
HOOK_CALLS = counter(
    "firnline_hook_calls_total",
    "Calls of refresh hooks after a commit, by hook and result (`told`: success, `failed`). All attempts are one call.",
    "Failures: the log has the hook's error. Engines read old metadata until their caches expire.",
    labels=("hook", "result"),
)
HOOK_SECONDS = counter(
    "firnline_hook_seconds_total",
    "Time spent in refresh hooks, including retries and pauses. Rewrites do not wait for hooks.",
    "High per call: the engine answers slowly; check its own metrics.",
    labels=("hook",),
)

# The history of decisions.

HISTORY_ROWS = counter(
    "firnline_history_rows_total",
    "Decisions appended to the history table.",
    "None although runs commit: history.table is not set, or appends fail.",
)
HISTORY_DROPPED_ROWS = counter(
    "firnline_history_dropped_rows_total",
    "Decisions that were dropped and are missing in the history table. Rewrites are not affected.",
    "Any: appends failed for a long time. Fix the failed appends, then raise history.buffer_rows.",
)
HISTORY_FAILED_APPENDS = counter(
    "firnline_history_failed_appends_total",
    "Failed appends to the history table. Each is retried.",
    "Grows: the log has the error. Check that the service may write to the table and its storage.",
)

# Runs: planned, skipped, rewritten, committed, failed.

RUNS_PLANNED = counter(
    "firnline_runs_planned_total",
    "Rewrite runs planned.",
    "Flat while partitions are due: check runs skipped by reason.",
)
PLANNED_GROUPS = counter(
    "firnline_planned_groups_total",
    "File groups in planned runs.",
    "Far above rewritten groups: runs fail before they finish. Check run failures.",
)
PLANNED_FILES = counter(
    "firnline_planned_files_total",
    "Files in planned runs.",
    "Far above committed input files: the same work is planned repeatedly. Check run failures.",
)
PLANNED_BYTES = counter(
    "firnline_planned_bytes_total",
    "Bytes of the files in planned runs.",
    "Far above committed input bytes: the same work is planned repeatedly. Check run failures.",
)
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
WOULD_REWRITE_RUNS = counter(
    "firnline_would_rewrite_runs_total",
    "Runs that observe mode would have started. The same debt counts each time it is planned.",
    "Add the table to tables.include once the figures are convincing.",
)
WOULD_REWRITE_GROUPS = counter(
    "firnline_would_rewrite_groups_total",
    "File groups that runs in observe mode would have rewritten.",
    "Compare with the runs: many groups per run mean long runs at first.",
)
WOULD_REWRITE_FILES = counter(
    "firnline_would_rewrite_input_files_total",
    "Files that runs in observe mode would have replaced.",
    "Compare with the output files to see the gain.",
)
WOULD_REWRITE_OUTPUT_FILES = counter(
    "firnline_would_rewrite_output_files_total",
    "Files that runs in observe mode would have written.",
    "Close to the input files: a rewrite gains little with these thresholds and target size.",
)
WOULD_REWRITE_BYTES = counter(
    "firnline_would_rewrite_bytes_total",
    "Bytes that runs in observe mode would have read.",
    "The expected cost of rewriting: provide cores and store requests for it.",
)
REWRITE_GROUPS = engine_counter(
    "firnline_rewrite_groups_total",
    "File groups rewritten, by engine and the reason for its choice.",
    "Many with a costly engine: the reason says why the cheaper engine was not used.",
)
REWRITE_INPUT_FILES = engine_counter(
    "firnline_rewrite_input_files_total",
    "Files read by rewrites.",
    "Above committed input files: rewritten groups were lost to conflicts or failures.",
)
REWRITE_OUTPUT_FILES = engine_counter(
    "firnline_rewrite_output_files_total",
    "Files written by rewrites.",
    "Close to the input files: a rewrite gains little with these thresholds and target size.",
)
REWRITE_INPUT_BYTES = engine_counter(
    "firnline_rewrite_input_bytes_total",
    "Bytes of the files read by rewrites.",
    "Many times the bytes that writers add: bytes are rewritten too often. Raise policy.growth.",
)
REWRITE_OUTPUT_BYTES = engine_counter(
    "firnline_rewrite_output_bytes_total",
    "Bytes of the files written by rewrites.",
    "Above the input bytes: check the tables' compression settings.",
)
REWRITE_DECODED_BYTES = engine_counter(
    "firnline_rewrite_decoded_bytes_total",
    "Input bytes that rewrites decoded; other bytes were copied.",
    "Above the bytes that writers add: files are decoded more than once. Raise policy.min_input_files or "
    "policy.growth.",
)
REWRITE_INPUT_ROWS = engine_counter(
    "firnline_rewrite_input_rows_total",
    "Rows read by rewrites, before deletes are applied.",
    "Input rows less deleted rows equal output rows. A run that finds otherwise fails and commits nothing.",
)
REWRITE_DELETED_ROWS = engine_counter(
    "firnline_rewrite_deleted_rows_total",
    "Rows that rewrites removed because a delete file covers them.",
    "High compared with output rows: the tables are updated often. Lower the delete thresholds.",
)
REWRITE_OUTPUT_ROWS = engine_counter(
    "firnline_rewrite_output_rows_total",
    "Rows written by rewrites.",
    "Input rows less deleted rows equal output rows. A run that finds otherwise fails and commits nothing.",
)
REWRITE_SECONDS = engine_counter(
    "firnline_rewrite_seconds_total",
    "Time spent in rewrites of file groups, summed over parallel tasks.",
    "Divide input bytes by it: a low rate points to the store, the network or a costly engine.",
)
REWRITE_GROUP_SECONDS = histogram(
    "firnline_rewrite_group_seconds",
    "Duration of the rewrite of one file group.",
    "A long tail: some groups are much larger than others. Lower policy.max_file_group_size.",
    labels=("engine",),
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
    "Flat while runs are planned: check run failures by stage and reason.",
)
COMMIT_GROUPS = counter(
    "firnline_commit_groups_total",
    "File groups in committed runs.",
    "Below rewritten groups: rewritten groups were lost to conflicts or failures.",
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
    "They stay on the store until snapshots expire: run snapshot expiry on the tables.",
)
COMMIT_OUTPUT_BYTES = counter(
    "firnline_commit_output_bytes_total",
    "Bytes of the files that committed runs added.",
    "Above the replaced bytes: check the tables' compression settings.",
)
LAST_COMMIT_TIMESTAMP_SECONDS = gauge(
    "firnline_last_commit_timestamp_seconds",
    "Time of the last committed run, since the epoch; 0 before the first.",
    "Old while partitions are due: check run failures and runs skipped.",
)
RUN_FAILURES = counter(
    "firnline_run_failures_total",
    "Runs that failed, some after a part was committed, by stage, reason and reaction.",
    "`retry` and `replan` need no action. `settle` or `give_up` for hours needs a person: see the runbook.",
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
REFUSED_DELETIONS = counter(
    "firnline_refused_deletions_total",
    "Files that a record beside the checkpoint names as outputs of a run, and that are not: they stay.",
    "Any: a record was damaged, or somebody else has written it (SECURITY.md), or the table's location has changed "
    "since the run. The log names record, files and cause.",
)

# Every definition above is in the catalogue; a list kept by hand could miss one.
CATALOGUE: tuple[MetricDefinition, ...] = (
    *(value for value in tuple(globals().values()) if isinstance(value, MetricDefinition)),
    *DELETE_METRICS,
    *MANIFEST_METRICS,
    *SLOT_METRICS,
    *RESERVE_METRICS,
    *STREAM_METRICS,
)
