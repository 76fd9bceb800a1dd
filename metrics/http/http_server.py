"""HTTP server of the service: `/metrics`, `/healthz`, `/readyz`, the status page `/` and the same as JSON."""

from __future__ import annotations

import errno
import json
import logging
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

from prometheus_client import CollectorRegistry, disable_created_metrics, make_wsgi_app

from compactor.debt.board import DebtBoard
from compactor.errors import InputError
from metrics.http.http_access import BasicAuth, Certificate
from metrics.http.http_answer import TEXT, Answer, plain
from metrics.http.http_connections import EXCHANGE_SECONDS, PROBES, Server
from metrics.http.http_intake import Intake
from metrics.recent_work import RecentWork
from metrics.service_view import Health, ServiceView
from metrics.status_page import status_document, status_page

LOGGER = logging.getLogger(__name__)

_PORTS = 65_536
_BACKLOG = 128
_HTML = "text/html; charset=utf-8"
_JSON = "application/json"
_PATHS = ("/", "/api/v1/status", "/metrics", *PROBES)


@dataclass(frozen=True)
class Site:
    """What the pages show."""

    registry: CollectorRegistry
    service: ServiceView
    board: DebtBoard
    recent: RecentWork

    def answer(self, path: str, headers: Mapping[str, str], auth: BasicAuth | None = None) -> Answer:
        """Build the response to GET `path`; if that fails, log the error and return status 500.

        With `auth`, a client that does not log in learns only whether the service is alive and ready: probes need that.
        """
        place = path.partition("?")[0]
        refused = auth.refusal(headers) if auth is not None else None
        if refused is not None and place not in PROBES:
            return refused
        try:
            answer = self._route(place, headers)
        except Exception:
            # Log the cause only: an error message can hold an address or a key that the client must not see.
            LOGGER.exception("cannot build the response to GET %r", path)
            message = "The service cannot build this page; its log has the error.\n"
            return Answer(message.encode(), TEXT, HTTPStatus.INTERNAL_SERVER_ERROR)
        return answer if refused is None else plain(answer.status)

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
        return status_document(self._checked_health(), self.service, self.board, self.recent)

    def _checked_health(self) -> Health:
        try:
            return self.service.health
        except Exception:
            LOGGER.exception("the health check itself failed")
            return Health(
                live=False, ready=False, details={"health": "the check failed; the service's log has the error"}
            )


class MetricsServer:
    """Serve one site from background threads. `port` 0 takes any free port; `address` returns it.

    `certificate`: serve HTTPS with it. `auth`: who may read the pages; None: everybody who reaches the port.
    `intake`: takes requests with a body; None: there are none. `seconds`: see `EXCHANGE_SECONDS`.
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
        seconds: float = EXCHANGE_SECONDS,
    ) -> None:
        self._pages = partial(site.answer, auth=auth)
        self._host = host
        self._port = port
        self._certificate = certificate
        self._intake = intake
        self._seconds = seconds
        self._listener: socket.socket | None = None
        self._server: Server | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and bound port; before the start, host and port as configured."""
        if self._listener is None:
            return self._host, self._port
        host, port = self._listener.getsockname()[:2]
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
        self._listener = _bound(self._host, self._port)
        self._server = Server(self._listener, self._pages, self._certificate, self._intake, self._seconds)

    def stop(self) -> None:
        """Stop serving and free the port. Does nothing if not started."""
        if self._server is None:
            return
        self._server.stop()
        self._server = self._listener = None
        if self._intake is not None:
            self._intake.close()


def _bound(host: str, port: int) -> socket.socket:
    if port not in range(_PORTS):  # getaddrinfo would take the port modulo 65536
        raise InputError(f"http.port: {port} is not a port; set http.port to a number from 0 to {_PORTS - 1}")
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server((str(address[0]), int(address[1])), family=family, backlog=_BACKLOG)
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
    """In the format and encoding that the client asks for, by prometheus_client's own application.

    It copies the requested version into Content-Type: join folded lines, or a client could add headers.
    """
    accept = " ".join(headers.get("Accept", "").split())
    try:
        return _by_application(registry, accept, headers.get("Accept-Encoding", ""))
    except (TypeError, ValueError):  # the requested version is not a number
        return _by_application(registry, "", "")


def _by_application(registry: CollectorRegistry, accept: str, encoding: str) -> Answer:
    found: dict[str, str] = {}
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/metrics", "QUERY_STRING": ""}
    environ |= {"HTTP_ACCEPT": accept, "HTTP_ACCEPT_ENCODING": encoding}
    parts = make_wsgi_app(registry)(environ, lambda _status, made: found.update(made))
    return Answer(b"".join(parts), found.pop("Content-Type"), headers=(*found.items(), ("Vary", "Accept-Encoding")))


def _health_answer(health: Health, *, well: bool) -> Answer:
    body = {"live": health.live, "ready": health.ready, "details": dict(health.details)}
    status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
    return Answer(json.dumps(body).encode() + b"\n", _JSON, status)
