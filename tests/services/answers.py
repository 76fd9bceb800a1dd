"""Answers of S3 that a real server does not give on request: a client's own request is answered before it is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

from botocore.awsrequest import AWSResponse

UPLOAD_ID = "upload-1"
ETAG = '"0123456789abcdef0123456789abcdef"'
_XML = "http://s3.amazonaws.com/doc/2006-03-01/"
Request = Any
Answer = Callable[[Request], "AWSResponse | None"]


class _Body(BytesIO):
    """What botocore expects of urllib3's response."""

    def stream(self, amount: int = 65536, **_options: object) -> Iterator[bytes]:
        while data := self.read(amount):
            yield data


def response(status: int, body: bytes = b"", **headers: str) -> AWSResponse:
    """`headers` with underscores for dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return AWSResponse("http://answered.test/", status, named, _Body(body))


def error(status: int, code: str) -> AWSResponse:
    body = f"<Error><Code>{code}</Code><Message>as the test says</Message></Error>"
    return response(status, body.encode(), content_type="application/xml")


@contextmanager
def answering(client: Any, answers: Mapping[str, Answer]) -> Iterator[None]:
    """Let a function answer each request of an operation; None from it lets the request go to the server."""

    def handler(answer: Answer) -> Callable[..., AWSResponse | None]:
        return lambda request, **_: answer(request)

    handlers = {f"before-send.s3.{operation}": handler(answer) for operation, answer in answers.items()}
    for event, function in handlers.items():
        client.meta.events.register(event, function)
    try:
        yield
    finally:
        for event, function in handlers.items():
            client.meta.events.unregister(event, function)


@dataclass
class RecordedStore:
    """An S3 that takes everything and remembers the headers of each request; one source object of zeros."""

    size: int
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    finished: bool = False
    written: int = 0

    def headers(self, operation: str) -> list[dict[str, str]]:
        """The headers of every request of an operation, their names in lower case."""
        return [headers for name, headers in self.requests if name == operation]

    def answers(self) -> dict[str, Answer]:
        made = {
            "HeadObject": self._head,
            "GetObject": self._get,
            "CreateMultipartUpload": lambda _request: _xml(
                "InitiateMultipartUploadResult", f"<UploadId>{UPLOAD_ID}</UploadId>"
            ),
            "UploadPart": lambda _request: response(200, etag=ETAG),
            "UploadPartCopy": lambda _request: _xml("CopyPartResult", f"<ETag>{ETAG}</ETag>"),
            "CompleteMultipartUpload": self._complete,
            "PutObject": self._put,
            "DeleteObject": lambda _request: response(204),
        }
        return {operation: self._recorded(operation, answer) for operation, answer in made.items()}

    def _recorded(self, operation: str, answer: Answer) -> Answer:
        def answered(request: Request) -> AWSResponse | None:
            self.requests.append(
                (operation, {str(name).lower(): _text(request.headers[name]) for name in request.headers})
            )
            return answer(request)

        return answered

    def _head(self, request: Request) -> AWSResponse:
        if "source" in request.url:
            return response(200, content_length=str(self.size), etag=ETAG)
        return response(200, content_length=str(self.written), etag=ETAG) if self.finished else response(404)

    def _get(self, request: Request) -> AWSResponse:
        first, last = map(int, _text(request.headers["Range"]).removeprefix("bytes=").split("-"))
        return response(
            206,
            bytes(last - first + 1),
            content_length=str(last - first + 1),
            content_range=f"bytes {first}-{last}/{self.size}",
            etag=ETAG,
        )

    def _complete(self, _request: Request) -> AWSResponse:
        self.finished = True
        return _xml("CompleteMultipartUploadResult", f"<ETag>{ETAG}</ETag>")

    def _put(self, _request: Request) -> AWSResponse:
        self.finished = True
        return response(200, etag=ETAG)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _xml(root: str, body: str) -> AWSResponse:
    return response(200, f'<{root} xmlns="{_XML}">{body}</{root}>'.encode(), content_type="application/xml")
