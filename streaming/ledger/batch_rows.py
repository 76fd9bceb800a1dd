"""The rows of a micro-batch on the driver. A batch that Spark cannot read is another failure than one of the handler.

Both fail within the Python function that Spark calls with the batch, and Spark says the same of both.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MOST_CAUSES = 10
MOST_TEXT = 4000
MOST_OF_BATCH = 2000
"""Of the text of a `BatchUnreadableError`: Spark repeats it behind a traceback, and both must fit into `MOST_TEXT`."""
FRAME = re.compile(r"\s+(at |\.\.\. \d+ more)")


class BatchUnreadableError(Exception):
    """Spark could not read the events of a batch: the text has the classes and messages of its exceptions."""


def rows_of(frame: DataFrame) -> list[Any]:
    """The rows of the batch.

    Raises:
        BatchUnreadableError: a record cannot be read, or the broker does not answer.
    """
    try:
        rows: list[Any] = frame.collect()
    except Exception as error:  # noqa: BLE001 - their classes are read from the text
        text = "; ".join(line.strip() for line in causes_of(error).splitlines())[:MOST_OF_BATCH]
        raise BatchUnreadableError(text) from None  # a second traceback would push it out of `MOST_TEXT`
    return rows


def causes_of(error: BaseException) -> str:
    """Classes and messages of an exception of Python or Java, and of its causes."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    own = _without_frames(f"{type(error).__name__}: {error}")
    return f"{own}\n{causes_of_java(java)}" if java is not None else own


def causes_of_java(exception: Any) -> str:
    """Classes and messages of an exception of Java, and of its causes."""
    found: list[str] = []
    with suppress(Py4JError):
        while exception is not None and len(found) < MOST_CAUSES:
            found.append(_without_frames(str(exception.toString())))
            exception = exception.getCause()
    return "\n".join(found)


def _without_frames(text: str) -> str:
    """The text without the frames of Java's stack traces: they have names of classes too."""
    lines = (line for line in text.splitlines() if line and not FRAME.match(line))
    return "\n".join(dict.fromkeys(lines))[:MOST_TEXT]
