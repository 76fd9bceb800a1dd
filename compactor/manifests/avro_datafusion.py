"""Avro records → Arrow columns by DataFusion, which steps over the columns that are not wanted.

It does not come to an end where a block holds more bytes than its records take (a flipped bit is enough), and cannot be
interrupted: it is waited for so long, then left alone, and not asked again in this process.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from queue import Empty, SimpleQueue
from typing import Final

import pyarrow as pa
from datafusion import SessionConfig, SessionContext

LOG = logging.getLogger("firnline")
PATIENCE_SECONDS: Final = 30.0
"""For a batch of at most some megabytes, which takes a tenth of a second."""
_MEMORY: Final = "/dev/shm"  # noqa: S108 - a file of a random name, gone before anybody could guess it
_ROWS_AT_ONCE: Final = 65_536
_STUCK: Final = threading.Event()  # of the process, as the thread is that cannot be ended


class ReadError(Exception):
    """Reaction: **read it with another library**, whose message says more: DataFusion cannot read it."""


class StuckError(Exception):
    """Reaction: **read it with another library**: DataFusion does not come to an end, with this file or another."""


def read_avro(content: bytes, columns: Sequence[str], patience_seconds: float = PATIENCE_SECONDS) -> pa.Table:
    """Columns of an Avro file.

    Raises:
        StuckError: it takes too long.
        ReadError: DataFusion fails.
    """
    if _STUCK.is_set():
        raise StuckError("DataFusion is still at another manifest")
    answers: SimpleQueue[pa.Table | str] = SimpleQueue()
    threading.Thread(target=_answer, args=(answers, content, columns), name="datafusion", daemon=True).start()
    try:
        found = answers.get(timeout=patience_seconds)
    except Empty:
        _STUCK.set()
        LOG.warning("DataFusion does not come to an end with a manifest, which is damaged: PyIceberg reads all others "
                    "from now on, which takes longer; a restart ends this, and the thread that spins")  # fmt: skip
        raise StuckError("DataFusion does not come to an end") from None
    if isinstance(found, str):
        raise ReadError(found)
    return found


def _answer(answers: SimpleQueue[pa.Table | str], content: bytes, columns: Sequence[str]) -> None:
    try:
        answers.put(_read(content, columns))
    except BaseException as error:  # noqa: BLE001 - also a panic of DataFusion's, which is no Exception
        answers.put(str(error))


def _read(content: bytes, columns: Sequence[str]) -> pa.Table:
    """DataFusion reads files only: this one lives in memory where the system can do that."""
    with tempfile.NamedTemporaryFile(suffix=".avro", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None) as file:
        file.write(content)
        file.flush()
        return _context().read_avro(file.name).select(*columns).to_arrow_table()


@cache
def _context() -> SessionContext:
    """One thread a call: the caller decodes several batches at once."""
    return SessionContext(SessionConfig().with_target_partitions(1).with_batch_size(_ROWS_AT_ONCE))
