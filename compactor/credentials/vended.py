"""A credential that its catalog vends: requested when it is needed, renewed in good time, and after a refusal."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from compactor.credentials.credential import Credential
from compactor.errors import FirnlineError, RetryError
from compactor.patience.backoff import SOON
from compactor.reasons import Reason
from compactor.redaction import remember_for_now

PATIENCE_SECONDS: Final = 60.0
"""How long the work waits for a new credential when the old one is over: as long as catalogs and login servers take to
start again. The work of an output task is worth more."""
TABLES_KEPT: Final = 256


class CredentialSource(Protocol):
    """Whom to ask for a credential. Equal sources share their credential; Spark tasks carry them."""

    @property
    def endpoint(self) -> str | None:
        """The address that Iceberg's Java client can ask too; None: there is none."""
        ...

    def ask(self) -> Mapping[str, str]:
        """Properties that contain a new credential.

        Raises:
            FirnlineError: the catalog does not answer, or refuses.
        """
        ...


class VendedCredential:
    """The present credential of one source. Thread-safe: one thread asks, the others wait only if they have to.

    Pickled with its present credential. In another process it renews that by itself.
    """

    def __init__(
        self,
        source: CredentialSource,
        first: Credential,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._source = source
        self._held = first
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._failures = 0
        self._gave_up = 0
        self._not_before = 0.0
        self._error: FirnlineError | None = None
        remember_for_now(first.secrets)

    def __reduce__(self) -> tuple[Callable[..., VendedCredential], tuple[CredentialSource, Credential]]:
        return shared, (self._source, self._held)

    @property
    def endpoint(self) -> str | None:
        """The address that Iceberg's Java client can ask for new credentials; None: there is none."""
        return self._source.endpoint

    def current(self) -> Credential:
        """The credential for the next request.

        Raises:
            RetryError: reason `credentials_expired`: it is over, and no other is vended within `PATIENCE_SECONDS`.
        """
        held, gave_up = self._held, self._gave_up
        if not held.is_due(self._clock()):
            return held
        if not self._lock.acquire(blocking=held.is_over(self._clock())):
            return held
        try:
            if self._held.is_over(self._clock()):
                return self._asked_patiently(gave_up)
            if self._held.is_due(self._clock()) and self._clock() >= self._not_before:
                return self._asked() or self._held
            return self._held
        finally:
            self._lock.release()

    def replaced(self, refused: Credential) -> Credential:
        """Another credential than the one that the store has just refused.

        Raises:
            RetryError: reason `credentials_expired`: the catalog vends no other.
        """
        gave_up = self._gave_up
        with self._lock:
            return self._held if self._held != refused else self._asked_patiently(gave_up)

    def offer(self, other: Credential) -> None:
        """Hold `other` if it is newer: it came with a table that was loaded in between, or with an output task."""
        with self._lock:
            if other.is_newer(self._held):
                self._hold(other)

    def _hold(self, credential: Credential) -> None:
        remember_for_now(credential.secrets)
        self._held = credential

    def _asked(self) -> Credential | None:
        """A new credential; None if none is vended now."""
        try:
            found = Credential.of(self._source.ask(), self._clock())
        except FirnlineError as error:
            self._error, found = error, None
        else:
            self._error = None
        if found is None or found.properties == self._held.properties:
            self._failures += 1
            self._not_before = self._clock() + SOON.seconds(self._failures)
            return None
        self._failures = 0
        self._hold(found)
        return found

    def _asked_patiently(self, gave_up: int) -> Credential:
        """A new credential. `gave_up`: how often no thread had got one when this one began to wait for its turn.

        Eight threads of one upload wait for one credential: they give up together, not each after its own minute.
        """
        if self._gave_up > gave_up:
            raise self._not_vended()
        deadline = self._clock() + PATIENCE_SECONDS
        while True:
            found = self._asked()
            if found is not None:
                return found
            pause = SOON.seconds(self._failures)
            may_help = self._error is not None or self._held.is_over(self._clock())
            if not may_help or self._clock() + pause > deadline:
                self._failures = 0
                self._gave_up += 1
                raise self._not_vended()
            self._sleep(pause)

    def _not_vended(self) -> RetryError:
        if self._error is None:
            why = f"{self._source} vends none other: check what the catalog itself may do in the store"
        else:
            why = f"{self._source} cannot be asked for another: {self._error}"
        return RetryError(f"the store's credential is over, and {why}", reason=Reason.CREDENTIALS_EXPIRED)


_shared: OrderedDict[CredentialSource, VendedCredential] = OrderedDict()
_shared_lock = threading.Lock()


def shared(source: CredentialSource, credential: Credential) -> VendedCredential:
    """The one of this process for the source; it holds the newer of its own credential and this one."""
    with _shared_lock:
        found = _shared.get(source)
        if found is None:
            found = _shared[source] = VendedCredential(source, credential)
            while len(_shared) > TABLES_KEPT:
                _shared.popitem(last=False)
            return found
        _shared.move_to_end(source)
    found.offer(credential)
    return found
