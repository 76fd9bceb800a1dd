"""Decode Avro records into Arrow columns with DataFusion, which skips columns that are not requested.

DataFusion loops forever when a block holds more bytes than its records need (one flipped bit is enough) and cannot be
interrupted. So each call has a time limit. After a timeout, this process does not use DataFusion again.
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
"""Time limit for one batch of a few megabytes, which normally takes a tenth of a second."""
_MEMORY: Final = "/dev/shm"  # noqa: S108 - the file has a random name and is removed at once
_ROWS_AT_ONCE: Final = 65_536
_STUCK: Final = threading.Event()  # for the whole process: the thread that loops cannot be stopped


class ReadError(Exception):
    """Reaction: **read it with another library**, whose error says more: DataFusion cannot read it."""


class StuckError(Exception):
    """Reaction: **read it with another library**: DataFusion loops forever on this manifest or on an earlier one."""


def read_avro(content: bytes, columns: Sequence[str], patience_seconds: float = PATIENCE_SECONDS) -> pa.Table:
    """Columns of an Avro file.

    Raises:
        StuckError: the time limit has passed, now or in an earlier call.
        ReadError: DataFusion fails.
    """
    if _STUCK.is_set():
        raise StuckError("DataFusion still loops on an earlier manifest")
    answers: SimpleQueue[pa.Table | str] = SimpleQueue()
    threading.Thread(target=_answer, args=(answers, content, columns), name="datafusion", daemon=True).start()
    try:
        found = answers.get(timeout=patience_seconds)
    except Empty:
        _STUCK.set()
        LOG.warning("a damaged manifest makes DataFusion loop forever: PyIceberg decodes all manifests from now on, "
                    "which is slower; restart this process to stop the thread and to use DataFusion again")  # fmt: skip
        raise StuckError("DataFusion loops forever") from None
    if isinstance(found, str):
        raise ReadError(found)
    return found


def _answer(answers: SimpleQueue[pa.Table | str], content: bytes, columns: Sequence[str]) -> None:
    try:
        answers.put(_read(content, columns))
    except BaseException as error:  # noqa: BLE001 - also a panic in DataFusion, which is no Exception
        answers.put(str(error))


def _read(content: bytes, columns: Sequence[str]) -> pa.Table:
    """DataFusion reads only files: write one, in memory where the system has `/dev/shm`."""
    with tempfile.NamedTemporaryFile(suffix=".avro", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None) as file:
        file.write(content)
        file.flush()
        return _context().read_avro(file.name).select(*columns).to_arrow_table()


@cache
def _context() -> SessionContext:
    """One thread per call, since the caller decodes several batches at once."""
    return SessionContext(SessionConfig().with_target_partitions(1).with_batch_size(_ROWS_AT_ONCE))
