"""Two acts with real systems. One commit rewrites a backlog; then the service works beside a writer.

All claims are checked in the table itself; the service's figures come from its metrics.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from compactor.errors import FirnlineError, GiveUpError, InputError
from compactor.iceberg.tables import Catalogs
from compactor.settings.tree import load_settings
from compactor.table_names import TableName
from deploy.demo.broker import embedded_broker
from deploy.demo.events_table import BUCKETS
from deploy.demo.ingestion import IngestedCommit
from deploy.demo.processes import Child, last_lines
from deploy.demo.service_facts import Readings, read_metrics
from deploy.demo.show import ActResult, Check, Show
from deploy.demo.stage import CATALOG, TABLE, Stage, interruptible, uninterrupted, work_folder
from deploy.demo.table_facts import Look, TableCommit, TableFacts

PAUSE_SECONDS = 1.0
LOOK_SECONDS = 1.0
QUIET_SECONDS = 4.0  # two micro-batches: pending work has started by then
PATIENCE_SECONDS = 240.0
INTERRUPTED = 130


def run_demo(*, keep: bool, commits: int, file_size: int, folder: Path | None, on: str) -> int:
    """Play both acts. Return 0 if all checks hold, 1 if not, 130 after an interrupt.

    Raises:
        InputError: the options are invalid.
    """
    show = Show()
    with work_folder(folder) as work, interruptible():
        code = 1
        try:
            stage = Stage(folder=work, commits=commits, file_size=file_size, on=on)
            stage.check()
            code = _play(stage, show, keep=keep)
        except KeyboardInterrupt:
            code = INTERRUPTED
            show.say("interrupted; all processes have ended")
        except InputError:
            code = 0  # nothing was started that is worth keeping
            raise
        except FirnlineError as error:
            show.failure(str(error))
        finally:
            _leave(work, show, remove=folder is None and not keep and code != 1)
    return code


def _leave(work: Path, show: Show, *, remove: bool) -> None:
    if remove:
        shutil.rmtree(work, ignore_errors=True)
    else:
        show.lines(("kept", f"{work} (settings, logs, catalog and warehouse)"))


def _play(stage: Stage, show: Show, *, keep: bool) -> int:
    started = time.monotonic()
    show.heading("firnline's demo: a real broker, catalog, ingestion and compactor")
    show.say(f"folder {stage.folder}")
    with ExitStack() as stack:
        address = stack.enter_context(embedded_broker(stage.folder / "kafka"))
        show.say(f"Kafka broker at {address}")
        catalog = stack.enter_context(stage.lake())
        show.say(f"catalog at {catalog['uri']}, tables in {catalog['warehouse']}")
        if "s3.endpoint" in catalog:
            show.say(f"S3 at {catalog['s3.endpoint']}")
        stage.write_settings(address, catalog)
        play = Play(stage, show)
        stack.callback(play.stop)
        acts = [play.first_act(), play.second_act()]
        show.summary(acts)
        show.lines(
            ("metrics", f"{play.address}/metrics"),
            ("status page", f"{play.address}/"),
            ("the demo took", f"{time.monotonic() - started:.0f} s"),
        )
        failed = [check for act in acts for check in act.checks if not check.holds]
        if failed:
            show.failure(f"{len(failed)} of the demo's checks failed. {play.service_log()}")
        if keep:
            play.wait_for_the_end(address)
        return 1 if failed else 0


class Play:
    def __init__(self, stage: Stage, show: Show) -> None:
        self._stage = stage
        self._show = show
        self._settings = load_settings(stage.settings_file, environment={})
        self._table = TableName.parse(TABLE, (CATALOG,))
        policy = self._settings.policy.for_table(self._table)
        self._facts = TableFacts(Catalogs(self._settings.catalogs), self._table, policy)
        self._service: Child | None = None
        self._ingestion: Child | None = None
        self._ingested: list[IngestedCommit] = []
        self._look: Look | None = None
        self._readings: Readings | None = None
        self._last_look = 0.0
        self._quiet_since = 0.0
        self.address = f"http://{self._settings.http.host}:{self._settings.http.port}"

    def stop(self) -> None:
        """Stop the children, the writer first."""
        with uninterrupted():
            for child in (self._ingestion, self._service):
                if child is not None:
                    child.stop()

    def first_act(self) -> ActResult:
        """Write many small files, then start the service, which rewrites them in one commit."""
        started = time.monotonic()
        self._show.heading("Act 1: a night without compaction, rewritten in one commit")
        self._start_ingestion(pause=0.0)
        self._wait(self._ingestion_has_ended, "the ingestion")
        before_id = self._must_look().snapshot_id
        self._show.say(
            f"{self._must_look().files} files of {len(self._ingested)} commits; "
            f"their events wait in Kafka; the service is not running yet"
        )
        self._start_service()
        self._wait(lambda: self._readings is not None and self._readings.ready, "the service's start")
        self._show.say(f"the service is ready: {self.address}")
        self._wait(lambda: self._has_settled(before_id), "the first rewrite")
        self._show.say("comparing the rows before and after, by time travel")
        replaces = [commit for commit in self._must_look().commits if commit.is_replace]
        before, after = self._facts.content(before_id), self._facts.content(self._must_look().snapshot_id)
        files = BUCKETS * self._stage.commits
        checks = [
            Check(before.files == files, f"act 1: the ingestion left {before.files} small files ({files} expected)"),
            Check(len(replaces) == 1, f"act 1: {len(replaces)} replace commit in the table's history (1 expected)"),
            Check(after.files == BUCKETS, f"act 1: {after.files} files live afterwards ({BUCKETS} expected)"),
            Check(before.same_rows_as(after), "act 1: the rows before and after the replace are the same"),
        ]
        return ActResult(
            "Act 1: a backlog", before, after, before.bytes, replaces, self._must_read(),
            "with the wait for the service", time.monotonic() - started, checks,
        )  # fmt: skip

    def second_act(self) -> ActResult:
        """Write more small files while the service rewrites."""
        started = time.monotonic()
        self._show.heading("Act 2: files rise and fall while the writer writes")
        start, before_readings = self._must_look(), self._must_read()
        base, written_before = self._facts.content(start.snapshot_id), len(self._ingested)
        self._start_ingestion(pause=PAUSE_SECONDS)
        self._wait(self._ingestion_has_ended, "the ingestion")
        self._show.say("the ingestion has ended; the service rewrites the rest")
        self._wait(lambda: self._has_settled(None), "the last rewrite")
        self._show.say("comparing the rows before and after every replace, by time travel")
        end = self._must_look()
        commits = end.commits_after(start.snapshot_id)
        appended, after = self._facts.appended(commits), self._facts.content(end.snapshot_id)
        before, replaces = base + appended, [commit for commit in commits if commit.is_replace]
        said = sum(commit.rows for commit in self._ingested[written_before:])
        unchanged = sum(self._left_rows_alone(replace) for replace in replaces)
        most = max((bucket.small_files for bucket in end.buckets.values()), default=0)
        checks = [
            Check(appended.rows == said, f"act 2: the ingestion's {said:,} rows were committed beside the rewrites"),
            Check(
                0 < unchanged == len(replaces), f"act 2: {unchanged} of {len(replaces)} replace commits kept all rows"
            ),
            Check(
                before.same_rows_as(after), "act 2: the rows at the end are those of act 1 and all rows ingested since"
            ),
            Check(end.settled, f"act 2: no bucket is due at the end (at most {most} small files in one)"),
        ]
        return ActResult(
            "Act 2: beside the writer", before, after, appended.bytes, replaces, self._must_read() - before_readings,
            "mean of the commits", time.monotonic() - started, checks,
        )  # fmt: skip

    def service_log(self) -> str:
        log = self._running_service().log
        return f"The service's log {log} ends with:\n{last_lines(log)}"

    def wait_for_the_end(self, broker: str) -> None:
        self._show.lines(
            ("settings", str(self._stage.settings_file)),
            ("broker", broker),
            ("service's log", str(self._running_service().log)),
            ("look at it", f"firnline -c {self._stage.settings_file} debt {TABLE}"),
            ("end it", "Ctrl-C"),
        )
        try:
            while True:
                time.sleep(1.0)
                self._running_service().must_run()
        except KeyboardInterrupt:
            self._show.say("stopping")

    def _start_ingestion(self, pause: float) -> None:
        arguments = ["deploy.demo.ingestion", "-c", str(self._stage.settings_file), "--table", TABLE]
        arguments += ["--commits", str(self._stage.commits), "--file-size", str(self._stage.file_size)]
        self._ingestion = Child("ingestion", [*arguments, "--pause", str(pause)], self._stage.folder, lines=True)
        self._ingestion_goal = len(self._ingested) + self._stage.commits

    def _start_service(self) -> None:
        arguments = ["streaming.cli", "-c", str(self._stage.settings_file), "run"]
        self._service = Child("service", arguments, self._stage.folder)

    def _running_service(self) -> Child:
        if self._service is None:
            raise GiveUpError("the service was not started")
        return self._service

    def _wait(self, until: Callable[[], bool], what: str) -> None:
        """Watch until the condition holds. Raises if a child ends or the time is over."""
        deadline = time.monotonic() + PATIENCE_SECONDS + self._stage.commits * PAUSE_SECONDS
        self._quiet_since = 0.0
        while True:
            self._watch()
            if until():
                return
            if time.monotonic() > deadline:
                logs = ", ".join(str(child.log) for child in (self._ingestion, self._service) if child is not None)
                raise GiveUpError(f"{what} takes too long; see {logs}")
            time.sleep(LOOK_SECONDS / 4)

    def _watch(self) -> None:
        for line in self._ingestion.take_lines() if self._ingestion is not None else ():
            self._ingested.append(IngestedCommit(**json.loads(line)))
            if len(self._ingested) % 7 == 0:
                self._show.say(f"ingestion: {self._ingestion_text()}")
        if self._service is not None:
            self._service.must_run()
        if time.monotonic() - self._last_look >= LOOK_SECONDS:
            self._last_look = time.monotonic()
            self._look_around()

    def _look_around(self) -> None:
        if self._service is not None:
            self._readings = read_metrics(self.address)
        look = self._facts.look()
        if look is None:
            return
        for commit in look.commits_after(self._look.snapshot_id if self._look is not None else None):
            if commit.is_replace:
                files = f"{commit.files_removed} files → {commit.files_added}"
                self._show.say(f"replace commit: {files}, by {commit.engines}", style="bold green")
        self._look = look

    def _ingestion_text(self) -> str:
        if not self._ingested:
            return "starting"
        total = sum(commit.bytes for commit in self._ingested)
        files = sum(commit.files for commit in self._ingested)
        last = self._ingested[-1].seconds
        return (
            f"{len(self._ingested)} of {self._ingestion_goal} commits, {files} files, {total / 1e6:,.0f} MB, "
            f"the last commit took {last:.1f} s"
        )

    def _ingestion_has_ended(self) -> bool:
        if self._ingestion is None or not self._ingestion.finished():
            return False
        self._last_look = 0.0
        self._watch()  # its last output and its last commit
        return True

    def _has_settled(self, first_rewrite_after: int | None) -> bool:
        """Whether, for `QUIET_SECONDS`, nothing is due or running; if a rewrite is expected, only after it."""
        look, readings = self._must_look(), self._readings
        rewritten = first_rewrite_after is None or any(
            commit.is_replace for commit in look.commits_after(first_rewrite_after)
        )
        if not (rewritten and look.settled and readings is not None and readings.idle):
            self._quiet_since = 0.0
            return False
        self._quiet_since = self._quiet_since or time.monotonic()
        return time.monotonic() - self._quiet_since >= QUIET_SECONDS

    def _left_rows_alone(self, replace: TableCommit) -> bool:
        if replace.parent_id is None:
            return False
        return self._facts.content(replace.parent_id).same_rows_as(self._facts.content(replace.snapshot_id))

    def _must_look(self) -> Look:
        if self._look is None:
            raise GiveUpError(f"the ingestion made no commit to {self._table}; see its log in {self._stage.folder}")
        return self._look

    def _must_read(self) -> Readings:
        readings = read_metrics(self.address)
        if readings is None:
            raise GiveUpError(f"{self.address}/metrics does not answer; see the service's log in {self._stage.folder}")
        return readings
