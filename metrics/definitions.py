"""Every metric, defined once: name, kind, labels, unit, what it means, and what to do when it looks wrong.

No label holds free text: tables and partitions are bounded by the collector's limits, all others are slugs.
"""

from __future__ import annotations

from metrics.metric_definition import (
    MetricDefinition,
    counter,
    engine_counter,
    gauge,
    histogram,
    of_partition,
    table_gauge,
)

# What the tables hold now, read from the debt board at scrape time.

TABLE_FILES = table_gauge(
    "firnline_table_files",
    "Live data files of the table.",
    "Growing with a flat record count: writers commit small files; see due partitions and failed runs.",
)
TABLE_SMALL_FILES = table_gauge(
    "firnline_table_small_files",
    "Live data files below the small-file threshold of the table.",
    "Rising without an end: check that the table is acted on and not stale, then runs skipped and run failures.",
)
TABLE_DATA_BYTES = table_gauge(
    "firnline_table_data_bytes",
    "Bytes in live data files of the table.",
    "A sudden change follows a change of the table's contents, never a rewrite: look at the table's snapshots.",
)
TABLE_SMALL_BYTES = table_gauge(
    "firnline_table_small_bytes",
    "Bytes in live data files below the small-file threshold of the table.",
    "About what a rewrite would read: if it is large, expect long runs and plan cores for them.",
)
TABLE_DELETE_FILES = table_gauge(
    "firnline_table_delete_files",
    "Live delete files and deletion vectors of the table.",
    "Rising while runs commit: readers slow down; lower the table's delete-file threshold.",
)
TABLE_RECORDS = table_gauge(
    "firnline_table_records",
    "Records in live data files, before deletes are applied, of the table.",
    "A fall that no writer's delete or overwrite explains would be a fault: stop rewrites and compare snapshots.",
)
TABLE_DUE_PARTITIONS = table_gauge(
    "firnline_table_due_partitions",
    "Partitions of the table that the policy calls due for a rewrite.",
    "Not falling: see queued runs, runs skipped by reason and run failures; add cores or raise the limit of runs.",
)
TABLE_DEBT_FILES = table_gauge(
    "firnline_table_debt_files",
    "Files that a rewrite of every partition's small files would remove from the table.",
    "Grows for hours: rewrites do not keep up; compare queued runs with running runs and add cores.",
)
TABLE_WAITING_SECONDS = table_gauge(
    "firnline_table_waiting_seconds",
    "Age of the oldest event of the table that no rewrite has settled; 0 when all are settled.",
    "Longer than the policy's longest wait on a table that is acted on: see runs skipped and run failures.",
)
TABLE_STALE = table_gauge(
    "firnline_table_stale",
    "1 when the counts of the table may be old, because it could not be read, else 0.",
    "The status page says why; check the catalog's and the store's health and the service's permissions.",
)
TABLE_ACTED_ON = table_gauge(
    "firnline_table_acted_on",
    "1 when due partitions of the table are rewritten, 0 when it is only observed.",
    "Switch the table to rewriting in the settings once the figures of observe mode are convincing.",
)

TABLE_MANIFESTS = table_gauge(
    "firnline_table_manifests",
    "Manifests of the table's current snapshot, of data and of deletes.",
    "Hundreds: every plan of every engine opens those whose partitions match; see manifests.min_count.",
)
TABLE_MANIFEST_BYTES = table_gauge(
    "firnline_table_manifest_bytes",
    "Bytes of the manifests; by the number of them, their mean size.",
    "A mean far below commit.manifest.target-size-bytes (8 MiB) with many of them: merging pays.",
)
TABLE_MANIFEST_DEPTH = table_gauge(
    "firnline_table_manifest_depth",
    "Data manifests that a filter on one value of the first partition field opens on average; 1: perfectly clustered.",
    "Near the number of manifests: each spans all partitions; a rewrite up to V2 orders them.",
)

PARTITION_FILES = of_partition(TABLE_FILES)
PARTITION_SMALL_FILES = of_partition(TABLE_SMALL_FILES)
PARTITION_DATA_BYTES = of_partition(TABLE_DATA_BYTES)
PARTITION_SMALL_BYTES = of_partition(TABLE_SMALL_BYTES)
PARTITION_DELETE_FILES = of_partition(TABLE_DELETE_FILES)
PARTITION_RECORDS = of_partition(TABLE_RECORDS)

TABLES = gauge(
    "firnline_tables",
    "Tables on the debt board, with those left out of the per-table metrics.",
    "Lower than expected: check the settings' table globs and that the table watcher reaches the catalog.",
)
TABLES_LEFT_OUT = gauge(
    "firnline_tables_left_out",
    "Tables without per-table metrics because the collector's limit is reached; they have the fewest small files.",
    "Raise the limit of tables if the Prometheus server has room; rewrites are not affected.",
)
STALE_TABLES = gauge(
    "firnline_stale_tables",
    "Tables whose counts may be old, with those left out of the per-table metrics.",
    "Many at once mean that a catalog or store does not answer; see unreadable tables by reason.",
)
OLDEST_WAITING_SECONDS = gauge(
    "firnline_oldest_waiting_seconds",
    "Age of the oldest unsettled event of any table that is acted on, with tables left out; 0 when all are settled.",
    "Find the table by its waiting seconds or on the status page, then see runs skipped and run failures.",
)

# The work of the dispatcher and the service, read at scrape time.

QUEUED_RUNS = gauge(
    "firnline_queued_runs",
    "Due tables that wait for a free lane.",
    "Always above zero: add cores, or raise the limit of concurrent runs.",
)
RUNNING_RUNS = gauge(
    "firnline_running_runs",
    "Rewrite runs in progress.",
    "Zero while runs are queued: look for backing off in runs skipped, and for a stuck Spark job.",
)
OLDEST_DUE_SECONDS = gauge(
    "firnline_oldest_due_seconds",
    "Time that the longest-waiting due table has been due.",
    "Growing without an end: one table starves or fails over and over; see run failures by reason.",
)
BUILD_INFO = gauge(
    "firnline_build_info",
    "Always 1; the labels name the running version.",
    "Join it with other metrics to tell what a deployment changed.",
    labels=("version", "python"),
)
SERVICE_READY = gauge(
    "firnline_service_ready",
    "1 when the service answers /readyz with 200, else 0.",
    "Open /readyz: its body names the part that is not well.",
)

# The stream of commit events.

EVENTS = counter(
    "firnline_events_total",
    "Commit events that reached the ledger, by the source they came from.",
    "Flat while writers commit: check the source's event delivery; the table watcher finds what was missed.",
    labels=("source",),
)
EVENT_LAG_OFFSETS = gauge(
    "firnline_event_lag_offsets",
    "Offsets on the event topic that the last batch of the query had not read.",
    "Rising: batches take longer than events arrive; see batch seconds and manifest read seconds.",
    labels=("query",),
)
DEAD_LETTERS = counter(
    "firnline_dead_letters_total",
    "Events sent to the dead-letter topic.",
    "Read the dead-letter topic: each message says why no decoder or no table wanted it.",
    labels=("reason",),
)
LEDGER_UPDATES = counter(
    "firnline_ledger_updates_total",
    "Times that the ledger has counted a table up to a snapshot.",
    "Flat while events arrive: see batch seconds, unreadable tables and the stream's log.",
)
RECOUNT_REASONS = ("first_sight", "history_gap", "table_replaced", "summary_mismatch", "thresholds_changed")
RECOUNTS = counter(
    "firnline_ledger_recounts_total",
    "Full recounts of a table, where walking the new snapshots was not enough.",
    "Frequent ones cost manifest reads: expired snapshots mean events come too late, rollbacks are the writers'.",
    labels=("reason",),
)
EVENT_TO_LEDGER_SECONDS = histogram(
    "firnline_event_to_ledger_seconds",
    "Time from the oldest event of an update to the ledger's count of it.",
    "High: see event lag, the trigger interval and manifest read seconds.",
)
EVENT_TO_COMPACTED_SECONDS = histogram(
    "firnline_event_to_compacted_seconds",
    "Time from the oldest event that a run settles to the run's commit.",
    "High: see queued runs and stage seconds; the policy's wait for more files is part of it.",
)
BATCH_SECONDS = histogram(
    "firnline_batch_seconds",
    "Duration of micro-batches.",
    "Longer than the trigger interval: lower the tables per batch, or give the stream more state partitions.",
    labels=("query",),
)
BATCH_INPUT_ROWS = counter(
    "firnline_batch_input_rows_total",
    "Rows read by micro-batches.",
    "Far above the events by source: many duplicates or foreign messages share the topic.",
    labels=("query",),
)
LAST_BATCH_TIMESTAMP_SECONDS = gauge(
    "firnline_last_batch_timestamp_seconds",
    "Time of the end of the last micro-batch, since the epoch.",
    "Older than a few trigger intervals: the stream is stuck or dead; see /healthz and the log.",
    labels=("query",),
)
STATE_ROWS = gauge(
    "firnline_state_rows",
    "Rows in the state store of the query.",
    "Growing without new tables or partitions: dropped tables are not forgotten; see the log.",
    labels=("query",),
)
UNREADABLE_TABLES = counter(
    "firnline_unreadable_tables_total",
    "Times that a table could not be loaded or counted.",
    "Check the catalog, the store and the permissions for the reason; the table is tried again by itself.",
    labels=("reason",),
)

# Manifests.

MANIFEST_CACHE_HITS = counter(
    "firnline_manifest_cache_hits_total",
    "Manifests found in the cache.",
    "Few beside misses: give the cache more bytes.",
)
MANIFEST_CACHE_MISSES = counter(
    "firnline_manifest_cache_misses_total",
    "Manifests that had to be read from the store.",
    "Many after the first hours: give the cache more bytes, or have writers merge manifests.",
)
MANIFEST_DISK_HITS = counter(
    "firnline_manifest_disk_hits_total",
    "Manifests found on local disk, decoded by an earlier life or another process of the host.",
    "None after a restart: see service.manifest_disk_folder and whether it outlives the process.",
)
MANIFESTS_PREFETCHED = counter(
    "firnline_manifests_prefetched_total",
    "Manifests read before anybody asked: after a commit of ours, or when an event announced one.",
    "Many beside few foreseen: prefetching does not pay here.",
)
MANIFESTS_FORESEEN = counter(
    "firnline_manifests_foreseen_total",
    "Prefetched manifests that were wanted later, each counted once.",
    "Far below the prefetched: they are evicted too early (more bytes) or never wanted.",
)
MANIFESTS_UNUSUAL = counter(
    "firnline_manifests_unusual_total",
    "Manifests that only the slow reference decoder could read.",
    "Any: planning is slower; see which writer wrote them, and report it.",
)
MANIFEST_READ_BYTES = counter(
    "firnline_manifest_read_bytes_total",
    "Bytes of manifests read from the store.",
    "Large beside the tables' growth: see cache misses and recounts.",
)
MANIFEST_READ_SECONDS = counter(
    "firnline_manifest_read_seconds_total",
    "Time spent to obtain manifests, from the cache or the store.",
    "High per miss: the store is slow, or manifests are huge.",
)

MANIFEST_REWRITES = counter(
    "firnline_manifest_rewrites_total",
    "Times that the manifests of a table were merged.",
    "Many of one table: its writers leave a manifest a commit; let them merge (commit.manifest-merge.enabled).",
)
MANIFESTS_MERGED = counter(
    "firnline_manifests_merged_total",
    "Manifests that merging has removed: those before less those after.",
    "Small beside the rewrites: raise manifests.min_reduction.",
)
MANIFEST_REWRITE_SECONDS = counter(
    "firnline_manifest_rewrite_seconds_total",
    "Time spent on merging manifests, in the table's lane.",
    "High: raise manifests.min_count, or give the driver more cores.",
)

# Refresh hooks.

HOOK_CALLS = counter(
    "firnline_hook_calls_total",
    "Calls of refresh hooks after a commit, by hook and result (told, failed); three attempts are one call.",
    "Failures: the log has the hook's error; others read old metadata until their caches expire.",
    labels=("hook", "result"),
)
HOOK_SECONDS = counter(
    "firnline_hook_seconds_total",
    "Time spent in refresh hooks, attempts and pauses included. No rewrite waits for it.",
    "High per call: the engine is slow to answer, see its own metrics.",
    labels=("hook",),
)

# The history of decisions.

HISTORY_ROWS = counter(
    "firnline_history_rows_total",
    "Decisions appended to the history table.",
    "None although runs commit: history.table is not set, or see the failed appends.",
)
HISTORY_DROPPED_ROWS = counter(
    "firnline_history_dropped_rows_total",
    "Decisions that are not in the history table and never will be. No rewrite waits for them or fails.",
    "Any: the table could not be written for long; see the failed appends, then raise history.buffer_rows.",
)
HISTORY_FAILED_APPENDS = counter(
    "firnline_history_failed_appends_total",
    "Appends to the history table that failed; each is tried again.",
    "Rising: the log has the error; check that the service may write to the table and its storage.",
)

# Runs: planned, left alone, rewritten, committed, failed.

RUNS_PLANNED = counter(
    "firnline_runs_planned_total",
    "Rewrite runs planned.",
    "Flat while partitions are due: see runs skipped by reason.",
)
PLANNED_GROUPS = counter(
    "firnline_planned_groups_total",
    "Groups (one per partition and bucket) in planned runs.",
    "Far above rewritten groups: runs fail before their work is done; see run failures.",
)
PLANNED_FILES = counter(
    "firnline_planned_files_total",
    "Files in planned runs.",
    "Far above committed input files: work is planned again and again; see run failures.",
)
PLANNED_BYTES = counter(
    "firnline_planned_bytes_total",
    "Bytes of the files in planned runs.",
    "Far above committed input bytes: work is planned again and again; see run failures.",
)
RUNS_SKIPPED = counter(
    "firnline_runs_skipped_total",
    "Times that a due table was deliberately left alone.",
    "The reason says what to change: a switch, a limit, or a back-off after failures.",
    labels=("reason",),
)
DROPPED_GROUPS = counter(
    "firnline_dropped_groups_total",
    "Groups that could not be rewritten and were left as they were, while the rest of their run went on.",
    "The log names table, partition and cause. Reaction `replan`: the partition is planned anew; `give_up`: it is left "
    "alone until its files change.",
    labels=("reason", "reaction"),
)
WOULD_REWRITE_RUNS = counter(
    "firnline_would_rewrite_runs_total",
    "Runs that observe mode would have made; the same debt counts each time it is looked at.",
    "Switch the table to rewriting in the settings when the figures are convincing.",
)
WOULD_REWRITE_GROUPS = counter(
    "firnline_would_rewrite_groups_total",
    "Groups that runs in observe mode would have rewritten.",
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
    "Close to the input files: the thresholds or the target size bring little.",
)
WOULD_REWRITE_BYTES = counter(
    "firnline_would_rewrite_bytes_total",
    "Bytes that runs in observe mode would have read.",
    "The cost to expect of switching to rewriting: plan cores and store requests for it.",
)
REWRITE_GROUPS = engine_counter(
    "firnline_rewrite_groups_total",
    "Groups rewritten, by engine and by the reason that chose it.",
    "Many with a costly engine: the reason names what keeps the cheaper one from being used.",
)
REWRITE_INPUT_FILES = engine_counter(
    "firnline_rewrite_input_files_total",
    "Files read by rewrites.",
    "Above committed input files: rewritten groups were lost to conflicts or failures.",
)
REWRITE_OUTPUT_FILES = engine_counter(
    "firnline_rewrite_output_files_total",
    "Files written by rewrites.",
    "Close to the input files: the thresholds or the target size bring little.",
)
REWRITE_INPUT_BYTES = engine_counter(
    "firnline_rewrite_input_bytes_total",
    "Bytes of the files read by rewrites.",
    "Many times the bytes that writers add: bytes are rewritten too often; raise the policy's merge factor.",
)
REWRITE_OUTPUT_BYTES = engine_counter(
    "firnline_rewrite_output_bytes_total",
    "Bytes of the files written by rewrites.",
    "Above the input bytes: check the tables' compression settings.",
)
REWRITE_DECODED_BYTES = engine_counter(
    "firnline_rewrite_decoded_bytes_total",
    "Input bytes that rewrites have decoded; the others were copied.",
    "Above the bytes that writers add: files are decoded more than once; let more of them gather before a merge.",
)
REWRITE_INPUT_ROWS = engine_counter(
    "firnline_rewrite_input_rows_total",
    "Rows read by rewrites, before deletes are applied.",
    "Input rows less deleted rows equal output rows; a run that finds otherwise fails and commits nothing.",
)
REWRITE_DELETED_ROWS = engine_counter(
    "firnline_rewrite_deleted_rows_total",
    "Rows left out by rewrites because a delete file covers them.",
    "High beside the output rows: the tables are updated often; lower the delete-file threshold.",
)
REWRITE_OUTPUT_ROWS = engine_counter(
    "firnline_rewrite_output_rows_total",
    "Rows written by rewrites.",
    "Input rows less deleted rows equal output rows; a run that finds otherwise fails and commits nothing.",
)
REWRITE_SECONDS = engine_counter(
    "firnline_rewrite_seconds_total",
    "Time spent in rewrites of groups, added up over parallel tasks.",
    "Divide input bytes by it: a low rate points to the store, the network or a costly engine.",
)
REWRITE_GROUP_SECONDS = histogram(
    "firnline_rewrite_group_seconds",
    "Duration of the rewrite of one group.",
    "A long tail: some groups are far larger than others; lower the limit of bytes per group.",
    labels=("engine",),
)
STAGE_SECONDS = histogram(
    "firnline_run_stage_seconds",
    "Duration of the stages of runs: plan of all planned runs, rewrite and commit of committed ones.",
    "Plan: see the manifest cache. Rewrite: add cores. Commit: the catalog is slow or commits collide.",
    labels=("stage",),
)
COMMITS = counter(
    "firnline_commits_total",
    "Runs committed, each as one replace snapshot.",
    "Flat while runs are planned: see run failures by stage and reason.",
)
COMMIT_GROUPS = counter(
    "firnline_commit_groups_total",
    "Groups in committed runs.",
    "Below rewritten groups: rewritten groups were lost to conflicts or failures.",
)
COMMIT_INPUT_FILES = counter(
    "firnline_commit_input_files_total",
    "Files that committed runs have replaced.",
    "Less output files this is the debt paid; lower than the growth of small files means debt grows.",
)
COMMIT_OUTPUT_FILES = counter(
    "firnline_commit_output_files_total",
    "Files that committed runs have added.",
    "Close to the replaced files: the thresholds or the target size bring little.",
)
COMMIT_INPUT_BYTES = counter(
    "firnline_commit_input_bytes_total",
    "Bytes of the files that committed runs have replaced.",
    "They stay on the store until snapshots expire: run snapshot expiry on the tables.",
)
COMMIT_OUTPUT_BYTES = counter(
    "firnline_commit_output_bytes_total",
    "Bytes of the files that committed runs have added.",
    "Above the replaced bytes: check the tables' compression settings.",
)
COMMIT_REMOVED_DELETE_FILES = counter(
    "firnline_commit_removed_delete_files_total",
    "Delete files, deletion vectors apart, that left with committed runs: all the data they covered was rewritten.",
    "None although tables gather delete files: their data files are not due; lower the delete thresholds.",
)
LAST_COMMIT_TIMESTAMP_SECONDS = gauge(
    "firnline_last_commit_timestamp_seconds",
    "Time of the last committed run, since the epoch; 0 before the first.",
    "Old while partitions are due: see run failures and runs skipped.",
)
RUN_FAILURES = counter(
    "firnline_run_failures_total",
    "Runs that ended without a commit, by stage, reason and the reaction that follows.",
    "Retry and replan cure themselves; settle and give_up lasting for hours need a person: see the runbook.",
    labels=("stage", "reason", "reaction"),
)
UNREFERENCED_FILES_REMOVED = counter(
    "firnline_unreferenced_files_removed_total",
    "Outputs of crashed, failed or aborted runs deleted after proof that no snapshot references them.",
    "Many: runs crash or conflict often; see run failures and the restarts of the service.",
)

# A definition belongs to the catalogue by being written above: a list kept by hand could miss one.
CATALOGUE: tuple[MetricDefinition, ...] = tuple(
    value for value in tuple(globals().values()) if isinstance(value, MetricDefinition)
)
