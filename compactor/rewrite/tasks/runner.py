"""One share → one output: a Spark task splices or encodes it, and Iceberg's own code in Spark does what they refuse."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from pyspark.sql import SparkSession

from compactor.errors import FirnlineError, GiveUpError, InputError
from compactor.iceberg.manifest_entries import read_entries
from compactor.manifests.live_files import LiveFile
from compactor.partitions import PartitionKey
from compactor.planning.engine import Engine, EngineChoice, is_sorted
from compactor.planning.plan_table import PlannedGroup, TablePlan
from compactor.planning.spark_misreads import misread
from compactor.reasons import Reason
from compactor.refusal import Refusal
from compactor.rewrite.encode.encode import EncodedFile
from compactor.rewrite.parquet.column_metrics import ColumnMetrics, merge, to_json, with_column_sizes
from compactor.rewrite.splice.checks import SpliceLimits, files_too_small
from compactor.rewrite.splice.splice import SplicedFile
from compactor.rewrite.tasks.output_task import MixedFile, ShareAttempt, WrittenShare, attempt_share, write_share
from compactor.rewrite.tasks.spark_checks import misread_units
from compactor.rewrite.tasks.spark_scan import frozen_copy, rewrite_share, run_folder
from compactor.rewrite.tasks.task_input import aside, share_work, storage_of
from compactor.spark.java_table import JavaTable, activate, content_file
from compactor.storage.opening import byte_store_for

MERGE_EVERY = 64  # inputs whose metrics are held before they are folded into one
UNSORTED = 0
SCHEDULER_POOL = "rewrite"

Place = tuple[int, int]
"""A share's place in the plan: number of its group, index within the group."""


@dataclass(frozen=True)
class RewrittenShare:
    """Java scan tasks of the inputs and Java data files of the outputs, ready to commit, with independent counts."""

    engine: EngineChoice
    tasks: Any
    outputs: tuple[Any, ...]
    files_in: int
    bytes_in: int
    bytes_out: int
    rows_deleted: int
    rows_out: int
    seconds: float
    bytes_decoded: int


class ShareRewriter:
    """Rewrites the shares of one run. Output names are settled before anything is written."""

    def __init__(self, session: SparkSession, table: JavaTable, plan: TablePlan, run_id: str) -> None:
        self._session = session
        self._table = table
        self._plan = plan
        self._run_id = run_id
        self._lock = threading.Lock()
        self._spark_tasks: dict[str, Any] | None = None
        self._written_ahead: dict[Place, ShareAttempt] = {}
        places = [
            (number, index)
            for number, planned in enumerate(plan.groups)
            if planned.engine.kind is not Engine.SPARK
            for index in range(len(planned.file_group.tasks))
        ]
        names = [
            (plan.groups[number].file_group.key, f"{number:05d}-{index:05d}-firnline-{run_id}.parquet")
            for number, index in places
        ]
        self._outputs = dict(zip(places, table.new_data_locations(names), strict=True))
        self._metrics = self._start_metrics()

    @property
    def output_files(self) -> tuple[str, ...]:
        """Locations of everything that `splice` and `encode` write."""
        return tuple(location for output in self._outputs.values() for location in (output, aside(output)))

    @property
    def output_folders(self) -> tuple[str, ...]:
        """The run's own folder, where `spark` writes."""
        return (run_folder(self._table, self._run_id),)

    def rewrite(self, planned: PlannedGroup, number: int, index: int) -> RewrittenShare:
        """Write one share's output. Called from a thread of its own.

        Raises:
            FirnlineError: by class the reaction.
        """
        place = (number, index)
        engine = planned.engine
        if engine.kind is not Engine.SPARK:
            if place not in self._written_ahead:
                self.write_ahead([place])
            attempt = self._written_ahead[place]
            if isinstance(attempt.outcome, FirnlineError):
                raise attempt.outcome
            if isinstance(attempt.outcome, WrittenShare):
                return self._written(planned, place, attempt.outcome, attempt.seconds)
            engine = self._refused(attempt.outcome)
        self._label_thread(str(planned.file_group.partition))
        return self._by_spark(place, engine)

    def write_ahead(self, places: Sequence[Place]) -> None:
        """Write several shares in one Spark job, a task each: a job of its own would cost each a tenth of a second.

        What comes of each (a file, a refusal, an error) is told by its `rewrite`.
        """
        places = [place for place in places if place in self._outputs]
        if not places:
            return
        self._label_thread(f"{len(places)} outputs")
        works = [
            share_work(self._plan, self._plan.groups[number], index, self._outputs[number, index])
            for number, index in places
        ]
        job = self._session.sparkContext.parallelize(works, len(works)).map(partial(attempt_share, write_share))
        self._written_ahead.update(zip(places, job.collect(), strict=True))

    def _label_thread(self, what: str) -> None:
        """Spark's settings of the calling thread: the session, the FAIR pool, and the group by which to cancel."""
        activate(self._session)
        context = self._session.sparkContext
        context.setLocalProperty("spark.scheduler.pool", SCHEDULER_POOL)
        context.setJobGroup(self._run_id, f"firnline {self._plan.table.name} {what}", True)

    def _refused(self, refusal: Refusal) -> EngineChoice:
        requested = self._plan.requested_engine
        if requested != "auto":
            raise InputError(
                f"engine {requested} refuses a group of {self._plan.table.name}: {refusal.sentence}; use --engine auto",
                reason=refusal.reason,
            )
        return EngineChoice(Engine.SPARK, refusal.reason, refusal.sentence)

    def _written(self, planned: PlannedGroup, place: Place, written: WrittenShare, seconds: float) -> RewrittenShare:
        share, key = planned.file_group.tasks[place[1]], planned.file_group.key
        file = written.file.spliced if isinstance(written.file, MixedFile) else written.file
        encoded = written.file.encoded if isinstance(written.file, MixedFile) else written.file
        inputs = [
            content_file(each.entry.key, each.entry.path, "parquet", each.size, {"record-count": each.entry.records})
            for each in share
        ]
        engine = planned.engine
        if written.not_spliced is not None:
            engine = EngineChoice(Engine.ENCODE, written.not_spliced.reason, written.not_spliced.sentence)
        outputs = []
        if file.rows:
            metrics = self._metrics_of(place, share, written.file)
            output = content_file(
                key,
                self._outputs[place],
                "parquet",
                file.size,
                to_json(metrics),
                **{"split-offsets": list(file.split_offsets), "sort-order-id": UNSORTED},
            )
            outputs = self._table.files([output])
        return RewrittenShare(
            engine=engine,
            tasks=self._table.tasks(inputs),
            outputs=tuple(outputs),
            files_in=len(share),
            bytes_in=sum(each.size for each in share),
            bytes_out=file.size if file.rows else 0,
            rows_deleted=encoded.rows_deleted if isinstance(encoded, EncodedFile) else 0,
            rows_out=file.rows,
            seconds=seconds,
            bytes_decoded=written.decoded_bytes,
        )

    def _metrics_of(
        self, place: Place, share: Sequence[LiveFile], file: SplicedFile | EncodedFile | MixedFile
    ) -> ColumnMetrics:
        if isinstance(file, EncodedFile):
            return file.metrics
        if isinstance(file, MixedFile):
            kept = frozenset(share[index].entry.path for index in file.kept)
            found = merged_metrics(self._plan, frozenset([place]), kept)[place]
            merged, spliced = merge([found, file.encoded.metrics], self._plan.table.metadata.schema()), file.spliced
        else:  # spliced whole, expectedly or (a share without deletes beside one that has some) not
            ahead = self._metrics.result().get(place)
            merged = ahead or merged_metrics(self._plan, frozenset([place]))[place]
            spliced = file
        metrics = with_column_sizes(merged, spliced.column_sizes)
        if metrics.record_count != spliced.rows:
            raise GiveUpError(
                f"{self._outputs[place]} holds {spliced.rows} rows, the manifests promise {metrics.record_count}",
                reason=Reason.ROW_COUNT_MISMATCH,
            )
        return metrics

    def _by_spark(self, place: Place, engine: EngineChoice) -> RewrittenShare:
        started = time.monotonic()
        (number, index), group = place, self._plan.groups[place[0]].file_group
        share, share_id = group.tasks[index], f"{self._run_id}-{number}-{index}"
        self._check_for_spark(group.key, share)
        planned_tasks = self._planned_tasks()
        chosen = [planned_tasks[file.entry.path] for file in share]
        ordered = is_sorted(self._plan.table)
        written = rewrite_share(self._table, self._frozen_copy, chosen, share_id, ordered=ordered)
        tasks = self._table.jvm.java.util.ArrayList()
        for task in chosen:
            tasks.add(task)
        return RewrittenShare(
            engine=engine,
            tasks=tasks,
            outputs=written.outputs,
            files_in=len(share),
            bytes_in=sum(file.size for file in share),
            bytes_out=written.bytes_out,
            rows_deleted=written.rows_deleted,
            rows_out=written.rows_out,
            seconds=time.monotonic() - started,
            bytes_decoded=sum(file.size for file in share),
        )

    def _check_for_spark(self, key: PartitionKey, share: Sequence[LiveFile]) -> None:
        """See that Spark reads what is written: it would write what it reads.

        Raises:
            GiveUpError: it does not; by reason what it takes for something else.
            RetryError: the store does not answer.
        """
        table = self._plan.table
        store = byte_store_for(share[0].entry.path, storage_of(table))
        found = misread(table, key, share) or misread_units(store, table.metadata.schema(), share)
        if found is not None:
            raise GiveUpError(
                f"a group of {table.name} is left alone, for Spark would change rows: {found.sentence}",
                reason=found.reason,
            )

    @cached_property
    def _frozen_copy(self) -> Any:
        return frozen_copy(self._table, run_folder(self._table, self._run_id))

    def _planned_tasks(self) -> dict[str, Any]:
        """Java's tasks of every file of the run, planned once, when the first share needs them."""
        with self._lock:
            if self._spark_tasks is None:
                paths = [file.entry.path for planned in self._plan.groups for file in planned.file_group.files]
                self._spark_tasks = self._table.planned_tasks(paths)
            return self._spark_tasks

    def _expects_splice(self, place: Place) -> bool:
        planned = self._plan.groups[place[0]]
        limits = SpliceLimits(min_row_group_bytes=self._plan.policy.min_row_group_size)
        sizes = [file.size for file in planned.file_group.tasks[place[1]]]
        return planned.engine.kind is Engine.SPLICE and files_too_small(sizes, limits) is None

    def _start_metrics(self) -> Future[dict[Place, ColumnMetrics]]:
        """Merge the column metrics of what will be spliced beside the copying: one pass over the manifests."""
        places = frozenset(place for place in self._outputs if self._expects_splice(place))
        pool = ThreadPoolExecutor(1, thread_name_prefix="column-metrics")
        merging = pool.submit(merged_metrics, self._plan, places)
        pool.shutdown(wait=False)
        return merging


def merged_metrics(
    plan: TablePlan, places: frozenset[Place], paths: frozenset[str] | None = None
) -> dict[Place, ColumnMetrics]:
    """Column metrics per share, from the manifest entries of its inputs; never more than a few files' at once.

    `paths`: only of these inputs.

    Raises:
        RetryError: a manifest cannot be read.
    """
    place_of = {
        file.entry.path: (number, index)
        for number, planned in enumerate(plan.groups)
        for index, share in enumerate(planned.file_group.tasks)
        if (number, index) in places
        for file in share
        if paths is None or file.entry.path in paths
    }
    wanted = {
        file.entry.manifest_path
        for group in plan.groups
        for file in group.file_group.files
        if file.entry.path in place_of
    }
    gathered: dict[Place, list[ColumnMetrics]] = {}
    schema = plan.table.metadata.schema()
    for manifest in plan.table.manifests():
        if manifest.manifest_path not in wanted:
            continue
        for entry in read_entries(plan.table.io, manifest):
            place = place_of.get(entry.data_file.file_path)
            if place is None:
                continue
            found = gathered.setdefault(place, [])
            found.append(ColumnMetrics.from_data_file(entry.data_file))
            if len(found) >= MERGE_EVERY:
                found[:] = [merge(found, schema)]
    return {place: merge(found, schema) for place, found in gathered.items()}
