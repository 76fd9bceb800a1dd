"""Which equality deletes a run converts, and the part that its grant allows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from compactor.iceberg.manifest_entries import Content, FileEntry, Status
from compactor.manifests.cache import ManifestCache
from compactor.manifests.live_files import LiveFile
from compactor.planning.budget import NO_GRANT, Grant, requests_of
from compactor.planning.conversion import (
    Conversion,
    converted,
    overtaken_by,
    plan_conversion,
    searched_bytes,
    within_grant,
)
from compactor.planning.inventory import take_inventory
from tests.properties.planning import data_file, delete_file
from tests.properties.table_history import TableHistory


def equality_delete(number: int) -> FileEntry:
    return delete_file(1, number, applies_to=None)._replace(content=Content.EQUALITY_DELETES)


FEW, MANY, SHARED, LONE = ([equality_delete(number) for number in numbers] for numbers in ([1], [2, 3], [4], [5]))


def search(number: int, size: int, deletes: Sequence[FileEntry]) -> tuple[LiveFile, ...]:
    """Two data files with the same deletes."""
    return tuple(data_file(2 * number + each, size // 2)._replace(deletes=tuple(deletes)) for each in range(2))


SEARCHES = (search(0, 100, FEW), search(1, 60, MANY), search(2, 30, [*MANY, *SHARED]), search(3, 10, FEW))
WHOLE = Conversion(SEARCHES, (*FEW, *MANY, *SHARED, *LONE), refused=1, why="a float")
MANY_FIRST = ([1, 2], {2, 3, 4, 5})


@pytest.mark.parametrize(
    ("keys", "columns", "size"), [([(1,)], 10, 10), ([(1,), (1, 2)], 10, 20), ([(1, 2, 3)], 2, 100), ([], 10, 0)]
)
def test_a_search_reads_about_the_key_columns(keys: list[tuple[int, ...]], columns: int, size: int) -> None:
    deletes = [equality_delete(number)._replace(equality_ids=each) for number, each in enumerate(keys)]
    by_position = delete_file(1, 99, applies_to=None)
    assert searched_bytes(search(0, 100, [*deletes, by_position]), columns) == size


def part(grant: Grant) -> tuple[list[int], set[int]]:
    """Numbers of the searches and of the deletes."""
    found = within_grant(WHOLE, grant)
    assert (found.refused, found.why) == (1, "a float")
    deletes = [*FEW, *MANY, *SHARED, *LONE]
    return [SEARCHES.index(each) for each in found.searches], {deletes.index(each) + 1 for each in found.deletes}


@pytest.mark.parametrize("grant", [NO_GRANT, Grant(commits=1), Grant(bytes=200), Grant(bytes=200, requests=99)])
def test_a_conversion_within_its_grant_is_whole(grant: Grant) -> None:
    assert part(grant) == ([0, 1, 2, 3], {1, 2, 3, 4, 5})


@pytest.mark.parametrize("grant", [Grant(bytes=199), Grant(bytes=0), Grant(requests=requests_of(8, 0, 200) - 1)])
def test_a_conversion_beyond_its_grant_does_what_has_the_most_deletes(grant: Grant) -> None:
    """Two searches that share deletes stay together, however little is granted; a delete without files leaves too."""
    assert part(grant) == MANY_FIRST


def test_what_is_left_is_converted_by_later_runs() -> None:
    first = within_grant(WHOLE, Grant(bytes=100))
    left = Conversion(
        tuple(each for each in SEARCHES if each not in first.searches),
        tuple(each for each in WHOLE.deletes if each not in first.deletes),
    )
    second = within_grant(left, Grant(bytes=100))
    assert (second.searches, second.deletes) == ((SEARCHES[0], SEARCHES[3]), tuple(FEW))


def test_deletes_of_files_that_were_not_searched_stay() -> None:
    assert converted(WHOLE, [SEARCHES[1]], {SHARED[0].identity}) == [*FEW, *LONE]


def test_deletes_that_apply_to_a_file_that_is_listed_twice_stay(tmp_path: Path) -> None:
    """A writer has repeated its commit: positions would also delete the rows of the newer entry, which stay."""
    history, again = TableHistory(tmp_path, 2), "file:///nowhere/again.parquet"
    history.append_unreal("a", [10], path=again)
    history.append_unreal("b", [10])
    history.append_unreal("a", [1], by_value=True)
    history.append_unreal("b", [1], by_value=True)
    assert len(plan_conversion(take_inventory(history.view(), ManifestCache(1 << 24))).deletes) == 2
    history.append_unreal("a", [10], path=again)
    found = plan_conversion(take_inventory(history.view(), ManifestCache(1 << 24)))
    assert [file.entry.key.values for file in found.files] == ['["b"]']
    assert (len(found.deletes), found.refused) == (1, 1)
    assert "again.parquet is listed twice" in found.why
    assert [key.values for key in found.refused_in] == ['["a"]']


def test_what_a_writer_commits_once_more_ends_the_conversion() -> None:
    """A commit removes files by path: both entries of the delete, and of the data file the rows of both."""
    (searched,), (delete,) = SEARCHES[3][:1], FEW
    data = searched.entry
    again = [delete._replace(data_sequence_number=9), data._replace(data_sequence_number=9)]
    new = [equality_delete(99)._replace(data_sequence_number=9), data._replace(path="new", data_sequence_number=9)]
    gone = [each._replace(status=Status.DELETED) for each in (data, delete)]
    assert overtaken_by([delete], [searched], [*new, *gone]) is None
    assert overtaken_by(MANY, SEARCHES[0], again) is None
    for each in again:
        assert overtaken_by([delete], [searched], [*gone, each]) == f"{each.path} was added once more"
    younger = [delete._replace(data_sequence_number=10)]
    assert overtaken_by(younger, [searched], new[1:]) == "new was added, to which older deletes apply"
