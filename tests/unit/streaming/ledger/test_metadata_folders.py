"""Tables found by the folder of their metadata: known, or by listing the catalogs."""

from __future__ import annotations

import pytest

from streaming.ledger.metadata_folders import (
    LIST_AFTER_SECONDS,
    MOST_FOLDERS,
    SEARCH_AGAIN_SECONDS,
    MetadataFolders,
    folder_of,
    metadata_version,
)
from tests.unit.streaming.ledger.catalog_scene import named

FILE = "s3://lake/db/t/metadata/00003-x.metadata.json"
T, U = named("t"), named("u")


def listings(folders: MetadataFolders, begin: int, seconds: float) -> list[int]:
    """When the catalogs are listed."""
    return [now for now in range(begin, begin + int(seconds)) if folders.must_list(now)]


@pytest.mark.parametrize(
    ("location", "folder"),
    [
        ("s3a://lake/t/metadata/1.metadata.json", "s3://lake/t/metadata"),
        ("s3n://lake/t/metadata/1.metadata.json", "s3://lake/t/metadata"),
        ("file:///lake/t/metadata/1.metadata.json", "/lake/t/metadata"),
        ("file:/lake/t/metadata/1.metadata.json", "/lake/t/metadata"),
        ("gs://lake/t/metadata/1.metadata.json", "gs://lake/t/metadata"),
        ("1.metadata.json", ""),
    ],
)
def test_a_folder_is_spelled_in_one_way(location: str, folder: str) -> None:
    assert folder_of(location) == folder


@pytest.mark.parametrize(
    ("name", "version"),
    [("00017-0b6c", 17), ("v3", 3), ("v3.gz", 3), ("x", None), ("v", None), ("17", None), ("9" * 30 + "-x", None)],
)  # fmt: skip
def test_the_number_of_a_metadata_file(name: str, version: int | None) -> None:
    assert metadata_version(f"s3://lake/t/metadata/{name}.metadata.json") == version


def test_a_look_tells_where_a_table_is() -> None:
    folders = MetadataFolders()
    folders.put(T, FILE)
    folders.put(U, FILE)
    assert folders.find(FILE.replace("s3:", "s3a:").replace("3-x", "4-y")) == (T, U)
    folders.put(T, "s3://lake/elsewhere/metadata/v4.metadata.json")
    assert folders.find(FILE) == (U,)
    folders.forget(U)
    folders.forget(U)
    assert folders.find(FILE) == ()


def test_an_unknown_folder_is_searched_by_listings_until_a_look_finds_its_table() -> None:
    folders = MetadataFolders()
    for _ in range(3):
        folders.search(FILE, 0.0)
    assert listings(folders, 0, 40) == [int(each) + 1 for each in LIST_AFTER_SECONDS]
    folders.put(T, FILE)
    assert listings(folders, 40, 100) == []


def test_a_flood_of_foreign_folders_fills_neither_the_memory_nor_the_catalogs_time() -> None:
    """Each is left alone for a day after its search."""
    folders = MetadataFolders()
    for second in range(100):
        for number in range(MOST_FOLDERS // 10):
            folders.search(f"s3://lake/{second}/{number}/1.metadata.json", float(second))
        folders.must_list(second)
    assert len(folders._searched) == MOST_FOLDERS
    assert len(listings(folders, 100, 200)) <= len(LIST_AFTER_SECONDS)
    folders.search(FILE, 300.0)
    assert listings(folders, 300, 100) == [], "there is no room for it"
    later = int(SEARCH_AGAIN_SECONDS) + 1
    folders.must_list(later)
    folders.search("s3://lake/0/0/1.metadata.json", later)
    assert listings(folders, later, 100) == [later + int(each) + 1 for each in LIST_AFTER_SECONDS]
