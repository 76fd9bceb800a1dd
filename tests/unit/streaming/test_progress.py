"""Progress displays: seen on a terminal, and nowhere else."""

from __future__ import annotations

from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from compactor.manifests import reads
from streaming.commands import progress as display
from streaming.commands.progress import progress_display, reads_shown, shown


def written(output: str, *, terminal: bool) -> str:
    text = StringIO()
    with progress_display(output, Console(file=text, force_terminal=terminal, width=120)) as progress:
        assert list(shown(progress, ["a", "b"], "counting tables")) == ["a", "b"]
    return text.getvalue()


def test_a_terminal_shows_what_is_done_of_all() -> None:
    assert "counting tables" in written("table", terminal=True)
    assert "2/2" in written("table", terminal=True)


@pytest.mark.parametrize(("output", "terminal"), [("table", False), ("json", False), ("json", True)])
def test_a_pipe_and_json_show_nothing(output: str, terminal: bool) -> None:
    assert written(output, terminal=terminal) == ""


def test_manifests_are_counted_as_they_are_read_and_pass_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [reads.Decoded((1, 2), ()), reads.Decoded((3,), ())]  # type: ignore[arg-type]
    monkeypatch.setattr(display, "read_here", lambda _io, _wanted: iter(batches))
    with progress_display("table", Console(file=StringIO(), force_terminal=True)) as progress:
        read: Any = reads_shown(progress)
        assert progress.tasks[0].visible is False, "nothing is read yet"
        assert list(read(SimpleNamespace(), (1, 2, 3))) == batches
        assert list(read(SimpleNamespace(), (4,) * 3)) == batches
        bar = progress.tasks[0]
        assert (bar.visible, bar.completed, bar.total) == (True, 6, 6)
