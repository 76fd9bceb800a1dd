"""Which table comes next, and what quiet hours, bytes and commits per hour hold back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.debt.board import PartitionCounts, PartitionDebt, Remainder, TableDebt
from compactor.debt.manifest_debt import ManifestCounts
from compactor.errors import InputError
from compactor.partitions import PartitionKey
from compactor.planning.budget import NO_GRANT, Grant, Spent, requests_of
from compactor.runs.usage import HOUR, Cost, Usage
from compactor.runs.work_order import STARVING_SECONDS, Budget, Limits, commit_rate, needed, rank, reserved
from compactor.settings.limits import HourCaps, LimitSettings
from compactor.settings.tree import load_settings
from compactor.table_names import TableName

KEY = PartitionKey(0, "[1]")
MEBIBYTE = 1024 * 1024
NOW = 1_000_000.0


def debt(name: str, files: int = 10, size: int = 10 * MEBIBYTE, age: float = 0.0, commits: float = 0.0) -> TableDebt:
    counts = PartitionCounts(files, files, files * size, files * size)
    partition = PartitionDebt(KEY, {}, None, counts, due=True, why="test")
    table = TableName("lake", ("db",), name)
    return TableDebt(table, 1, {KEY: partition}, acted_on=True, due_since=NOW - age, commits_per_hour=commits)


LARGE = 512 * MEBIBYTE
"""Of a file that is not small."""


def by_deletes(files: int, *, seen: bool = True) -> TableDebt:
    """No file is small, and all are due by their deletes. `seen`: the ledger's estimate says so too."""
    counts = PartitionCounts(files, 0, files * LARGE, 0, files, records=1000, deleted_records=400)
    partition = PartitionDebt(KEY, {}, None, counts, due=True, why="test", large_bytes=files * LARGE if seen else 0)
    return replace(debt("deletes"), partitions={KEY: partition})


def by_manifests(size: int) -> TableDebt:
    due = ManifestCounts(100, size, due_specs=(0,), why="100 manifests, 1 would be enough")
    return replace(debt("manifests"), partitions={}, manifests=due)


def cost(table: TableName, at: float, size: int, requests: int = 0, catalog_calls: int = 0) -> Cost:
    """Of a run that made one commit."""
    return Cost(table, at, Spent(size, requests, catalog_calls, 1))


def order(*tables: TableDebt) -> list[str]:
    return [table.table.name for table in sorted(tables, key=lambda one: rank(one, NOW))]


def allow(limits: Limits, one: TableDebt, finished: list[Cost], now: float) -> bool:
    return may_start(limits, one, limits.usage(finished, now), now)


def may_start(limits: Limits, one: TableDebt, usage: Usage, now: float = NOW) -> bool:
    return limits.next_of([one], usage, now, lambda _table: True) is one


def at(clock: str) -> float:
    return datetime.fromisoformat(f"2026-03-01T{clock}").replace(tzinfo=UTC).timestamp()


# --- order ------------------------------------------------------------------------------------------------------------


def test_more_files_removed_per_byte_come_first() -> None:
    assert order(debt("large", size=100 * MEBIBYTE), debt("small", size=MEBIBYTE)) == ["small", "large"]


def test_older_debt_and_busier_tables_come_first_among_equals() -> None:
    assert order(debt("new"), debt("old", age=600)) == ["old", "new"]
    assert order(debt("calm"), debt("busy", commits=60)) == ["busy", "calm"]
    assert order(debt("b"), debt("a")) == ["a", "b"]


@given(
    st.lists(
        st.tuples(st.integers(2, 5000), st.integers(1, 500 * MEBIBYTE), st.floats(0, 5 * HOUR), st.floats(0, 3600)),
        min_size=1,
        max_size=20,
    )
)
def test_nobody_starves_behind_cheaper_tables(tables: list[tuple[int, int, float, float]]) -> None:
    made = [debt(f"t{number:02d}", *values) for number, values in enumerate(tables)]
    ages = {table.table.name: NOW - (table.due_since or NOW) for table in made}
    names = order(*made)
    starving = [name for name in names if ages[name] >= STARVING_SECONDS]
    assert names[: len(starving)] == starving
    assert [ages[name] for name in starving] == sorted((ages[name] for name in starving), reverse=True)


def test_a_table_that_is_always_worth_more_does_not_keep_another_waiting_for_ever() -> None:
    """Rounds of a minute, one run each; the cheap table is due again at once."""
    waited = 0.0
    while (
        order(debt("cheap", files=5000, size=1), debt("dear", files=2, size=300 * MEBIBYTE, age=waited))[0] == "cheap"
    ):
        waited += 60
        assert waited <= STARVING_SECONDS
    assert waited


def test_the_rate_of_commits_forgets() -> None:
    rate = 0.0
    for _ in range(600):
        rate = commit_rate(rate, 60.0)
    assert rate == pytest.approx(60, rel=0.02)
    assert commit_rate(rate, 10 * HOUR) == pytest.approx(1, rel=0.01)
    assert commit_rate(0.0, None) == 1.0
    assert commit_rate(5.0, -1e9) == 6.0  # a clock that was set back


# --- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clock", "quiet"),
    [("21:59:59", False), ("22:00", True), ("23:59", True), ("00:00", True), ("05:59:59", True), ("06:00", False)],
)
def test_quiet_hours_may_span_midnight(clock: str, quiet: bool) -> None:
    limits = Limits(LimitSettings(quiet_hours=("22:00-06:00",)))
    assert limits.is_quiet(at(clock)) == quiet
    assert allow(limits, debt("a"), [], at(clock)) != quiet


@pytest.mark.parametrize("span", ["22-", "22:00", "22:00-25:00", "night"])
def test_a_bad_span_is_refused_at_start_and_named(span: str) -> None:
    environment = {"FIRNLINE_CATALOGS": '{"lake": {}}', "FIRNLINE_LIMITS__QUIET_HOURS": f'["{span}"]'}
    with pytest.raises(InputError, match=r"limits\.quiet_hours"):
        load_settings(None, environment)


def test_bytes_of_the_last_hour_hold_back_what_does_not_fit() -> None:
    limits = Limits(LimitSettings(bytes_per_hour=250 * MEBIBYTE))
    one = debt("a")
    assert one.due_bytes == 100 * MEBIBYTE
    spent = [cost(debt("b").table, NOW - 10, 150 * MEBIBYTE)]
    assert allow(limits, one, spent, NOW)
    assert not allow(limits, one, [*spent, cost(debt("c").table, NOW - 20, 1)], NOW)
    assert allow(limits, one, [*spent, cost(debt("c").table, NOW - HOUR, 1)], NOW)


def test_a_table_larger_than_the_cap_starts_in_an_empty_hour() -> None:
    limits = Limits(LimitSettings(bytes_per_hour=MEBIBYTE))
    assert allow(limits, debt("a"), [], NOW)
    assert not allow(limits, debt("a"), [cost(debt("b").table, NOW - 1, 1)], NOW)


def test_a_table_has_so_many_commits_an_hour_and_the_others_theirs() -> None:
    limits = Limits(LimitSettings(commits_per_table_and_hour=2))
    twice = [cost(debt("a").table, NOW - 1, 1), cost(debt("a").table, NOW - 2, 1)]
    assert not allow(limits, debt("a"), twice, NOW)
    assert allow(limits, debt("b"), twice, NOW)
    assert allow(limits, debt("a"), twice, NOW + HOUR)


def test_a_run_is_granted_the_commits_that_its_table_has_left_and_counts_with_them() -> None:
    limits, one = Limits(LimitSettings(commits_per_table_and_hour=3)), debt("a")
    grant = limits.grant(one, limits.usage([cost(one.table, NOW - 1, 1), cost(debt("b").table, NOW, 1)], NOW))
    assert grant == Grant(commits=2)
    running = Usage.of([cost(one.table, NOW - 1, 1), reserved(one, grant, NOW)], NOW)
    assert running.commits[one.table] == 3
    assert reserved(one, NO_GRANT, NOW).spent.commits == 1


WISHES: dict[str, Callable[[int], tuple[TableDebt, int, int]]] = {
    "small files": lambda size: (debt("a", files=size), size * 10 * MEBIBYTE, 0),
    "deletes": lambda size: (by_deletes(size), size * LARGE, LARGE),
    "more deletes than it seems": lambda size: (by_deletes(size, seen=False), size * LARGE, LARGE),
    "manifests": lambda size: (by_manifests(size * MEBIBYTE), size * MEBIBYTE, size * MEBIBYTE),
}
"""By what is due: the debt, the bytes that are due, and the bytes of the first piece, which a run does at any grant."""


@given(st.lists(st.tuples(st.sampled_from(sorted(WISHES)), st.integers(1, 80), st.integers(0, 600)), max_size=60))
def test_no_hour_sees_more_bytes_than_allowed(wishes: list[tuple[str, int, int]]) -> None:
    """But for one piece that cannot be cut: an output file, or the manifests that are merged."""
    cap = 1000 * MEBIBYTE
    limits, now, runs = Limits(LimitSettings(bytes_per_hour=cap)), NOW, list[tuple[Cost, int]]()
    for kind, amount, pause in wishes:
        now += pause
        one, size, piece = WISHES[kind](amount)
        finished = [run for run, _ in runs]
        if allow(limits, one, finished, now):
            granted = limits.grant(one, limits.usage(finished, now)).bytes
            assert granted is not None
            runs.append((cost(one.table, now, max(piece, min(granted, size))), piece))
    for number, (run, piece) in enumerate(runs, 1):
        hour = [other.spent.bytes for other, _ in runs[:number] if run.at - HOUR < other.at]
        assert sum(hour) <= max(cap, cap - 1 + piece)


def test_what_is_due_by_deletes_and_by_manifests_waits_for_its_bytes_and_requests() -> None:
    """Also a table that seems to need nothing: what a run of it reads is known only by its plan."""
    limits = Limits(LimitSettings(bytes_per_hour=6000 * MEBIBYTE, requests_per_hour=1000))
    tables = [by_deletes(10), by_deletes(1, seen=False), by_manifests(200 * MEBIBYTE)]
    assert all(allow(limits, each, [], NOW) for each in tables)
    left = {100: [False, True, False], 5500: [True, True, True], 0: [False, False, False]}
    for size, allowed in left.items():
        used = [cost(debt("b").table, NOW - 10, (6000 - size) * MEBIBYTE)]
        assert [allow(limits, each, used, NOW) for each in tables] == allowed
    used = [cost(debt("b").table, NOW - 10, 1, requests=900)]
    assert [allow(limits, each, used, NOW) for each in tables] == [False, True, False]


def test_what_a_run_of_all_kinds_of_debt_needs() -> None:
    small = debt("a")
    assert needed(small) == Spent(100 * MEBIBYTE, requests_of(10, 1, 100 * MEBIBYTE), 12)
    assert needed(by_deletes(2)) == Spent(2 * LARGE, requests_of(0, 1, 2 * LARGE), 12)
    merge = by_manifests(MEBIBYTE)
    assert needed(merge) == Spent(MEBIBYTE, requests_of(100, 1, MEBIBYTE), 12)
    assert needed(replace(merge, manifests=ManifestCounts(100, MEBIBYTE))) == Spent(0, 0, 12), "they are not due"
    everything = replace(
        small, manifests=merge.manifests, others=Remainder(9, 90, 900, 2, 20, 200, due_large_bytes=2000)
    )
    assert needed(everything).bytes == 100 * MEBIBYTE + 200 + 2000 + MEBIBYTE
    assert needed(replace(by_deletes(2), requested=("",))).bytes == 2 * LARGE


def test_what_is_running_counts_with_its_grant() -> None:
    """Two lanes in an empty hour: the second may have what the first was not granted."""
    limits = Limits(LimitSettings(bytes_per_hour=250 * MEBIBYTE))
    first, second = debt("a"), debt("b", files=16)
    grant = limits.grant(first, Usage())
    assert grant == Grant(bytes=100 * MEBIBYTE)
    running = Usage.of([reserved(first, grant, NOW)], NOW)
    assert running.spent.bytes == 100 * MEBIBYTE
    assert may_start(limits, debt("c"), running)
    assert not may_start(limits, second, running)


def test_a_run_is_granted_what_the_hour_has_left() -> None:
    limits = Limits(LimitSettings(bytes_per_hour=30 * MEBIBYTE, requests_per_hour=1000))
    large = debt("a")
    assert may_start(limits, large, Usage())
    assert limits.grant(large, Usage()).bytes == 30 * MEBIBYTE
    small = debt("b", files=2, size=1000)
    used = Usage.of([cost(large.table, NOW, 29 * MEBIBYTE, 950)], NOW)
    assert limits.grant(small, used) == Grant(MEBIBYTE, 50)
    assert Limits().grant(large, used) == NO_GRANT


def test_a_large_table_that_has_waited_is_not_overtaken_by_small_ones() -> None:
    """Small tables use nearly all of each hour, so that the large one never fits whole."""
    limits = Limits(LimitSettings(bytes_per_hour=1000 * MEBIBYTE))
    large, small = debt("large", files=60, age=STARVING_SECONDS), debt("small", files=2)
    whole = Usage(Spent(bytes=950 * MEBIBYTE))

    def started(large: TableDebt, used: int, ready: bool = True) -> TableDebt | None:
        usage = replace(whole, spent=Spent(bytes=used * MEBIBYTE))
        return limits.next_of([large, small], usage, NOW, lambda table: ready or table != large.table)

    assert started(large, 950) is None, "the small one would use what becomes free"
    assert started(large, 900) is large, "with a tenth of the cap"
    assert limits.grant(large, replace(whole, spent=Spent(bytes=900 * MEBIBYTE))).bytes == 100 * MEBIBYTE
    assert started(debt("large", files=60), 900) is small, "it has not waited for long"
    assert started(large, 950, ready=False) is small, "its catalog does not answer: nobody waits for it"
    asked = replace(debt("large", files=60), requested=("",))
    assert started(asked, 950) is None, "a person waits"


def test_a_table_that_waits_for_its_namespace_holds_up_no_other_one() -> None:
    capped = {"lake.slow.*": HourCaps(bytes_per_hour=100 * MEBIBYTE)}
    limits = Limits(LimitSettings(bytes_per_hour=1000 * MEBIBYTE, namespaces=capped))
    slow = replace(debt("a", age=STARVING_SECONDS), table=TableName("lake", ("slow",), "a"))
    beside = replace(debt("b", files=2, size=1000), table=TableName("lake", ("slow",), "b"))
    usage = limits.usage([cost(slow.table, NOW - 10, 95 * MEBIBYTE)], NOW)
    other = debt("c")
    assert limits.next_of([slow, beside, other], usage, NOW, lambda _table: True) is other


def test_a_request_needs_what_all_small_files_cost() -> None:
    """Nothing is due by the policy, so the grant would be the least share, and the request hardly done."""
    counts = PartitionCounts(50, 50, 500 * MEBIBYTE, 500 * MEBIBYTE)
    quiet = PartitionDebt(KEY, {}, None, counts, due=False, why="test")
    one = replace(debt("a"), partitions={KEY: quiet}, requested=("",))
    limits = Limits(LimitSettings(bytes_per_hour=1000 * MEBIBYTE))
    assert limits.grant(one, Usage()).bytes == 500 * MEBIBYTE


@pytest.mark.parametrize("cap", [{"requests_per_hour": 100}, {"catalog_calls_per_hour": 30}])
def test_requests_and_catalog_calls_have_caps_too(cap: dict[str, int]) -> None:
    limits = Limits(LimitSettings(**cap))  # type: ignore[arg-type]
    once = [cost(debt("b").table, NOW - 10, 1, 80, 24)]
    assert not allow(limits, debt("a"), once, NOW)
    assert allow(limits, debt("a"), once, NOW + HOUR)


# --- budgets of namespaces --------------------------------------------------------------------------------------------


def in_namespace(namespace: str, name: str = "t", files: int = 10) -> TableDebt:
    return replace(debt(name, files=files), table=TableName("lake", (namespace,), name))


SALES = LimitSettings(
    bytes_per_hour=1000 * MEBIBYTE,
    namespaces={"sales.*": HourCaps(bytes_per_hour=250 * MEBIBYTE, requests_per_hour=90)},
)


def test_a_namespace_that_has_used_its_budget_waits_and_the_others_go_on() -> None:
    limits, used = Limits(SALES), [cost(in_namespace("sales", "other").table, NOW - 10, 200 * MEBIBYTE, 10)]
    assert not allow(limits, in_namespace("sales"), used, NOW)
    assert allow(limits, in_namespace("sales", files=5), used, NOW)
    assert allow(limits, in_namespace("web"), used, NOW)
    assert allow(limits, in_namespace("sales"), used, NOW + HOUR)


def test_the_limits_of_all_tables_hold_for_those_of_a_namespace_too() -> None:
    limits, used = Limits(SALES), [cost(in_namespace("web").table, NOW - 10, 950 * MEBIBYTE)]
    assert not allow(limits, in_namespace("sales"), used, NOW)
    assert limits.grant(in_namespace("sales"), limits.usage(used, NOW)) == Grant(50 * MEBIBYTE, 35)


def test_a_run_is_granted_the_least_that_any_of_its_budgets_has_left() -> None:
    namespaces = {"*.t": HourCaps(bytes_per_hour=20 * MEBIBYTE), "lake.sales.*": HourCaps(bytes_per_hour=70 * MEBIBYTE)}
    limits = Limits(LimitSettings(namespaces=namespaces))
    assert limits.grant(in_namespace("sales"), Usage()) == Grant(20 * MEBIBYTE)
    assert limits.grant(in_namespace("sales", "u"), Usage()) == Grant(70 * MEBIBYTE)
    assert limits.grant(in_namespace("web", "u"), Usage()) == NO_GRANT


def test_the_budgets_name_the_tables_that_share_them() -> None:
    limits = Limits(SALES)
    used = [cost(in_namespace("sales").table, NOW, 30, 9), cost(in_namespace("web").table, NOW, 5, 1)]
    assert limits.budgets(limits.usage(used, NOW)) == (
        Budget("bytes_per_hour", 1000 * MEBIBYTE, 35),
        Budget("bytes_per_hour", 250 * MEBIBYTE, 30, "sales.*"),
        Budget("requests_per_hour", 90, 9, "sales.*"),
    )
    assert limits.cap_anything
    assert Limits(LimitSettings(commits_per_table_and_hour=1)).cap_anything
    assert not Limits(LimitSettings(quiet_hours=("00:00-23:59",))).cap_anything


@given(
    st.lists(st.tuples(st.sampled_from(["sales", "web", "ops"]), st.integers(1, 80), st.integers(0, 600)), max_size=60)
)
def test_no_hour_of_a_namespace_sees_more_than_its_budget_and_none_takes_anothers(
    wishes: list[tuple[str, int, int]],
) -> None:
    """Two budgets that leave the limit of all tables free: what a namespace may do depends on its own runs alone."""
    caps = {"sales": 400 * MEBIBYTE, "web": 900 * MEBIBYTE}
    limits = Limits(LimitSettings(namespaces={f"{name}.*": HourCaps(bytes_per_hour=cap) for name, cap in caps.items()}))
    now, runs = NOW, list[Cost]()
    for namespace, files, pause in wishes:
        now += pause
        one = in_namespace(namespace, files=files)
        allowed = allow(limits, one, runs, now)
        assert allowed == allow(limits, one, [run for run in runs if run.table.namespace == (namespace,)], now)
        if allowed:
            size = limits.grant(one, limits.usage(runs, now)).bytes
            runs.append(cost(one.table, now, min(one.due_bytes, one.due_bytes if size is None else size)))
    for namespace, cap in caps.items():
        mine = [run for run in runs if run.table.namespace == (namespace,)]
        for run in mine:
            assert sum(other.spent.bytes for other in mine if run.at - HOUR < other.at <= run.at) <= cap
