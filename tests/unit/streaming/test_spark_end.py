"""The service ends when Spark has ended, also where Spark's JVM lives on: a cluster can end the application."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError

from compactor.errors import FirnlineError
from compactor.settings.tree import load_settings
from streaming.commands.options import FAILED_SAFELY, exit_code
from streaming.service.service import Service


def jvm_gone() -> bool:
    raise Py4JNetworkError("Answer from Java side is empty")


class Watched:
    """The stream of a Spark that says of itself whether it has stopped. It is checked twice."""

    def __init__(self, stopped: Callable[[], bool], end: threading.Event) -> None:
        self.source = self.session = self.sparkContext = self._jsc = self
        self.isStopped = stopped
        self.checks = 0
        self._end = end

    def sc(self) -> Any:
        return self

    def check(self) -> None:
        self.checks += 1
        if self.checks == 2:
            self._end.set()


def checks_until_end(tmp_path: Path, stopped: Callable[[], bool]) -> int:
    catalog = f'{{"lake": {{"type": "sql", "uri": "sqlite:///{tmp_path}/c.db", "warehouse": "file://{tmp_path}"}}}}'
    service = Service(load_settings(None, {"FIRNLINE_CATALOGS": catalog, "FIRNLINE_HTTP__PORT": "0"}))
    end = threading.Event()
    streams: Any = Watched(stopped, end)
    service._state.parts.stream = streams
    try:
        service.run_until(end)
    finally:
        service.stop()
    return int(streams.checks)


@pytest.mark.parametrize(
    ("stopped", "text"), [(lambda: True, "ended the application"), (jvm_gone, "Spark's JVM has ended")]
)
def test_the_service_ends_with_spark_before_it_starts_a_query_again(
    tmp_path: Path, stopped: Callable[[], bool], text: str
) -> None:
    with pytest.raises(FirnlineError, match=text) as error:
        checks_until_end(tmp_path, stopped)
    assert (error.value.reason, exit_code(error.value)) == ("spark_lost", FAILED_SAFELY)


def test_the_service_goes_on_while_spark_works(tmp_path: Path) -> None:
    assert checks_until_end(tmp_path, lambda: False) == 2
