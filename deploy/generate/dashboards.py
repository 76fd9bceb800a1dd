"""Three Grafana dashboards: files of tables, rewrites, and the intake of commit events.

Every panel describes good values. Every expression returns a number if there is no series.
"""

from __future__ import annotations

from deploy.generate.grafana import Dashboard, Panel

TABLE = '{table=~"$table"}'
HOUR = "[1h]"
RATE = "[$__rate_interval]"
EACH = "max by (catalog, table)"  # a table that moved to another service is on two boards for a while
ACTED_ON = f"sum({EACH} (firnline_table_debt_files) and on (catalog, table) ({EACH} (firnline_table_acted_on) == 1))"
READY = (  # without standbys, as the alert FirnlineNotReady has it
    "firnline_service_ready unless on (job, namespace, instance) "
    "(firnline_active == 0 unless on (job, namespace, instance) firnline_observing == 1)"
)


def _or_zero(expression: str) -> str:
    """0 if there is no series. Without `on ()`, the zero would be an additional line beside series with labels."""
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
    "For owners of tables: number and size of files, and the state of compaction.",
    (
        Panel(
            "Data files",
            "Constant, or growing with the rows.",
            (("{{table}}", f"{EACH} (firnline_table_files{TABLE})"),),
        ),
        Panel(
            "Small files",
            "Rises and falls: small files arrive and are merged.",
            (("{{table}}", f"{EACH} (firnline_table_small_files{TABLE})"),),
        ),
        Panel(
            "Mean file size",
            "Near the table's target (512 MiB by default).",
            (("{{table}}", f"{EACH} (firnline_table_data_bytes{TABLE}) / ({EACH} (firnline_table_files{TABLE}) > 0)"),),
            "bytes",
        ),
        Panel(
            "Files that a rewrite would remove",
            "Near zero, with short peaks.",
            (("{{table}}", f"{EACH} (firnline_table_debt_files{TABLE})"),),
        ),
        Panel(
            "Due partitions",
            "Zero most of the time; due partitions are rewritten within minutes.",
            (("{{table}}", f"{EACH} (firnline_table_due_partitions{TABLE})"),),
        ),
        Panel(
            "Delete files",
            "Bounded: a rewrite of all data files that they apply to removes them.",
            (("{{table}}", f"{EACH} (firnline_table_delete_files{TABLE})"),),
        ),
        Panel(
            "Rows",
            "Changes by writers only; rewrites never change it.",
            (("{{table}}", f"{EACH} (firnline_table_records{TABLE})"),),
        ),
        Panel(
            "Manifests",
            "Below a few hundred; many small manifests are merged.",
            (("{{table}}", f"{EACH} (firnline_table_manifests{TABLE})"),),
        ),
        Panel(
            "Rewritten (1), observed only (0), stale (-1)",
            "One for tables to compact. Minus one: the table cannot be read.",
            (
                (
                    "{{table}}",
                    f"{EACH} (firnline_table_acted_on{TABLE}) * (1 - 2 * {EACH} (firnline_table_stale{TABLE}))",
                ),
            ),
        ),
    ),
    by_table=True,
)

COMPACTION = Dashboard(
    "firnline-compaction",
    "firnline / Compaction",
    "For operators: whether rewrites keep up, their cost, and their failures.",
    (
        Panel("Ready", "One; standbys are left out.", (("ready", _or_zero(f"min({READY})")),), kind="stat"),
        Panel(
            "Queued and running tables",
            "The queue becomes empty.",
            (("queued", "sum(firnline_queued_runs)"), ("running", "sum(firnline_running_runs)")),
        ),
        Panel(
            "Oldest due table",
            "Minutes; the alert is at one hour.",
            (("waiting", "max(firnline_oldest_due_seconds)"),),
            "s",
        ),
        Panel("Debt: files to remove", "Near zero, with short peaks.", (("files", _or_zero(ACTED_ON)),)),
        Panel(
            "From event to compacted",
            "Minutes: the policy waits until merging pays.",
            _quantiles("firnline_event_to_compacted_seconds"),
            "s",
        ),
        Panel("Commits per hour", "Some while writers commit.", (("commits", _increase("firnline_commits_total")),)),
        Panel(
            "Files per hour",
            "Many in, few out.",
            (
                ("in", _increase("firnline_commit_input_files_total")),
                ("out", _increase("firnline_commit_output_files_total")),
            ),
        ),
        Panel(
            "Bytes by engine",
            "Mostly splice: bytes are copied, not decoded.",
            (("{{engine}}", _rate("firnline_rewrite_input_bytes_total", "engine")),),
            "Bps",
        ),
        Panel(
            "Groups by engine and reason",
            "No unexpected reasons.",
            (("{{engine}}: {{reason}}", _increase("firnline_rewrite_groups_total", "engine, reason")),),
        ),
        Panel(
            "Seconds per stage",
            "Plan and commit take seconds; rewrite depends on the bytes.",
            _quantiles("firnline_run_stage_seconds", "stage"),
            "s",
        ),
        Panel(
            "Runs skipped",
            "Mostly nothing_due.",
            (("{{reason}}", _increase("firnline_runs_skipped_total", "reason")),),
        ),
        Panel(
            "Groups dropped",
            "None, or a few conflicts.",
            (("{{reason}}", _increase("firnline_dropped_groups_total", "reason")),),
        ),
        Panel(
            "Runs failed",
            "None, except `replan` after conflicts.",
            (
                (
                    "{{stage}} {{reason}} ({{reaction}})",
                    _increase("firnline_run_failures_total", "stage, reason, reaction"),
                ),
            ),
        ),
        Panel(
            "Unreferenced files removed",
            "`ended_run`: none, except after a crash.",
            (("{{reason}}", _increase("firnline_unreferenced_files_removed_total", "reason")),),
        ),
        Panel(
            "Manifests merged",
            "Some if writers add a manifest with every commit.",
            (("manifests", _increase("firnline_manifests_merged_total")),),
        ),
        Panel(
            "Refresh hooks",
            "No failures.",
            (("{{hook}} {{result}}", _increase("firnline_hook_calls_total", "hook, result")),),
        ),
        Panel(
            "Held back on purpose",
            "As intended by the people who paused tables or set limits.",
            (
                ("paused tables", "sum(firnline_paused_tables)"),
                ("tables that wait for limits", "sum(firnline_limited_tables)"),
                ("services in quiet hours", "sum(firnline_quiet)"),
            ),
        ),
        Panel(
            "Rewrite slots",
            "In use: below the slots most of the time. A fall of the slots: executors were lost.",
            (
                ("slots", "sum(firnline_slots)"),
                ("in use", "sum(firnline_slots_in_use)"),
            ),
        ),
    ),
)

STREAMING = Dashboard(
    "firnline-planning-streaming",
    "firnline / Planning and streaming",
    "For operators: whether commit events arrive, and what the ledger reads.",
    (
        Panel(
            "Events by source",
            "As many as commits.",
            (("{{source}}", _rate("firnline_events_total", "source")),),
            "ops",
        ),
        Panel(
            "Commits without an event",
            "None: a source that announced earlier commits of the table has fallen silent.",
            (("{{source}}", _increase("firnline_unannounced_commits_total", "source")),),
        ),
        Panel(
            "Events behind",
            "Zero after each batch.",
            (("{{query}}", _or_zero("max by (query) (firnline_event_lag_offsets)")),),
        ),
        Panel(
            "Since the last batch",
            "Below the interval of sweeps.",
            (("{{query}}", "time() - min by (query) (firnline_last_batch_timestamp_seconds > 0)"),),
            "s",
        ),
        Panel(
            "Looks at tables",
            "Mostly unchanged, between commits.",
            (("{{outcome}}", _increase("firnline_looks_total", "outcome")),),
        ),
        Panel(
            "Tables that wait for a look",
            "High during a sweep only.",
            (("waiting", _or_zero("sum(firnline_waiting_looks)")),),
        ),
        Panel("Dead letters", "None.", (("{{reason}}", _increase("firnline_dead_letters_total", "reason")),)),
        Panel(
            "Recounts",
            "Only first_sight, after the first start or a change of service.shard, and taken_over.",
            (("{{reason}}", _increase("firnline_ledger_recounts_total", "reason")),),
        ),
        Panel(
            "Manifests from the store",
            "As many as writers add.",
            (("manifests", _increase("firnline_manifest_cache_misses_total")),),
        ),
        Panel(
            "Ends of the stream's queries",
            "None.",
            (("{{query}}: {{cause}}", _increase("firnline_stream_ends_total", "query, cause")),),
        ),
        Panel(
            "Tables",
            "All tables known, none stale.",
            (
                ("known", "sum(firnline_tables)"),
                ("stale", "sum(firnline_stale_tables)"),
            ),
        ),
        Panel(
            "Memory",
            "Constant after the first hours; free: more than a tenth of what the processes hold.",
            (
                ("{{instance}} {{process}}", "firnline_memory_bytes"),
                ("{{instance}} free", "firnline_free_memory_bytes"),
            ),
            "bytes",
        ),
    ),
)

DASHBOARDS = (FILE_HEALTH, COMPACTION, STREAMING)
