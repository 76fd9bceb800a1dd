"""One round: plan, let others in at random moments, run, and compare the table with the model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from compactor.commit.updates import ReplaceUpdate
from compactor.errors import FirnlineError, ReplanError
from compactor.events import Event, GroupCommitted, GroupDropped
from compactor.iceberg.manifest_lists import ROW_LINEAGE_VERSION
from compactor.manifests.cache import ManifestCache
from compactor.planning.plan_table import Request, plan_table
from compactor.rewrite.tasks.runner import OutputTaskRunner
from compactor.runs.committing import CommitLoop
from compactor.runs.results import RunResult
from compactor.runs.rewriter import Rewriter
from compactor.runs.slots import SlotPool
from compactor.settings.tree import CommitSettings
from compactor.spark.java_table import first_line
from tests.chaos.model import SerialModel
from tests.chaos.operations import OPERATIONS, ROW_LEVEL, Scene, append_by_spark, convert_deletes
from tests.conftest import Lake
from tests.correctness.metadata_oracle import check_run
from tests.correctness.stage import any_size_splices
from tests.services.faulty_catalog import FaultyCatalog

MOMENTS = (
    "after the plan",
    "while files are written",
    "before our check",
    "after our check",
    "between two commits of the run",
)
CONVERSION_MOMENTS = ("before the conversion's check", "after the conversion's check")
FINDINGS_SHOWN = 3
SPLICES = 0.7
"""Share of rounds that may splice files of any size; others decode small files, as outside of tests."""
RATIOS = ((0.0, 0.3), (0.05, 0.3), (0.5, 1.0))
"""`carried_delete_ratio` and `delete_ratio_threshold` of a round."""
COULD_FOLLOW = ("left out: rows of ", "left out: position deletes ")
"""How a conflict with new deletes begins: none is left, since no group here is written by Spark."""
ON_ITS_WAY = "while a writer's commit is on its way"


class LostRowError(AssertionError):
    """The table is not what the model says."""


@dataclass
class Round:
    """What happened in one round."""

    number: int
    operations: list[tuple[str, str]] = field(default_factory=list)
    outcome: str = "nothing due"
    rebased: int = 0
    carried: int = 0
    dropped: list[str] = field(default_factory=list)
    writer_failures: list[str] = field(default_factory=list)


class Chaos:
    """One table and its model, for as many rounds as wanted. The same seed makes the same rounds."""

    def __init__(
        self, lake: Lake, faulty: FaultyCatalog, table: str, seed: int, version: int, *, partitioned: bool
    ) -> None:
        self._lake = lake
        self._faulty = faulty
        self._table = table
        self._seed = seed
        self._model = SerialModel()
        self._cache = ManifestCache(1 << 26)
        self._commit = CommitSettings()
        self.others_dangling = 0  # delete files that applied to nothing, the run not being at fault
        lake.sql(
            f"CREATE TABLE lake.{table} (id int, v string, p string) USING iceberg TBLPROPERTIES "
            f"('format-version'='{version}', 'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read', "
            "'write.merge.mode'='merge-on-read', 'write.distribution-mode'='none', 'commit.retry.num-retries'='4', "
            f"'commit.manifest-merge.enabled'='{str(version < ROW_LINEAGE_VERSION).lower()}')"
        )  # V3: deletion vectors stay in the manifests of the commits that wrote them
        self._partitioned = partitioned
        # PyIceberg writes no format version 3.
        fits = [name for name in sorted(OPERATIONS) if version < ROW_LINEAGE_VERSION or "PyIceberg" not in name]
        self._operations, self._row_level = fits, [name for name in fits if name in ROW_LEVEL]
        if partitioned:
            lake.sql(f"ALTER TABLE lake.{table} ADD PARTITION FIELD p")

    def play(self, number: int) -> Round:
        """One round.

        Raises:
            LostRowError: the table differs from the model.
        """
        done = Round(number)
        rng = random.Random(f"{self._seed}-{number}")
        scene = Scene(self._lake, self._table, self._model, rng, self._partitioned)
        self._commit = CommitSettings(polaris_rollback="always", groups=rng.choice([1, 1000]), hold_seconds=0)
        for _ in range(2):
            self._apply(scene, done, "before the plan", "append (Spark)", append_by_spark)
        with any_size_splices() if rng.random() < SPLICES else nullcontext():
            chance = scene.rng.random()
            if chance < 0.3:
                self._compact_under_a_writer(scene, done)
            elif chance < 0.5:
                self._convert_with_visitors(scene, done)
            else:
                moments = [scene.rng.choice(MOMENTS) for _ in range(scene.rng.randint(1, 3))]
                self._compact_with_visitors(scene, done, moments)
        self._compare(done)
        return done

    def _apply(self, scene: Scene, done: Round, moment: str, name: str, operation: Callable[[Scene], None]) -> None:
        done.operations.append((moment, name))
        operation(scene)
        scene.model.note(scene.head)

    def _compact_with_visitors(self, scene: Scene, done: Round, moments: list[str]) -> None:
        def visit(moment: str) -> None:
            while moment in moments:
                moments.remove(moment)
                name = scene.rng.choice(self._operations)
                self._apply(scene, done, moment, name, OPERATIONS[name])

        plan = self._plan(scene.rng)
        visit(MOMENTS[0])
        with (
            _visits_while_writing(lambda: visit(MOMENTS[1])),
            _visits(ReplaceUpdate, "make", lambda: visit(MOMENTS[3])),
        ):
            asked: list[None] = []

            def enabled() -> bool:
                asked.append(None)
                visit(MOMENTS[2] if len(asked) == 1 else MOMENTS[4])
                return True

            done.outcome = self._run(plan, enabled, done)

    def _convert_with_visitors(self, scene: Scene, done: Round) -> None:
        """Equality deletes are converted, and others commit before its check, after it, or before both."""
        for _ in range(2):
            self._apply(scene, done, "before the plan", "equality delete", ROW_LEVEL["equality delete"])
        moments = scene.rng.sample(CONVERSION_MOMENTS, scene.rng.randint(1, 2))

        def visit(moment: str) -> None:
            while moment in moments:
                moments.remove(moment)
                name = scene.rng.choice(self._row_level)
                self._apply(scene, done, moment, name, OPERATIONS[name])

        with (
            _visits(CommitLoop, "_prepare", lambda: visit(CONVERSION_MOMENTS[0])),
            _visits(ReplaceUpdate, "make", lambda: visit(CONVERSION_MOMENTS[1])),
        ):
            try:
                convert_deletes(scene)
            except FirnlineError as error:
                done.outcome = f"FAILED: {error.reason}: {error}"
            else:
                done.outcome = "converted"
        self._model.note(scene.head)

    def _compact_under_a_writer(self, scene: Scene, done: Round) -> None:
        """A writer's commit has been sent; before it arrives, ours lands."""
        name = scene.rng.choice(self._row_level)
        plan = self._plan(scene.rng)
        before, ours = self._head(), set[int]()

        def land() -> None:
            done.outcome = self._run(plan, lambda: True, done)
            ours.add(self._head())

        rows, self._faulty.before_commit = dict(scene.model.rows), land
        try:
            self._apply(scene, done, ON_ITS_WAY, name, ROW_LEVEL[name])
        except Exception as error:  # noqa: BLE001 - whatever the writer's engine raises is a failed writer
            scene.model.rows = rows
            done.writer_failures.append(f"{name}: {first_line(error)[:200]}")
        finally:
            self._faulty.before_commit = None
        if not ours <= {before, *(each.snapshot_id for each in self._lake.view(self._table).history)}:
            done.outcome += ", rolled back by the catalog"

    def _head(self) -> int:
        head = self._lake.view(self._table).snapshot
        return head.snapshot_id if head else 0

    def _plan(self, rng: random.Random) -> Any:
        view = self._lake.view(self._table)
        carried, threshold = rng.choice(RATIOS)
        policy = self._lake.settings.policy.for_table(view.name)
        ratios = {"carried_delete_ratio": carried, "delete_ratio_threshold": threshold}
        return plan_table(view, policy.model_copy(update=ratios), self._cache, Request(force=True))

    def _run(self, plan: Any, enabled: Callable[[], bool], done: Round) -> str:
        def count(event: Event) -> None:
            if isinstance(event, GroupCommitted):
                done.carried += event.rows_carried
                done.rebased += event.rows_rebased
            elif isinstance(event, GroupDropped):
                done.dropped.append(event.message)

        rewriter = Rewriter(
            self._lake.session,
            self._lake.catalogs,
            self._cache,
            self._lake.in_flight(),
            slots=SlotPool(2),
            lease_seconds=60,
            check_seconds=60,
            commit=self._commit,
            listener=count,
        )
        try:
            result: RunResult = rewriter.run(plan, enabled=enabled)
        except ReplanError:
            return "nothing committed: re-plan"
        except FirnlineError as error:
            return f"FAILED: {error.reason}: {error}"
        finally:
            self._model.note(Scene(self._lake, self._table, self._model, random.Random(0)).head)
        verdict = check_run(self._lake, self._table, result)
        self.others_dangling += verdict.allowed
        if any(why in text for text in done.dropped for why in COULD_FOLLOW):
            return f"FAILED: a group was dropped because of deletes that could follow its rows: {done.dropped}"
        if verdict.findings:
            shown = "; ".join(verdict.findings[:FINDINGS_SHOWN])
            return f"FAILED: {len(verdict.findings)} findings in the metadata: {shown}"
        return "partly committed" if result.dropped else "committed"

    def _compare(self, done: Round) -> None:
        self._lake.sql(f"REFRESH TABLE lake.{self._table}")
        found = sorted((row.id, row.v, row.p) for row in self._lake.sql(f"SELECT id, v, p FROM lake.{self._table}"))
        expected = sorted((number, value, part) for number, (value, part) in self._model.rows.items())
        if found != expected:
            missing, surplus = _difference(expected, found), _difference(found, expected)
            raise LostRowError(
                f"round {done.number} of seed {self._seed}: {done.operations}, {done.outcome}: "
                f"missing {missing[:5]}, too many {surplus[:5]}"
            )


def _difference(left: list[Any], right: list[Any]) -> list[Any]:
    rest = list(right)
    found = []
    for row in left:
        if row in rest:
            rest.remove(row)
        else:
            found.append(row)
    return found


@contextmanager
def _visits_while_writing(visit: Callable[[], None]) -> Iterator[None]:
    real = OutputTaskRunner.write_ahead

    def write_ahead(self: Any, wave: Any) -> Any:
        visit()
        return real(self, wave)

    OutputTaskRunner.write_ahead = write_ahead  # type: ignore[method-assign]
    try:
        yield
    finally:
        OutputTaskRunner.write_ahead = real  # type: ignore[method-assign]


@contextmanager
def _visits(owner: type, name: str, visit: Callable[[], None]) -> Iterator[None]:
    """Call `visit` before each call of a method."""
    real = getattr(owner, name)

    def visited(*arguments: Any, **more: Any) -> Any:
        visit()
        return real(*arguments, **more)

    setattr(owner, name, visited)
    try:
        yield
    finally:
        setattr(owner, name, real)
