"""What a service owns while it joins, while others come and go, and while the broker is silent."""

from __future__ import annotations

from compactor.shards import NOBODY
from streaming.kafka.membership import SESSION_SECONDS, SETTLE_SECONDS, Membership
from streaming.kafka.shard_group import distinct, group_id, member_name

ALONE, BOTH = ("a",), ("a", "b")
SETTLED = SETTLE_SECONDS + 1


def settled() -> Membership:
    """Service a, alone since 0 s, at the time SETTLED."""
    return Membership("a").joins("a", ALONE, 1, 0.0, 0.0).hears(SETTLED).ticks(SETTLED)


def test_the_first_join_waits_for_the_settle_time() -> None:
    joined = Membership("a").joins("a", ALONE, 1, 0.0, 0.0).hears(SETTLE_SECONDS - 1)
    assert joined.joined(SETTLE_SECONDS - 0.1)
    assert joined.shard(SETTLE_SECONDS - 0.1).owns_nothing
    assert joined.shard(SETTLE_SECONDS).owns_everything


def test_a_lost_table_is_given_up_at_once_and_a_gained_one_is_taken_after_the_settle_time() -> None:
    fewer = settled().joins("a", BOTH, 2, SETTLED, SETTLED)
    assert fewer.shard(SETTLED).members == BOTH
    later = SETTLED + 5
    more = fewer.joins("a", ALONE, 3, later, later)
    assert more.shard(later).settling == (BOTH,)
    assert more.hears(later + SETTLE_SECONDS).shard(later + SETTLE_SECONDS).owns_everything


def test_silence_of_the_broker_ends_ownership_without_a_call() -> None:
    """As after SIGSTOP: nothing ran meanwhile, only the clock went on."""
    shard = settled().shard(SETTLED + SESSION_SECONDS)
    assert shard.owns_nothing
    assert not settled().joined(SETTLED + SESSION_SECONDS)
    assert settled().shard(SETTLED + SESSION_SECONDS - 0.1).owns_everything


def test_a_late_heartbeat_does_not_bring_back_what_was_given_up() -> None:
    late = SETTLED + SESSION_SECONDS
    assert settled().ticks(late).hears(late).shard(late).owns_nothing
    assert settled().hears(SETTLED - 5).heard == SETTLED  # nor does an old one shorten the session


def test_who_comes_back_settles_anew() -> None:
    late = SETTLED + SESSION_SECONDS
    back = settled().joins("a", ALONE, 2, late, late)
    assert back.joined(late)
    assert back.shard(late).settling == (NOBODY,)
    assert back.hears(late + SETTLE_SECONDS).shard(late + SETTLE_SECONDS).owns_everything


def test_who_missed_a_generation_settles_anew() -> None:
    """Another service may have been given the tables in it."""
    assert settled().joins("a", ALONE, 3, SETTLED, SETTLED).shard(SETTLED).owns_nothing
    assert settled().joins("a", ALONE, 1, SETTLED, SETTLED).shard(SETTLED).owns_nothing  # the group began anew
    assert settled().joins("a", ALONE, 2, SETTLED, SETTLED).shard(SETTLED).owns_everything


def test_who_gets_another_name_settles_anew() -> None:
    assert settled().joins("a~2", ("a", "a~2"), 2, SETTLED, SETTLED).shard(SETTLED).owns_nothing


def test_a_service_without_a_group_handles_records_by_the_last_membership() -> None:
    assert Membership("a").shard(0.0).owns_record("commits", 0, 1)
    assert settled().loses().shard(SETTLED).owns_record("commits", 0, 1)


def test_names_of_members() -> None:
    one = member_name("file:///var/lib/firnline/checkpoint", "firnline-0")
    assert one == member_name("file:///var/lib/firnline/checkpoint", "firnline-0")
    assert one.startswith("firnline-0-")
    assert one != member_name("file:///var/lib/firnline/checkpoint", "firnline-1")
    assert one != member_name("file:///var/lib/firnline/other", "firnline-0")
    assert len(member_name("x", "h" * 300)) < 80
    assert distinct({"id-2": "a", "id-1": "a", "id-3": "b"}) == {"id-1": "a", "id-2": "a~2", "id-3": "b"}
    assert group_id("lake") == "firnline-shards-lake"
