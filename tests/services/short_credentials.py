"""Credentials that end after seconds: who issues them, a store that checks them, a catalog and an STS that vend them.

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.services.s3_server import S3Server
from tests.services.serving import serving

TAKES_TOKENS = {"s3proxy.ignore-unknown-headers": "true"}
"""Option of s3proxy: else it refuses requests with a session token."""
TOKEN_HEADER = "x-amz-security-token"  # noqa: S105 - a header's name
HOP_BY_HOP = frozenset({"connection", "transfer-encoding", "keep-alive", "server", "date", "content-length"})
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


class _Proxy(BaseHTTPRequestHandler):
    """Passes requests on; subclasses decide on them."""

    protocol_version = "HTTP/1.1"
    timeout = 120

    def handle_request(self, body: bytes, /) -> None:
        raise NotImplementedError

    def do_GET(self) -> None:
        try:
            self.handle_request(self._body())
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return body

    do_POST = do_HEAD = do_DELETE = do_PUT = do_GET  # noqa: N815 - names of the standard library

    def log_message(self, *_arguments: object) -> None:
        """Quiet."""

    def passed_on(self, address: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection(address, timeout=120)
        try:
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in {"connection", "expect", "accept-encoding"}:
                    connection.putheader(name, value)
            chunked = self.headers.get("Transfer-Encoding", "").lower() == "chunked"
            connection.endheaders([body] if chunked else body or None, encode_chunked=chunked)
            answer = connection.getresponse()
            headers = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
            if self.command == "HEAD" and answer.headers.get("Content-Length"):
                headers["Content-Length"] = answer.headers["Content-Length"]
            return answer.status, headers, answer.read()
        finally:
            connection.close()

    def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(0 if self.command == "HEAD" else len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def answer_json(self, status: int, document: Any) -> None:
        self.answer(status, {"Content-Type": "application/json"}, json.dumps(document).encode())


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that go away."""


@contextmanager
def _serving(handler: type[BaseHTTPRequestHandler], state: object) -> Iterator[str]:
    server = _Server(("127.0.0.1", 0), handler)
    server.state = state  # type: ignore[attr-defined]
    with serving(server) as address:
        yield address


class _StoreHandler(_Proxy):
    def handle_request(self, body: bytes) -> None:
        gate: Gate = self.server.state  # type: ignore[attr-defined]
        query = parse_qs(urlsplit(self.path).query)
        token, moment = self.headers.get(TOKEN_HEADER), gate.moment
        if moment is not None and moment.comes(self.command, self.path, self.headers.get("User-Agent", "")):
            gate.moment = None
            moment.act()
        refusal = gate.issuer.verdict(token, self.command)
        time.sleep(gate.part_seconds if "partNumber" in query else gate.seconds if gate.slow in self.path else 0)
        if refusal is not None:
            status, code = refusal
            text = f"<Error><Code>{code}</Code><Message>The provided token has expired.</Message></Error>"
            self.answer(status, {"Content-Type": "application/xml"}, text.encode())
            return
        if "partNumber" in query:
            gate.parts.setdefault(query["uploadId"][0], set()).add(token or "")
        host, port = gate.issuer.s3.address
        self.answer(*self.passed_on(f"{host}:{port}", body))


@contextmanager
def store_gate(issuer: Issuer, **switches: Any) -> Iterator[Gate]:
    """The S3 server behind a gate that lets valid tokens of the issuer in."""
    gate = Gate("", issuer, **switches)
    with _serving(_StoreHandler, gate) as uri:
        gate.endpoint = uri
        yield gate


class _CatalogHandler(_Proxy):
    @property
    def vending(self) -> Vending:
        found: Vending = self.server.state  # type: ignore[attr-defined]
        return found

    def handle_request(self, body: bytes) -> None:
        path = self.path.partition("?")[0]
        if path.endswith("/credentials"):
            self._credentials(path)
            return
        status, headers, content = self.passed_on(self.vending.upstream.removeprefix("http://"), body)
        if status == http.client.OK and path.endswith("/v1/config"):
            content = self._config(content)
        elif status == http.client.OK and self.vending.vends and self._loads_table(path):
            content = self._table(content, path)
        self.answer(status, headers, content)

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

    def _credentials(self, path: str) -> None:
        if self.vending.down:
            self._error(503, "ServiceUnavailableException", "down for the test")
        elif not (self.vending.endpoint or self.vending.refreshes):
            self._error(404, "NoSuchEndpointException", path)
        else:
            self.vending.asked += 1
            found = [{"prefix": "s3://", "config": self.vending.issuer.properties()}]
            self.answer_json(200, {"storage-credentials": found})

    def _error(self, code: int, kind: str, message: str) -> None:
        self.answer_json(code, {"error": {"message": message, "type": kind, "code": code}})


@contextmanager
def vending_catalog(upstream: str, issuer: Issuer, **switches: Any) -> Iterator[Vending]:
    """The catalog at `upstream`, which vends the issuer's credentials."""
    vending = Vending("", upstream, issuer, **switches)
    with _serving(_CatalogHandler, vending) as uri:
        vending.uri = uri
        yield vending


@dataclass
class Sts:
    """AWS STS: who asks for which role. `actions` counts the requests."""

    uri: str
    issuer: Issuer
    web_identity: str = "web-identity"
    actions: dict[str, int] = field(default_factory=dict)

    def environment(self, token_file: str) -> dict[str, str]:
        """As EKS sets it for a pod with a role (IRSA)."""
        return {
            "AWS_WEB_IDENTITY_TOKEN_FILE": token_file,
            "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/firnline",
            "AWS_ROLE_SESSION_NAME": "firnline",
            "AWS_ENDPOINT_URL_STS": self.uri,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


class _StsHandler(_Proxy):
    def handle_request(self, body: bytes) -> None:
        server: Sts = self.server.state  # type: ignore[attr-defined]
        asked = {name: values[0] for name, values in parse_qs(body.decode()).items()}
        action = asked.get("Action", "")
        server.actions[action] = server.actions.get(action, 0) + 1
        web = action == "AssumeRoleWithWebIdentity"
        xml = {"Content-Type": "text/xml"}
        if action not in _ANSWERS or (web and asked.get("WebIdentityToken") != server.web_identity):
            self.answer(400, xml, b"<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>")
        else:
            self.answer(200, xml, _ANSWERS[action](server.issuer.properties()).encode())


@contextmanager
def sts(issuer: Issuer) -> Iterator[Sts]:
    """An STS whose roles have the issuer's credentials."""
    server = Sts("", issuer)
    with _serving(_StsHandler, server) as uri:
        server.uri = uri
        yield server


class _PodHandler(_Proxy):
    def handle_request(self, _body: bytes) -> None:
        issued = self.server.state.properties()  # type: ignore[attr-defined]
        self.answer_json(
            200,
            {
                "AccessKeyId": issued["s3.access-key-id"],
                "SecretAccessKey": issued["s3.secret-access-key"],
                "Token": issued["s3.session-token"],
                "Expiration": _iso(issued),
            },
        )


@contextmanager
def pod_identity(issuer: Issuer) -> Iterator[dict[str, str]]:
    """The agent that gives a pod the credentials of its role; yields the environment of the pod."""
    with _serving(_PodHandler, issuer) as uri:
        yield {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{uri}/", "AWS_REGION": "us-east-1"}


def _iso(issued: Mapping[str, str]) -> str:
    """The credential's end, rounded up to a second as AWS does."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(-(-int(issued["s3.session-token-expires-at-ms"]) // 1000)))


def _assumed(action: str) -> Callable[[Mapping[str, str]], str]:
    def answer(issued: Mapping[str, str]) -> str:
        return (
            f'<{action}Response xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><{action}Result><Credentials>'
            f"<AccessKeyId>{issued['s3.access-key-id']}</AccessKeyId>"
            f"<SecretAccessKey>{issued['s3.secret-access-key']}</SecretAccessKey>"
            f"<SessionToken>{issued['s3.session-token']}</SessionToken><Expiration>{_iso(issued)}</Expiration></Credentials>"
            "<AssumedRoleUser><AssumedRoleId>AROA:firnline</AssumedRoleId>"
            "<Arn>arn:aws:sts::123456789012:assumed-role/firnline/firnline</Arn></AssumedRoleUser>"
            f"</{action}Result><ResponseMetadata><RequestId>1</RequestId></ResponseMetadata></{action}Response>"
        )

    return answer


_ANSWERS = {action: _assumed(action) for action in ("AssumeRole", "AssumeRoleWithWebIdentity")}
