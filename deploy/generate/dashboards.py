"""Grafana dashboards, composed of panels.

Three, for three readers: the owner of a table, the operator of the service, and whoever works on firnline itself. Every
panel says what good looks like; every expression answers with a number where there is nothing to show.
"""

from __future__ import annotations

from deploy.generate.grafana import Dashboard, Panel

TABLE = '{table=~"$table"}'
HOUR = "[1h]"
RATE = "[$__rate_interval]"
ACTED_ON = "sum(firnline_table_debt_files and on (catalog, table) (firnline_table_acted_on == 1))"
REMOVED = "(sum(rate(firnline_commit_input_files_total[1h])) - sum(rate(firnline_commit_output_files_total[1h])))"
READ = (
    "(sum(rate(firnline_manifest_cache_hits_total[1h])) + sum(rate(firnline_manifest_disk_hits_total[1h]))"
    " + sum(rate(firnline_manifest_cache_misses_total[1h])) > 0)"
)
MISSED = "sum(rate(firnline_manifest_cache_misses_total[1h]))"
READ_SECONDS = "sum(rate(firnline_manifest_read_seconds_total[1h]))"
DECODED = (
    "sum(rate(firnline_rewrite_decoded_bytes_total[1h])) / (sum(rate(firnline_rewrite_input_bytes_total[1h])) > 0)"
)


def _or_zero(expression: str) -> str:
    """A zero where there is no series at all; without `on ()` it would be one more line beside those with labels."""
    return f"({expression}) or on () vector(0)"


def _rate(metric: str, by: str = "", window: str = RATE) -> str:
    of = f"sum by ({by})" if by else "sum"
    return _or_zero(f"{of} (rate({metric}{window}))")


def _increase(metric: str, by: str = "") -> str:
    of = f"sum by ({by})" if by else "sum"
    return _or_zero(f"{of} (increase({metric}{HOUR}))")


def _quantiles(metric: str, by: str = "") -> tuple[tuple[str, str], ...]:
    also, legend = (f", {by}", f"{{{{{by}}}}} ") if by else ("", "")
    return tuple(
        (
            f"{legend}p{int(quantile * 100)}",
            f"histogram_quantile({quantile}, sum by (le{also}) (rate({metric}_bucket[1h])))",
        )
        for quantile in (0.5, 0.95)
    )


FILE_HEALTH = Dashboard(
    "firnline-file-health",
    "firnline / File health",
    "For the owner of a table: how many files it has, how small they are, and what is being done about it.",
    (
        Panel("Data files", "Flat, or growing as the rows do.", (("{{table}}", f"firnline_table_files{TABLE}"),)),
        Panel(
            "Small files",
            "A saw-tooth that comes back down: small files arrive and are merged.",
            (("{{table}}", f"firnline_table_small_files{TABLE}"),),
        ),
        Panel(
            "Mean file size",
            "Near the table's target (512 MiB unless set otherwise).",
            (("{{table}}", f"firnline_table_data_bytes{TABLE} / (firnline_table_files{TABLE} > 0)"),),
            "bytes",
        ),
        Panel(
            "Bytes in small files",
            "A few percent at most.",
            (("{{table}}", f"firnline_table_small_bytes{TABLE} / (firnline_table_data_bytes{TABLE} > 0)"),),
            "percentunit",
        ),
        Panel(
            "Files that a rewrite would remove",
            "Near zero, with short peaks.",
            (("{{table}}", f"firnline_table_debt_files{TABLE}"),),
        ),
        Panel(
            "Due partitions",
            "Zero most of the time; due ones go within minutes.",
            (("{{table}}", f"firnline_table_due_partitions{TABLE}"),),
        ),
        Panel(
            "Oldest event not answered",
            "Below the time that the policy waits; back to zero after each rewrite.",
            (("{{table}}", f"firnline_table_waiting_seconds{TABLE}"),),
            "s",
        ),
        Panel(
            "Delete files",
            "Bounded: they leave once all the data they cover was rewritten.",
            (("{{table}}", f"firnline_table_delete_files{TABLE}"),),
        ),
        Panel(
            "Rows",
            "Whatever the writers make of it; rewrites never move it.",
            (("{{table}}", f"firnline_table_records{TABLE}"),),
        ),
        Panel(
            "Manifests",
            "Below a few hundred; merged when they are many and small.",
            (("{{table}}", f"firnline_table_manifests{TABLE}"),),
        ),
        Panel(
            "Manifests that a filter on one partition value opens",
            "Near one where manifests are ordered by partition; at most the number of manifests.",
            (("{{table}}", f"firnline_table_manifest_depth{TABLE}"),),
        ),
        Panel(
            "Rewritten (1), watched only (0), stale (-1)",
            "One for tables that are to be compacted; minus one: the table cannot be read.",
            (("{{table}}", f"firnline_table_acted_on{TABLE} * (1 - 2 * firnline_table_stale{TABLE})"),),
        ),
        Panel(
            "Worst partitions of the fleet",
            "Changing ones: a partition that stays at the top is not compacted.",
            (("{{table}} {{partition}}", _or_zero(f"topk(20, firnline_partition_small_files{TABLE})")),),
            kind="table",
        ),
    ),
    by_table=True,
)

COMPACTION = Dashboard(
    "firnline-compaction",
    "firnline / Compaction",
    "For the operator: whether rewriting keeps up, what it costs, and what it cannot do.",
    (
        Panel("Ready", "One.", (("ready", "min(firnline_service_ready)"),), kind="stat"),
        Panel(
            "Queued and running tables",
            "A queue that empties.",
            (("queued", "sum(firnline_queued_runs)"), ("running", "sum(firnline_running_runs)")),
        ),
        Panel(
            "Oldest due table",
            "Minutes; the alert is at one hour.",
            (("waiting", "max(firnline_oldest_due_seconds)"),),
            "s",
        ),
        Panel("Debt: files to remove", "Near zero, with peaks that come down.", (("files", _or_zero(ACTED_ON)),)),
        Panel(
            "Time to clear the debt, at the pace of the last hour",
            "Below a day; nothing to see where nothing was removed.",
            (("seconds", _or_zero(f"{ACTED_ON} / ({REMOVED} > 0)")),),
            "s",
        ),
        Panel(
            "From event to compacted",
            "Minutes: the policy waits until merging pays.",
            _quantiles("firnline_event_to_compacted_seconds"),
            "s",
        ),
        Panel(
            "Commits per hour", "Some, as long as writers write.", (("commits", _increase("firnline_commits_total")),)
        ),
        Panel(
            "Files per hour",
            "Many in, few out.",
            (
                ("in", _increase("firnline_commit_input_files_total")),
                ("out", _increase("firnline_commit_output_files_total")),
            ),
        ),
        Panel(
            "Bytes",
            "Out about as much as in, less what deletes removed.",
            (("in", _rate("firnline_commit_input_bytes_total")), ("out", _rate("firnline_commit_output_bytes_total"))),
            "Bps",
        ),
        Panel(
            "Bytes by engine",
            "Mostly splice: bytes copied, nothing decoded.",
            (("{{engine}}", _rate("firnline_rewrite_input_bytes_total", "engine")),),
            "Bps",
        ),
        Panel(
            "Share of bytes decoded",
            "Falling: what is merged once is copied ever after.",
            (("decoded", _or_zero(DECODED)),),
            "percentunit",
        ),
        Panel(
            "Groups by engine and reason",
            "No reason that surprises.",
            (("{{engine}}: {{reason}}", _increase("firnline_rewrite_groups_total", "engine, reason")),),
        ),
        Panel(
            "Seconds per stage",
            "Planning in seconds, rewriting as the bytes demand, commits in seconds.",
            _quantiles("firnline_run_stage_seconds", "stage"),
            "s",
        ),
        Panel(
            "Runs skipped",
            "Nothing due, most of them.",
            (("{{reason}}", _increase("firnline_runs_skipped_total", "reason")),),
        ),
        Panel(
            "Groups dropped",
            "None, or a few conflicts.",
            (("{{reason}}", _increase("firnline_dropped_groups_total", "reason")),),
        ),
        Panel(
            "Runs failed",
            "None; re-plans after a conflict are no trouble.",
            (
                (
                    "{{stage}} {{reason}} ({{reaction}})",
                    _increase("firnline_run_failures_total", "stage, reason, reaction"),
                ),
            ),
        ),
        Panel(
            "Delete files removed",
            "Some, where writers merge on read.",
            (("delete files", _increase("firnline_commit_removed_delete_files_total")),),
        ),
        Panel(
            "Outputs of ended runs removed",
            "None, but after a crash.",
            (("files", _increase("firnline_unreferenced_files_removed_total")),),
        ),
        Panel(
            "Manifests merged",
            "Some, where writers leave a manifest a commit.",
            (("manifests", _increase("firnline_manifests_merged_total")),),
        ),
        Panel(
            "Refresh hooks",
            "All told.",
            (("{{hook}} {{result}}", _increase("firnline_hook_calls_total", "hook, result")),),
        ),
    ),
)

STREAMING = Dashboard(
    "firnline-planning-streaming",
    "firnline / Planning and streaming",
    "For those who work on firnline: events, batches, metadata reads and the process.",
    (
        Panel(
            "Events by source",
            "As many as commits.",
            (("{{source}}", _rate("firnline_events_total", "source")),),
            "ops",
        ),
        Panel(
            "Events behind",
            "Zero after each batch.",
            (("{{query}}", _or_zero("max by (query) (firnline_event_lag_offsets)")),),
        ),
        Panel("From event to ledger", "Seconds.", _quantiles("firnline_event_to_ledger_seconds"), "s"),
        Panel("Batch", "One or two seconds.", _quantiles("firnline_batch_seconds", "query"), "s"),
        Panel(
            "Since the last batch",
            "Below the sweep's interval.",
            (("{{query}}", "time() - max by (query) (firnline_last_batch_timestamp_seconds > 0)"),),
            "s",
        ),
        Panel(
            "Rows of state",
            "Tables times a few hundred at most.",
            (("{{query}}", _or_zero("max by (query) (firnline_state_rows)")),),
        ),
        Panel("Dead letters", "None.", (("{{reason}}", _increase("firnline_dead_letters_total", "reason")),)),
        Panel(
            "Recounts",
            "First sights, then none.",
            (("{{reason}}", _increase("firnline_ledger_recounts_total", "reason")),),
        ),
        Panel("Unreadable tables", "None.", (("{{reason}}", _increase("firnline_unreadable_tables_total", "reason")),)),
        Panel(
            "Manifests",
            "Memory before disk before store.",
            (
                ("memory", _rate("firnline_manifest_cache_hits_total")),
                ("disk", _rate("firnline_manifest_disk_hits_total")),
                ("store", _rate("firnline_manifest_cache_misses_total")),
            ),
            "ops",
        ),
        Panel(
            "Found without the store",
            "Above 90 % after the first hours.",
            (("share", _or_zero(f"1 - {MISSED} / {READ}")),),
            "percentunit",
        ),
        Panel(
            "Manifest bytes from the store",
            "As much as writers write.",
            (("bytes", _rate("firnline_manifest_read_bytes_total")),),
            "Bps",
        ),
        Panel("Seconds per manifest", "Milliseconds.", (("seconds", _or_zero(f"{READ_SECONDS} / {READ}")),), "s"),
        Panel(
            "Prefetched, and wanted later",
            "The two close together.",
            (
                ("prefetched", _rate("firnline_manifests_prefetched_total")),
                ("wanted", _rate("firnline_manifests_foreseen_total")),
            ),
            "ops",
        ),
        Panel("Manifests of unusual layout", "None.", (("manifests", _increase("firnline_manifests_unusual_total")),)),
        Panel(
            "Tables",
            "All known, none stale.",
            (
                ("known", "sum(firnline_tables)"),
                ("stale", "sum(firnline_stale_tables)"),
                ("without series of their own", "sum(firnline_tables_left_out)"),
            ),
        ),
        Panel("Memory", "Flat after the first hours.", (("{{instance}}", "process_resident_memory_bytes"),), "bytes"),
        Panel("Cores", "Below what it was given.", (("{{instance}}", f"rate(process_cpu_seconds_total{RATE})"),)),
    ),
)

DASHBOARDS = (FILE_HEALTH, COMPACTION, STREAMING)
