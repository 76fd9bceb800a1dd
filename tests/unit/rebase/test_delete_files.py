"""Delete files that a commit writes or copies, in a local store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap64

from compactor.errors import GiveUpError
from compactor.iceberg.tables import TableView
from compactor.partitions import PartitionKey
from compactor.rebase import delete_files
from compactor.rebase.delete_files import AT_ONCE, DeletedRows, copy_files, write_deletes
from compactor.rewrite.deletes.position_deletes import DeleteFile, deleted_positions
from compactor.storage.local_store import LocalByteStore
from tests.properties.table_history import TableHistory

FILES = 2 * AT_ONCE + 1


def table(folder: Path, version: int = 2) -> TableView:
    view = TableHistory(folder, 2).view()  # PyIceberg creates no V3 table
    return replace(view, metadata=view.metadata.model_copy(update={"format_version": version}))


def written(folder: Path, version: int) -> list[dict[str, Any]]:
    rows = [DeletedRows(PartitionKey(0, '["a"]'), f"file:///data/{n}.parquet", BitMap64([n, 99])) for n in range(FILES)]
    return write_deletes(table(folder, version), f"file://{folder}/run/deletes-1", rows)


@pytest.mark.parametrize(("version", "file_format"), [(2, "parquet"), (3, "puffin")])
def test_each_data_file_gets_a_delete_file_of_its_own(tmp_path: Path, version: int, file_format: str) -> None:
    """Several vectors in one Puffin file: the first that leaves the table takes the others with it when it expires."""
    made = written(tmp_path, version)
    assert len({each["file-path"] for each in made}) == FILES
    assert {path.suffix for path in (tmp_path / "run").iterdir()} == {f".{file_format}"}
    assert [each["referenced-data-file"] for each in made] == [f"file:///data/{n}.parquet" for n in range(FILES)]
    files = {each["referenced-data-file"]: [_as_read(each)] for each in made}
    found = deleted_positions(LocalByteStore(), files)
    assert [found[path].tolist() for path in files] == [[n, 99] for n in range(FILES)]


def _as_read(made: dict[str, Any]) -> DeleteFile:
    return DeleteFile(made["file-path"], made["file-size-in-bytes"], made["file-format"])


def test_without_deleted_rows_nothing_is_written(tmp_path: Path) -> None:
    assert write_deletes(table(tmp_path, 3), f"file://{tmp_path}/run/deletes-1", []) == []
    assert not (tmp_path / "run").exists()


def test_a_copy_has_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete_files, "BUFFER_BYTES", 10)
    contents = {f"{size}.parquet": bytes(range(size)) for size in (0, 1, 9, 10, 11, 20, 25)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    copies = {f"file://{tmp_path}/{name}": f"file:{tmp_path}/run/copy-of-{name}" for name in contents}
    assert copy_files(table(tmp_path), copies) == sum(map(len, contents.values()))
    assert {name: (tmp_path / "run" / f"copy-of-{name}").read_bytes() for name in contents} == contents
    assert {name: (tmp_path / name).read_bytes() for name in contents} == contents


def test_no_file_needs_no_copy(tmp_path: Path) -> None:
    assert copy_files(table(tmp_path), {}) == 0


def test_a_copy_of_a_file_that_is_gone_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(GiveUpError, match="does not exist any more") as raised:
        copy_files(table(tmp_path), {f"file://{tmp_path}/gone": f"file://{tmp_path}/run/copy"})
    assert raised.value.reason == "input_missing"
    assert not (tmp_path / "run" / "copy").exists()


def test_a_copy_overwrites_nothing(tmp_path: Path) -> None:
    for name in ("file", "taken"):
        (tmp_path / name).write_text(name)
    with pytest.raises(GiveUpError) as raised:
        copy_files(table(tmp_path), {f"file://{tmp_path}/file": f"file://{tmp_path}/taken"})
    assert raised.value.reason == "output_exists"
    assert (tmp_path / "taken").read_text() == "taken"
