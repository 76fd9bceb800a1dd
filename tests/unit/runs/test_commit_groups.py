"""What a commit does with delete files that Iceberg would drop, or that apply to nothing. Spark is not started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from compactor.commit.decisions import PASSES
from compactor.commit.history import CommitSummary
from compactor.errors import ReplanError, RetryError
from compactor.iceberg import other_compactors
from compactor.iceberg.other_compactors import FLINK_CONVERTER
from compactor.locations import plain_path
from compactor.manifests.cache import ManifestCache
from compactor.planning.dangling_deletes import coverable_deletes
from compactor.planning.inventory import take_inventory
from compactor.planning.plan_table import PlannedGroup
from compactor.planning.planner import FileGroup
from compactor.rewrite.deletes.row_maps import InputRows, packed
from compactor.rewrite.tasks.runner import WrittenOutput
from compactor.runs.commit_groups import GroupCommit, PreparedGroups
from compactor.runs.committable import Head
from compactor.runs.results import GroupResult
from compactor.spark.java_table import JavaTable
from tests.properties.table_history import TableHistory

NOTHING: Any = None
CACHE = ManifestCache(1 << 20)


class Rewrite:
    """A finished rewrite of a table, one group a partition: each output holds a row that a delete file must delete."""

    def __init__(self, history: TableHistory, folder: Path, *categories: str) -> None:
        self.history, self.folder, self.attempts = history, folder, 0
        planned, groups = history.view(), list[GroupResult]()
        assert planned.snapshot is not None
        inventory = take_inventory(planned, CACHE)
        for key, files in inventory.partitions.items():
            if not any(category in key.tuple_json for category in categories):
                continue
            group = PlannedGroup(FileGroup(key, {}, None, (tuple(files),), "due"), NOTHING)
            carried = packed(np.array([0], np.int64), 3)
            inputs = tuple(InputRows(file.entry.path, 3, 3 * at, carried=carried) for at, file in enumerate(files))
            output = self._output(f"out-{len(groups)}.parquet")
            part = WrittenOutput(NOTHING, NOTHING, (output,), len(files), 0, 0, 0, 3, 0.0, 0, inputs)
            groups.append(GroupResult(group, NOTHING, (part,)))
        self.java = JavaTable(NOTHING, NOTHING, planned, planned.snapshot.snapshot_id)
        plan: Any = SimpleNamespace(table=planned, coverable_deletes=coverable_deletes(inventory, ()))
        self.commit = GroupCommit(self.java, plan, groups, CommitSummary("run"))

    def _output(self, name: str) -> Any:
        file = self.folder / name
        file.write_bytes(b"rows")
        return SimpleNamespace(location=lambda: str(file), fileSizeInBytes=lambda: 4, keyMetadata=lambda: None)

    def prepare(self) -> PreparedGroups:
        self.attempts += 1
        prepared = self.commit.prepare(Head(self.history.view(), self.attempts, self.java, CACHE))
        assert prepared is not None
        return prepared

    @property
    def written(self) -> list[str]:
        """Delete files of all attempts."""
        folder = Path(plain_path(self.history.table.metadata.location)) / "data" / "firnline-run"
        return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def history(tmp_path: Path) -> TableHistory:
    return TableHistory(tmp_path, 2)


@pytest.fixture
def lost(tmp_path: Path) -> str:
    """A delete file that Iceberg would drop."""
    file = tmp_path / "lost.parquet"
    file.write_bytes(b"keys")
    return str(file)


def test_a_delete_that_iceberg_would_drop_is_copied_once(history: TableHistory, tmp_path: Path, lost: str) -> None:
    history.append_unreal("a", [10])
    rewrite = Rewrite(history, tmp_path, "a")
    copies = rewrite.prepare().copied({lost})
    assert (Path(plain_path(copies[lost])).name, len(copies)) == ("deletes-1-1-1-copy-0.parquet", 1)
    again = rewrite.prepare()
    assert again.copied({lost}) == copies
    assert copies[lost] in again.files


def test_outputs_that_were_taken_are_left_out_and_delete_files_written_again(
    history: TableHistory, tmp_path: Path
) -> None:
    for category in ("a", "b"):
        history.append_unreal(category, [10])
    rewrite = Rewrite(history, tmp_path, "a", "b")
    first = rewrite.prepare()
    first.check_outputs()
    (tmp_path / "out-0.parquet").unlink()
    with pytest.raises(ReplanError, match="1 files of run run were deleted"):
        first.check_outputs()
    second = rewrite.prepare()
    assert [len(each.kept) for each in (first, second)] == [2, 1]
    assert "out-0.parquet was deleted or changed" in str(second.dropped[0].error)
    assert len(rewrite.written) == 2 + 1
    second.check_outputs()


@pytest.mark.parametrize("looked_at", [64, 1])
def test_no_delete_is_copied_where_flinks_converter_works(
    history: TableHistory, tmp_path: Path, lost: str, monkeypatch: pytest.MonkeyPatch, looked_at: int
) -> None:
    """It would stop for good: a snapshot that removes data files must add no equality delete. However many snapshots
    of a day came after its own.
    """
    monkeypatch.setattr(other_compactors, "CONVERTER_LOOKED_AT", looked_at)
    history.table.append(history.rows(["a"]), snapshot_properties={FLINK_CONVERTER: "7"})
    history.append_unreal("a", [10])
    with pytest.raises(RetryError, match="Flink's converter has not converted") as error:
        Rewrite(history, tmp_path, "a").prepare().copied({lost})
    assert error.value.reason in PASSES, "the finished rewrite waits for that converter's next commit"


@pytest.mark.parametrize("others", [1, 0])
def test_a_delete_file_that_is_committed_once_more_stays_although_it_applied_to_nothing(
    history: TableHistory, tmp_path: Path, others: int
) -> None:
    """A commit would remove both entries, and the newer one applies to a data file that was added since."""
    again = "file:///nowhere/again.parquet"
    history.append_unreal("a", [1], by_value=True, path=again)
    history.append_unreal("a", [1] * others, by_value=True)
    rewrite = Rewrite(history, tmp_path)
    history.append_unreal("a", [10])
    history.append_unreal("a", [1], by_value=True, path=again)
    prepared = rewrite.commit.prepare(Head(history.view(), 1, rewrite.java, CACHE))
    removed = prepared.dangling if prepared else ()
    assert len(removed) == others
    assert again not in {each.path for each in removed}


def test_newer_position_deletes_are_told_by_the_number_of_the_head_that_was_compared(
    history: TableHistory, tmp_path: Path
) -> None:
    history.append_unreal("a", [10])
    rewrite = Rewrite(history, tmp_path, "a")
    history.append_unreal("b", [10])
    head, changes = history.view().snapshot, rewrite.prepare().update.changes
    assert head is not None
    assert (changes.compared, changes.compared_number, changes.validated_at) == (head.snapshot_id, 2, None)


def beside_the_converter(history: TableHistory, tmp_path: Path, lost: str) -> tuple[Rewrite, PreparedGroups]:
    """A finished rewrite of two groups that must wait for Flink's converter, as its first attempt has found."""
    history.table.append(history.rows(["x"]), snapshot_properties={FLINK_CONVERTER: "7"})
    for category in ("a", "b"):
        history.append_unreal(category, [10])
    rewrite = Rewrite(history, tmp_path, "a", "b")
    prepared = rewrite.prepare()
    history.append_unreal("a", [10], by_value=True, path=lost)
    with pytest.raises(RetryError):
        prepared.copied({lost})
    return rewrite, prepared


def test_while_a_finished_rewrite_waits_for_flinks_converter_it_writes_no_delete_files(
    history: TableHistory, tmp_path: Path, lost: str
) -> None:
    """It waits for ten minutes, in about sixty attempts."""
    rewrite, _ = beside_the_converter(history, tmp_path, lost)
    for _ in range(3):
        with pytest.raises(RetryError, match="Flink's converter has not converted"):
            rewrite.prepare()
    assert len(rewrite.written) == 2, "of the first attempt, which finds out"


def test_iceberg_is_asked_again_if_a_group_is_left_out(history: TableHistory, tmp_path: Path, lost: str) -> None:
    """Its files are as old as the delete or older: Iceberg does not drop that any more."""
    rewrite, prepared = beside_the_converter(history, tmp_path, lost)
    (tmp_path / "out-1.parquet").unlink()
    with pytest.raises(ReplanError):
        prepared.check_outputs()
    assert len(rewrite.prepare().kept) == 1
