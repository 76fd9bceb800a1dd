"""Output of the commands: JSON documents and tables. Scripts read the JSON: see `JSON_VERSION` before you change it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

from rich import filesize

from compactor.debt.table_changes import CommitTimes, Deltas, live_counts
from compactor.errors import FirnlineError
from compactor.iceberg.other_compactors import (
    CONVERTER_NAME,
    DEPLOYMENT,
    UNNAMED,
    flink_converters,
    other_compactors,
    other_firnlines,
)
from compactor.iceberg.tables import Catalogs, FileSizes, TableView, file_sizes
from compactor.lease.opening import known_deployment
from compactor.manifests.cache import ManifestCache
from compactor.partitions import partition_text
from compactor.planning.engine import Engine, refused_request
from compactor.planning.partition_judge import PartitionJudge, judge_of
from compactor.planning.plan_table import PlannedGroup, TablePlan, with_engine
from compactor.runs.file_holds import Wait
from compactor.runs.pauses import Pause, pause_of
from compactor.runs.results import GroupResult, RunResult
from compactor.runs.turns import unpublished_first
from compactor.settings.tree import Settings
from compactor.table_names import TableName
from compactor.whatif.causes import arrivals_in, causes_of
from compactor.whatif.table_history import commits_of
from streaming.commands.console import PlainConsole, columns, styled

Document = dict[str, Any]
FOOTER_READERS = 8
NO_CAUSES: Document = dict.fromkeys(("other_compactors", "unpublished", "arrivals", "causes", "waits"))
REWRITTEN = (
    "engine", "reason", "files_in", "files_out", "bytes_in", "bytes_out", "bytes_decoded", "rows_in", "rows_deleted",
    "rows_out",
)  # fmt: skip
"""Of a file group, as `compact` prints it."""
MOST_PARTITIONS = 40  # of a table, as many as fit a screen
MOST_REASONS = 20  # of partitions left alone: as many as fit a screen beside the result
COMMITS_LOOKED_AT = 200  # newest snapshots that are read to find out why files are small


def with_footers_read(plan: TablePlan) -> TablePlan:
    """The plan with the engines that the files' footers allow, as `compact` will choose them.

    Raises:
        InputError: the footers rule out the engine that was requested.
        GiveUpError: a footer is damaged.
        RetryError: the store does not answer.
    """
    from compactor.rewrite.tasks.output_task import foreseen  # noqa: PLC0415 - imports pyarrow
    from compactor.rewrite.tasks.task_input import build_task_input  # noqa: PLC0415

    def settle(planned: PlannedGroup) -> PlannedGroup:
        settled = planned
        if planned.engine.kind is Engine.SPARK:
            return planned
        for index, files in enumerate(planned.file_group.tasks):
            not_spliced, not_encoded = foreseen(build_task_input(plan, planned, index, files[0].entry.path))
            if not_encoded is not None:
                if plan.requested_engine != "auto":
                    raise refused_request(plan.requested_engine, plan.table.name, not_encoded)
                return with_engine(planned, Engine.SPARK, not_encoded.reason, not_encoded.sentence)
            if not_spliced is not None and planned.engine.kind is Engine.SPLICE:
                settled = with_engine(planned, Engine.ENCODE, not_spliced.reason, not_spliced.sentence)
        return settled

    with ThreadPoolExecutor(FOOTER_READERS, thread_name_prefix="footers") as pool:
        return replace(plan, groups=tuple(pool.map(settle, plan.groups)))


def plan_document(plan: TablePlan) -> Document:
    """`firnline plan --output json`: the file groups of `compact` with expected outputs; output sizes are not known
    yet.
    """
    return {
        "table": str(plan.table.name),
        "snapshot_before": plan.snapshot_id,
        "snapshot_after": None,
        "operation": None,
        "selection": plan.selection.document() if plan.selection else None,
        "groups": [_planned_document(planned) for planned in plan.groups],
        "dangling_delete_files": len(plan.dangling) if plan.has_work else 0,
        "left_alone": _left_alone(plan),
        "seconds": {"plan": round(plan.seconds, 3)},
        "planning": _planning_document(plan),
    }


def _left_alone(plan: TablePlan) -> list[Document]:
    """The partitions without a file group, and why."""
    return [
        {"spec_id": key.spec_id, "partition": plan.table.layout(key.spec_id).readable(key), "why": why}
        for key, why in plan.unplanned.items()
    ]


def _planning_document(plan: TablePlan) -> Document:
    """Seconds per stage, and where manifests were read from."""
    reads = plan.reads
    return {
        "seconds": {stage: round(seconds, 3) for stage, seconds in plan.stages.items()},
        "manifests": {
            "from_memory": sum(read.hits for read in reads),
            "from_disk": sum(read.disk_hits for read in reads),
            "from_store": sum(read.misses for read in reads),
            "by_reference_decoder": sum(read.unusual for read in reads),
        },
        "bytes_read": sum(read.bytes_read for read in reads),
    }


def _group(planned: PlannedGroup, **found: Any) -> Document:
    group = planned.file_group
    head = {"spec_id": group.key.spec_id, "partition": dict(group.partition), "bucket": group.bucket, "why": group.why}
    return head | found


def _planned_document(planned: PlannedGroup) -> Document:
    group = planned.file_group
    return _group(
        planned,
        engine=planned.engine.kind.value,
        reason=planned.engine.reason,
        files_in=len(group.files),
        files_out=len(group.tasks),
        bytes_in=group.bytes,
        rows_in=group.rows,
        **dict.fromkeys(("bytes_out", "rows_deleted", "rows_out", "rows_carried", "rows_rebased")),
    )


def run_document(result: RunResult, plan: TablePlan) -> Document:
    """`firnline compact --output json`: what the run of `plan` did. Sizes in bytes; times in seconds."""
    after = result.snapshot_after if result.snapshot_after is not None else result.snapshot_before
    return {
        "table": str(result.table),
        "snapshot_before": result.snapshot_before,
        "snapshot_after": after,
        "operation": "replace" if result.commits else None,
        "run_id": result.run_id,
        "commits": result.commits,
        "delete_files_removed": result.delete_files_removed,
        "groups": [_result_document(group) for group in result.groups],
        "dropped": [
            {
                "spec_id": drop.planned.file_group.key.spec_id,
                "partition": dict(drop.planned.file_group.partition),
                "reason": drop.error.reason,
                "message": str(drop.error),
            }
            for drop in result.dropped
        ],
        "left_alone": _left_alone(plan),
        "seconds": {
            "plan": round(result.plan_seconds, 3),
            "rewrite": round(result.rewrite_seconds, 3),
            "commit": round(result.commit_seconds, 3),
            "total": round(result.total_seconds, 3),
        },
    }


def _result_document(result: GroupResult) -> Document:
    found = {name: getattr(result.rewritten, name) for name in REWRITTEN}
    return _group(result.planned, **found, rows_carried=result.rows_carried, rows_rebased=result.rows_rebased)


def debt_documents(
    settings: Settings,
    catalogs: Catalogs,
    cache: ManifestCache,
    names: Iterable[TableName],
    *,
    why: bool = False,
    pauses: Sequence[Pause] = (),
    waits: Sequence[Wait] = (),
) -> tuple[list[Document], list[tuple[TableName, FirnlineError]]]:
    """`firnline debt`: counts per partition of each table; unreadable tables are returned with their errors.

    `why`: also find causes in the newest commits, and why the table is left alone; otherwise their keys are null.
    `waits`: what the service waits for.
    """
    documents: list[Document] = []
    failed: list[tuple[TableName, FirnlineError]] = []
    deployment = known_deployment(settings.state.checkpoint) if why else ""
    for name in names:
        try:
            table = catalogs.load(name)
            values = settings.policy.for_table(table.name, table.properties)
            sizes = file_sizes(values, table.properties)
            counted = live_counts(cache.read(table, table.manifests()), sizes, CommitTimes.of(table.metadata))
            document = _debt_document(settings, table, counted, judge_of(table, values, sizes), sizes)
            document["paused"] = pause_of(name, pauses, time.time()) is not None
            if why:
                held = [each for each in waits if each["of"] in {str(name), name.catalog}]
                documents.append(document | _causes(table, cache, counted, sizes, deployment) | {"waits": held})
            else:
                documents.append(document | NO_CAUSES)
        except FirnlineError as error:
            failed.append((name, error))
    return documents, failed


def error_documents(failed: Iterable[tuple[TableName, FirnlineError]]) -> list[Document]:
    """The tables that could not be read, and why."""
    return [{"table": str(name), "reason": error.reason, "message": str(error)} for name, error in failed]


def _causes(table: TableView, cache: ManifestCache, counted: Deltas, sizes: FileSizes, deployment: str) -> Document:
    now = time.time()
    found = (
        *other_compactors(table.metadata, now),
        *other_firnlines(table.metadata, now, deployment),
        *flink_converters(table.metadata, now),
    )
    first = unpublished_first(table, now)
    known = {"other_compactors": [asdict(other) for other in found], "unpublished": first and str(first)}
    held = {key: counts.data_bytes for key, counts in counted.items()}
    arrivals = arrivals_in(commits_of(table, cache, COMMITS_LOOKED_AT), held)
    if arrivals is None:
        return known | {"arrivals": None, "causes": []}
    mode = table.properties.get("write.distribution-mode", "")
    causes = [asdict(cause) for cause in causes_of(arrivals, sizes, mode)]
    return known | {"arrivals": asdict(arrivals), "causes": causes}


def _debt_document(
    settings: Settings, table: TableView, counted: Deltas, judge: PartitionJudge, sizes: FileSizes
) -> Document:
    now = time.time()
    partitions = []
    for key, counts in sorted(counted.items(), key=lambda item: (-item[1].small_files, item[0])):
        layout = table.layout(key.spec_id)
        judgement = judge.of(key, counts, now - counts.changed_ms / 1000)
        partitions.append(
            {
                "spec_id": key.spec_id,
                "partition": layout.readable(key),
                "bucket": layout.bucket(key),
                "data_files": counts.data_files,
                "small_files": counts.small_files,
                "data_bytes": counts.data_bytes,
                "small_bytes": counts.small_bytes,
                "delete_files": counts.delete_files,
                "due": judgement.due,
                "why": judgement.why,
            }
        )
    return {
        "table": str(table.name),
        "snapshot_id": table.snapshot.snapshot_id if table.snapshot else None,
        "acted_on": settings.tables.acts_on(table.name, table.properties),
        "target_file_size": sizes.target,
        "small_below": sizes.small_below,
        "data_files": sum(row["data_files"] for row in partitions),
        "small_files": sum(row["small_files"] for row in partitions),
        "partitions": partitions,
    }


def print_planning(console: PlainConsole, plan: TablePlan) -> None:
    document = _planning_document(plan)
    seconds = ", ".join(f"{stage} {spent:.3f} s" for stage, spent in document["seconds"].items())
    console.print(f"planned in {plan.seconds:.3f} s: {seconds}")
    manifests, size = document["manifests"], filesize.decimal(document["bytes_read"])
    console.print(
        f"manifests: {manifests['from_memory']:,} from memory, {manifests['from_disk']:,} from disk, "
        f"{manifests['from_store']:,} from the store ({size})",
    )


def print_plan(console: PlainConsole, plan: TablePlan) -> None:
    for line in plan.selection.lines() if plan.selection else ():
        console.print(line)
    if plan.has_work and plan.dangling:
        console.print(
            styled(str(plan.table.name), "bold"),
            f": delete files to remove, because they apply to no data file: {len(plan.dangling)}",
            sep="",
        )
    if not plan.has_work:
        console.print(styled(str(plan.table.name), "bold"), ": nothing is due", sep="")
    if plan.groups:
        _print_groups(console, plan)
    _print_left_alone(console, plan)


def _print_groups(console: PlainConsole, plan: TablePlan) -> None:
    rows = (
        (
            partition_text(planned.file_group.partition),
            str(len(planned.file_group.files)),
            str(len(planned.file_group.tasks)),
            filesize.decimal(planned.file_group.bytes),
            planned.engine.kind.value,
            planned.engine.reason,
            planned.file_group.why,
        )
        for planned in plan.groups
    )
    _print_table(console, f"{plan.table.name}: groups due: {len(plan.groups)}", rows, "engine", "reason", "due because")


def _print_left_alone(console: PlainConsole, plan: TablePlan) -> None:
    left = _left_alone(plan)
    if left and plan.has_work:
        console.print(f"left alone: {len(left)} partitions")
    for each in left[:MOST_REASONS]:
        console.print(f"  {partition_text(each['partition'])}: {each['why']}")
    if len(left) > MOST_REASONS:
        console.print(f"  and {len(left) - MOST_REASONS} more; --output json shows all")


def print_run(console: PlainConsole, result: RunResult, plan: TablePlan) -> None:
    """What the run of `plan` did, and the partitions that the plan left alone."""
    if result.commits:
        _print_commits(console, result)
    else:
        console.print(styled(str(result.table), "bold"), ": nothing to do", sep="")
    _print_left_alone(console, plan)


def _print_commits(console: PlainConsole, result: RunResult) -> None:
    if not result.groups:
        console.print(
            styled(str(result.table), "bold"),
            f": snapshot {result.snapshot_after}: {result.delete_files_removed} delete files removed, which applied to "
            "no data file",
            sep="",
        )
        return
    rows = (
        (
            partition_text(group.planned.file_group.partition),
            str(group.rewritten.files_in),
            str(group.rewritten.files_out),
            filesize.decimal(group.rewritten.bytes_in),
            group.rewritten.engine,
            group.rewritten.reason,
            f"{group.rewritten.rows_in:,} - {group.rewritten.rows_deleted:,} = {group.rewritten.rows_out:,}",
        )
        for group in result.groups
    )
    _print_table(console, f"{result.table}: snapshot {result.snapshot_after}", rows, "engine", "reason", "rows")
    for drop in result.dropped:
        where = partition_text(drop.planned.file_group.partition)
        console.print(styled("not rewritten", "red"), f"{where}: {drop.error}")
    seconds = {"plan": result.plan_seconds, "rewrite": result.rewrite_seconds, "commit": result.commit_seconds}
    carried, rebased = (
        sum(getattr(group, name) for group in result.groups) for name in ("rows_carried", "rows_rebased")
    )
    if carried:
        console.print(f"deleted rows copied, and deleted in the outputs: {carried:,}")
    if rebased:
        console.print(f"rows that other commits deleted since the plan, deleted in the outputs: {rebased:,}")
    if result.delete_files_removed:
        console.print(f"delete files removed: {result.delete_files_removed}")
    console.print(", ".join(f"{stage} {value:.2f} s" for stage, value in seconds.items()))


def print_debt(console: PlainConsole, documents: Iterable[Document]) -> None:
    """Print the debt of each table, worst partitions first."""
    for document in documents:
        rows = (
            (
                partition_text(row["partition"]),
                str(row["data_files"]),
                str(row["small_files"]),
                filesize.decimal(row["small_bytes"]),
                str(row["delete_files"]),
                "yes" if row["due"] else "no",
                row["why"],
            )
            for row in document["partitions"][:MOST_PARTITIONS]
        )
        title = f"{document['table']}: {document['small_files']} small of {document['data_files']} files"
        headings = ("partition", "files", "small", "size", "deletes", "due", "why")
        console.print(columns(headings, rows, left={"partition", "due", "why"}, title=title))
        if len(document["partitions"]) > MOST_PARTITIONS:
            more = len(document["partitions"]) - MOST_PARTITIONS
            console.print(f"and {more} more partitions; --output json shows all")
        _print_causes(console, document)


def _print_causes(console: PlainConsole, document: Document) -> None:
    for other in document["other_compactors"] or ():
        what = "tables.other_compactors sets what firnline does"
        if other["name"] == UNNAMED:
            what = f"it does not name itself, as AWS Glue's optimizer; {what}"
        if other["name"] == CONVERTER_NAME:
            what = "its equality deletes are left to it"
        if other["name"].startswith(DEPLOYMENT):
            what = "another firnline: stop one of the two, or give each its own tables by tables.include"
        console.print(
            styled("also compacted by", "bold"),
            f"{other['name']}: {other['commits']} rewrites of {other['files']} files in the last day ({what})",
            end="\n\n",
        )
    if document["unpublished"]:
        console.print(styled("main is not rewritten now:", "bold"), document["unpublished"], end="\n\n")
    for wait in document["waits"] or ():
        until = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(wait["until"]))
        what = " ".join(filter(None, (wait["what"], wait["of"], wait["part"])))
        console.print(styled(f"waits until {until}:", "bold"), f"{what}: {wait['why']}", end="\n\n")
    for cause in document["causes"] or ():
        left = f"{cause['files_left_of_100']:.3g} of 100 files would remain"
        console.print(styled("why:", "bold"), cause["sentence"])
        console.print(styled("remedy:", "bold"), f"{cause['remedy']} ({left})", end="\n\n")


def _print_table(console: PlainConsole, title: str, rows: Iterable[tuple[str, ...]], *more: str) -> None:
    console.print(columns(("partition", "in", "out", "size", *more), rows, left={"partition", *more}, title=title))
