"""Requests with a body: who may send one, how large it may be, and who takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

from metrics.http.http_access import BasicAuth
from metrics.http.http_answer import TEXT, Answer

Take = Callable[[str, Mapping[str, str], bytes], Answer]
"""Path, headers and body of a POST request → the response."""


@dataclass(frozen=True)
class Intake:
    """`takes`: whether a path accepts bodies. `take` gets requests of known clients whose bodies are small enough.
    `closed`: the response to known senders while nothing is taken; None: it is. `close` is called when no request can
    come any more. `unread` gets the status of each request that was refused before its body was read.
    """

    auth: BasicAuth
    takes: Callable[[str], bool]
    take: Take
    most_bytes: int
    close: Callable[[], None] = lambda: None
    closed: Callable[[], Answer | None] = lambda: None
    unread: Callable[[HTTPStatus], None] = lambda _status: None

    def refusal(self, path: str, headers: Mapping[str, str]) -> Answer | None:
        """Why the request is refused before its body is read; None: read it."""
        if not self.takes(path):
            return Answer(b"No events are accepted at this address.\n", TEXT, HTTPStatus.NOT_FOUND)
        refused = self.auth.refusal(headers) or self.closed() or self._refusal_of_length(headers)
        if refused is not None:
            self.unread(refused.status)
        return refused

    def _refusal_of_length(self, headers: Mapping[str, str]) -> Answer | None:
        if "Transfer-Encoding" in headers or "Content-Length" not in headers:
            return Answer(b"Send the header Content-Length.\n", TEXT, HTTPStatus.LENGTH_REQUIRED)
        if int(headers["Content-Length"]) > self.most_bytes:
            message = f"At most {self.most_bytes} bytes are accepted.\n"
            return Answer(message.encode(), TEXT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        return None
