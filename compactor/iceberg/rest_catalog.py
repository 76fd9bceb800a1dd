"""PyIceberg's REST catalog with timeouts and conditional loads: PyIceberg sets no timeout, and sends no ETag.

The Java client, which commits, has its own properties for timeouts (`rest.client.socket-timeout-ms`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    OAuthError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from requests import RequestException, Response
from requests.adapters import DEFAULT_POOLSIZE

from compactor.iceberg.conditional_load import AlreadyKnownError, NoAnswerError, Question

CONNECT_SECONDS: Final = 10
ANSWER_SECONDS: Final = 60
"""Without receiving a byte, from any catalog. A busy one needs seconds to load a table of thousands of snapshots."""
CONNECTIONS: Final = 32
"""Kept alive for each catalog. More threads than that close theirs after each call."""

_NOT_MODIFIED: Final = 304
_ACCEPT_ENCODING: Final = "Accept-Encoding"
_FIRST_KEY: Final = re.compile(rb'\s*\{\s*"metadata-location"\s*:\s*("(?:[^"\\]|\\.)*")')
"""Iceberg's server and most others write the location first: then the rest of the answer need not be parsed."""

_OF_THE_CATALOG: Final = (
    NoAnswerError,
    RequestException,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
    AuthorizationExpiredError,
    OAuthError,
)


class RestCatalogWithTimeouts(RestCatalog):
    """As its base class; a request that times out raises the same error as a refused connection.

    `question`: what each thread asks about a table; see conditional_load.py.
    """

    def __init__(self, name: str, **properties: str) -> None:
        self.question = Question()
        super().__init__(name, **properties)

    def _config_headers(self, session: Any) -> None:
        """The first step with a new session: from here on all its requests have timeouts, those for tokens too."""
        super()._config_headers(session)
        # To unpack an answer costs more than a near server's network; `header.Accept-Encoding` asks for it anyway.
        if f"header.{_ACCEPT_ENCODING}".lower() not in {key.lower() for key in self.properties}:
            session.headers[_ACCEPT_ENCODING] = "identity"
        session.request = partial(self._request, session.request)

    def _create_session(self) -> Any:
        session: Any = super()._create_session()
        for adapter in session.adapters.values():
            adapter.init_poolmanager(connections=DEFAULT_POOLSIZE, maxsize=CONNECTIONS)
        return session

    def _request(self, send: Callable[..., Response], method: str, url: str, **options: Any) -> Response:
        options.setdefault("timeout", (CONNECT_SECONDS, ANSWER_SECONDS))
        question = self.question
        if not question.asking or method != "GET":
            return send(method, url, **options)
        if question.sent_etag is not None:
            options["headers"] = {**(options.get("headers") or {}), "If-None-Match": question.sent_etag}
        response = send(method, url, **options)
        question.answered = True  # an error status is an answer too: `concerns_catalog` judges PyIceberg's error for it
        if response.status_code == _NOT_MODIFIED and question.sent_etag is not None:
            question.etag, question.by_tag = question.sent_etag, True
            raise AlreadyKnownError
        if response.ok:
            question.etag = response.headers.get("ETag")
            question.answer(lambda: metadata_location(response.content))
        return response


def metadata_location(answer: bytes) -> str | None:
    """The metadata location in a catalog's answer to a load (JSON); None if there is none."""
    first = _FIRST_KEY.match(answer)
    try:
        found = json.loads(first.group(1)) if first else json.loads(answer).get("metadata-location")
    except (ValueError, AttributeError):
        return None  # not the answer of a catalog: PyIceberg says what is wrong with it
    return found if isinstance(found, str) else None


def refuses_login(error: Exception) -> bool:
    """Whether the catalog or its login server does not accept who asks."""
    return isinstance(error, (UnauthorizedError, AuthorizationExpiredError, OAuthError))


def concerns_catalog(error: Exception) -> bool:
    """Whether an error of `load_table` is one of the whole catalog: no answer, refused, overloaded, 5xx, no login."""
    return isinstance(error, _OF_THE_CATALOG)
