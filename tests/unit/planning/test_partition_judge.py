"""Whether a partition is due: the policy decides, `policy.where` can only leave it alone."""

from __future__ import annotations

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from compactor.debt.board import PartitionCounts
from compactor.iceberg.tables import FileSizes
from compactor.partitions import PartitionKey
from compactor.planning.partition_judge import OUTSIDE, PartitionJudge, judge_of
from compactor.settings.policy import PolicyValues
from tests.properties.filters import SCHEMA, table_view

BY_INT = PartitionSpec(
    PartitionField(SCHEMA.find_field("int_column").field_id, 1000, IdentityTransform(), "part"), spec_id=3
)
SIZES = FileSizes(100, 75)
SMALL_FILES = PartitionCounts(9, 9, 9, 9, records=9)
IN_ORDER = PartitionCounts(1, 0, 100, 0, records=9)
UPSERTS = PartitionCounts(9, 9, 9, 9, delete_files=4, records=9, equality_deletes=4)


def judging(where: str | None, **values: object) -> PartitionJudge:
    policy = PolicyValues(strategy="threshold", min_input_files=5, where=where, **values)  # type: ignore[arg-type]
    return judge_of(table_view(BY_INT), policy, SIZES)


def key(value: int | None) -> PartitionKey:
    return table_view(BY_INT).layout(3).key(Record(value))


@pytest.mark.parametrize("where", [None, "true", "int_column = 1 OR string_column = 'x'", "int_column IN (1, 7)"])
def test_inside_the_filter_the_policy_decides(where: str | None) -> None:
    judge = judging(where)
    assert judge.of(key(1), SMALL_FILES, 0.0).due
    assert not judge.of(key(1), IN_ORDER, 0.0).due


@pytest.mark.parametrize("value", [2, None])
def test_outside_the_filter_nothing_is_due(value: int | None) -> None:
    judge = judging("int_column IN (1, 7)")
    assert judge.of(key(value), SMALL_FILES, 0.0) == OUTSIDE
    assert judge.of(key(value), UPSERTS, 0.0) == OUTSIDE


def test_what_is_not_due_keeps_its_reason_outside_the_filter() -> None:
    assert judging("int_column = 1").of(key(2), IN_ORDER, 0.0) == judging(None).of(key(2), IN_ORDER, 0.0)


def test_equality_deletes_are_converted_outside_the_filter_too() -> None:
    assert judging("int_column = 1", convert_equality_deletes=4).of(key(2), UPSERTS, 0.0).due
    assert not judging("int_column = 1", convert_equality_deletes=5).of(key(2), UPSERTS, 0.0).due


def test_a_filter_that_the_table_refuses_keeps_everything() -> None:
    """A plan reports it: partitions that were never due would hide the mistake."""
    assert judging("no_such_column = 1").of(key(2), SMALL_FILES, 0.0).due


def test_judges_of_equal_settings_are_equal() -> None:
    """What a plan declined holds while they are."""
    assert judging("int_column = 1") == judging("int_column = 1")
    assert judging("int_column = 1") != judging("int_column = 2")
