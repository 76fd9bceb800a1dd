"""A scene for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.streaming.ledger.scene import Scene


@pytest.fixture
def one_file_per_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A count of several files takes several looks."""
    monkeypatch.setattr("compactor.debt.ledger.FILES_PER_LOOK", 1)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.database.close()
