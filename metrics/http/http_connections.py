"""Connections of the HTTP server: bounded in number, size and time, so that no client can hold up another.

h11 reads requests and frames responses. asyncio waits for slow clients without a thread for each; a thread makes each
answer.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from email.utils import formatdate
from functools import partial
from http import HTTPStatus
from typing import TypeVar

import h11

from metrics.http.http_access import Certificate
from metrics.http.http_answer import COME_AGAIN, Answer, plain
from metrics.http.http_intake import Intake
from metrics.status_page import CONTENT_SECURITY

LOGGER = logging.getLogger(__name__)
MOST_CONNECTIONS = 64
"""At the same time. Scrapers, probes and browsers need a few."""
KEPT_FOR_PROBES = 8
"""Of these connections. All requests but probes are asked to come again while the others are being answered."""
PROBES = ("/healthz", "/readyz")
EXCHANGE_SECONDS = 30.0
"""To send a request after the start of a connection or the last response, and again to read the response."""
HEAD_BYTES = 16 * 1024
"""Request line and headers together."""
READ_BYTES = 4096
CLOSE_SECONDS = 1.0
ALWAYS = (
    ("Cache-Control", "no-store"),
    ("X-Content-Type-Options", "nosniff"),
    ("Content-Security-Policy", CONTENT_SECURITY),
)
Pages = Callable[[str, Mapping[str, str]], Answer]
"""Path and headers, as `combined` spells them, to the response."""
Made = TypeVar("Made")


def combined(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Headers by name, each name spelled as `Content-Length`: case means nothing (RFC 9110, 5.1), and HTTP/2 proxies
    send small letters. The values of a name that occurs twice are joined by a comma (5.3).
    """
    found: dict[str, str] = {}
    for name, value in headers:
        spelled, text = name.decode("latin-1").title(), value.decode("latin-1")
        found[spelled] = f"{found[spelled]}, {text}" if spelled in found else text
    return found


class Conversation:
    """Requests and responses on one connection, one after the other.

    Raises:
        h11.RemoteProtocolError: from all methods: the client does not speak HTTP, or its head is too large.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)

    async def request(self) -> h11.Request | None:
        """The next request, its body not read; None: the client has ended the connection."""
        event = await self._event()
        return event if isinstance(event, h11.Request) else None

    async def body(self) -> bytes:
        """The body of the request."""
        if self._http.they_are_waiting_for_100_continue:
            self._write(h11.InformationalResponse(status_code=HTTPStatus.CONTINUE, headers=[]))
        parts = []
        while isinstance(event := await self._event(), h11.Data):
            parts.append(bytes(event.data))
        return b"".join(parts)

    def no_body(self) -> None:
        """The request should have none. If it has one, it is not read, and no request can follow it."""
        self._http.next_event()

    async def send(self, answer: Answer, method: str = "") -> None:
        """Send the response, and wait until the client has taken it, but for what its system keeps."""
        last = () if self._http.their_state is h11.DONE else (("Connection", "close"),)
        length, date = str(len(answer.body)), formatdate(usegmt=True)
        own = (("Content-Type", answer.content_type), ("Content-Length", length), ("Date", date))
        headers = [*own, *ALWAYS, *last, *answer.headers]
        self._write(h11.Response(status_code=answer.status, reason=answer.status.phrase, headers=headers))
        if method != "HEAD":
            self._write(h11.Data(answer.body))
        self._write(h11.EndOfMessage())
        await self._writer.drain()

    def goes_on(self) -> bool:
        """Whether another request may follow."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    async def close(self) -> None:
        """End the connection, also if the client does not take what was sent."""
        self._writer.close()
        with suppress(OSError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._writer.wait_closed()

    def cut(self) -> None:
        """Drop the connection, with what has not been sent."""
        self._writer.transport.abort()

    async def _event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(READ_BYTES))
        return event

    def _write(self, event: h11.Event) -> None:
        self._writer.write(self._http.send(event) or b"")


class Server:
    """Serves `pages` from a listening socket; `intake` gets requests with a body. `seconds`: see `EXCHANGE_SECONDS`."""

    def __init__(
        self,
        listener: socket.socket,
        pages: Pages,
        certificate: Certificate | None = None,
        intake: Intake | None = None,
        seconds: float = EXCHANGE_SECONDS,
    ) -> None:
        self._listener = listener
        self._pages = pages
        self._certificate = certificate
        self._intake = intake
        self._seconds = seconds
        self._open: set[asyncio.Task[None]] = set()
        self._waiting: dict[asyncio.Task[None] | None, float] = {}  # for their client, since when
        self._answering = 0
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._loop.set_exception_handler(lambda _loop, context: LOGGER.debug("http: %s", context.get("message")))
        self._accepting = self._loop.create_task(self._accept())
        self._thread = threading.Thread(target=self._run, name="firnline-http", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End all connections and close the socket."""
        self._loop.call_soon_threadsafe(self._accepting.cancel)
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        with self._runner, suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._accepting)

    async def _accept(self) -> None:
        self._listener.setblocking(False)
        while True:
            try:
                client, _ = await self._loop.sock_accept(self._listener)
            except OSError as error:  # no descriptor is free, or the client has gone
                LOGGER.debug("http: a connection was not accepted: %s", error)
                await asyncio.sleep(0.1)
                continue
            if self._makes_room():
                task = self._loop.create_task(self._serve(client))
                self._open.add(task)
                task.add_done_callback(self._open.discard)
                await asyncio.sleep(0)  # it begins, and can be ended for another
            else:
                client.close()

    def _makes_room(self) -> bool:
        """For one more connection: the one ends that has waited longest for its client. False: all are being answered,
        which takes milliseconds.
        """
        if len(self._open) < MOST_CONNECTIONS:
            return True
        longest = min(self._waiting, key=lambda task: self._waiting[task], default=None)
        if longest is None:
            return False
        del self._waiting[longest]
        self._open.discard(longest)
        longest.cancel()
        return True

    async def _serve(self, client: socket.socket) -> None:
        task = asyncio.current_task()
        self._waiting[task] = self._loop.time()
        try:
            talk = await self._conversation(client)
            try:
                await self._talk(talk)
                await talk.close()
            finally:
                talk.cut()
        except (OSError, h11.ProtocolError) as error:  # it hung up, or was too slow
            LOGGER.debug("http: a connection ended early: %r", error)
        finally:
            self._waiting.pop(task, None)
            client.close()

    async def _conversation(self, client: socket.socket) -> Conversation:
        reader = asyncio.StreamReader(limit=READ_BYTES)
        protocol = asyncio.StreamReaderProtocol(reader)
        context = self._certificate.context if self._certificate is not None else None
        transport, _ = await self._loop.connect_accepted_socket(
            lambda: protocol, client, ssl=context, ssl_handshake_timeout=self._seconds if context else None
        )
        transport.set_write_buffer_limits(high=0)
        return Conversation(reader, asyncio.StreamWriter(transport, protocol, reader, self._loop))

    async def _talk(self, talk: Conversation) -> None:
        """Answer requests until the client ends the connection, or must not go on."""
        try:
            while True:
                async with asyncio.timeout(self._seconds):
                    request = await talk.request()
                if request is None:
                    return
                answer, method = await self._answer(talk, request), request.method.decode("latin-1")
                async with asyncio.timeout(self._seconds):
                    await talk.send(answer, method)
                if not talk.goes_on():
                    return
        except h11.RemoteProtocolError as error:
            async with asyncio.timeout(self._seconds):
                await talk.send(plain(HTTPStatus(error.error_status_hint)))

    async def _answer(self, talk: Conversation, request: h11.Request) -> Answer:
        path, headers = request.target.decode("latin-1"), combined(request.headers)
        if request.method in (b"GET", b"HEAD"):
            talk.no_body()
            return await self._made(partial(self._pages, path, headers), probe=path.partition("?")[0] in PROBES)
        intake = self._intake
        if request.method != b"POST" or intake is None:
            return plain(HTTPStatus.NOT_IMPLEMENTED)
        refused = await self._made(lambda: intake.refusal(path, headers))
        if refused is not None:
            return refused
        async with asyncio.timeout(self._seconds):
            body = await talk.body()
        return await self._made(partial(intake.take, path, headers, body))

    async def _made(self, make: Callable[[], Made], *, probe: bool = False) -> Made | Answer:
        """What `make` returns, from a thread; while too many are at work, the request to come again."""
        if not probe and self._answering >= MOST_CONNECTIONS - KEPT_FOR_PROBES:
            return COME_AGAIN
        task = asyncio.current_task()
        self._waiting.pop(task, None)
        self._answering += 1
        try:
            return await _in_thread(make)
        finally:
            self._answering -= 1
            self._waiting[task] = self._loop.time()


def _in_thread(make: Callable[[], Made]) -> asyncio.Future[Made | Answer]:
    """The result of `make`, called in a thread of its own, which does not delay the end of the process."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Made | Answer] = loop.create_future()

    def settle(made: Made | Answer) -> None:
        if not result.done():
            result.set_result(made)

    def work() -> None:
        made: Made | Answer
        try:
            made = make()
        except Exception:
            LOGGER.exception("http: a request failed")
            made = plain(HTTPStatus.INTERNAL_SERVER_ERROR)
        with suppress(RuntimeError):  # the server has stopped
            loop.call_soon_threadsafe(settle, made)

    threading.Thread(target=work, name="firnline-http-answer", daemon=True).start()
    return result
