"""An HTTP relay before a server that refuses what a rule says, as an older or stricter store would."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.services.http_proxy import Answer, Proxy, proxy

Refused = tuple[int, str, str]
"""Status, code and message, as S3 answers them."""
Rule = Callable[[str, str, Mapping[str, str]], Refused | None]
"""Of method, path and headers with names in lower case; None: the request passes."""


def without_checksums(method: str, _path: str, headers: Mapping[str, str]) -> Refused | None:
    """As stores that do not know the checksums which clients of 2025 send by default."""
    if method not in {"PUT", "POST"}:
        return None
    if "chunked" in headers.get("transfer-encoding", "") or "TRAILER" in headers.get("x-amz-content-sha256", ""):
        return 411, "MissingContentLength", "You must provide the Content-Length HTTP header."
    if any(name.startswith("x-amz-checksum-") or name == "x-amz-sdk-checksum-algorithm" for name in headers):
        return 501, "NotImplemented", "A header you provided implies functionality that is not implemented"
    return None


def without_writes(method: str, path: str, _headers: Mapping[str, str]) -> Refused | None:
    """As a policy that allows to read data files, and to write only metadata."""
    if method in {"PUT", "POST"} and "/metadata/" not in path:
        return 403, "AccessDenied", "Access Denied"
    return None


@dataclass
class Relay:
    """`refused`: requests that the rule refused."""

    rule: Rule
    target: tuple[str, int]
    endpoint: str = ""
    refused: list[str] = field(default_factory=list)


@contextmanager
def http_relay(rule: Rule, target: tuple[str, int]) -> Iterator[Relay]:
    """Relay to `target` what the rule lets through."""
    relay = Relay(rule, target)
    with proxy(_Handler, relay) as relay.endpoint:
        yield relay


class _Handler(Proxy):
    def answer_to(self, body: bytes) -> Answer:
        relay: Relay = self.state
        refused = relay.rule(self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
        if refused is not None:
            relay.refused.append(f"{self.command} {self.path}: {refused[1]}")
            return Answer.refusal(*refused)
        host, port = relay.target
        return self.passed_on(f"{host}:{port}", body)
