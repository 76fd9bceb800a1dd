"""One history: services that look, rewrite, commit, stop, die and are swept, beside others, until all settles."""

from __future__ import annotations

import json
import traceback
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from random import Random
from typing import Any, Final

from compactor.commit.sweep import MOST_SETTLE_SECONDS
from compactor.errors import RetryError
from compactor.lease.owner import Owner
from compactor.locations import attempt_location
from compactor.reasons import Reason
from tests.simulator.catalogs import forget
from tests.simulator.java import UNAVAILABLE
from tests.simulator.java_objects import JavaError
from tests.simulator.profiles import profile_of
from tests.simulator.schedule import Process, scheduled
from tests.simulator.service import LEASE_SECONDS, Service
from tests.simulator.store import StateInMemory
from tests.simulator.world import Request, ViolationError, World
from tests.simulator.writers import Writers

MOST_ACTS: Final = 25
"""Of others in one history, before all settles: beyond, it takes time and finds little."""
PAUSES: Final = (LEASE_SECONDS / 2, LEASE_SECONDS + 5.0, LEASE_SECONDS + 5.0, 2 * LEASE_SECONDS, 600.0)
"""Seconds. In the second and third, one sweep may take the process for dead before it goes on."""
CATALOG: Final = ("load", "load in Java", "refresh", "apply", "send")
"""Steps that need it."""
MOST_OFF_SECONDS: Final = 60.0
MOST_SECONDS: Final = {"stop": 60.0, "debt": 6 * 3600.0, "commit": 660.0}
"""Bounds: of a stop, of the time in which debt is paid once faults have ended, and of the time from a run's last output
to its commit or its failure: ten minutes, and what the calls take, beside twice the hold.
"""


@lru_cache(256)
def _record(content: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(content)
    return found


@dataclass
class History:
    """The history of a seed. `end`: what happened in it, counted."""

    seed: int
    events: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.chance = Random(self.seed)
        self.profile = profile_of(self.chance)
        self.services: list[tuple[Service, Process]] = []
        self.ending, self.steps_left, self.aim = "", 0, ""
        self.last, self.down_until = "", 0.0
        self.quiet = False
        self.acting = False
        self.state = StateInMemory()
        self.frozen: dict[str, bytes] = {}
        self.waits: dict[str, float] = {}
        self.silent: set[str] = set()
        self.acts = 0

    def play(self) -> None:
        """Play it.

        Raises:
            ViolationError: an invariant does not hold; the text tells the history.
        """
        chance = self.chance
        with scheduled(chance) as plan:
            self.plan = plan
            profile = self.profile
            kind, version = chance.choice(profile.kinds), chance.choice(profile.versions)
            self.world = World(chance, kind, version, plan, profile, faults=chance.choice(profile.faults))
            self.world.cluster = bool(self.world.faults) and chance.random() < profile.cluster
            self.world.store.use()
            self.world.store.before = self.at_the_store
            self.rush, self.leased = chance.choice(profile.rush), chance.random() < profile.leased
            self.settings = profile.settings(chance)
            self.writers = Writers(self.world, mixed=chance.random() < profile.mixed)
            try:
                self._play()
            except ViolationError:
                raise
            except Exception as error:
                self.world.violated("".join(traceback.format_exception(error)))
                raise ViolationError(self.told) from error
            finally:
                forget()
        if self.world.violation:
            raise ViolationError(self.told)

    @property
    def told(self) -> str:
        """What has happened, a line each."""
        world = self.world
        head = f"seed {self.seed} ({self.profile.name}, {world.kind}, V{world.first_version}): {world.violation}"
        return f"{head}\n  " + "\n  ".join(world.story)

    def _play(self) -> None:
        for _ in range(self.chance.randint(2, 4)):
            self.writers.send("append", self.writers.append())
        for _ in range(self.chance.choice(self.profile.before)):
            self.writers.act(gently=True)
        for _ in range(self.chance.choice((1, 1, 2))):
            self._phase()
            if self.world.violation:
                return
        self._settle()

    # --- what happens meanwhile ---------------------------------------------------------------------------------------

    def step(self, what: str) -> None:
        """At each call of catalog, store or executors: others act, faults happen, the process may die."""
        plan = self.plan
        plan.check_alive()
        process, self.last = plan.process, what
        if process is not None and not self.acting:
            self.acting = True
            if what == "job done":
                self._clean()
            elif what == "send":
                self._check_on(process)
            self._others(self.rush * (3 if what == "apply" else 1))  # no moment is as delicate
            self.acting = False
            plan.sleep(self.chance.choice((0.0, 0.05, 0.2)))
            if self.steps_left and process is self.services[-1][1] and self.aim in ("", what):
                self.steps_left -= 1
                if not self.steps_left:
                    self._end_now()
                    plan.sleep(0.0)
            self._fault(what)

    def at_the_store(self, what: str, path: str) -> None:
        self.plan.check_alive()
        if what == "create" and "/data/" in path and self.plan.process is not None:
            self._is_on_record(path)
        if what in ("create", "delete"):
            self.step(what)
        elif "firnline-" in path:
            self.step("check" if self.last in ("applied", "check") else "look")
        if path in self.silent and self.plan.process is not None:
            raise OSError("no answer")
        if self.world.faults and self.plan.process is not None and self.chance.random() < 0.02 * self.world.faults:
            raise OSError("503 Slow Down")

    def _is_on_record(self, path: str) -> None:
        records = [_record(content) for name, content in self.state.files.items() if name.endswith(".json")]
        of_run = next(
            (each for each in records if each["run_id"] in path), {"files": (), "prefixes": (), "attempts": 1}
        )
        names = [attempt_location(file, number) for file in of_run["files"] for number in range(of_run["attempts"])]
        if path not in names and not path.startswith(tuple(of_run["prefixes"])):
            self.world.violated(f"{path} is written, and is on no record")

    def _fault(self, what: str) -> None:
        is_down = self.plan.now < self.down_until and what in CATALOG
        if not is_down and self.chance.random() >= 0.04 * self.world.faults:
            return
        self.world.tell(f"no answer: {what}")
        if what == "load":
            raise RetryError("the catalog does not answer", reason=Reason.CATALOG_UNAVAILABLE)
        if what in ("refresh", "apply", "load in Java", "applied", "send"):
            raise JavaError(UNAVAILABLE, "503")
        if what == "confirm":
            raise RetryError("the lease store does not answer")
        if what in ("create", "delete"):
            raise OSError("503 Slow Down")

    def _others(self, how_often: float) -> None:
        if self.quiet or self.acts >= MOST_ACTS or self.chance.random() >= how_often:
            return
        self.acts += 1
        if self.world.pending and self.chance.random() < self.profile.arrives:
            self._arrives(self.chance.choice(self.world.pending))
        elif self.world.faults and self.chance.random() < self.profile.silent:
            self._silence()
        elif self.world.faults and self.chance.random() < self.profile.outages:
            self._goes_down()
        elif self.chance.random() < self.profile.switches:
            self._switch()
        else:
            self.writers.act()

    def _goes_down(self) -> None:
        """The catalog answers no more for a while."""
        seconds = self.chance.choice((20.0, 200.0, 900.0))
        self.down_until = self.plan.now + seconds
        self.world.tell(f"the catalog does not answer for {seconds:.0f} s")

    def _switch(self) -> None:
        """Somebody switches the table off, or pauses it, or takes that back."""
        life = self.services[-1][0].life
        if life.is_off:
            life.enabled, life.paused = True, False
        elif self.chance.random() < 0.5:
            life.enabled = False
        else:
            life.paused = True
        life.since = self.plan.now
        self.world.tell(f"the table is {'off' if life.is_off else 'on'}")

    def _check_on(self, process: Process) -> None:
        """Nothing is sent for a table that is off: processes look every few seconds."""
        life = next(service.life for service, each in self.services if each is process)
        if life.is_off and self.plan.now - life.since > MOST_OFF_SECONDS and self.plan.patience == 1.0:
            self.world.violated("a commit is sent, although the table was switched off long ago")

    def _clean(self) -> None:
        """A program that removes orphan files takes one that is not committed yet."""
        if self.world.faults and self.chance.random() < 0.03:
            needed = frozenset[str]().union(*(each.files for each in self.world.state.snapshots.values()))
            pending = frozenset[str]().union(*(each.snapshot.files for each in self.world.pending))
            orphans = [path for path in self.world.store.files if "firnline-" in path and path not in needed | pending]
            if orphans:
                path = self.chance.choice(orphans)
                del self.world.store.files[path]
                self.world.tell(f"{path} is taken for an orphan")

    def _silence(self) -> None:
        """The store does not answer for some data files any more, or for all again."""
        head = self.world.state.newest
        files = sorted(head.data) if head else []
        if self.silent or not files:
            self.silent.clear()
        else:
            self.silent.update(self.chance.sample(files, self.chance.randint(1, len(files))))
        self.world.tell(f"the store does not answer for {len(self.silent)} files")

    def _arrives(self, request: Request) -> None:
        landed = self.world.arrives(request)
        request.copies -= 1
        if not request.copies:
            self.world.pending.remove(request)
        self.world.tell(f"{request.snapshot.name} arrives: {'it lands' if landed else 'refused'}")

    # --- processes ----------------------------------------------------------------------------------------------------

    def _start(self) -> Service:
        service, process = self._service()
        self.plan.start(service.run, process.name, process)
        self.world.tell(f"{process.name} starts on {service.owner.host}")
        return service

    def _service(self) -> tuple[Service, Process]:
        """The next one, which does nothing yet."""
        number = len(self.services) + 1
        host = "here" if self.chance.random() >= self.profile.hosts or not self.services else f"host-{number}"
        owner = Owner(host, "boot", "ns", number, str(number))
        service = Service(self.world, self.plan, self.settings, self.state, owner, self.step, self.waited)
        self.services.append((service, Process(f"service-{number}")))
        return self.services[-1]

    def waited(self, what: str, seconds: float) -> None:
        """Note the longest, and check its bound, unless processes look less often, or this one was paused."""
        process = self.plan.process
        if what == "commit" and (self.plan.patience > 1.0 or (process is not None and process.paused_until)):
            return
        self.waits[what] = max(self.waits.get(what, 0.0), seconds)
        if seconds > MOST_SECONDS[what]:
            self.world.violated(f"{what} took {seconds:.0f} s")

    def is_dead(self, owner: Owner) -> bool | None:
        """As a sweep of the running process sees it."""
        asking = next(service for service, process in self.services if process is self.plan.process)
        if owner.host != asking.owner.host:
            return None
        return self.services[owner.pid - 1][1].is_over

    def _kill(self, process: Process) -> None:
        self.world.tell(f"{process.name} is killed")
        self.events["killed"] += 1
        self.frozen = dict(self.state.files)
        process.dead = True

    def _bury(self, process: Process) -> None:
        """Wait until the threads of a killed process have gone, and forget what they wrote meanwhile."""
        self.plan.wait(lambda: process.is_over)
        self.state.files.clear()
        self.state.files.update(self.frozen)

    def _phase(self) -> None:
        """A service works for a while; then it is stopped, killed, or paused until another has taken over."""
        service = self._start()
        process = self.services[-1][1]
        self.ending = self.chance.choices(["stop", "kill", "pause"], self.profile.ends)[0]
        self.aim = self.chance.choice(self.profile.aims)
        if self.ending != "stop":
            self.steps_left = self.chance.randint(1, 2 if self.aim else 60)
        for _ in range(self.chance.randint(1, 4)):
            self.plan.wait(lambda: process.dead or bool(process.paused_until), self.chance.choice(self.profile.works))
            self._others(0.7)
        if self.ending == "stop":
            service.life.stopping, began = True, self.plan.now
            self.plan.wait(lambda: process.is_over, 60.0)
            self.waited("stop", self.plan.now - began)
            self._stopped(service, process)
        elif self.steps_left:
            self._end_now()
        if process.dead:
            self._bury(process)
        elif process.paused_until > self.plan.now and self.chance.random() < self.profile.looked_at:
            self._sweep(LEASE_SECONDS + 1.0)

    def _end_now(self) -> None:
        """The newest service is killed, or paused."""
        self.steps_left = 0
        service, process = self.services[-1]
        if self.ending == "kill":
            self._kill(process)
            return
        process.paused_until = self.plan.now + self.chance.choice(PAUSES)
        service.life.fenced = self.leased
        self.events["paused"] += 1
        self.world.tell(f"{process.name} is paused until {process.paused_until - 1_900_000_000:.0f}")

    def _stopped(self, service: Service, process: Process) -> None:
        if process.is_over:
            self.events["stopped"] += 1
            return
        if not service.life.ended:
            self.world.violated(f"{process.name} did not stop within a minute")
        self._kill(process)
        self._bury(process)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Faults end, all that is on its way arrives, writers go on: debt is paid, and nothing is left behind."""
        world = self.world
        for _ in range(self.chance.choice(self.profile.sweeps)):
            seconds = self.chance.choice((15.0, 3600.0, 86_400.0))
            self.plan.patience = max(1.0, seconds / 20)
            self._sweep(seconds)
            self._others(0.5)
        for service, process in self.services:
            service.life.stopping = True
            process.paused_until = min(process.paused_until, self.plan.now)
        world.faults = self.down_until = 0.0
        self.silent.clear()
        while world.pending:
            self._arrives(self.chance.choice(world.pending))
        self.writers.finish()
        if "audit" in world.state.branches:
            self.writers.publish()
        self.quiet, self.plan.patience = True, 30.0
        self.plan.wait(lambda: all(process.is_over for _, process in self.services), 3600.0)
        if not all(process.is_over for _, process in self.services):
            world.violated("a service does not end")
            return
        if self.chance.random() < self.profile.experiment:
            self._experiment()
        elif self.chance.random() < self.profile.paid:
            self._pay()
        if world.violation:
            return
        self._nothing_is_left()

    def _experiment(self) -> None:
        """A branch is written for more than a week; then main is rewritten all the same."""
        for _ in range(2):
            self.writers.send("append", self.writers.append())
        for _ in range(17):
            self.writers.commit_to("experiment")
            self.plan.sleep(43_200.0)
        self.events["experiment"] += 1
        self._pay(beside_writers=False)
        self.world.branch("experiment", None)

    def _pay(self, *, beside_writers: bool = True) -> None:
        """A service that nothing disturbs pays the debt, and then does nothing more."""
        service, world = self._start(), self.world
        self.plan.sleep(60.0)
        if beside_writers:
            self.writers.act(gently=True)
        began = self.plan.now
        if not self.plan.wait(lambda: self._is_paid(service), MOST_SECONDS["debt"]):
            world.violated(f"debt is not paid: {service.debt}")
        self.waited("debt", self.plan.now - began)
        self._nothing_more_is_done()
        service.life.stopping = True
        if not self.plan.wait(lambda: self.services[-1][1].is_over, 120.0):
            world.violated("the last service does not stop")

    def _nothing_more_is_done(self) -> None:
        """Our own commits make no work: beside no writer, a service commits nothing more."""
        self.plan.patience = 120.0
        self.plan.sleep(3600.0)  # partitions become due by time, once
        before = self.world.landed["ours"]
        self.plan.sleep(3600.0)
        if self.world.landed["ours"] > before:
            self.world.violated(f"{self.world.landed['ours'] - before} more commits although nothing is due")

    def _is_paid(self, service: Service) -> bool:
        known = service.board.tables()
        return service.debt is not None and bool(known) and not known[0].has_work

    def _nothing_is_left(self) -> None:
        """Once writers have gone on, and old snapshots have expired, no record and no file of ours is left."""
        for _ in range(12):
            service = self._sweep(MOST_SETTLE_SECONDS / 2)
            self.writers.send("append", self.writers.append())
            self.world.expire(2, self.plan.now)
            if not self._left(service):
                return
        self.world.violated(f"left behind: {self._left(service)}")

    def _sweep(self, seconds: float) -> Service:
        """After so many seconds another process looks at the records, and ends."""
        self.plan.sleep(seconds)
        service, process = self._service()
        self.plan.start(service.sweep, process.name, process)
        self.plan.wait(lambda: process.is_over)
        return service

    def _left(self, service: Service) -> list[str]:
        needed = frozenset[str]().union(*(each.files for each in self.world.state.snapshots.values()))
        ours = (path for path in self.world.store.files if "firnline-" in path and path not in needed)
        return [*(record.run_id for record in service.records.all()), *ours]
