"""Files that a commit is about to add, looked at right before it; names that stores and file systems cannot take."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactor.commit.output_check import missing_files
from compactor.errors import GiveUpError
from compactor.locations import is_too_long
from compactor.reasons import Reason
from compactor.storage.s3_client import s3_object
from tests.properties.table_history import TableHistory


def test_files_that_are_gone_or_have_another_size_are_missing(tmp_path: Path) -> None:
    view = TableHistory(tmp_path, 2).view()
    for name in ("there", "cut", "any size"):
        (tmp_path / name).write_text("rows")
    sizes = {"there": 4, "cut": 5, "any size": None, "gone": 4, "gone too": None}
    found = missing_files(view, {f"file://{tmp_path}/{name}": size for name, size in sizes.items()})
    assert found == {f"file://{tmp_path}/{name}" for name in ("cut", "gone", "gone too")}
    assert missing_files(view, {}) == set()


@pytest.mark.parametrize(
    ("location", "too_long"),
    [
        (f"/wh/a={'x' * 253}/f.parquet", False),
        (f"/wh/a={'x' * 254}/f.parquet", True),
        (f"/wh/a={'ä' * 127}/f.parquet", True),
        (f"s3://b/{'/'.join(['x' * 90] * 10)}/f.parquet", False),
        (f"s3://b/{'/'.join(['x' * 99] * 10)}/f.parquet", True),
    ],
)
def test_names_and_keys_have_a_longest_length(location: str, too_long: bool) -> None:
    assert is_too_long(location) == too_long


def test_a_key_that_s3_does_not_take_is_no_location() -> None:
    assert s3_object(f"s3://b/{'x' * 1024}", {}).key == "x" * 1024
    with pytest.raises(GiveUpError) as error:
        s3_object(f"s3://b/{'ä' * 513}", {})
    assert error.value.reason == Reason.UNSUPPORTED_LOCATION
