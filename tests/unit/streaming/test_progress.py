"""Progress displays: seen on a terminal, and nowhere else."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from compactor.manifests.cache import ManifestCache
from streaming.commands.progress import progress_display, reads_shown, shown
from tests.properties.table_history import TableHistory


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


def test_manifests_are_counted_as_they_are_read(tmp_path: Path) -> None:
    history = TableHistory(tmp_path, 2)
    for _ in range(3):
        history.append_unreal("a", [1])
    view = history.view()
    with progress_display("table", Console(file=StringIO(), force_terminal=True)) as progress:
        cache = ManifestCache(1 << 20)
        cache.use_reader(reads_shown(progress))
        assert progress.tasks[0].visible is False, "nothing is read yet"
        cache.read(view, view.manifests())
        bar = progress.tasks[0]
        assert (bar.visible, bar.completed, bar.total) == (True, 3, 3)
