"""One compaction of one table, checked from every side. Used by the matrix, the generated cases and other suites.

`check_compaction` compares what readers see before and after, and what the new snapshot's metadata claims with what
its files hold. It never raises for a defect of the table or the compactor: what is wrong is a line in `problems`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import duckdb
from pyiceberg.manifest import FileFormat, ManifestEntry, ManifestEntryStatus
from pyiceberg.table import Table
from pyspark.errors import PySparkException

from compactor.errors import FirnlineError, InputError
from compactor.locations import plain_path
from compactor.manifests.cache import ManifestCache
from compactor.planning.plan_table import Request, TablePlan, plan_table
from compactor.runs.results import RunResult
from tests.conftest import Lake
from tests.correctness.file_truth import data_entries, known_paths, live_entries, wrong_in
from tests.correctness.metadata_oracle import check_run
from tests.correctness.rows import (
    Filters,
    Rows,
    filtered_counts,
    filters_from_data,
    pyiceberg_rows,
    spark_rows,
)

DATA_SUFFIXES = (".parquet", ".orc", ".avro", ".puffin")
ROW_LINEAGE_VERSION = 3
NAMES_SHOWN = 3


class Outcome(Enum):
    """What became of a cell."""

    OK = "ok"
    NOTHING = "nothing to do"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True)
class CellResult:
    """One compaction: the engines that did it (with their reasons), or why it was refused, or what is wrong."""

    table: str
    engine: str
    outcome: Outcome
    engines: tuple[str, ...] = ()
    reason: str = ""
    problems: tuple[str, ...] = ()
    files_in: int = 0
    files_out: int = 0
    rows: int = 0
    rows_deleted: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Baseline:
    """A table before a compaction. `unreadable`: why Spark cannot read it, so that PyIceberg has to."""

    snapshot_id: int | None
    sequence_number: int
    rows: Rows
    past: Rows
    filters: Filters
    by_pyiceberg: Rows | None
    entries: tuple[ManifestEntry, ...]
    unreadable: str = ""


def read_baseline(lake: Lake, table: str, *, filters: int = 12) -> Baseline:
    """Read a table in every way that will be compared later. `filters`: how many conditions to count."""
    loaded = _load(lake, table)
    snapshot = loaded.metadata.current_snapshot()
    if snapshot is None:
        return Baseline(None, 0, Counter(), Counter(), Filters((), ()), None, ())
    entries = tuple(live_entries(loaded, snapshot))
    sequence_number = snapshot.sequence_number or 0
    parquet = all(entry.data_file.file_format == FileFormat.PARQUET for entry in entries)
    by_pyiceberg = _pyiceberg_rows(lake, table) if parquet else None  # Arrow's ORC reader has zeros of one sign
    try:
        rows = spark_rows(lake, table, lineage=_has_lineage(loaded))
    except (PySparkException, NotImplementedError, TypeError) as error:
        if by_pyiceberg is None:
            raise
        excuse = str(error).split("\n", maxsplit=1)[0][:80]
        none = Filters((), ())
        return Baseline(
            snapshot.snapshot_id, sequence_number, by_pyiceberg, Counter(), none, by_pyiceberg, entries, excuse
        )
    past = spark_rows(lake, table, as_of=snapshot.snapshot_id)
    counted = filters_from_data(lake, table, loaded.schema(), filters)
    return Baseline(snapshot.snapshot_id, sequence_number, rows, past, counted, by_pyiceberg, entries)


def check_compaction(lake: Lake, table: str, engine: str = "auto", baseline: Baseline | None = None) -> CellResult:
    """Compact everything there is with `engine` and compare. A forced engine may refuse with a reason."""
    before = baseline or read_baseline(lake, table)
    started = time.monotonic()
    result = CellResult(table, engine, Outcome.OK, rows=before.rows.total())
    try:
        run = lake.compact(table, force=True, engine=engine)
    except FirnlineError as error:
        problems = tuple(_changed_by_refusal(lake, table, before))
        legal = (isinstance(error, InputError) and engine != "auto") or bool(before.unreadable)
        if not legal:
            problems = (f"{type(error).__name__} {error.reason}: {error}", *problems)
        outcome = Outcome.FAILED if problems else Outcome.REFUSED
        return replace(result, outcome=outcome, reason=_short(error), problems=problems)
    except Exception as error:  # noqa: BLE001 - whatever is not a deliberate error is a finding
        return replace(result, outcome=Outcome.FAILED, problems=(f"{type(error).__name__}: {error}"[:600],))
    problems = tuple(_problems(lake, table, before, run))
    outcome = Outcome.FAILED if problems else Outcome.NOTHING if run.snapshot_after is None else Outcome.OK
    return replace(
        result,
        outcome=outcome,
        problems=problems,
        engines=tuple(sorted({f"{group.rewritten.engine}: {group.rewritten.reason}" for group in run.groups})),
        files_in=sum(group.rewritten.files_in for group in run.groups),
        files_out=sum(group.rewritten.files_out for group in run.groups),
        rows_deleted=sum(group.rewritten.rows_deleted for group in run.groups),
        seconds=time.monotonic() - started,
    )


def _short(error: FirnlineError) -> str:
    sentence = str(error).partition(": ")[2] or str(error)
    return f"{error.reason}: {sentence}".partition("; use --engine auto")[0]


def _load(lake: Lake, table: str) -> Table:
    return lake.catalog.load_table(lake.name(table).identifier)


def _has_lineage(table: Table) -> bool:
    return table.metadata.format_version >= ROW_LINEAGE_VERSION


def _pyiceberg_rows(lake: Lake, table: str) -> Rows | None:
    """None where PyIceberg cannot read the table (equality deletes, Avro, new types)."""
    try:
        return pyiceberg_rows(lake, table)
    except Exception:  # noqa: BLE001 - whatever it cannot do, it is not what is being tested
        return None


# --- all checks -------------------------------------------------------------------------------------------------------


def _problems(lake: Lake, table: str, before: Baseline, run: RunResult) -> Iterator[str]:
    loaded = _load(lake, table)
    checks: tuple[Callable[[], Iterator[str]], ...] = (
        lambda: _rows_differ(lake, table, loaded, before),
        lambda: _filters_differ(lake, table, before),
        lambda: _snapshot_wrong(loaded, before, run),
        lambda: iter(check_run(lake, table, run).findings),
        lambda: _files_wrong(lake, table, loaded, before, run),
        lambda: _outputs_wrong(loaded, before, run),
        lambda: _left_behind(lake, table, loaded),
        lambda: _not_settled(lake, table),
    )
    for check in checks:
        try:
            yield from check()
        except Exception as error:  # noqa: BLE001 - a reader that fails after a compaction is a finding
            yield f"{type(error).__name__} while reading back: {error}"[:600]


def _rows_differ(lake: Lake, table: str, loaded: Table, before: Baseline) -> Iterator[str]:
    if before.by_pyiceberg is not None:
        yield from _difference("PyIceberg", before.by_pyiceberg, pyiceberg_rows(lake, table))
    if before.unreadable or before.snapshot_id is None:
        return
    yield from _difference("Spark", before.rows, spark_rows(lake, table, lineage=_has_lineage(loaded)))
    yield from _difference("time travel", before.past, spark_rows(lake, table, as_of=before.snapshot_id))


def _difference(reader: str, before: Rows, after: Rows) -> Iterator[str]:
    if before == after:
        return
    lost, new = before - after, after - before
    shown = "; ".join(
        f"{what} {list(rows)[:NAMES_SHOWN]}" for what, rows in (("lost", lost), ("new", new)) if rows
    )  # fmt: skip
    yield f"{reader}: {lost.total()} rows lost, {new.total()} rows new of {before.total()}: {shown}"[:900]


def _filters_differ(lake: Lake, table: str, before: Baseline) -> Iterator[str]:
    filters = before.filters
    counted = filtered_counts(lake, table, filters.conditions)
    if counted == filters.counts:
        return
    already = filtered_counts(lake, table, filters.conditions, as_of=before.snapshot_id)
    each = zip(filters.conditions, filters.counts, counted, already, strict=True)
    for condition, truth, after, earlier in each:
        if after not in (truth, earlier):
            yield f"WHERE {condition}: {after} rows found, {truth} are there (before the compaction: {earlier})"


def _snapshot_wrong(loaded: Table, before: Baseline, run: RunResult) -> Iterator[str]:
    snapshot = loaded.metadata.current_snapshot()
    head = snapshot.snapshot_id if snapshot else None
    if run.snapshot_after is None:
        if head != before.snapshot_id:
            yield f"nothing was to be done, yet the head moved from {before.snapshot_id} to {head}"
        return
    if snapshot is None or head != run.snapshot_after:
        yield f"the head is {head}, the run claims {run.snapshot_after}"
        return
    summary = snapshot.summary
    if summary is None or summary.operation.value != "replace":
        yield f"the operation is {summary.operation.value if summary else None}, not replace"
    if snapshot.parent_snapshot_id != before.snapshot_id:
        yield f"the new snapshot's parent is {snapshot.parent_snapshot_id}, not {before.snapshot_id}"
    if loaded.metadata.snapshot_by_id(before.snapshot_id or 0) is None:
        yield "the snapshot before is gone, with what its writer noted in its summary"
    live = len(data_entries(live_entries(loaded, snapshot)))
    if summary is not None and int(summary["total-data-files"] or 0) != live:
        yield f"the summary counts {summary['total-data-files']} data files, there are {live}"


def _added(loaded: Table, run: RunResult) -> list[ManifestEntry]:
    snapshot = loaded.metadata.current_snapshot()
    if snapshot is None or run.snapshot_after is None:
        return []
    return [
        entry
        for entry in data_entries(live_entries(loaded, snapshot))
        if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == run.snapshot_after
    ]


def _files_wrong(lake: Lake, table: str, loaded: Table, before: Baseline, run: RunResult) -> Iterator[str]:
    for group in run.groups:
        planned, files, rows = len(group.planned.file_group.tasks), group.rewritten.files_out, group.rewritten.rows_out
        if files > planned or (rows and not files):
            yield f"{files} files of {rows} rows written for {planned} planned outputs"
    snapshot = loaded.metadata.current_snapshot()
    live = data_entries(live_entries(loaded, snapshot)) if snapshot else []
    removed, added = (sum(getattr(group.rewritten, name) for group in run.groups) for name in ("files_in", "files_out"))
    was = len(data_entries(list(before.entries)))
    if len(live) != was - removed + added:
        yield f"{len(live)} data files live, {was} were, of which {removed} became {added}"
    plan = _plan(lake, table)
    stuck = {key.spec_id for key, why in plan.unplanned.items() if "column" in why or "rows in ORC have ids" in why}
    small: Counter[tuple[int, str]] = Counter()
    for entry in live:
        file = entry.data_file
        # PyIceberg cuts doubles to 32 bits: such partitions cannot be told apart here
        floats = any(isinstance(value, float) for value in file.partition._data)
        if plan.sizes.is_small(file.file_size_in_bytes) and file.spec_id not in stuck and not floats:
            small[file.spec_id, repr(file.partition)] += 1
    for (spec_id, partition), count in small.items():
        if count > 1:
            yield f"{count} small files left in partition {partition} of spec {spec_id}"


def _outputs_wrong(loaded: Table, before: Baseline, run: RunResult) -> Iterator[str]:
    outputs = _added(loaded, run)
    reported = sum(group.rewritten.files_out for group in run.groups)
    if len(outputs) != reported:
        yield f"{len(outputs)} files added in the manifests, {reported} reported"
    for entry in outputs:
        if loaded.metadata.format_version > 1 and entry.sequence_number != before.sequence_number:
            yield f"data sequence number {entry.sequence_number}, the snapshot read had {before.sequence_number}"
        yield from wrong_in(loaded, entry)
        if entry.data_file.file_format == FileFormat.PARQUET:
            path = plain_path(entry.data_file.file_path)
            with duckdb.connect() as connection:
                read = len(connection.read_parquet(path, hive_partitioning=False).fetchall())
            if read != entry.data_file.record_count:
                yield f"DuckDB reads {read} of {entry.data_file.record_count} rows of {path}"


def _left_behind(lake: Lake, table: str, loaded: Table) -> Iterator[str]:
    folders = {plain_path(loaded.metadata.location), plain_path(loaded.properties.get("write.data.path", ""))}
    files = {str(path) for folder in folders if folder for path in Path(folder).rglob("*") if path.is_file()}
    data = {path for path in files if path.endswith(DATA_SUFFIXES) and "/metadata/" not in path}
    orphans = {path for path in data if not Path(path).name.startswith(".")} - known_paths(loaded)
    if orphans:
        yield f"{len(orphans)} files that no snapshot knows: {sorted(orphans)[:NAMES_SHOWN]}"
    name = lake.name(table)
    records = [record for record in lake.in_flight().all() if record.table == name and not record.abandoned]
    if records:
        yield f"{len(records)} in-flight records left"


def _plan(lake: Lake, table: str, engine: str = "auto") -> TablePlan:
    view = lake.view(table)
    policy = lake.settings.policy.for_table(view.name)
    return plan_table(view, policy, ManifestCache(1 << 24), Request(force=True, engine=engine))


def _not_settled(lake: Lake, table: str) -> Iterator[str]:
    groups = _plan(lake, table).groups
    if groups:
        again = [f"{group.file_group.partition}: {group.file_group.why}" for group in groups[:NAMES_SHOWN]]
        yield f"a second compaction still finds {len(groups)} groups: {again}"


def _changed_by_refusal(lake: Lake, table: str, before: Baseline) -> Iterator[str]:
    loaded = _load(lake, table)
    snapshot = loaded.metadata.current_snapshot()
    head: Any = snapshot.snapshot_id if snapshot else None
    if head != before.snapshot_id:
        yield f"refused, yet the head moved from {before.snapshot_id} to {head}"
    yield from _left_behind(lake, table, loaded)
