"""Responses of the HTTP server, before they are sent."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

TEXT: Final = "text/plain; charset=utf-8"


@dataclass(frozen=True)
class Answer:
    """One HTTP response."""

    body: bytes
    content_type: str
    status: HTTPStatus = HTTPStatus.OK
    headers: tuple[tuple[str, str], ...] = ()


LOG_IN: Final = Answer(
    b"Log in.\n",
    TEXT,
    HTTPStatus.UNAUTHORIZED,
    (("WWW-Authenticate", 'Basic realm="firnline", charset="UTF-8"'),),
)
"""To a client that is not known."""
COME_AGAIN: Final = Answer(
    b"Too many requests. Come again.\n", TEXT, HTTPStatus.SERVICE_UNAVAILABLE, (("Retry-After", "1"),)
)


def plain(status: HTTPStatus) -> Answer:
    """The status alone: no part of a request is repeated."""
    return Answer(f"{status.phrase}\n".encode(), TEXT, status)
