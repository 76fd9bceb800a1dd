"""Credentials that end after seconds: who issues them, a store that checks them, and who vends them.

The store is a proxy before a real S3 server, the catalog one before a real catalog server. Both pass on what they let
through. The S3 server checks the signatures: the keys are its own, the session token is only known to the proxy.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.services.http_proxy import Answer, Proxy, proxy
from tests.services.s3_server import S3Server

TAKES_TOKENS = {"s3proxy.ignore-unknown-headers": "true"}
"""Option of s3proxy: else it refuses requests with a session token."""
TOKEN_HEADER = "x-amz-security-token"  # noqa: S105 - a header's name
ENDPOINT = "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials"
TABLE = re.compile(r"/v1/(?:[^/]+/)?namespaces/[^/]+/tables/[^/]+")


@dataclass
class Issuer:
    """Issues session tokens for the keys of an S3 server.

    Attributes:
        lifetime: Seconds for which a credential is valid.
        tells: Whether credentials say when they end.
        repeats: Whether the last credential is issued again and again, as by a catalog that cannot renew its own.
        issued: Tokens, with the time of their end.
        refused: Requests with a token that had ended, by method.
    """

    s3: S3Server
    lifetime: float = 3.0
    tells: bool = True
    repeats: bool = False
    issued: dict[str, float] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    refused: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def properties(self) -> dict[str, str]:
        """A new credential, as catalogs vend it."""
        with self.lock:
            if self.repeats and self.issued:
                token = list(self.issued)[-1]
            else:
                token = f"token-{uuid.uuid4().hex}"
                self.issued[token] = time.time() + self.lifetime
            end = self.issued[token]
        told = {"s3.session-token-expires-at-ms": str(int(end * 1000))} if self.tells else {}
        keys = {"s3.access-key-id": self.s3.access_key, "s3.secret-access-key": self.s3.secret_key}
        return {**keys, "s3.session-token": token, **told}

    def end_all(self) -> None:
        """All credentials that were issued so far have ended."""
        with self.lock:
            self.issued = dict.fromkeys(self.issued, 0.0)

    def verdict(self, token: str | None, method: str) -> tuple[int, str] | None:
        """Status and code of the refusal; None if the token is valid."""
        end = self.issued.get(token or "")
        if end is None:
            return (403, "InvalidAccessKeyId") if token else (403, "AccessDenied")
        if time.time() > end:
            with self.lock:
                self.refused.append(method)
            return 400, "ExpiredToken"
        with self.lock:
            self.used.add(token or "")
        return None


@dataclass(frozen=True)
class Moment:
    """The first request for which `comes` is true of method, path and client. `act` is called before it is judged."""

    comes: Callable[[str, str, str], bool]
    act: Callable[[], object]


@dataclass
class Gate:
    """The proxy before the S3 server.

    `seconds`, `part_seconds`: how much longer each request with `slow` in its path, each part of an upload takes.
    `parts`: for each upload, the tokens that its parts came with. `moment`: what happens at which request.
    """

    endpoint: str
    issuer: Issuer
    seconds: float = 0.0
    part_seconds: float = 0.0
    slow: str = ""
    moment: Moment | None = None
    parts: dict[str, set[str]] = field(default_factory=dict)


@dataclass
class Vending:
    """The proxy before the catalog server.

    Attributes:
        uri: Its address.
        endpoint: Whether the catalog has the protocol's endpoint for credentials; else each load of a table vends.
        refreshes: Whether tables name that endpoint, so that Iceberg's Java client renews by itself.
        as_credentials: Whether they are vended as `storage-credentials`, not in the table's `config`.
        vends: Whether it vends at all.
        down: Whether requests for new credentials fail.
        asked: Answers with a credential to requests for nothing else.
        loaded: Answers with a credential to loads of a table.
    """

    uri: str
    upstream: str
    issuer: Issuer
    endpoint: bool = True
    refreshes: bool = False
    as_credentials: bool = False
    vends: bool = True
    down: bool = False
    asked: int = 0
    loaded: int = 0


class _StoreHandler(Proxy):
    def answer_to(self, body: bytes) -> Answer:
        gate: Gate = self.state
        query = parse_qs(urlsplit(self.path).query)
        token, moment = self.headers.get(TOKEN_HEADER), gate.moment
        if moment is not None and moment.comes(self.command, self.path, self.headers.get("User-Agent", "")):
            gate.moment = None
            moment.act()
        refusal = gate.issuer.verdict(token, self.command)
        time.sleep(gate.part_seconds if "partNumber" in query else gate.seconds if gate.slow in self.path else 0)
        if refusal is not None:
            return Answer.refusal(*refusal, "The provided token has expired.")
        if "partNumber" in query:
            gate.parts.setdefault(query["uploadId"][0], set()).add(token or "")
        host, port = gate.issuer.s3.address
        return self.passed_on(f"{host}:{port}", body)


@contextmanager
def store_gate(issuer: Issuer, **switches: Any) -> Iterator[Gate]:
    """The S3 server behind a gate that lets valid tokens of the issuer in."""
    gate = Gate("", issuer, **switches)
    with proxy(_StoreHandler, gate) as uri:
        gate.endpoint = uri
        yield gate


class _CatalogHandler(Proxy):
    @property
    def vending(self) -> Vending:
        found: Vending = self.state
        return found

    def answer_to(self, body: bytes) -> Answer:
        path = self.path.partition("?")[0]
        if path.endswith("/credentials"):
            return self._credentials(path)
        answer = self.passed_on(self.vending.upstream, body)
        if answer.status == http.client.OK and path.endswith("/v1/config"):
            return replace(answer, body=self._config(answer.body))
        if answer.status == http.client.OK and self.vending.vends and self._loads_table(path):
            return replace(answer, body=self._table(answer.body, path))
        return answer

    def _loads_table(self, path: str) -> bool:
        created = self.command == "POST" and path.endswith("/tables")
        return created or (self.command == "GET" and TABLE.fullmatch(path) is not None)

    def _config(self, content: bytes) -> bytes:
        document = json.loads(content)
        if "endpoints" in document:
            others = {each for each in document["endpoints"] if each != ENDPOINT}
            document["endpoints"] = sorted(others | ({ENDPOINT} if self.vending.endpoint else set()))
        return json.dumps(document).encode()

    def _table(self, content: bytes, path: str) -> bytes:
        document, issued = json.loads(content), self.vending.issuer.properties()
        self.vending.loaded += 1
        if self.vending.refreshes:
            issued["client.refresh-credentials-endpoint"] = f"{path.lstrip('/')}/credentials"
        if self.vending.as_credentials:
            document["storage-credentials"] = [{"prefix": "s3://", "config": issued}]
        else:
            document["config"] = {**(document.get("config") or {}), **issued}
        return json.dumps(document).encode()

    def _credentials(self, path: str) -> Answer:
        if self.vending.down:
            return Answer.error(503, "ServiceUnavailableException", "down for the test")
        if not (self.vending.endpoint or self.vending.refreshes):
            return Answer.error(404, "NoSuchEndpointException", path)
        self.vending.asked += 1
        found = [{"prefix": "s3://", "config": self.vending.issuer.properties()}]
        return Answer.of(200, {"storage-credentials": found})


@contextmanager
def vending_catalog(upstream: str, issuer: Issuer, **switches: Any) -> Iterator[Vending]:
    """The catalog at `upstream`, which vends the issuer's credentials."""
    vending = Vending("", upstream, issuer, **switches)
    with proxy(_CatalogHandler, vending) as uri:
        vending.uri = uri
        yield vending


class _PodHandler(Proxy):
    def answer_to(self, _body: bytes) -> Answer:
        issued = self.state.properties()
        # rounded up to a second, as AWS does
        end = time.gmtime(-(-int(issued["s3.session-token-expires-at-ms"]) // 1000))
        found = {
            "AccessKeyId": issued["s3.access-key-id"], "SecretAccessKey": issued["s3.secret-access-key"],
            "Token": issued["s3.session-token"], "Expiration": time.strftime("%Y-%m-%dT%H:%M:%SZ", end),
        }  # fmt: skip
        return Answer.of(200, found)


@contextmanager
def pod_identity(issuer: Issuer) -> Iterator[dict[str, str]]:
    """The agent that gives a pod the credentials of its role; yields the environment of the pod."""
    with proxy(_PodHandler, issuer) as uri:
        yield {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{uri}/", "AWS_REGION": "us-east-1"}
