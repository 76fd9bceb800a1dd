"""The services of one shard group find each other through Kafka's consumer-group protocol.

Each service is a consumer of the group that is assigned no partition: nothing is fetched, no offset is written. The
group's leader answers each member with the names of all members; every service then computes its tables itself
(`compactor/shards.py`). What a service may do when is decided in `membership.py`.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from kafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from kafka.errors import (
    GroupAuthorizationFailedError,
    GroupMaxSizeReachedError,
    InconsistentGroupProtocolError,
    InvalidSessionTimeoutError,
    TopicAuthorizationFailedError,
)
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from kafka.structs import MemberState

from compactor.settings.kafka import KafkaSettings
from compactor.shards import Shard
from streaming.kafka.clients import cluster_id, consumer_client
from streaming.kafka.membership import HEARTBEAT_SECONDS, NO_GENERATION, SESSION_SECONDS, Membership

LOG = logging.getLogger("firnline")
GROUP_PREFIX = "firnline-shards-"
PROTOCOL = "firnline-shards-1"  # the number changes with the user data; all members of a group must offer the same
METADATA_VERSION = 0
POLL_MS = 500
RETRY_SECONDS = 5.0
CLOSE_MS = 5_000
STOP_SECONDS = 15.0
HOST_LETTERS = 63  # the longest DNS label


def group_id(shard_group: str) -> str:
    """The consumer group of `service.shard_group`."""
    return GROUP_PREFIX + shard_group


def member_name(checkpoint: str, host: str | None = None) -> str:
    """The name of this service in its group: its host (in Kubernetes, its pod) and a hash of its checkpoint's URI.

    The pod of a StatefulSet keeps both over restarts, so it keeps its tables. Two services on one host have two
    checkpoints, so two names.
    """
    return f"{(host or socket.gethostname())[:HOST_LETTERS]}-{zlib.crc32(checkpoint.encode()):08x}"


def group_deployment(kafka: KafkaSettings, shard_group: str) -> str:
    """The deployment id of all services of a group: groups of one name on other brokers have another.

    Raises:
        RetryError: no broker answers.
    """
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"kafka:{cluster_id(kafka)}/{group_id(shard_group)}"))


def distinct(names: Mapping[str, str]) -> dict[str, str]:
    """Names by member id, made different where two members have one: `lake-0`, `lake-0~2`."""
    seen: dict[str, int] = {}
    made: dict[str, str] = {}
    for member_id in sorted(names):
        name = names[member_id]
        seen[name] = seen.get(name, 0) + 1
        made[member_id] = name if seen[name] == 1 else f"{name}~{seen[name]}"
    return made


class MemberAssignor(AbstractPartitionAssignor):  # type: ignore[misc]
    """Tell every member of the group the names of all. Assign no partition."""

    def __init__(self, name: str, joined: Callable[[str, tuple[str, ...], int, float], None]) -> None:
        """`joined` gets this member's name, those of all, the generation, and when this member asked to join it."""
        self._name = name
        self._joined = joined
        self._asked = float("-inf")

    @property
    def name(self) -> str:
        return PROTOCOL

    def metadata(self, topics: Any) -> ConsumerProtocolSubscription:
        """Called for each request to join."""
        self._asked = time.monotonic()
        return ConsumerProtocolSubscription(METADATA_VERSION, sorted(topics), self._name.encode())

    def assign(self, cluster: Any, members: Any) -> dict[str, ConsumerProtocolAssignment]:  # noqa: ARG002 - kafka-python's interface
        """Called on the group's leader only."""
        names = distinct({member.member_id: bytes(member.metadata.user_data).decode() for member in members})
        everybody = sorted(names.values())
        return {
            member_id: ConsumerProtocolAssignment(
                METADATA_VERSION, [], json.dumps({"me": name, "members": everybody}).encode()
            )
            for member_id, name in names.items()
        }

    def on_assignment(self, assignment: Any, generation: int) -> None:
        told = json.loads(bytes(assignment.user_data))
        self._joined(told["me"], tuple(told["members"]), generation, self._asked)


class ShardGroup:
    """This service's membership of a shard group, kept by a thread of its own."""

    def __init__(
        self,
        kafka: KafkaSettings,
        shard_group: str,
        me: str,
        on_change: Callable[[Shard], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_change` is called from this group's thread whenever `current` changes: when others join or leave, and
        when this service has settled or is cut off. It must return within a second: the thread keeps the membership.

        `clock`: seconds; must go on while the process is paused, and agree with kafka-python's `time.monotonic`.
        """
        self._kafka = kafka
        self._group = group_id(shard_group)
        self._shard_group = shard_group
        self._on_change = on_change
        self._clock = clock
        self._lock = threading.Lock()
        self._me = me
        self._membership = Membership(me)
        self._reported = self._membership.shard(clock())
        self._problem = ""
        self._alone = False
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shard-group", daemon=True)

    def start(self) -> None:
        """Begin to join. Returns at once and raises nothing: what is wrong is in `trouble`."""
        self._thread.start()

    def stop(self) -> None:
        """Leave the group, so that the others take our tables at once. Call it when the last run has ended."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)

    @property
    def current(self) -> Shard:
        """What this service takes care of now. Ask before each decision: it can become less as time passes."""
        return self._now().shard(self._clock())

    @property
    def joined(self) -> bool:
        """Whether this service is a member of the group. Until it has settled it is one and owns nothing."""
        return self._now().joined(self._clock())

    @property
    def members(self) -> tuple[str, ...]:
        """Names of all members; empty while this service is none."""
        membership = self._now()
        return membership.members if membership.joined(self._clock()) else ()

    @property
    def trouble(self) -> str:
        """Why this service is not a member, with the remedy; empty while it is one."""
        if self.joined:
            return ""
        cause = self._problem or "no answer from the group's coordinator; check that the Kafka brokers are up"
        return f"not a member of shard group {self._shard_group}, so it takes care of no table: {cause}"

    def _now(self) -> Membership:
        with self._lock:
            return self._membership.loses() if self._ending.is_set() else self._membership

    def _run(self) -> None:
        while not self._ending.is_set():
            consumer = None
            try:
                self._alone = False
                consumer = self._consumer()
                self._keep(consumer)
            except Exception as error:  # noqa: BLE001 - the service stays up, and reports it
                self._fail(error)
            finally:
                if consumer is not None:
                    _close(consumer)
            with self._lock:
                self._membership = self._membership.loses()
            self._report()
            self._ending.wait(RETRY_SECONDS)

    def _keep(self, consumer: Any) -> None:
        """Stay a member. Ends, or raises an error, only once this service is none: a new consumer then joins again."""
        while not self._ending.is_set() and not self._gave_up_alone(consumer):
            try:
                consumer.poll(timeout_ms=POLL_MS)
            except Exception as error:
                if not self.joined:
                    raise
                self._fail(error)
                self._ending.wait(POLL_MS / 1000)
            self._look(consumer)
            self._report()

    def _consumer(self) -> Any:
        own = {
            "group_id": self._group,
            "enable_auto_commit": False,
            "allow_auto_create_topics": False,
            "partition_assignment_strategy": [MemberAssignor(self._me, self._join)],
            "session_timeout_ms": int(SESSION_SECONDS * 1000),
            "max_poll_interval_ms": int(SESSION_SECONDS * 1000),  # also the longest time of a rebalance
            "heartbeat_interval_ms": int(HEARTBEAT_SECONDS * 1000),
        }
        return consumer_client(self._kafka, self._kafka.commit_topic, **own)

    def _join(self, me: str, members: tuple[str, ...], generation: int, asked: float) -> None:
        with self._lock:
            self._membership = self._membership.joins(me, members, generation, asked, self._clock())
            self._problem = ""
        LOG.info("shard group %s: %d members: %s; this is %s", self._shard_group, len(members), ", ".join(members), me)

    def _look(self, consumer: Any) -> None:
        """Take over what the consumer's heartbeats have found out."""
        sent, expelled = _heartbeat_sent(consumer), consumer.group_metadata().generation_id == NO_GENERATION
        with self._lock:
            membership = self._membership.loses() if expelled else self._membership
            self._membership = membership.hears(sent).ticks(self._clock())

    def _gave_up_alone(self, consumer: Any) -> bool:
        """Whether this service gave up its tables although the broker kept it in the group, as after a short outage.

        No new generation will then tell it the members. True at the second call: the first may come while the consumer
        takes over a new generation.
        """
        ours, seen = self._now().generation, consumer.group_metadata()
        alone = ours == NO_GENERATION and seen.generation_id != NO_GENERATION and seen.state == MemberState.STABLE
        before, self._alone = self._alone, alone
        return alone and before

    def _report(self) -> None:
        shard = self.current
        if shard != self._reported:
            self._reported = shard
            self._on_change(shard)

    def _fail(self, error: Exception) -> None:
        problem = _explained(error, self._group, self._kafka)
        if problem != self._problem:
            LOG.warning("shard group %s: %s", self._shard_group, problem)
        self._problem = problem


def _heartbeat_sent(consumer: Any) -> float:
    """When the last heartbeat that the broker has accepted was sent; minus infinity if none was since the last one.

    kafka-python has no public access to it.
    """
    heartbeat = consumer._coordinator.heartbeat  # noqa: SLF001
    received = heartbeat.last_receive  # read first: a heartbeat sent meanwhile is then not taken for an accepted one
    sent: float = heartbeat.last_send
    return sent if received >= sent else float("-inf")


def _close(consumer: Any) -> None:
    try:
        consumer.close(autocommit=False, timeout_ms=CLOSE_MS)
    except Exception as error:  # noqa: BLE001 - the broker removes a silent member by itself
        LOG.warning("the shard group's consumer did not close: %s", error)


def _explained(error: Exception, group: str, kafka: KafkaSettings) -> str:
    if isinstance(error, GroupAuthorizationFailedError):
        return f"the broker does not allow this principal to READ group {group}; allow READ on it"
    if isinstance(error, TopicAuthorizationFailedError):
        return (
            f"the broker does not allow this principal to DESCRIBE topic {kafka.commit_topic}; allow READ on the topic"
        )
    if isinstance(error, InconsistentGroupProtocolError):
        return (
            f"group {group} has members that are no firnline services, or of a version that cannot share with this "
            "one; choose another service.shard_group, or stop the services of the other version"
        )
    if isinstance(error, InvalidSessionTimeoutError):
        return (
            f"the broker does not accept a session of {SESSION_SECONDS:.0f} s; set its group.min.session.timeout.ms "
            "and group.max.session.timeout.ms so that it does"
        )
    if isinstance(error, GroupMaxSizeReachedError):
        return f"group {group} is full; raise the broker's group.max.size or run fewer services"
    return f"{type(error).__name__}: {error}; check kafka.bootstrap_servers and that the brokers are up"
