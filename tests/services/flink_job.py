"""A real Flink job in a MiniCluster: FlinkUpserts.java, compiled here and run in a process of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from compactor.spark.java import java_home
from deploy.reporter.build import compile_sources, find_compiler
from tests.services.java_process import MODULE_OPTIONS
from tests.services.quick_java import OPTIONS
from tests.services.writer_jars import FLINK_JARS, storage_jars, writer_jars

SOURCE = Path(__file__).with_name("FlinkUpserts.java")
STOP_SECONDS = 180.0


@dataclass(frozen=True)
class UpsertJob:
    """What the job writes. Names of tables in the namespace `db`; `rate`: changes a second; `keys`: how many ids."""

    flink_sink_table: str
    iceberg_sink_table: str
    rate: float = 100.0
    keys: int = 2000
    seed: int = 1


@dataclass(frozen=True)
class FlinkJob:
    """The running job: its process, and what it leaves in its folder."""

    process: subprocess.Popen[bytes]
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "flink.log"

    @property
    def journal(self) -> Path:
        """A line for each change: `id`, a tab and the new value, or `id` alone for a deletion."""
        return self.folder / "journal.tsv"

    @property
    def failure(self) -> str:
        """Why the job has ended by itself; empty while it runs, and after `stop`."""
        code = self.process.poll()
        return "" if code in {None, 0} else f"exit code {code}: {self.log.read_text(errors='replace')[-2000:]}"

    def stop(self) -> None:
        """Stop with a savepoint, which commits all that was written.

        Raises:
            TimeoutExpired: it does not stop in time.
        """
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=STOP_SECONDS)


def upserted(lines: Sequence[str]) -> dict[int, str]:
    """What a table must hold after the changes of a journal: the last value of each id that was not deleted."""
    rows: dict[int, str] = {}
    for line in lines:
        key, tab, value = line.partition("\t")
        if tab:
            rows[int(key)] = value
        else:
            rows.pop(int(key), None)
    return rows


@contextmanager
def flink_job(
    folder: Path, catalog: Mapping[str, str], job: UpsertJob, more_jars: Sequence[Path] = ()
) -> Iterator[FlinkJob]:
    """Run the job. `catalog`: properties of Iceberg's Java client; `more_jars` are put on the class path.

    Raises:
        InputError: there is no Java compiler.
        GiveUpError: the job cannot be compiled.
    """
    folder.mkdir(parents=True, exist_ok=True)
    properties = folder / "catalog.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in catalog.items()))
    jars = [*writer_jars(FLINK_JARS), *storage_jars()]
    compile_sources(find_compiler(), SOURCE, jars, folder / "classes")
    arguments = [
        str(properties), job.flink_sink_table, job.iceberg_sink_table, str(folder), str(job.rate), str(job.keys),
        str(job.seed),
    ]  # fmt: skip
    class_path = os.pathsep.join(map(str, [folder / "classes", *jars, *more_jars]))
    java = [str(java_home() / "bin" / "java"), "-Xmx1g", *OPTIONS.split(), *MODULE_OPTIONS, "-cp", class_path]
    with (folder / "flink.log").open("wb") as log:
        process = subprocess.Popen(
            [*java, SOURCE.stem, *arguments],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            cwd=folder,
            start_new_session=True,  # Ctrl-C in a terminal must not reach it: it is stopped in order
        )
    try:
        yield FlinkJob(process, folder)
    finally:
        process.kill()
        process.wait()
