"""What the pages and the gauges show of the service and its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from compactor.runs.dispatcher import Work
from compactor.runs.pauses import Pause
from compactor.shards import Shard
from compactor.table_names import TableName


@dataclass(frozen=True)
class Health:
    """Whether the service is alive and ready. `details`: each failing part with the reason.

    `active`: whether it may commit; False for a standby. `deployment`: the id in its commits.
    """

    live: bool
    ready: bool
    details: dict[str, str] = field(default_factory=dict)
    active: bool = True
    deployment: str = ""


@dataclass(frozen=True)
class Counting:
    """Progress of the first count: tables counted since the start, of the tables found by sweeps."""

    counted: int
    found: int

    @property
    def left(self) -> int:
        """Tables that were not looked at yet."""
        return max(0, self.found - self.counted)


@dataclass(frozen=True)
class SlotUse:
    """Slots, and the executors that they follow from, at one moment.

    Attributes:
        slots: Rewrite tasks that may run at once.
        in_use: Slots that runs hold. Above `slots` for a while after the cluster has shrunk.
        waiting_runs: Runs that wait for a slot.
        cores: Tasks that all executors run at once.
        host_tasks: Running tasks by host, with those of the stream.
    """

    slots: int = 0
    in_use: int = 0
    waiting_runs: int = 0
    cores: int = 0
    executors: int = 0
    host_tasks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class StateSpace:
    """Free bytes of the volume with the ledger's state. `unsaved`: the state of the last look could not be saved."""

    unsaved: bool = False
    free_bytes: int = 0


@dataclass(frozen=True)
class Memory:
    """Resident bytes by kind of process, and bytes that processes may still take; empty and None where none tells."""

    resident: Mapping[str, int] = field(default_factory=dict)
    free: int | None = None


class ServiceView(Protocol):
    """The service as it is now. `shard`: the part of the tables that is its own."""

    observing: bool
    shard: Shard

    @property
    def health(self) -> Health: ...

    @property
    def ready(self) -> bool:
        """As `health` says."""
        ...

    @property
    def active(self) -> bool:
        """Whether it may commit."""
        ...

    @property
    def work(self) -> Work: ...

    @property
    def counting(self) -> Counting | None:
        """None until a catalog was listed."""
        ...

    @property
    def rewriting(self) -> SlotUse: ...

    @property
    def space(self) -> StateSpace | None:
        """None before the ledger has started."""
        ...

    @property
    def memory(self) -> Memory: ...

    @property
    def settings_refused(self) -> bool:
        """Whether the settings file as it is now is not in force."""
        ...

    @property
    def unreadable(self) -> int:
        """In-flight records that were set aside."""
        ...

    @property
    def waiting_looks(self) -> Mapping[str, int]:
        """Tables that wait for a look, by catalog."""
        ...

    @property
    def listed(self) -> Mapping[str, bool]:
        """For each catalog whether its last listing succeeded."""
        ...

    @property
    def current_pauses(self) -> Sequence[Pause]: ...

    def paused(self, table: TableName) -> bool: ...

    def held_until(self, table: TableName) -> float:
        """When the table was paused last, in seconds since the epoch; 0 if it was not within a day."""
        ...

    def open_seconds(self, since: float, now: float) -> float:
        """Seconds between two moments outside quiet hours."""
        ...
