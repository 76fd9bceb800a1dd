"""Rewrite slots that follow the executors: pure decisions, and the watch with executors that come and go."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.errors import InputError
from compactor.spark.cluster import (
    NO_EXECUTOR,
    PATIENCE_SECONDS,
    ClusterWatch,
    DynamicAllocation,
    Executors,
    may_grow,
    slots_of,
)


@pytest.mark.parametrize(
    ("cores", "stream", "slots"), [(0, 1, 1), (1, 1, 1), (2, 1, 1), (4, 1, 3), (1000, 1, 999), (2, 0, 2), (1, 0, 1)]
)
def test_slots_are_the_cores_less_those_of_the_stream(cores: int, stream: int, slots: int) -> None:
    assert slots_of(cores, stream, None, grow=True) == slots
    assert slots_of(cores, stream, DynamicAllocation(64, 4), grow=False) == slots


@pytest.mark.parametrize(("cores", "slots"), [(0, 3), (1, 4), (4, 7), (8, 15), (40, 63), (63, 64), (64, 63), (70, 69)])
def test_tasks_wait_in_spark_while_it_may_add_executors(cores: int, slots: int) -> None:
    assert slots_of(cores, 1, DynamicAllocation(64, 4), grow=True) == slots


@given(st.integers(0, 2000), st.integers(1, 2000), st.integers(1, 16))
def test_a_growing_cluster_reaches_its_limit_and_never_asks_beyond_it(cores: int, most: int, per: int) -> None:
    growth = DynamicAllocation(most, per)
    assert slots_of(cores, 1, growth, grow=True) <= max(most, cores)
    for _ in range(13):  # Spark adds executors for all pending tasks; the stream has none
        cores = max(cores, min(most, slots_of(cores, 1, growth, grow=True)))
    assert cores >= most


def test_a_cluster_that_has_no_more_to_give_is_left_alone_for_a_while() -> None:
    assert not may_grow(None, 100)
    assert may_grow(100, 100 + PATIENCE_SECONDS - 1)
    assert not may_grow(100, 100 + PATIENCE_SECONDS)
    assert may_grow(100, 100 + 5 * PATIENCE_SECONDS)


class Cluster:
    """Executors as a test wants them."""

    is_local = False

    def __init__(self, executors: Executors, growth: DynamicAllocation | None = None) -> None:
        self.executors, self.dynamic_allocation = executors, growth
        self.busy = (False, False)
        self.sizes: list[int] = []

    def read(self) -> Executors:
        return self.executors

    def watch(self, check: Any = None) -> ClusterWatch:
        self_: Any = self
        return ClusterWatch(self_, self.sizes.append, lambda: self.busy, stream_cores=1, check=check)


def test_each_change_of_the_cluster_changes_the_slots_once_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(Executors(2, 2, {"a": 1, "b": 0}))
    watch = cluster.watch()
    with caplog.at_level(logging.INFO, "firnline"):
        for cores in (2, 2, 4, 4, 1):
            cluster.executors = Executors(cores, cores, {"a": cores})
            watch.look()
    assert cluster.sizes == [1, 3, 1]
    assert [record.message for record in caplog.records] == [
        "1 rewrite slots: 2 cores of 2 executors on 1 hosts, 1 for the stream",
        "3 rewrite slots: 4 cores of 4 executors on 1 hosts, 1 for the stream",
        "1 rewrite slots: 1 cores of 1 executors on 1 hosts, 1 for the stream",
    ]
    assert watch.state.executors.tasks == {"a": 1}


def test_a_minute_without_executors_is_trouble_once_and_over_with_the_first(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(Executors())
    watch = cluster.watch()
    with caplog.at_level(logging.ERROR, "firnline"):
        for now in (0, 30, 59, 60, 90, 600):
            assert watch.look(now).trouble == (NO_EXECUTOR if now >= 60 else "")
        assert [record.message for record in caplog.records] == [NO_EXECUTOR]
    cluster.executors = Executors(1, 1)
    state = watch.look()
    assert (state.trouble, state.shortage_seconds) == ("", 0)


def test_no_executor_is_no_trouble_while_spark_needs_none() -> None:
    cluster = Cluster(Executors(), DynamicAllocation(8, 2))
    watch = cluster.watch()
    for now in (0, 100):
        assert watch.look(now).trouble == ""
    cluster.busy = (True, False)
    watch.look(100)
    assert watch.look(200).trouble == NO_EXECUTOR


def test_waiting_runs_let_spark_grow_and_a_larger_cluster_starts_the_minute_anew() -> None:
    cluster = Cluster(Executors(2, 1), DynamicAllocation(8, 2))
    watch = cluster.watch()
    cluster.busy = (True, True)
    assert watch.look(0).slots == 3
    assert watch.look(PATIENCE_SECONDS).slots == 1
    cluster.executors = Executors(4, 2)
    assert watch.look(PATIENCE_SECONDS).slots == 7
    cluster.busy = (True, False)
    assert watch.look(PATIENCE_SECONDS).slots == 3


def test_there_are_no_slots_until_the_packages_of_executors_were_checked() -> None:
    cluster, asked = Cluster(Executors(4, 4)), list[int]()

    def check(tasks: int) -> None:
        asked.append(tasks)
        if len(asked) == 1:
            watch._stopped.set()  # no pause before the next try
            raise InputError("pyarrow is missing")

    watch = cluster.watch(check)
    assert watch.look().slots == 0
    watch._check_packages()
    state = watch.look()
    assert (state.slots, state.trouble) == (0, "pyarrow is missing")
    watch._check_packages()
    state = watch.look()
    assert (state.slots, state.trouble) == (3, "")
    assert asked == [4, 4]
