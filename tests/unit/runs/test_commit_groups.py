"""What a commit does with an equality delete that Iceberg would drop. Spark is not started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compactor.commit.snapshots import CommitSummary
from compactor.errors import ReplanError
from compactor.iceberg.other_compactors import FLINK_CONVERTER
from compactor.manifests.cache import ManifestCache
from compactor.runs import commit_groups as module
from compactor.runs.commit_groups import CommitTools, commit_groups
from compactor.runs.races import Head
from tests.properties.table_history import TableHistory

LOST = "file:///nowhere/delete.parquet"


def commit(history: TableHistory, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Commit while Iceberg would drop the delete `LOST`; returns the copies by location."""
    copies: dict[str, str] = {}

    def sent(*_: Any, new: Any) -> None:
        copies.update(new.copied({LOST}))

    def at_once(_table: Any, _catalogs: Any, _cache: Any, prepare: Callable[[Head], Callable[[], Any]]) -> Any:
        return prepare(Head(history.view(), (), 1))()

    monkeypatch.setattr(module, "_dangling", lambda *_: (object(),))
    monkeypatch.setattr(module, "commit_replacements", sent)
    monkeypatch.setattr(module, "commit_beside_others", at_once)
    monkeypatch.setattr(module, "copy_files", lambda *_: 1)
    no_catalog: Any = None
    tools = CommitTools(
        no_catalog, ManifestCache(1 << 20), lambda attempt: f"file:///run/{attempt}", lambda: None, lambda _: None
    )
    commit_groups(no_catalog, SimpleNamespace(table=history.view()), (), CommitSummary("run"), tools)  # type: ignore[arg-type]
    return copies


def test_a_delete_that_iceberg_would_drop_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [10])
    assert commit(history, monkeypatch) == {LOST: "file:///run/1-copy-0.parquet"}


def test_no_delete_is_copied_where_flinks_converter_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would stop for good: a snapshot that removes data files must add no equality delete."""
    history = TableHistory(tmp_path, 2)
    history.table.append(history.rows(["a"]), snapshot_properties={FLINK_CONVERTER: "7"})
    history.append_unreal("a", [10])
    with pytest.raises(ReplanError, match="Flink's converter has not converted"):
        commit(history, monkeypatch)
