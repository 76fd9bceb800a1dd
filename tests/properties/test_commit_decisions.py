"""What is left out of a commit and which delete files leave with it, against models that work from first principles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.types import IntegerType

from compactor.commit.history import CommitSummary
from compactor.iceberg.manifest_entries import Content, FileEntry, Status
from compactor.iceberg.other_compactors import POLARIS_ROLLBACK
from compactor.manifests.columns import EntryColumns
from compactor.manifests.live_files import OWN_DELETES, DeleteIndex, LiveFile, LiveRows
from compactor.partitions import PartitionKey, PartitionLayout
from compactor.planning.conflicts import more_often, touched_groups
from compactor.planning.dangling_deletes import coverable_deletes, dangling_deletes
from compactor.planning.inventory import Inventory
from compactor.planning.planner import FileGroup, batches

KEYS = (
    PartitionKey(0, "[1]"),
    PartitionKey(0, "[2]"),
    PartitionKey(1, "[]"),
    PartitionKey(2, "[1]"),  # the same tuple in another spec is another partition
    PartitionKey(3, "[null]"),
)
LAYOUTS = {
    0: PartitionLayout(0, ("bucket",), (IntegerType(),), (0,)),
    1: PartitionLayout(1, (), (), ()),
    2: PartitionLayout(2, ("bucket",), (IntegerType(),), (0,)),
    3: PartitionLayout(3, ("bucket",), (IntegerType(),), (), (0,)),  # what V1 keeps of a dropped field: void
}
UNPARTITIONED = {1, 3}
HEAD = 6  # the planned snapshot's sequence number


def entry(content: Content, path: str, key: PartitionKey, sequence_number: int, **more: Any) -> FileEntry:
    return FileEntry(
        **{
            "manifest_path": "manifest",
            "status": Status.ADDED,
            "snapshot_id": 1,
            "data_sequence_number": sequence_number,
            "content": content,
            "path": path,
            "file_format": "parquet",
            "key": key,
            "partition": (),
            "records": 10,
            "size": 100,
            "sort_order_id": None,
            "encrypted": False,
            "equality_ids": (1,) if content is Content.EQUALITY_DELETES else (),
            "applies_to": None,
            **more,
        }
    )


@dataclass(frozen=True)
class Scene:
    """`own`: the most deletes that a file holds in a tuple of its own."""

    entries: tuple[FileEntry, ...]
    own: int = OWN_DELETES

    @property
    def data(self) -> list[FileEntry]:
        return [each for each in self.entries if each.content is Content.DATA]

    @property
    def deletes(self) -> tuple[FileEntry, ...]:
        return tuple(each for each in self.entries if each.content is not Content.DATA)

    @property
    def inventory(self) -> Inventory:
        table: Any = None
        manifests = [
            EntryColumns.of("manifest", layout, [each for each in self.entries if each.key.spec_id == spec_id])
            for spec_id, layout in LAYOUTS.items()
        ]
        partitions = LiveRows(manifests).by_partition(DeleteIndex(self.deletes, LAYOUTS, own=self.own))
        return Inventory(table, 1, partitions, partitions, LAYOUTS, self.deletes)

    def live(self) -> dict[str, LiveFile]:
        return {file.entry.path: file for files in self.inventory.partitions.values() for file in files}


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    numbers = st.integers(1, HEAD)
    keys = st.sampled_from(draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True)))
    data = [entry(Content.DATA, f"data-{index}", draw(keys), draw(numbers)) for index in range(draw(st.integers(1, 6)))]
    deletes = []
    for index in range(draw(st.integers(0, 5))):
        number = draw(numbers)
        kind = draw(st.sampled_from(["equality", "partition", "file", "vector"]))
        if kind == "equality":
            deletes.append(entry(Content.EQUALITY_DELETES, f"del-{index}", draw(keys), number))
        elif kind == "partition":
            deletes.append(entry(Content.POSITION_DELETES, f"del-{index}", draw(keys), number))
        else:
            target = draw(st.sampled_from(data))
            file_format = "puffin" if kind == "vector" else "parquet"
            if any(each.applies_to == target.path and each.file_format == file_format for each in deletes):
                continue  # a data file has one deletion vector at most
            deletes.append(
                entry(
                    Content.POSITION_DELETES,
                    "vectors" if kind == "vector" else f"del-{index}",  # vectors of many files share one Puffin file
                    target.key,
                    max(number, target.data_sequence_number),
                    applies_to=target.path,
                    file_format=file_format,
                    blob=(4 + 50 * index, 46) if kind == "vector" else None,
                )
            )
    if deletes and draw(st.booleans()):  # a writer that was restarted has committed the file again
        again = draw(st.sampled_from(deletes))
        if not again.is_deletion_vector:
            deletes.insert(
                draw(st.integers(0, len(deletes))), again._replace(data_sequence_number=draw(st.integers(1, HEAD)))
            )
    gone = data[0]  # older versions of firnline, and other writers, leave vectors of files that are gone
    if len(data) > 1 and draw(st.booleans()):
        data = data[1:]
        deletes += [
            entry(
                Content.POSITION_DELETES,
                "vectors",
                gone.key,
                HEAD,
                applies_to="gone",
                file_format="puffin",
                blob=(900, 46),
            )
        ]
    return Scene((*data, *deletes), draw(st.sampled_from([OWN_DELETES, 0])))


def identities(deletes: Iterable[FileEntry]) -> set[Any]:
    return {each.identity for each in deletes}


def applies(delete: FileEntry, file: FileEntry) -> bool:
    """Word by word from the spec's scan planning."""
    if delete.content is Content.EQUALITY_DELETES:
        everywhere = delete.key.spec_id in UNPARTITIONED
        return file.data_sequence_number < delete.data_sequence_number and (everywhere or delete.key == file.key)
    named = delete.applies_to == file.path if delete.applies_to is not None else delete.key == file.key
    return file.data_sequence_number <= delete.data_sequence_number and named


@settings(max_examples=400)
@given(scenes())
def test_a_delete_applies_when_and_only_when_the_spec_says_so(scene: Scene) -> None:
    """A position delete file only where "there is no deletion vector that must be applied to the data file"."""
    live = scene.live()
    assert sorted(live) == sorted(file.path for file in scene.data)
    for file in scene.data:
        named = {delete for delete in scene.deletes if applies(delete, file)}
        by_position = {each for each in named if each.content is Content.POSITION_DELETES}
        vectors = {each for each in by_position if each.file_format == "puffin"}
        superseded = by_position - vectors if vectors else set()
        assert identities(live[file.path].superseded) == identities(superseded)
        assert identities(live[file.path].deletes) == identities(named - superseded)


def told_apart_by(delete: FileEntry) -> tuple[str, tuple[int, int] | None]:
    """The model's own key of a delete file: `FileEntry.identity` is what the test is about."""
    return delete.path, delete.blob


@settings(max_examples=400)
@given(scenes(), st.data())
def test_a_delete_file_leaves_when_and_only_when_no_remaining_row_needs_it(scene: Scene, data: st.DataObject) -> None:
    before = scene.live()
    planned = set(before) - data.draw(st.sets(st.sampled_from(sorted(before)), max_size=2))
    rewritten = planned - data.draw(st.sets(st.sampled_from(sorted(before)), max_size=2))
    known = [told_apart_by(each) for each in scene.deletes]
    gone = data.draw(st.sets(st.sampled_from(known))) if known else set()
    entries = [file.entry for path, file in before.items() if path in planned]
    removed = dangling_deletes(coverable_deletes(scene.inventory, entries), rewritten, gone)

    left = [each for each in scene.data if each.path not in rewritten]
    kept = [each for each in scene.deletes if each not in removed]
    after = Scene((*left, *kept)).live()
    for file in left:
        assert after[file.path].deletes == before[file.path].deletes
        assert [each for each in removed if applies(each, file)] == []
    outputs = [file._replace(path=f"{file.path}-out", data_sequence_number=HEAD) for file in scene.data]
    with_outputs = Scene((*left, *outputs, *kept)).live()
    for file in outputs:
        assert not [each for each in with_outputs[file.path].deletes if each.content is Content.EQUALITY_DELETES]
    needed = {told_apart_by(each) for file in after.values() for each in (*file.deletes, *file.superseded)}
    assert {told_apart_by(each) for each in kept} - needed - gone == set()
    assert not {told_apart_by(each) for each in removed} & gone


@pytest.mark.parametrize("numbers", [(7, 5), (5, 7)])
def test_a_delete_file_that_is_listed_twice_stays_for_the_rows_of_its_higher_number(numbers: tuple[int, int]) -> None:
    old, young = (entry(Content.DATA, f"data-{number}", KEYS[0], number) for number in (3, 5))
    scene = Scene((old, young, *(entry(Content.EQUALITY_DELETES, "del", KEYS[0], number) for number in numbers)))
    assert [each.data_sequence_number for each in scene.live()[young.path].deletes] == [7]
    assert dangling_deletes(coverable_deletes(scene.inventory, [old]), {old.path}, set()) == ()
    both = dangling_deletes(coverable_deletes(scene.inventory, [old, young]), {old.path, young.path}, set())
    assert [each.data_sequence_number for each in both] == list(numbers)


@pytest.mark.parametrize("first", [0, 1])
def test_a_delete_file_that_names_its_data_file_in_one_of_two_entries_stays_for_all_its_rows(first: int) -> None:
    data = [entry(Content.DATA, f"data-{number}", KEYS[0], 3) for number in range(2)]
    named = entry(Content.POSITION_DELETES, "del", KEYS[0], 5, applies_to=data[1].path)
    scene = Scene((data[first], data[1 - first], named, named._replace(applies_to=None)), own=0)
    assert dangling_deletes(coverable_deletes(scene.inventory, [data[1]]), {data[1].path}, set()) == ()


def group_of(files: list[LiveFile], key: PartitionKey) -> FileGroup:
    return FileGroup(key, {}, None, (tuple(files),), "due")


@settings(max_examples=400)
@given(scenes(), st.data())
def test_a_group_is_touched_when_and_only_when_a_change_can_alter_its_rows(scene: Scene, data: st.DataObject) -> None:
    live = scene.live()
    groups = [
        group_of([file for file in live.values() if file.entry.key == key and data.draw(st.booleans())], key)
        for key in KEYS
    ]
    groups = [group for group in groups if group.files]
    changes = data.draw(
        st.lists(
            st.sampled_from([each._replace(status=Status.DELETED) for each in scene.entries])
            | st.builds(
                lambda content, key, named, number: entry(
                    content, f"new-{number}", key, HEAD + number, applies_to=named
                ),
                st.sampled_from([Content.DATA, Content.EQUALITY_DELETES]),
                st.sampled_from(KEYS),
                st.none(),
                st.integers(1, 3),
            )
            | st.builds(
                lambda key, named, number: entry(
                    Content.POSITION_DELETES, f"new-{number}", key, HEAD + number, applies_to=named
                ),
                st.sampled_from(KEYS),
                st.none() | st.sampled_from([each.path for each in scene.data]),
                st.integers(1, 3),
            ),
            max_size=4,
        )
    )
    touched = touched_groups(groups, changes)
    for index, group in enumerate(groups):
        assert (index in touched) == any(alters(change, group) for change in changes)


def test_vectors_that_share_a_puffin_file_are_told_apart() -> None:
    data = [entry(Content.DATA, f"data-{number}", KEYS[number], 1) for number in range(2)]
    vectors = [
        entry(Content.POSITION_DELETES, "vectors", each.key, 2, applies_to=each.path, file_format="puffin")
        for each in data
    ]
    groups = [group_of([file], file.entry.key) for file in Scene((*data, *vectors)).live().values()]
    assert [len(group.files[0].deletes) for group in groups] == [1, 1]
    for number, vector in enumerate(vectors):
        assert list(touched_groups(groups, [vector._replace(status=Status.DELETED)])) == [number]


def alters(change: FileEntry, group: FileGroup) -> bool:
    paths = {file.entry.path for file in group.files}
    if change.status is Status.DELETED:
        used = {(delete.path, delete.applies_to) for file in group.files for delete in file.deletes}
        if change.content is Content.DATA:
            return change.path in paths
        return (change.path, change.applies_to) in used
    if change.content is not Content.POSITION_DELETES:
        return False
    return change.applies_to in paths if change.applies_to is not None else change.key == group.key


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(1, 5), st.integers(1, 100))
def test_batches_keep_the_order_and_their_bounds(sizes: list[int], most_groups: int, most_bytes: int) -> None:
    groups = [
        group_of([LiveFile(entry(Content.DATA, f"data-{number}", KEYS[0], 1, size=size))], KEYS[0])
        for number, size in enumerate(sizes)
    ]
    made = batches(groups, most_groups, most_bytes)
    assert [index for batch in made for index in batch] == list(range(len(sizes)))
    for batch in made:
        assert 1 <= len(batch) <= most_groups
        assert len(batch) == 1 or sum(sizes[index] for index in batch) <= most_bytes
    for first, second in pairwise(made):
        assert len(first) == most_groups or sum(sizes[index] for index in (*first, second[0])) > most_bytes


def test_a_commit_is_known_again_by_its_run_and_its_part() -> None:
    summary = CommitSummary("run", ("splice", "encode", "splice"), "2/3")
    assert summary.properties == {"firnline.run-id": "run", "firnline.engines": "encode,splice", "firnline.part": "2/3"}
    assert replace(summary, rollback_on_conflict=True).properties[POLARIS_ROLLBACK] == "rollback"
    assert summary.matches({**summary.properties, "added-data-files": "1"})
    assert not summary.matches({})
    assert not summary.matches(replace(summary, run_id="another run").properties)
    assert not summary.matches(replace(summary, part="1/3").properties)


PATHS = st.lists(st.sampled_from("abcd"), max_size=8)


@given(PATHS, PATHS)
def test_what_one_snapshot_has_more_often_leads_from_the_other_to_it(before: list[str], after: list[str]) -> None:
    """A file may be in a table more than once."""
    old, new = ([entry(Content.DATA, path, PartitionKey(0, "[]"), 1) for path in paths] for paths in (before, after))
    added, removed = [*more_often(new, old)], [*more_often(old, new)]
    counts = Counter(before)
    counts.subtract(each.path for each in removed)
    counts.update(each.path for each in added)
    assert +counts == Counter(after)
    assert not {each.path for each in added} & {each.path for each in removed}
