"""Who may read the HTTP pages: the server's certificate, and basic authentication."""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import os
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import bcrypt

from compactor.errors import InputError
from compactor.reasons import Reason
from metrics.http.http_answer import COME_AGAIN, LOG_IN, Answer

LOG = logging.getLogger("firnline")
LONGEST_PASSWORD = 72  # bytes that bcrypt uses
NOBODY = b"$2b$10$WUJM1bm.h80Pl0cpZvZGreh55kFk2zebej9UQvUE7tg1Vr2pH4ZCu"
"""The hash of random bytes that nobody kept. Checked for unknown users, so that the time of an answer does not tell
which users exist."""
MOST_CHECKS = 4
"""Passwords at a time that are hashed or wait for that; the sender of a further one is asked to come again."""
CHECK_SECONDS = 2.0
"""A password waits at most this long for the hashes before it, which may have a higher cost than usual."""


class BusyError(Exception):
    """Too many passwords are being checked."""


class BasicAuth:
    """Checks credentials against bcrypt hashes.

    A hash takes a core for 50 ms on purpose. So the last accepted password of each user is kept as a digest under a
    random key, and only one password is hashed at a time, while a few wait: a flood of wrong ones costs one core and a
    few threads at most, and delays nobody who was accepted before.
    """

    def __init__(self, hashes: Mapping[str, str]) -> None:
        self._hashes = {user: digest.encode() for user, digest in hashes.items()}
        self._key = os.urandom(32)
        self._accepted: dict[str, bytes] = {}
        self._places = threading.Semaphore(MOST_CHECKS)
        self._one_at_a_time = threading.Lock()

    def refusal(self, headers: Mapping[str, str]) -> Answer | None:
        """Why a client is refused: it has not logged in, or its password cannot be checked now. None: it is known."""
        try:
            return None if self.allows(headers.get("Authorization")) else LOG_IN
        except BusyError:
            return COME_AGAIN

    def allows(self, authorization: str | None) -> bool:
        """Whether the value of an Authorization header names a user and the user's password.

        Raises:
            BusyError: this cannot be found out now.
        """
        given = _credentials(authorization or "")
        if given is None:
            return False
        user, password = given
        digest = hmac.digest(self._key, password, "sha256")
        if hmac.compare_digest(self._accepted.get(user, b""), digest):
            return True
        with self._turn():
            right = _matches(password, self._hashes.get(user, NOBODY)) and user in self._hashes
        if right:
            self._accepted[user] = digest
        return right

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._places.acquire(blocking=False):
            raise BusyError
        try:
            if not self._one_at_a_time.acquire(timeout=CHECK_SECONDS):
                raise BusyError
            try:
                yield
            finally:
                self._one_at_a_time.release()
        finally:
            self._places.release()


def _credentials(authorization: str) -> tuple[str, bytes] | None:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(encoded.strip(), validate=True).partition(b":")
        return (user.decode(), password) if colon else None
    except (binascii.Error, ValueError):
        return None


def _matches(password: bytes, digest: bytes) -> bool:
    try:
        return len(password) <= LONGEST_PASSWORD and bcrypt.checkpw(password, digest)
    except ValueError:  # a NUL byte, or a digest that is none
        return False


class Certificate:
    """The server's certificate and key: PEM files, read again when they change. `trouble`: why the files of now cannot
    be used, so that those before them still are; empty if they are used.

    Raises:
        InputError: they cannot be used; the message names the settings.
    """

    def __init__(self, certificate: str, key: str) -> None:
        self._certificate = certificate
        self._key = key
        self._told: object = None
        self.trouble = ""
        try:
            self._changed = self._times()
            self._context = self._load()
        except OSError as error:  # SSLError is one
            raise InputError(
                f"http.tls_certificate, http.tls_key: {certificate} and {key} cannot be used ({error}); name two PEM "
                "files: the certificate with its chain, and its key without a passphrase",
                reason=Reason.BAD_SETTING,
            ) from error

    @property
    def context(self) -> ssl.SSLContext:
        """For the next connection. Files that are unusable at this moment (half renewed) are tried again then."""
        changed: tuple[int, ...] | None = None
        try:
            changed = self._times()
            if changed != self._changed:
                self._context, self._changed = self._load(), changed
                LOG.info("http: the renewed certificate %s is used", self._certificate)
        except OSError as error:
            self._refuse(changed or str(error), error)
        else:
            self._told, self.trouble = None, ""
        return self._context

    def _refuse(self, files: object, error: OSError) -> None:
        """Keep the earlier certificate, with one warning for each change of the files: each connection comes here."""
        self.trouble = (
            f"http.tls_certificate, http.tls_key: {self._certificate} and {self._key} have changed and cannot be used "
            f"({error}); the earlier one is still used, and clients refuse it once it has expired: replace both files, "
            "no restart is needed"
        )
        if files != self._told:
            self._told = files
            LOG.warning("%s", self.trouble)

    def _times(self) -> tuple[int, ...]:
        return tuple(Path(file).stat().st_mtime_ns for file in (self._certificate, self._key))

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Without a password, OpenSSL would ask for the passphrase of an encrypted key on the terminal.
        context.load_cert_chain(self._certificate, self._key, password="")
        return context
