"""A REST catalog behind HTTPS that wants OAuth2: a proxy with a token endpoint before a catalog server.

Tokens expire, and the proxy can lie: then it answers requests with an error that repeats the caller's credentials.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qs

from tests.services.certificates import Certificates
from tests.services.http_proxy import Answer, Proxy, proxy

TOKEN_PATH = "/token"  # noqa: S105 - a path


@dataclass
class GuardedCatalog:
    """Address and switches of the proxy, and what it has seen.

    Attributes:
        credential: `client:secret`, which the token endpoint accepts.
        lifetime: Seconds for which a token is valid.
        mark: Part of every token.
        vends: Whether the store's keys that the catalog hands out reach the client.
        lies: Whether requests with a token are answered with an error that repeats it.
        refuses: Whether the token endpoint refuses every client.
        clients: For each User-Agent, the number of requests with a valid token.
        expired: Requests with a token that was valid once.
        grants: Requests to the token endpoint by their kind of grant.
    """

    uri: str
    upstream: str
    credential: str
    lifetime: float = 3600.0
    mark: str = "token"
    vends: bool = True
    lies: bool = False
    refuses: bool = False
    tokens: dict[str, float] = field(default_factory=dict)
    clients: dict[str, int] = field(default_factory=dict)
    expired: int = 0
    grants: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def end_all(self) -> None:
        """All tokens that were issued so far have ended."""
        with self.lock:
            self.tokens = dict.fromkeys(self.tokens, 0.0)

    @property
    def properties(self) -> dict[str, str]:
        """PyIceberg properties of a client."""
        return {
            "type": "rest",
            "uri": self.uri,
            "credential": self.credential,
            "oauth2-server-uri": f"{self.uri}{TOKEN_PATH}",
            "scope": "catalog",
        }

    def token(self, form: dict[str, list[str]]) -> dict[str, Any] | None:
        """A new token for a client that gives the right secret; None for others.

        As most servers of companies, it exchanges no tokens.
        """
        grant = form.get("grant_type", [""])[0].rpartition(":")[2]
        self.grants[grant] += 1
        if grant != "client_credentials":
            return None
        given = f"{form.get('client_id', [''])[0]}:{form.get('client_secret', [''])[0]}"
        if self.refuses or given != self.credential:
            return None
        token = f"{self.mark}-{uuid.uuid4().hex}"
        with self.lock:
            self.tokens[token] = time.monotonic() + self.lifetime
        kind = "urn:ietf:params:oauth:token-type:access_token"
        lifetime = max(1, int(self.lifetime))
        return {"access_token": token, "token_type": "bearer", "issued_token_type": kind, "expires_in": lifetime}

    def admits(self, authorization: str, client: str) -> bool:
        """Whether the header has a valid token."""
        valid_until = self.tokens.get(authorization.removeprefix("Bearer "))
        with self.lock:
            if valid_until is None:
                return False
            if time.monotonic() > valid_until:
                self.expired += 1
                return False
            self.clients[client] = self.clients.get(client, 0) + 1
            return True

    def seen(self, client: str) -> int:
        """Requests with a valid token of clients whose User-Agent has this text in it."""
        return sum(count for agent, count in self.clients.items() if client.lower() in agent.lower())


@contextmanager
def guarded_catalog(
    upstream: str, certificates: Certificates | None, credential: str, **switches: Any
) -> Iterator[GuardedCatalog]:
    """Run the proxy before the catalog at `upstream`; without certificates, it speaks plain HTTP."""
    catalog = GuardedCatalog("", upstream, credential, **switches)
    with proxy(_Handler, catalog, certificates) as catalog.uri:
        yield catalog


def without_keys(answer: bytes) -> bytes:
    """The answer to a load of a table without the keys of the store."""
    try:
        document = json.loads(answer)
        document["config"] = {name: value for name, value in document["config"].items() if "key" not in name}
    except (ValueError, KeyError, TypeError):
        return answer
    return json.dumps(document).encode()


class _Handler(Proxy):
    def answer_to(self, body: bytes) -> Answer:
        catalog: GuardedCatalog = self.state
        if self.path == TOKEN_PATH:
            token = catalog.token(parse_qs(body.decode()))
            refused = {"error": "invalid_client", "error_description": f"refused: {body.decode()}"}
            return Answer.of(401, refused) if token is None else Answer.of(200, token)
        authorization = self.headers.get("Authorization", "")
        if not catalog.admits(authorization, self.headers.get("User-Agent", "")):
            return Answer.error(401, "NotAuthorizedException", f"not valid: {authorization}")
        if catalog.lies:
            told = f"cannot serve {authorization}; token={authorization.removeprefix('Bearer ')}; {catalog.credential}"
            return Answer.error(400, "BadRequestException", told)
        answer = self.passed_on(catalog.upstream, body)
        return answer if catalog.vends else replace(answer, body=without_keys(answer.body))
