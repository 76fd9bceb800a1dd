"""The lease of this process: wait for it as standby, renew it, confirm it before each commit, give it back.

What is decided here by the clock is decided in decisions.py; that two processes never hold the lease together follows
from there and from the store's conditional writes.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from compactor.errors import RetryError, StoppedError
from compactor.lease.decisions import POLL_SECONDS, RENEW_SECONDS, TAKEOVER_SECONDS, VALID_SECONDS, Watch, is_valid
from compactor.lease.document import Lease, decode, encode
from compactor.lease.owner import Owner
from compactor.lease.right import CommitRight
from compactor.lease.store import LeaseStore, Version
from compactor.reasons import Reason

LOG = logging.getLogger("firnline")
_TRIES = 3


def steady() -> float:
    """Seconds of a clock that nobody sets, and that goes on while the process or (on Linux) the machine sleeps."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


@dataclass(frozen=True)
class _Held:
    """The lease as last written. `began`: the moment before that write, by the steady clock."""

    lease: Lease
    version: Version
    began: float


class LeaseHolder:
    """One process' side of the lease on a checkpoint. Thread-safe, but `acquire` is called by one thread, once."""

    def __init__(
        self,
        store: LeaseStore,
        *,
        deployment: str = "",
        owner: Owner | None = None,
        clock: Callable[[], float] = steady,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`deployment`: the id of the deployment; empty: the one in the document, at first a new one."""
        self._store = store
        self._mine = Lease(0, 0, str(uuid.uuid4()), owner or Owner.this_process(), 0.0, deployment)  # not yet taken
        self._clock = clock
        self._wall_clock = wall_clock
        self._watch = Watch()
        self._waiting = ""
        self._held: _Held | None = None
        self._lost = ""
        self._problem = ""
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    # --- as standby ---

    def acquire(self, waits: Callable[[], object] = lambda: None) -> None:
        """Wait until this process holds the lease; from then on it is renewed.

        `waits`: called after each look at which another process holds it, i.e. every `POLL_SECONDS`. It must not raise.

        Raises:
            RetryError: the store does not answer at the first look. Later failures are logged and tried again.
        """
        try:
            held = self.look()
        except OSError as error:
            raise self._unavailable(error) from error
        if not held:
            LOG.info(
                "%s. This service waits, and takes over when that one stops or was silent for %.0f s",
                self._waiting, TAKEOVER_SECONDS,
            )  # fmt: skip
        while not held:
            waits()
            self._ending.wait(POLL_SECONDS)
            held = self._looked()
        self._waiting = ""
        self._thread.start()
        if self._held is not None:
            lease = self._held.lease
            LOG.info("active: lease %s, token %d, deployment %s", self._store.location, lease.token, lease.deployment)

    def look(self) -> bool:
        """One look of a standby; True: this process holds the lease now.

        Raises:
            OSError: the store does not answer, or refuses.
        """
        stored = self._store.read()
        now = self._clock()  # after the answer: see decisions.py
        content, version = (stored.content, stored.version) if stored is not None else (None, None)
        lease = decode(content) if content is not None else None
        self._watch = self._watch.sees(content, now)
        dead = lease is not None and lease.owner.is_dead() is True
        ours = lease is not None and lease.holder == self._mine.holder  # an earlier try's answer was lost
        if ours or self._watch.may_take(lease, now, owner_dead=dead):
            return self._take(lease, version)
        self._waiting = f"standby: {lease or 'the holder of a lease that cannot be read is active'}"
        return False

    def _looked(self) -> bool:
        """A look whose failure is only noted."""
        held, problem = False, ""
        try:
            held = self.look()
        except OSError as error:
            problem = str(error)
        self._note(problem)
        return held

    def _take(self, before: Lease | None, version: Version | None) -> bool:
        """Try to become the holder after `before`; False if another process was faster."""
        began = self._clock()
        token, deployment = (before.token, before.deployment) if before else (0, "")
        deployment = self._mine.deployment or deployment or str(uuid.uuid4())
        lease = replace(self._mine, token=token + 1, since=self._wall_clock(), deployment=deployment)
        taken = self._store.replace(encode(lease), version)
        if taken is None or not self._stands(lease):
            self._watch = Watch()
            return False
        self._held = _Held(lease, taken, began)
        return True

    def _stands(self, lease: Lease) -> bool:
        """Whether our document stands: without conditional writes it may be overwritten within seconds."""
        if self._store.conditional:
            return True
        self._ending.wait(RENEW_SECONDS)
        stored = self._store.read()
        return stored is not None and stored.content == encode(lease)

    # --- as holder ---

    @property
    def right(self) -> CommitRight:
        """What runs ask before each commit. Call it when the lease is held."""
        lease = self._held.lease if self._held is not None else None
        return CommitRight(lease.deployment if lease else self._mine.deployment, self.confirm, self._lost_error)

    def confirm(self) -> None:
        """Renew the lease now: when this returns, no other process may act for `VALID_SECONDS`.

        Raises:
            StoppedError: another process has taken over, or the lease was given back.
            RetryError: the store does not answer.
        """
        with self._locked():
            for _ in range(_TRIES):
                try:
                    held = self._renewed()
                except OSError as error:
                    raise self._unavailable(error) from error
                if is_valid(held.began, self._clock()):  # not paused since the renewal
                    return
        raise self._unavailable("renewing it takes longer than it is valid")

    def check(self) -> None:
        """Raise if this process has lost the lease; asks nobody.

        Raises:
            RetryError: the service must end; started again, it waits as standby.
        """
        if self._lost:
            raise RetryError(self._lost, reason=Reason.LEASE_LOST)

    def release(self) -> None:
        """Give the lease back, so that a standby takes over at once. Call it when nothing can be committed any more."""
        self._ending.set()
        if self._thread.ident is not None:
            self._thread.join(VALID_SECONDS / 6)
        with suppress(RetryError), self._locked(VALID_SECONDS / 6):
            held, self._held = self._held, None
            if held is not None and not self._lost:
                with suppress(OSError):
                    self._store.replace(encode(held.lease.given_back()), held.version)

    # --- for the pages ---

    @property
    def active(self) -> bool:
        """Whether this process holds the lease, and could renew it in time."""
        held = self._held
        return held is not None and not self._lost and is_valid(held.began, self._clock())

    @property
    def waiting(self) -> str:
        """Who is active while this process is standby; else empty."""
        return self._waiting

    @property
    def trouble(self) -> str:
        """Why this process may not commit although it was active; else empty."""
        if self._held is None or self.active:
            return ""
        return self._lost or f"{self._problem or 'it could not be renewed in time'}; nothing is committed until it can"

    @property
    def token(self) -> int:
        """The fencing token; 0 while the lease is not held."""
        return 0 if (held := self._held) is None else held.lease.token

    @property
    def deployment(self) -> str:
        """The id of the deployment; empty before the lease was held."""
        return "" if (held := self._held) is None else held.lease.deployment

    def _keep(self) -> None:
        """Renew the lease until it is lost or given back."""
        problem = ""
        while not self._ending.wait(POLL_SECONDS if problem else RENEW_SECONDS):
            problem = ""
            try:
                self.confirm()
            except StoppedError:
                return
            except RetryError as error:
                problem = str(error)
            self._note(problem)

    def _renewed(self) -> _Held:
        """Renew once; called with the lock.

        Raises:
            StoppedError: the lease is another's.
            OSError: the store does not answer.
        """
        held = self._held
        if self._lost or held is None:
            raise self._lost_error() or StoppedError("the lease was given back", reason=Reason.LEASE_LOST)
        current, version = held.lease, held.version
        for _ in range(_TRIES):
            began, lease = self._clock(), current.renewed()
            written = self._store.replace(encode(lease), version)
            if written is not None:
                self._held = _Held(lease, written, began)
                return self._held
            stored = self._store.read()
            found = decode(stored.content) if stored is not None else None
            if stored is None or found is None or found.holder != self._mine.holder:
                raise self._loses(found)
            current, version = found, stored.version  # an earlier write of ours, whose answer was lost
        raise OSError("other writes come first each time")

    def _loses(self, to: Lease | None) -> StoppedError:
        whom = f"to {to.owner}, token {to.token}" if to is not None else "because its document was removed or damaged"
        mine = self._held.lease.token if self._held is not None else 0
        self._lost = (
            f"this service (token {mine}) lost its lease {self._store.location} {whom}: it was paused, or cut off from "
            f"that store, for more than {TAKEOVER_SECONDS:.0f} s. It commits nothing any more"
        )
        LOG.error("%s", self._lost)
        return StoppedError(self._lost, reason=Reason.LEASE_LOST)

    def _lost_error(self) -> StoppedError | None:
        return StoppedError(self._lost, reason=Reason.LEASE_LOST) if self._lost else None

    def _unavailable(self, error: OSError | str) -> RetryError:
        return RetryError(
            f"the lease {self._store.location} cannot be read or written: {error}; check state.checkpoint",
            reason=Reason.STATE_UNWRITABLE,
        )

    def _note(self, problem: str) -> None:
        """Log a problem of the store when it begins, and its end."""
        if problem and not self._problem:
            LOG.warning("%s", problem)
        if self._problem and not problem:
            LOG.info("the lease %s can be read and written again", self._store.location)
        self._problem = problem

    @contextmanager
    def _locked(self, seconds: float = VALID_SECONDS) -> Iterator[None]:
        """Hold the lock. A store that hangs must not make other threads hang too."""
        if not self._lock.acquire(timeout=seconds):
            raise self._unavailable("the store does not answer")
        try:
            yield
        finally:
            self._lock.release()
