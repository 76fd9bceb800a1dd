"""A scene for each test that asks for one, and threads that look at its tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.streaming.ledger.looking import Looking
from tests.unit.streaming.ledger.scene import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.database.close()


@pytest.fixture
def looking(scene: Scene) -> Iterator[Looking]:
    made = Looking(scene)
    yield made
    made.stop()
