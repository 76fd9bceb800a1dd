"""Services of one shard group on a real broker: one owner for each table while services start, stop, die and pause."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from kafka import KafkaConsumer
from kafka.admin import KafkaAdminClient, NewTopic

from compactor.settings.kafka import KafkaSettings
from streaming.kafka.shard_group import ShardGroup, group_deployment, group_id
from tests.integration.service_process import wait_for
from tests.integration.shard_member import TABLES

pytestmark = pytest.mark.kafka

ALL = set(range(len(TABLES)))


@dataclass
class Member:
    """A member's process, and all samples that it wrote."""

    name: str
    process: subprocess.Popen[str]
    samples: list[dict[str, Any]] = field(default_factory=list)

    def read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.samples.append(json.loads(line))

    @property
    def owned(self) -> set[int]:
        return set(self.samples[-1]["owned"]) if self.samples else set()

    @property
    def members(self) -> list[str]:
        return self.samples[-1]["members"] if self.samples else []


@dataclass
class Group:
    broker: str
    topic: str
    name: str
    started: list[Member] = field(default_factory=list)

    def start(self, name: str) -> Member:
        command = [sys.executable, "-m", "tests.integration.shard_member", self.broker, self.topic, self.name, name]
        member = Member(name, subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        threading.Thread(target=member.read, daemon=True).start()
        self.started.append(member)
        return member

    def assert_one_owner_at_a_time(self) -> None:
        """No table was owned by two members between two samples of both: a sample holds until the next."""
        spans: dict[int, list[tuple[float, float, str]]] = {}
        for member in self.started:
            since: dict[int, float] = {}
            last: dict[int, float] = {}
            for sample in member.samples:
                owned = set(sample["owned"])
                for table in since.keys() - owned:
                    spans.setdefault(table, []).append((since[table], last[table], member.name))
                since = {table: since.get(table, sample["until"]) for table in owned}
                last = dict.fromkeys(owned, sample["from"])
            for table, begin in since.items():
                spans.setdefault(table, []).append((begin, last[table], member.name))
        for table, held in spans.items():
            held.sort()
            for (_, end, one), (begin, _, other) in pairwise(held):
                assert end <= begin, f"table {table} is owned by {one} until {end} and by {other} from {begin}"


@pytest.fixture
def topic(broker: str) -> str:
    name = f"commits-{uuid.uuid4().hex[:8]}"
    admin = KafkaAdminClient(bootstrap_servers=broker)
    admin.create_topics([NewTopic(name)], wait_for_metadata=True)
    admin.close()
    return name


@pytest.fixture
def group(broker: str, topic: str) -> Iterator[Group]:
    made = Group(broker, topic, f"lake-{uuid.uuid4().hex[:8]}")
    yield made
    for member in made.started:
        member.process.kill()
        member.process.wait()


def divided(*members: Member) -> bool:
    """Whether these members are all, and each table is owned by exactly one of them."""
    names = sorted(member.name for member in members)
    owned = [table for member in members for table in member.owned]
    return all(member.members == names for member in members) and sorted(owned) == sorted(ALL)


@pytest.mark.slow
def test_two_services_divide_the_tables_and_the_rest_is_taken_over_when_one_stops(group: Group) -> None:
    one, two = group.start("a"), group.start("b")
    wait_for("both to own their tables", lambda: divided(one, two))
    assert 60 < len(one.owned) < 140
    two.process.send_signal(signal.SIGTERM)
    assert two.process.wait(30) == 0
    wait_for("the other to hear of it", lambda: one.members == ["a"])
    wait_for("the other to settle", lambda: divided(one))
    group.assert_one_owner_at_a_time()


@pytest.mark.slow
def test_services_are_added_killed_paused_and_continued(group: Group) -> None:
    one, two = group.start("a"), group.start("b")
    wait_for("two to own their tables", lambda: divided(one, two))
    before = one.owned
    three = group.start("c")
    wait_for("three to own their tables", lambda: divided(one, two, three))
    assert one.owned < before  # a new member only takes

    killed = time.monotonic()
    two.process.kill()
    wait_for("the tables of the killed one to have an owner", lambda: divided(one, three))
    moved = max(member.samples[-1]["until"] for member in (one, three)) - killed
    print(f"killed: moved after {moved:.1f} s")

    three.process.send_signal(signal.SIGSTOP)
    paused = time.monotonic()
    wait_for("the tables of the paused one to have an owner", lambda: divided(one))
    three.process.send_signal(signal.SIGCONT)
    continued = time.monotonic()
    wait_for("the paused one to rejoin", lambda: divided(one, three))
    after = [sample for sample in three.samples if sample["from"] > continued]
    rejoined = next(number for number, sample in enumerate(after) if sample["joined"])
    assert not any(sample["owned"] for sample in after[: rejoined + 1])
    print(f"paused for {continued - paused:.1f} s; {rejoined} samples until it rejoined")
    group.assert_one_owner_at_a_time()


@pytest.mark.slow
def test_a_service_that_the_broker_no_longer_hears_owns_nothing(broker: str, topic: str) -> None:
    """What the others do is another's matter: here the clock goes on and the heartbeats stop."""
    ahead = 0.0
    changes: list[bool] = []
    member = ShardGroup(
        KafkaSettings(bootstrap_servers=broker, commit_topic=topic),
        f"lake-{uuid.uuid4().hex[:8]}",
        "a",
        lambda shard: changes.append(shard.owns_everything),
        lambda: time.monotonic() + ahead,
    )
    member.start()
    try:
        wait_for("it to own all tables", lambda: member.current.owns_everything and changes[-1:] == [True])
        assert not member.trouble
        ahead = 25.0  # longer than a session: no heartbeat of this clock's last 20 s was accepted
        assert member.current.owns_nothing
        assert "not a member of shard group" in member.trouble
        wait_for("the change to be reported", lambda: changes[-1:] == [False])
        ahead = 0.0  # the broker never removed it: it must join anew by itself
        wait_for("it to join again", lambda: member.joined)
        assert member.current.owns_nothing
        wait_for("it to own all tables again", lambda: member.current.owns_everything)
    finally:
        member.stop()


def test_without_a_broker_the_trouble_is_told(topic: str) -> None:
    settings = KafkaSettings(
        bootstrap_servers="127.0.0.1:1", commit_topic=topic, options={"bootstrap.timeout.ms": "500"}
    )
    member = ShardGroup(settings, "lake", "a", lambda _: None)
    member.start()
    try:
        wait_for("a trouble that names the setting", lambda: "kafka.bootstrap_servers" in member.trouble)
        assert member.current.owns_nothing
        assert not member.members
    finally:
        member.stop()


def test_a_group_of_others_is_told(broker: str, topic: str) -> None:
    name = f"lake-{uuid.uuid4().hex[:8]}"
    other = KafkaConsumer(topic, bootstrap_servers=broker, group_id=group_id(name), metadata_max_age_ms=500)
    member = ShardGroup(KafkaSettings(bootstrap_servers=broker, commit_topic=topic), name, "a", lambda _: None)
    wait_for("the other to join its group", lambda: other.poll(200) is not None and bool(other.assignment()))
    member.start()
    try:
        wait_for(
            "a trouble that names the remedy",
            lambda: other.poll(100) is not None and "choose another service.shard_group" in member.trouble,
        )
    finally:
        member.stop()
        other.close()


def test_services_of_one_group_are_one_deployment(broker: str) -> None:
    kafka = KafkaSettings(bootstrap_servers=broker)
    lake = group_deployment(kafka, "lake")
    assert lake == group_deployment(kafka.model_copy(update={"commit_topic": "another"}), "lake")
    assert lake != group_deployment(kafka, "another lake")
