"""Decode manifests on Spark executors, for tables whose manifests are too large for the driver's cores.

Executors send back columns without statistics. The driver caches them like columns that it decoded itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyiceberg.io import FileIO
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from compactor.errors import RetryError
from compactor.manifests.disk import packed, unpacked
from compactor.manifests.reads import Decoded, Wanted, batches, read_here
from compactor.reasons import Reason


@dataclass(frozen=True)
class ReadOnExecutors:
    """A `Reader` that starts a Spark job to read at least `from_bytes`; smaller reads run in this process."""

    session: SparkSession
    from_bytes: int

    def __call__(self, io: FileIO, wanted: Sequence[Wanted]) -> Iterator[Decoded]:
        """One Spark task per batch. Batches arrive one after the other, so that the driver never holds all twice.

        Raises:
            RetryError: a manifest cannot be read, or the job failed.
        """
        if not wanted or sum(each.manifest.manifest_length for each in wanted) < self.from_bytes:
            yield from read_here(io, wanted)
            return
        made = list(batches(wanted))
        context = self.session.sparkContext
        context.setJobGroup("firnline-manifests", f"decode {len(wanted)} manifests")
        results = context.parallelize(list(enumerate(made)), len(made)).map(
            lambda numbered: (numbered[0], *_worked(io, numbered[1]))
        )
        try:
            for number, unusual, rows, error in results.toLocalIterator(prefetchPartitions=True):
                if error is not None:
                    raise RetryError(error, reason=Reason.MANIFEST_UNREADABLE)
                batch = made[number]
                entries = [
                    unpacked(content, each.layout, each.manifest.manifest_path)
                    for content, each in zip(rows, batch, strict=True)
                ]
                yield Decoded(batch, entries, unusual)
        except (PySparkException, Py4JError) as error:
            raise RetryError(
                f"manifests could not be decoded by executors: {error}", reason=Reason.MANIFEST_JOB
            ) from error


def _worked(io: FileIO, batch: Sequence[Wanted]) -> tuple[int, list[bytes], str | None]:
    """Runs on an executor. Returns an error as text: a failed task would log pages of stack trace."""
    try:
        (decoded,) = read_here(io, batch, decoders=1)  # one decoder: the batch is not split again
    except RetryError as error:
        return 0, [], str(error)
    return decoded.unusual, [packed(entries) for entries in decoded.entries], None
