"""Threads and time of a history: one thread runs at a time, chosen by the seed; time passes only while all wait.

While `simulated` lasts, `threading`, `time` and pools of threads are those of the schedule, so that code of the product
runs as it is. A process of the history is a group of threads. It can be killed and paused between any two steps.
"""

from __future__ import annotations

import _thread
import concurrent.futures
import gc
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from types import FunctionType
from typing import Any, Final

START: Final = 1_900_000_000.0
"""The time at which a history begins, in seconds since the epoch."""
MOST_SWITCHES: Final = 50_000
"""In one history: one that needs more hangs."""
MOST_LOCKS: Final = 20_000
"""Locks that a thread takes before it waits for anything: one that takes more goes round in circles."""


class KilledError(BaseException):
    """The process is gone; nothing that it would have done happens."""


class HangsError(AssertionError):
    """All threads wait for each other, or one without an end."""


@dataclass(eq=False)
class Process:
    """A process of the history. `dead`: it does nothing any more. `paused_until`: it does nothing before."""

    name: str
    dead: bool = False
    paused_until: float = 0.0
    threads: set[_Task] = field(default_factory=set)

    @property
    def is_over(self) -> bool:
        return not self.threads


@dataclass(eq=False)
class _Task:
    """A thread. `ready`: whether what it waits for is there; `until`: when it stops waiting for that."""

    name: str
    process: Process | None
    ready: Callable[[], bool] = lambda: True
    until: float | None = None
    gate: Any = field(default_factory=_thread.allocate_lock)
    is_over: bool = False

    def is_due(self, now: float) -> bool:
        process = self.process
        if process is not None and process.dead:
            return True
        if process is not None and now < process.paused_until:
            return False
        return (self.until is not None and self.until <= now) or self.ready()

    def wakes_at(self, now: float) -> float:
        paused = self.process.paused_until if self.process is not None else 0.0
        until = float("inf") if self.until is None else self.until
        return paused if now < paused and self.ready() else max(until, paused)


class Schedule:
    """All threads of a history, and its clock."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.now = START
        self._main = self._current = _Task("history", None)
        self._main.gate.acquire()
        self._tasks = [self._main]
        self.patience = 1.0
        """What waits with a time limit waits so many times longer: processes that do nothing look less often."""
        self._switches = self._locks = 0
        self._error: BaseException | None = None

    @property
    def process(self) -> Process | None:
        """The process of the running thread."""
        return self._current.process

    def sleep(self, seconds: float) -> None:
        """Let time pass for the running thread."""
        self.wait(lambda: False, max(0.0, seconds))

    def wait(self, ready: Callable[[], bool], seconds: float | None = None) -> bool:
        """Let others run until it is ready; whether it is.

        Raises:
            KilledError: the process of the running thread was killed.
        """
        task = self._current
        task.ready, task.until = ready, None if seconds is None else self.now + seconds
        self._switch(task)
        if task is self._main and self._error is not None:
            error, self._error = self._error, None
            raise error
        self.check_alive()
        return ready()

    def polls(self, ready: Callable[[], bool], seconds: float | None) -> bool:
        """As `wait`, in a loop that looks at other things too."""
        return self.wait(ready, None if seconds is None else seconds * self.patience)

    def takes_a_lock(self) -> None:
        """Called whenever the running thread does.

        Raises:
            HangsError: it does nothing else.
        """
        self._locks += 1
        if self._locks > MOST_LOCKS:
            raise HangsError("a thread goes round in circles, and waits for nothing")

    def check_alive(self) -> None:
        process = self._current.process
        if process is not None and process.dead:
            raise KilledError

    def start(self, run: Callable[[], object], name: str, process: Process | None) -> _Task:
        """Start a thread; it first runs when the running one waits."""
        task = _Task(name, process)
        task.gate.acquire()
        self._tasks.append(task)
        if process is not None:
            process.threads.add(task)
        _thread.start_new_thread(self._run, (task, run))
        return task

    def _run(self, task: _Task, run: Callable[[], object]) -> None:
        task.gate.acquire()
        try:
            self.check_alive()
            run()
        except KilledError:
            pass
        except BaseException as error:  # noqa: BLE001 - the history raises it
            self._error = self._error or error
        task.is_over = True
        self._tasks.remove(task)
        if task.process is not None:
            task.process.threads.discard(task)
        chosen = self._next()
        self._current = chosen
        chosen.gate.release()

    def _switch(self, task: _Task) -> None:
        chosen = self._next()
        if chosen is task:
            return
        self._current = chosen
        chosen.gate.release()
        task.gate.acquire()

    def _next(self) -> _Task:
        self._switches += 1
        self._locks = 0
        if self._error is not None or self._switches > MOST_SWITCHES:
            self._error = self._error or HangsError("the history does not end")
            return self._main
        due = [each for each in self._tasks if each.is_due(self.now)]
        if not due:
            self.now = max(self.now, min(each.wakes_at(self.now) for each in self._tasks))
            if self.now == float("inf"):
                self._error = HangsError("all threads wait for each other")
                return self._main
            due = [each for each in self._tasks if each.is_due(self.now)]
        return due[0] if len(due) == 1 else self.chance.choice(due)

    def end(self) -> None:
        """End all threads that are left."""
        self._error = None
        for task in self._tasks:
            if task.process is not None:
                task.process.dead = True
        self._switches = 0
        while len(self._tasks) > 1:
            self.wait(lambda: len(self._tasks) == 1)


_RUNNING: list[Schedule] = []


def schedule() -> Schedule:
    """That of the history that is played."""
    return _RUNNING[-1]


class SimulatedThread:
    """In place of `threading.Thread`: a thread of the process that makes it."""

    def __init__(
        self, target: Any = None, args: Any = (), kwargs: Any = None, name: str = "", daemon: bool = True
    ) -> None:
        self._target, self._args, self._kwargs = target, args, kwargs or {}
        self.name, self.daemon = name, daemon
        self.ident: int | None = None
        self._task: _Task | None = None

    def start(self) -> None:
        def run() -> None:
            self._target(*self._args, **self._kwargs)

        plan = schedule()
        self._task = plan.start(run, self.name, plan.process)
        self.ident = id(self)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.is_over

    def join(self, timeout: float | None = None) -> None:
        schedule().wait(lambda: not self.is_alive(), timeout)


class SimulatedEvent:
    """In place of `threading.Event`."""

    def __init__(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._is_set or schedule().polls(self.is_set, timeout)


class SimulatedCondition:
    """In place of `threading.Condition`, with a lock of its own."""

    def __init__(self, lock: Any = None) -> None:
        self._lock = lock or SimulatedLock()
        self._notified = 0

        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __enter__(self) -> bool:
        return bool(self._lock.acquire())

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        before, depth = self._notified, self._lock.give_up()
        try:
            return schedule().polls(lambda: self._notified != before, timeout)
        finally:
            self._lock.take_back(depth)

    def notify(self, _n: int = 1) -> None:
        self._notified += 1

    notify_all = notify


class SimulatedLock:
    """In place of `threading.Lock` and `RLock`."""

    def __init__(self) -> None:
        self._owner: object = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        plan = schedule()
        me = plan._current
        plan.takes_a_lock()
        is_free = self._owner in (None, me)
        if not is_free and not (blocking and plan.wait(lambda: self._owner is None, timeout if timeout >= 0 else None)):
            return False
        self._owner, self._depth = me, self._depth + 1
        return True

    def release(self) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None

    def locked(self) -> bool:
        return self._owner is not None

    def give_up(self) -> int:
        depth, self._depth, self._owner = self._depth, 0, None
        return depth

    def take_back(self, depth: int) -> None:
        plan = schedule()
        if self._owner is not None:
            plan.wait(lambda: self._owner is None)
        self._owner, self._depth = plan._current, depth

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _submitted(_pool: Any, run: Any, /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
    """In place of a pool's `submit`: the work is done at once. What it raises is its outcome, but not a death."""
    done: concurrent.futures.Future[Any] = concurrent.futures.Future()
    try:
        done.set_result(run(*args, **kwargs))
    except KilledError:
        raise
    except BaseException as error:  # noqa: BLE001 - as the pool does
        done.set_exception(error)
    return done


_SIMULATED: Final[tuple[tuple[Any, str, Any], ...]] = (
    (threading, "Thread", SimulatedThread),
    (threading, "Event", SimulatedEvent),
    (threading, "Condition", SimulatedCondition),
    (threading, "Lock", SimulatedLock),
    (threading, "RLock", SimulatedLock),
    (time, "time", lambda: schedule().now),
    (time, "monotonic", lambda: schedule().now),
    (time, "sleep", lambda seconds: schedule().sleep(seconds)),
    (uuid, "uuid4", lambda: uuid.UUID(int=schedule().chance.getrandbits(128), version=4)),
    (secrets, "token_hex", lambda size: f"{schedule().chance.getrandbits(8 * size):0{2 * size}x}"),
)


@contextmanager
def simulated_stdlib() -> Iterator[None]:
    """Histories may be played in this block, by a process that does nothing else."""
    replaced = {getattr(owner, name): each for owner, name, each in _SIMULATED}
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in _SIMULATED]
    pool = concurrent.futures.ThreadPoolExecutor
    before += [(pool, "submit", pool.submit), (pool, "shutdown", pool.shutdown)]
    pool.submit, pool.shutdown = _submitted, lambda *_, **__: None  # type: ignore[method-assign]
    for owner, name, each in _SIMULATED:
        setattr(owner, name, each)
    undo = list(_bound_before(replaced))
    try:
        yield
    finally:
        for each in undo:
            each()
        for owner, name, original in before:
            setattr(owner, name, original)


def _bound_before(replaced: dict[Any, Any]) -> Iterator[Callable[[], None]]:
    """Replace clocks and locks that functions of the product have as defaults; yields what undoes it."""

    def other(value: Any) -> Any:
        try:
            return replaced.get(value, value)
        except TypeError:  # not hashable
            return value

    for function in [each for each in gc.get_objects() if isinstance(each, FunctionType)]:
        if not str(function.__globals__.get("__name__", "")).startswith(("compactor", "streaming")):
            continue
        defaults, named = function.__defaults__, function.__kwdefaults__
        if defaults and any(other(each) is not each for each in defaults):
            function.__defaults__ = tuple(map(other, defaults))
            yield partial(setattr, function, "__defaults__", defaults)
        if named and any(other(each) is not each for each in named.values()):
            function.__kwdefaults__ = {name: other(each) for name, each in named.items()}
            yield partial(setattr, function, "__kwdefaults__", named)
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # empty
                value = cell.cell_contents
                if other(value) is not value:
                    cell.cell_contents = other(value)
                    yield partial(setattr, cell, "cell_contents", value)


@contextmanager
def scheduled(chance: Random) -> Iterator[Schedule]:
    """The schedule of one history."""
    plan = Schedule(chance)
    _RUNNING.append(plan)
    try:
        yield plan
    finally:
        try:
            plan.end()
        finally:
            _RUNNING.pop()
