"""HTTP server of the service: `/metrics`, `/healthz`, `/readyz`, the status page `/` and the same as JSON."""

from __future__ import annotations

import errno
import gzip
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import Any

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from compactor.errors import InputError
from compactor.runs.dispatcher import Work
from compactor.runs.pauses import Pause
from metrics.debt_collector import TableSummary
from metrics.http.http_access import BasicAuth, Certificate
from metrics.http.http_connections import COME_AGAIN, TEXT, Answer, Begin, Server, refusal
from metrics.http.http_intake import Intake
from metrics.recent_work import Finished, Running
from metrics.slot_collector import SlotUse
from metrics.status_page import Counting, Health, status_document, status_page

LOGGER = logging.getLogger(__name__)

_PORTS = 65_536
_POLL_SECONDS = 0.1  # stop() waits at most this long for the server loop
_HTML = "text/html; charset=utf-8"
_JSON = "application/json"
_PROBES = ("/healthz", "/readyz")
_PATHS = ("/", "/api/v1/status", "/metrics", "/healthz", "/readyz")


@dataclass(frozen=True)
class Site:
    """Sources of the pages, called for every request. `tables`: worst first; `finished`: newest first."""

    registry: CollectorRegistry
    health: Callable[[], Health]
    tables: Callable[[], Sequence[TableSummary]] = tuple
    running: Callable[[], Sequence[Running]] = tuple
    finished: Callable[[], Sequence[Finished]] = tuple
    counting: Callable[[], Counting | None] = lambda: None
    slots: Callable[[], SlotUse | None] = lambda: None
    work: Callable[[], Work | None] = lambda: None
    pauses: Callable[[], Sequence[Pause]] = tuple

    def answer(
        self,
        path: str,
        headers: Mapping[str, str],
        begin: Begin = lambda _probe: True,
        auth: BasicAuth | None = None,
    ) -> Answer:
        """Build the response to GET `path`; if that fails, log the error and return status 500.

        With `auth`, a client that does not log in learns only whether the service is alive and ready: probes need that.
        `begin` is called once it is known that the client may read the page.
        """
        place = path.partition("?")[0]
        probe = place in _PROBES
        refused = refusal(auth, headers)
        if refused is not None and not probe:
            return refused
        if not begin(probe):
            return COME_AGAIN
        try:
            answer = self._route(place, headers)
            if refused is None:
                return answer
            return replace(answer, body=f"{answer.status.phrase}\n".encode(), content_type=TEXT)
        except Exception:
            # Log the cause only: an error message can hold an address or a key that the client must not see.
            LOGGER.exception("cannot build the response to GET %r", path)
            message = "The service cannot build this page; its log has the error.\n"
            return Answer(message.encode(), TEXT, HTTPStatus.INTERNAL_SERVER_ERROR)

    def _route(self, path: str, headers: Mapping[str, str]) -> Answer:
        match path:
            case "/metrics":
                return _exposition(self.registry, headers)
            case "/healthz":
                health = self._checked_health()
                return _health_answer(health, well=health.live)
            case "/readyz":
                health = self._checked_health()
                return _health_answer(health, well=health.live and health.ready)
            case "/":
                return Answer(status_page(self._document()).encode("utf-8", "backslashreplace"), _HTML)
            case "/api/v1/status":
                return Answer(json.dumps(self._document()).encode() + b"\n", _JSON)
            case _:
                hint = f"No page at this address. Try {', '.join(_PATHS)}.\n"
                return Answer(hint.encode(), TEXT, HTTPStatus.NOT_FOUND)

    def _document(self) -> dict[str, Any]:
        health, counting = self._checked_health(), self.counting()
        return status_document(
            health,
            self.tables(),
            self.running(),
            self.finished(),
            counting=counting,
            slots=self.slots(),
            work=self.work(),
            pauses=self.pauses(),
        )

    def _checked_health(self) -> Health:
        try:
            return self.health()
        except Exception:
            LOGGER.exception("the health check itself failed")
            return Health(
                live=False, ready=False, details={"health": "the check failed; the service's log has the error"}
            )


class MetricsServer:
    """Serve one site from background threads. `port` 0 takes any free port; `address` returns it.

    `certificate`: serve HTTPS with it. `auth`: who may read the pages; None: everybody who reaches the port.
    `intake`: takes requests with a body; None: there are none.
    """

    def __init__(
        self,
        site: Site,
        host: str,
        port: int,
        *,
        certificate: Certificate | None = None,
        auth: BasicAuth | None = None,
        intake: Intake | None = None,
    ) -> None:
        self._intake = intake
        self._answer = partial(site.answer, auth=auth)
        self._host = host
        self._port = port
        self._certificate = certificate
        self._server: Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and bound port; before the start, host and port as configured."""
        if self._server is None:
            return self._host, self._port
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def start(self) -> None:
        """Bind and serve.

        Raises:
            InputError: the address cannot be bound; the message names the setting to change.
        """
        if self._server is not None:
            return
        # Process-wide: `_created` series would double every counter.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._server = _bind(self._answer, self._host, self._port, self._certificate, self._intake)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name="firnline-http", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and free the port. Does nothing if not started."""
        if self._server is None or self._thread is None:
            return
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._server = self._thread = None
        if self._intake is not None:
            self._intake.close()


def _bind(
    answer: Callable[[str, Mapping[str, str], Begin], Answer],
    host: str,
    port: int,
    certificate: Certificate | None,
    intake: Intake | None,
) -> Server:
    if port not in range(_PORTS):  # getaddrinfo would take the port modulo 65536
        raise InputError(f"http.port: {port} is not a port; set http.port to a number from 0 to {_PORTS - 1}")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return Server(answer, (str(address[0]), int(address[1])), family, certificate, intake)
    except OSError as error:
        raise _bind_error(host, port, error) from error


def _bind_error(host: str, port: int, error: OSError) -> InputError:
    code = None if isinstance(error, socket.gaierror) else error.errno  # its codes are not errno values
    if code == errno.EADDRINUSE:
        return InputError(
            f"http.port: port {port} on {host!r} is already in use; "
            "stop the process that listens there, or set http.port to a free port (0 takes any)"
        )
    if code in (errno.EACCES, errno.EPERM):
        return InputError(f"http.port: no permission to listen on port {port}; set http.port to one above 1023")
    return InputError(
        f"http.host: cannot listen on {host!r} ({error}); "
        "set http.host to an address of this machine, or to 0.0.0.0 for all"
    )


def _exposition(registry: CollectorRegistry, headers: Mapping[str, str]) -> Answer:
    encoder, content_type = _encoder(headers.get("Accept") or "")
    answer = Answer(encoder(registry), content_type)
    if not _accepts_gzip(headers.get("Accept-Encoding") or ""):
        return answer
    compressed = gzip.compress(answer.body, compresslevel=1)
    return replace(answer, body=compressed, headers=(("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")))


def _encoder(accept: str) -> tuple[Callable[[Collector], bytes], str]:
    """Encoder and Content-Type for an Accept header.

    prometheus_client copies the requested version into Content-Type: join folded lines, or a client could add headers.
    """
    try:
        return choose_encoder(" ".join(accept.split()))
    except (TypeError, ValueError):  # the requested version is not a number
        return choose_encoder("")


def _accepts_gzip(accept_encoding: str) -> bool:
    """Unlike prometheus_client's check, treat a weight of 0 as a refusal (RFC 9110, section 12.4.2)."""
    for offer in accept_encoding.lower().split(","):
        coding, _, weight = offer.replace(" ", "").partition(";")
        if coding == "gzip":
            return weight not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _health_answer(health: Health, *, well: bool) -> Answer:
    body = {"live": health.live, "ready": health.ready, "details": dict(health.details)}
    status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
    return Answer(json.dumps(body).encode() + b"\n", _JSON, status)
