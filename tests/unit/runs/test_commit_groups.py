"""What a commit does with delete files that Iceberg would drop, or that apply to nothing. Spark is not started."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyroaring import BitMap64

from compactor.commit.snapshots import CommitSummary, NewDeletes
from compactor.errors import RetryError
from compactor.iceberg import other_compactors
from compactor.iceberg.manifest_entries import FileEntry
from compactor.iceberg.other_compactors import FLINK_CONVERTER
from compactor.manifests.cache import ManifestCache
from compactor.planning.conflicts import changes_since
from compactor.planning.dangling_deletes import coverable_deletes
from compactor.planning.inventory import take_inventory
from compactor.planning.plan_table import PlannedGroup
from compactor.reasons import Reason
from compactor.rebase.settle import Settled
from compactor.runs import commit_groups as module
from compactor.runs.commit_groups import CommitTools, commit_groups
from compactor.runs.commit_hold import SILENT
from compactor.runs.races import Head
from compactor.runs.results import GroupResult
from tests.properties.table_history import TableHistory

LOST = "file:///nowhere/delete.parquet"
NOTHING: Any = None
CACHE = ManifestCache(1 << 20)
TOOLS = CommitTools(NOTHING, CACHE, lambda attempt: f"file:///run/{attempt}", lambda: None, lambda _: None)


def java() -> Any:
    """What a commit keeps with the table from attempt to attempt."""
    return SimpleNamespace(awaited=frozenset())


def plan(history: TableHistory) -> Any:
    return SimpleNamespace(table=history.view())


def commit(history: TableHistory, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Commit while Iceberg would drop the delete `LOST`; returns the copies by location."""
    copies: dict[str, str] = {}

    def sent(*_: Any, new: Any, **__: Any) -> None:
        copies.update(new.copied({LOST}))

    def at_once(*given: Any) -> Any:
        return given[-1](Head(history.view(), (), 1))()

    monkeypatch.setattr(module, "_dangling", lambda *_: (object(),))
    monkeypatch.setattr(module, "commit_replacements", sent)
    monkeypatch.setattr(module, "commit_beside_others", at_once)
    monkeypatch.setattr(module, "copy_files", lambda *_: 1)
    commit_groups(java(), plan(history), (), CommitSummary("run"), TOOLS)
    return copies


def test_a_delete_that_iceberg_would_drop_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = TableHistory(tmp_path, 2)
    history.append_unreal("a", [10])
    assert commit(history, monkeypatch) == {LOST: "file:///run/1-copy-0.parquet"}


@pytest.mark.parametrize("looked_at", [64, 1])
def test_no_delete_is_copied_where_flinks_converter_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked_at: int
) -> None:
    """It would stop for good: a snapshot that removes data files must add no equality delete. However many snapshots
    of a day came after its own.
    """
    monkeypatch.setattr(other_compactors, "CONVERTER_LOOKED_AT", looked_at)
    history = TableHistory(tmp_path, 2)
    history.table.append(history.rows(["a"]), snapshot_properties={FLINK_CONVERTER: "7"})
    history.append_unreal("a", [10])
    with pytest.raises(RetryError, match="Flink's converter has not converted") as error:
        commit(history, monkeypatch)
    assert error.value.reason in SILENT, "the finished rewrite waits for that converter's next commit"


@pytest.mark.parametrize("others", [1, 0])
def test_a_delete_file_that_is_committed_once_more_stays_although_it_applied_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """A commit would remove both entries, and the newer one applies to a data file that was added since."""
    history, again = TableHistory(tmp_path, 2), "file:///nowhere/again.parquet"
    history.append_unreal("a", [1], by_value=True, path=again)
    history.append_unreal("a", [1] * others, by_value=True)
    planned, removed = history.view(), list[FileEntry]()
    coverable = coverable_deletes(take_inventory(planned, CACHE), ())
    assert [each.dangles for each in coverable] == [True] * (1 + others)
    history.append_unreal("a", [10])
    history.append_unreal("a", [1], by_value=True, path=again)
    assert planned.snapshot is not None
    changes = changes_since(history.view(), planned, planned.snapshot.snapshot_id, CACHE)
    monkeypatch.setattr(module, "commit_beside_others", lambda *given: given[-1](Head(history.view(), changes, 1))())
    monkeypatch.setattr(module, "commit_replacements", lambda *given, **_: removed.extend(given[2]))
    of_both: Any = SimpleNamespace(table=planned, coverable_deletes=coverable)
    done = commit_groups(java(), of_both, (), CommitSummary("run"), TOOLS)
    assert done.delete_files_removed == len(removed) == others
    assert again not in {each.path for each in removed}


def test_newer_position_deletes_are_told_by_the_number_of_the_head_that_was_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history, sent = TableHistory(tmp_path, 2), list[NewDeletes]()
    for _ in range(2):
        history.append_unreal("a", [10])
    head = history.view()
    monkeypatch.setattr(module, "_dangling", lambda *_: (object(),))
    monkeypatch.setattr(module, "commit_beside_others", lambda *given: given[-1](Head(head, (), 1))())
    monkeypatch.setattr(module, "commit_replacements", lambda *_, new, **__: sent.append(new))
    commit_groups(java(), plan(history), (), CommitSummary("run"), TOOLS)
    assert head.snapshot is not None
    assert [(new.compared, new.compared_number) for new in sent] == [(head.snapshot.snapshot_id, 2)]


class Waiting:
    """A finished rewrite of two file groups, whose outputs need delete files, beside Flink's converter.

    `written`: locations of the delete files of each attempt. Iceberg would drop the delete `LOST`.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.history = TableHistory(folder, 2)
        self.history.table.append(self.history.rows(["a"]), snapshot_properties={FLINK_CONVERTER: "7"})
        self.planned = self.history.view()
        self.written: list[str] = []
        self.drops = True
        self.left_out: tuple[str, ...] = ()
        self.table = java()
        replaced = {
            "commit_beside_others": self._once,
            "commit_replacements": self._commit_replacements,
            "write_deletes": self._write_deletes,
            "_settled": self._settled,
            "_dangling": lambda *_: (),
        }
        for name, value in replaced.items():
            monkeypatch.setattr(module, name, value)

    def attempt(self) -> None:
        file_group: Any = SimpleNamespace(key=None, files=(), partition={})
        output = SimpleNamespace(location=lambda: "output", fileSizeInBytes=lambda: 1, keyMetadata=lambda: None)
        part: Any = SimpleNamespace(outputs=[output], scan_tasks=None, files_in=1)
        group = GroupResult(PlannedGroup(file_group, NOTHING), NOTHING, (part,))
        summary = CommitSummary("run")
        commit_groups(self.table, SimpleNamespace(table=self.planned), (group, group), summary, TOOLS)  # type: ignore[arg-type]

    def _once(self, *given: Any) -> Any:
        assert self.planned.snapshot is not None
        changes = changes_since(self.history.view(), self.planned, self.planned.snapshot.snapshot_id, CACHE)
        return given[-1](Head(self.history.view(), changes, 1))()

    def _settled(self, *_: Any) -> list[Settled | str]:
        settled = Settled((BitMap64([1]),))
        return [settled, *(self.left_out or [settled])]

    def _write_deletes(self, _table: Any, location: str, rows: Collection[Any]) -> list[dict[str, str]]:
        self.written.append(location)
        return [{"file-path": location} for _ in rows]

    def _commit_replacements(self, *_: Any, new: NewDeletes, **__: Any) -> None:
        if self.drops:
            new.copied({LOST})


def test_while_a_finished_rewrite_waits_for_flinks_converter_it_writes_no_delete_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for ten minutes, in about twenty attempts."""
    waiting = Waiting(tmp_path, monkeypatch)
    waiting.history.append_unreal("a", [10], by_value=True, path=LOST)
    for _ in range(3):
        with pytest.raises(RetryError, match="Flink's converter has not converted") as error:
            waiting.attempt()
        assert error.value.reason is Reason.FLINK_CONVERTER
    assert len(waiting.written) == 1, "the first attempt finds out"


def test_the_rewrite_is_committed_once_the_converter_has_converted_the_delete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = Waiting(tmp_path, monkeypatch)
    with pytest.raises(RetryError):  # the delete came after the comparison; then it is gone
        waiting.attempt()
    waiting.drops = False
    waiting.attempt()
    assert len(waiting.written) == 2
    waiting.history.append_unreal("a", [10], by_value=True, path=LOST)
    waiting.attempt()
    assert len(waiting.written) == 3, "what one commit has waited for says nothing about the next"


def test_iceberg_is_asked_again_if_a_group_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are as old as the delete or older: Iceberg does not drop that any more."""
    waiting = Waiting(tmp_path, monkeypatch)
    waiting.history.append_unreal("a", [10], by_value=True, path=LOST)
    with pytest.raises(RetryError):
        waiting.attempt()
    waiting.left_out, waiting.drops = ("rows were deleted",), False
    waiting.attempt()
    assert len(waiting.written) == 2
