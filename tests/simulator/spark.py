"""Spark as the product calls it: a job of one task at a time, whose work is done on the rows of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from compactor.errors import GiveUpError, RetryError
from compactor.iceberg.manifest_entries import Content, FileEntry, Status
from compactor.partitions import PartitionKey
from compactor.reasons import Reason, Refusal
from compactor.rewrite.deletes.equality_deletes import EncodeInput, InputFiles, check_same_deletes
from compactor.rewrite.deletes.key_search import FoundRows
from compactor.rewrite.deletes.row_maps import InputRows, in_order, packed
from compactor.rewrite.encode.writer import EncodedFile
from compactor.rewrite.parquet.column_metrics import ColumnMetrics
from compactor.rewrite.reading.schema import RefusedError
from compactor.rewrite.tasks.output_task import (
    SILENCE,
    TaskAttempt,
    TaskInput,
    TaskResult,
    attempt_search,
    attempt_tasks,
)
from compactor.storage.opening import byte_store_for
from tests.simulator.java import Handle, JavaSession, Step
from tests.simulator.java_objects import Answers, JavaError
from tests.simulator.rows import data_bytes, data_rows, deleted_in
from tests.simulator.store import PROPERTIES
from tests.simulator.world import World

LOST_IN: Final = 0.3
LOST: Final = "org.apache.spark.SparkException"


class SimulatedSession(JavaSession):
    """In place of a SparkSession. `step`: see `java.py`."""

    def __init__(self, world: World, load: Callable[[], Handle], step: Step) -> None:
        super().__init__(load)
        self.sparkContext = _Context(Tasks(world, step), step)


class _Context:
    def __init__(self, tasks: Tasks, step: Step) -> None:
        self.master = "spark://cluster" if tasks.world.cluster else "local[2]"
        self._tasks, self._step = tasks, step
        self._gateway = Answers(new_array=lambda _type, length: [None] * length)

    def getConf(self) -> Answers:  # noqa: N802 - as Spark calls it
        return Answers(get=lambda _name, default=None: default)

    def setLocalProperty(self, _name: str, _value: str) -> None:  # noqa: N802
        """Only for Spark's own scheduler."""

    def setJobGroup(self, *_: Any) -> None:  # noqa: N802
        """Only for cancelling."""

    def cancelJobGroup(self, _group: str) -> None:  # noqa: N802
        """A job of the model is over as soon as the history goes on."""

    def parallelize(self, elements: Sequence[Any], _slices: int) -> _Job:
        return _Job(self._tasks, self._step, elements)


class _Job:
    _jrdd = None

    def __init__(self, tasks: Tasks, step: Step, elements: Sequence[Any], run: Any = None) -> None:
        self._tasks, self._step, self._elements, self._run = tasks, step, elements, run

    def map(self, run: Any) -> _Job:
        return _Job(self._tasks, self._step, self._elements, run)

    def collect(self) -> list[Any]:
        self._step("job")
        found = [self._tasks.run(self._run, each) for each in self._elements]
        self._step("job done")
        return found


class Tasks:
    """What executors do, on rows."""

    def __init__(self, world: World, step: Step) -> None:
        self.world, self._step = world, step

    def run(self, function: Any, element: Any) -> Any:
        """Do the work of one Spark task.

        Raises:
            Py4JJavaError: its executor is lost.
        """
        if self.world.chance.random() < self.world.profile.lost * bool(self.world.faults):
            raise JavaError(LOST, "the executor was lost")
        if isinstance(function, partial) and function.func is attempt_tasks:
            return self._attempts(function.args[1], element)
        if function is attempt_search:
            return self._attempted(partial(self._searched, element))
        raise NotImplementedError(function)

    def _attempts(self, first: int, works: Sequence[TaskInput]) -> list[TaskAttempt]:
        """As `attempt_tasks`: no other task is begun once the store has given no answer to some in a row.

        On a cluster the first attempt may be lost: what it has begun it writes then or later, and another one is made.
        """
        attempts: list[TaskAttempt] = []
        is_lost = self.world.cluster and self.world.chance.random() < LOST_IN
        if is_lost:
            self._is_lost(works[0].at_attempt(first))
        for work in works:
            number = first + is_lost
            done = self._attempted(partial(self._rewritten, work.at_attempt(number)))
            attempts.append(TaskAttempt(done, 0.1, number))
            last = [each.outcome for each in attempts[-SILENCE:]]
            if len(last) == SILENCE and all(isinstance(each, RetryError) for each in last):
                break
        return attempts

    def _is_lost(self, work: TaskInput) -> None:
        seconds = self.world.chance.choice((0.0, 10.0, 300.0))

        def write() -> None:
            self.world.plan.sleep(seconds)
            self._attempted(partial(self._rewritten, work))
            self.world.tell("a lost executor has written its file")

        self.world.plan.start(write, "executor", None)

    def _attempted(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except (RetryError, GiveUpError) as error:
            return error

    def _rewritten(self, work: TaskInput) -> TaskResult | Refusal:
        encode = work.encode
        if encode is None:
            raise NotImplementedError("only what the service asks for")
        self._check(encode.files.inputs)
        chance, rows, places = self.world.chance, [], list[InputRows]()
        deleted = {each.location: self._deleted(each) for each in encode.files.inputs}
        count = sum(map(len, deleted.values()))
        carries = work.splice is not None and chance.random() < 0.5 and (not count or chance.random() < 0.8)
        for each in encode.files.inputs:
            gone = deleted[each.location]
            content = self._rows(each)
            rows += [row for place, row in enumerate(content) if carries or place not in gone]
            packs = [_packed(gone, len(content), by_position=kind) for kind in (True, False)]
            names = ("carried", "carried_by_value") if carries else ("by_position", "by_value")
            places.append(InputRows(each.location, len(content), **dict(zip(names, packs, strict=True))))
        self._step("writes")
        if encode.keep_row_lineage:
            self.world.with_ids.add(encode.output)
        store, size = byte_store_for(encode.output, PROPERTIES), 0
        if rows:
            file = store.create(encode.output)
            self._step("half written")
            file.write(data_bytes(rows))
            size = file.finish()
        read = sum(each.records for each in encode.files.inputs)
        metrics = ColumnMetrics(len(rows), {}, {}, {}, {}, {}, {})
        gone_rows = 0 if carries else count
        written = EncodedFile(len(rows), metrics, size, rows_deleted=gone_rows, inputs=in_order(places))
        return TaskResult(written, None, read, in_order(places))

    def _check(self, inputs: Sequence[EncodeInput]) -> None:
        """A task refuses inputs that do not list all deletes that apply: the planner lists them."""
        try:
            check_same_deletes(inputs)
        except RefusedError as error:
            self.world.violated(f"a task refuses its inputs: {error.refusal.sentence}")

    def _rows(self, file: EncodeInput) -> Any:
        store = byte_store_for(file.location, PROPERTIES)
        rows = data_rows(store.read(file.location, 0, store.size(file.location)))
        if len(rows) != file.records:
            raise GiveUpError(f"{file.location} holds {len(rows)} rows", reason=Reason.ROW_COUNT_MISMATCH)
        return rows

    def _deleted(self, file: EncodeInput) -> Mapping[int, bool]:
        """The rows that the deletes of the task's input delete; True: by position."""
        data = _entry(file.location, Content.DATA, file.data_sequence_number)
        by_position = [
            _entry(each.location, Content.POSITION_DELETES, file.data_sequence_number, each.file_format, file.location)
            for each in file.position_deletes
        ]
        by_value = [
            _entry(each.location, Content.EQUALITY_DELETES, each.sequence_number) for each in file.equality_deletes
        ]
        for each in (data, *by_position, *by_value):
            byte_store_for(each.path, PROPERTIES).size(each.path)  # as the task reads it
        return deleted_in(data, [*by_position, *by_value], self.world.store.files)

    def _searched(self, work: InputFiles) -> FoundRows:
        self._check(work.inputs)
        by_value, by_position = {}, {}
        for each in work.inputs:
            found, rows = self._deleted(each), len(self._rows(each))
            values = _packed(found, rows, by_position=False)
            if values:
                by_value[each.location] = values
                places = _packed(found, rows, by_position=True)
                if places:
                    by_position[each.location] = places
        return FoundRows(by_value, by_position, 1, 1, 1)


def _packed(deleted: Mapping[int, bool], rows: int, *, by_position: bool) -> bytes:
    places = sorted(place for place, kind in deleted.items() if kind is by_position)
    return packed(np.array(places, np.int64), rows)


def _entry(path: str, content: Content, number: int, kind: str = "parquet", applies_to: str | None = None) -> FileEntry:

    key = PartitionKey(0, "[]")
    return FileEntry("", Status.ADDED, None, number, content, path, kind, key, (), 0, 0, None, False, (), applies_to)
