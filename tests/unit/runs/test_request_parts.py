"""A request that is done in parts ends, whatever its parts leave."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from compactor.runs.request_parts import RequestParts
from compactor.table_names import TableName

TABLE, OTHER = TableName("lake", ("db",), "t"), TableName("lake", ("db",), "other")


@given(st.lists(st.integers(0, 100), min_size=1))
def test_each_part_leaves_fewer_files_than_the_one_before(left: list[int]) -> None:
    parts = RequestParts()
    assert parts.goes_on(OTHER, "", 5)
    for number, files in enumerate(left):
        expected = files > 0 and (number == 0 or files < left[number - 1])
        assert parts.goes_on(TABLE, "id = 1", files) == expected
        if not expected:
            parts.ended(TABLE, "id = 1")
            assert not parts.has_begun(TABLE, "id = 1")
            break
        assert parts.has_begun(TABLE, "id = 1")
    assert not parts.has_begun(TABLE, "")
    assert parts.has_begun(OTHER, "")
