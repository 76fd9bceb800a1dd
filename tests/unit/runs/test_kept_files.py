"""The files that runs keep beside the checkpoint: requests, usage, holds. A damaged one, or a store that fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from compactor.errors import GiveUpError, RetryError, StoppedError
from compactor.patience.holds import Holds, Key, What
from compactor.planning.budget import Spent
from compactor.runs.file_holds import FileHolds
from compactor.runs.open_requests import OpenRequests
from compactor.runs.usage import Cost
from compactor.runs.usage_file import UsageFile
from compactor.table_names import TableName

NOW = 1_000_000.0
ONE = TableName("lake", ("db",), "one")
Confirm = Callable[[], None]


def never() -> None: ...


@dataclass(frozen=True)
class Kept:
    """A kind of file. `save` writes something into it, `load` tells how much it holds."""

    name: str
    save: Callable[[str, Confirm], object]
    load: Callable[[str], int]
    lost: str
    damaged: tuple[str, ...]


def holds_of(folder: str, confirm: Confirm = never) -> FileHolds:
    return FileHolds(Holds(lambda: NOW), folder, confirm)


def hold(folder: str, confirm: Confirm) -> None:
    files = holds_of(folder, confirm)
    files.holds.hold(Key(What.FILES, ONE, frozenset({"a"})), str(GiveUpError("damaged")), NOW + 60, ("u", 0, None))
    files.save()


def held(folder: str) -> int:
    files = holds_of(folder)
    files.load()
    return len(files.holds.waits)


def save_usage(folder: str, confirm: Confirm) -> None:
    UsageFile(folder, confirm).save(lambda: [Cost(ONE, NOW, Spent(99))], at_once=True)


ODD = '[{"catalog": "lake", "namespace": "db", "name": "t", "filters": "abc"}]'
ROW = '{"runs": [{"table": "[\\"lake\\", \\"db\\", \\"t\\"]", "at": 1, "bytes": -1, "requests": 0, "catalog_calls": 0, \
"commits": 0}]}'
FILES = [
    Kept(
        "requests.json",
        lambda folder, confirm: OpenRequests(folder, confirm).save({ONE: ("x = 1",)}),
        lambda folder: len(OpenRequests(folder).load()),
        "its requests are lost, send them again",
        ('[{"catalog": "lake"}]', ODD, ODD.replace('"abc"', "[1]")),
    ),
    Kept(
        "usage.json",
        save_usage,
        lambda folder: len(UsageFile(folder).load(NOW)),
        "limits.* count as if the last hour had cost nothing",
        ("{}", '{"runs": [{}]}', ROW, ROW.replace("-1", '"x"')),
    ),
    Kept(
        "holds.json",
        hold,
        held,
        "files that could not be rewritten are tried again at once",
        ('{"files": [{}]}', '{"files": [{"paths": "a", "why": "b"}]}'),
    ),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "checkpoint"
    made.mkdir()
    return made


@pytest.mark.parametrize(
    ("kept", "content"),
    [(kept, content) for kept in FILES for content in ("", "{", "[1]", *kept.damaged)],
    ids=lambda each: each.name if isinstance(each, Kept) else each,
)
def test_a_damaged_file_is_set_aside_and_told_and_stops_nothing(
    folder: Path, caplog: pytest.LogCaptureFixture, kept: Kept, content: str
) -> None:
    (folder / kept.name).write_text(content)
    assert kept.load(f"file://{folder}") == 0
    assert kept.lost in caplog.text
    assert (folder / f"{kept.name}.damaged").read_text() == content
    kept.save(f"file://{folder}", never)
    assert kept.load(f"file://{folder}") == 1


@pytest.mark.parametrize("kept", FILES, ids=lambda kept: kept.name)
def test_a_store_that_does_not_answer_is_told_and_leaves_nothing_aside(
    folder: Path, caplog: pytest.LogCaptureFixture, kept: Kept
) -> None:
    (folder / kept.name / "in the way").mkdir(parents=True)  # nothing can be moved onto a folder, nor read from it
    with pytest.raises(RetryError, match=r"check state\.checkpoint"):
        kept.load(f"file://{folder}")
    kept.save(f"file://{folder}", never)
    assert f"after a restart, {kept.lost}" in caplog.text
    assert [each.name for each in folder.iterdir()] == [kept.name]


@pytest.mark.parametrize("kept", FILES, ids=lambda kept: kept.name)
def test_a_service_that_was_replaced_does_not_write_over_the_file_of_its_successor(
    folder: Path, caplog: pytest.LogCaptureFixture, kept: Kept
) -> None:
    def replaced() -> None:
        raise StoppedError("this service lost its lease")

    kept.save(f"file://{folder}", replaced)
    assert not [*folder.iterdir()]
    assert "lost its lease" in caplog.text
