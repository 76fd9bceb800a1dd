"""Decode manifests on Spark executors, for tables whose manifests are too large for the driver's cores.

Executors send back columns without statistics. The driver caches them like columns that it decoded itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import Final

from py4j.protocol import Py4JError
from pyiceberg.io import FileIO
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from compactor.errors import RetryError
from compactor.manifests.disk import packed, unpacked
from compactor.manifests.reads import Decoded, Wanted, batches, read_here
from compactor.reasons import Reason

JOBS_PER_CORE: Final = 2
"""Spark always has a task that waits: no core is idle, and a cluster that grows with its tasks does."""
JOB_BYTES: Final = 256 * 1024 * 1024
"""From which executors decode: about 400,000 files, or one to two seconds of the driver's cores."""
MOST_JOBS: Final = 16
"""The driver holds so many batches at most that its caches do not have yet."""
SCHEDULER_POOL: Final = "rewrite"
"""That of rewrites: the batches of the stream go first."""


@dataclass(frozen=True)
class ReadOnExecutors:
    """A `Reader` that starts Spark jobs to read at least `from_bytes`; smaller reads run in this process."""

    session: SparkSession
    from_bytes: int = JOB_BYTES

    def __call__(self, io: FileIO, wanted: Sequence[Wanted]) -> Iterator[Decoded]:
        """One Spark job of one task per batch. The next is started when a batch is taken: the driver never holds all.

        Raises:
            RetryError: a manifest cannot be read, or a job failed.
        """
        if not wanted or sum(each.manifest.manifest_length for each in wanted) < self.from_bytes:
            yield from read_here(io, wanted)
            return
        waiting = deque(batches(wanted))
        at_once = min(len(waiting), MOST_JOBS, JOBS_PER_CORE * self.session.sparkContext.defaultParallelism)
        jobs: set[Future[Decoded]] = set()
        threads = ThreadPoolExecutor(at_once, "manifest-job")
        try:
            while waiting or jobs:
                while waiting and len(jobs) < at_once:
                    jobs.add(threads.submit(self._decoded, io, waiting.popleft()))
                job = wait(jobs, return_when=FIRST_COMPLETED).done.pop()
                jobs.remove(job)
                yield job.result()
        except (PySparkException, Py4JError) as error:
            raise RetryError(
                f"manifests could not be decoded by executors: {error}", reason=Reason.MANIFEST_JOB
            ) from error
        finally:
            jobs.clear()  # else the traceback of a failed read keeps the other results alive
            threads.shutdown(wait=False, cancel_futures=True)  # a job that runs ends by itself, soon

    def _decoded(self, io: FileIO, batch: Sequence[Wanted]) -> Decoded:
        context = self.session.sparkContext
        context.setLocalProperty("spark.scheduler.pool", SCHEDULER_POOL)
        context.setJobGroup("firnline-manifests", f"decode {len(batch)} manifests")
        ((unusual, rows, error),) = context.parallelize([batch], 1).map(partial(_worked, io)).collect()
        if error is not None:
            raise RetryError(error, reason=Reason.MANIFEST_UNREADABLE)
        entries = [
            unpacked(content, each.layout, each.manifest.manifest_path)
            for content, each in zip(rows, batch, strict=True)
        ]
        return Decoded(batch, entries, unusual)


def _worked(io: FileIO, batch: Sequence[Wanted]) -> tuple[int, list[bytes], str | None]:
    """Runs on an executor. Returns an error as text: a failed task would log pages of stack trace."""
    try:
        (decoded,) = read_here(io, batch, decoders=1)  # one decoder: the batch is not split again
    except RetryError as error:
        return 0, [], str(error)
    return decoded.unusual, [packed(entries) for entries in decoded.entries], None
