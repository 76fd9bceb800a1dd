"""What only S3 does: copies inside the store, uploads that can be found, answers that are lost or refused."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError

from compactor.errors import FirnlineError, GiveUpError, RetryError
from compactor.storage import s3_errors, s3_store
from compactor.storage.byte_store import OutputFile
from compactor.storage.opening import abort_uploads
from compactor.storage.s3_client import S3Connections
from compactor.storage.s3_store import S3ByteStore
from tests.integration.s3_kit import LARGE, MAGIC, MIB, caught
from tests.services import answers
from tests.services.answers import answering
from tests.services.counted_store import CountedStore
from tests.services.s3_server import S3Server

QUICK = {"s3.retry.num-retries": "1"}  # one repetition is enough to see that there is one


@pytest.fixture
def folder(s3_server: S3Server) -> str:
    return s3_server.folder()


@pytest.fixture
def store(s3_server: S3Server) -> CountedStore:
    return CountedStore(s3_server.properties | QUICK, S3Connections())


@pytest.fixture(scope="module")
def source(s3_server: S3Server) -> str:
    """For tests that only read it."""
    return s3_server.put(f"{s3_server.folder()}/source.parquet", LARGE)


@pytest.fixture
def own_source(s3_server: S3Server, folder: str) -> str:
    return s3_server.put(f"{folder}/source.parquet", LARGE)


@pytest.fixture
def output(folder: str) -> str:
    return f"{folder}/out.parquet"


def uploads(store: S3ByteStore, folder: str) -> int:
    return len(store.open_uploads(f"{folder}/"))


def spliced(store: S3ByteStore, source: str, output: str) -> OutputFile:
    """Everything of the source but its tail, as a splice asks for it, and a footer."""
    file = store.create(output)
    file.write(MAGIC)
    file.copy_range(source, 4, 11 * MIB)
    file.write(b"footer")
    return file


SPLICED = LARGE[: 11 * MIB + 4] + b"footer"


# --- no byte through the compactor ---


def test_a_magic_number_that_the_source_has_too_is_copied_along(
    store: CountedStore, s3_server: S3Server, source: str, output: str
) -> None:
    assert spliced(store, source, output).finish() == len(SPLICED)
    assert s3_server.get(output) == SPLICED
    assert store.moved == Counter(read=4, sent=6, copied=11 * MIB + 4)


def test_another_magic_number_costs_the_smallest_part(
    store: CountedStore, s3_server: S3Server, folder: str, output: str
) -> None:
    source = s3_server.put(f"{folder}/other", b"RAP1" + LARGE[4:])
    spliced(store, source, output).finish()
    assert s3_server.get(output) == SPLICED
    assert store.moved["sent"] == 5 * MIB + 6
    assert store.moved["copied"] == 6 * MIB + 4


@pytest.mark.parametrize("seed", range(3))
def test_any_mixture_is_put_together_exactly(
    store: S3ByteStore, s3_server: S3Server, source: str, output: str, seed: int
) -> None:
    choices = random.Random(seed)
    file, expected = store.create(output), b""
    for _ in range(choices.randrange(1, 9)):
        if choices.random() < 0.4:
            data = choices.randbytes(choices.choice([1, 100, 3 * MIB, 9 * MIB]))
            file.write(data)
            expected += data
        else:
            offset = choices.randrange(len(LARGE))
            length = min(choices.choice([1, 4 * MIB, 6 * MIB, len(LARGE)]), len(LARGE) - offset)
            file.copy_range(source, offset, length)
            expected += LARGE[offset : offset + length]
        assert file.position == len(expected)
    assert file.finish() == len(expected)
    assert s3_server.get(output) == expected


def test_a_range_longer_than_a_part_is_copied_in_several(
    store: S3ByteStore, s3_server: S3Server, source: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_store, "PART_SIZES", s3_store.PartSizes(copied=10 * MIB))
    spliced(store, source, output).finish()
    assert s3_server.get(output) == SPLICED


def test_too_many_parts_are_refused_and_leave_nothing(
    store: S3ByteStore, folder: str, source: str, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_store, "MAXIMUM_PARTS", 2)
    file = store.create(output)
    for _ in range(2):
        file.copy_range(source, 0, 6 * MIB)
    file.write(b"footer")
    assert caught(file.finish).reason == "too_many_parts"
    file.abort()
    assert uploads(store, folder) == 0
    assert not store.exists(output)


# --- stores that cannot copy ---


def silent(_request: object) -> Any:
    return answers.response(200, etag=answers.ETAG)  # took it for an empty part


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: answers.error(501, "NotImplemented"),
        lambda _: answers.error(405, "MethodNotAllowed"),
        lambda _: answers.error(400, "InvalidArgument"),
        silent,
    ],
)
def test_where_nothing_can_be_copied_it_is_streamed(
    store: CountedStore, s3_server: S3Server, source: str, output: str, answer: Callable[[Any], Any]
) -> None:
    asked: list[object] = []
    with answering(store.client, {"UploadPartCopy": lambda request: asked.append(request) or answer(request)}):
        for number in range(2):
            file = spliced(store, source, f"{output}-{number}")
            file.copy_range(source, 0, 12 * MIB)
            file.finish()
            assert s3_server.get(f"{output}-{number}") == SPLICED + LARGE[: 12 * MIB]
    assert store.moved["copied"] == 0
    assert len(asked) == 1  # what a store cannot do is remembered


def test_a_copy_that_fails_once_copies_are_known_to_work_is_an_error(
    store: S3ByteStore, source: str, output: str
) -> None:
    spliced(store, source, output).finish()
    with answering(store.client, {"UploadPartCopy": lambda _: answers.error(501, "NotImplemented")}):
        file = spliced(store, source, f"{output}-2")
        assert caught(file.finish).reason == "store_refuses"
    file.abort()
    assert not store.exists(f"{output}-2")


# --- sources that change ---


def test_a_source_replaced_after_its_footer_was_read_is_noticed(
    store: S3ByteStore, s3_server: S3Server, folder: str, own_source: str, output: str
) -> None:
    store.read(own_source, len(LARGE) - 8, 8)
    s3_server.put(own_source, LARGE[::-1])
    assert store.size(own_source) == len(LARGE)  # having looked again binds nothing to what is there now
    file = store.create(output)
    file.copy_range(own_source, 0, 11 * MIB)
    for action in (file.finish, lambda: store.read(own_source, 0, 4)):
        error = caught(action)
        assert isinstance(error, RetryError)
        assert error.reason == "input_changed"
    file.abort()
    assert s3_server.keys(folder) == [own_source]
    assert uploads(store, folder) == 0


def test_a_source_removed_in_between_is_named(
    store: S3ByteStore, s3_server: S3Server, own_source: str, output: str
) -> None:
    store.read(own_source, 0, 8)
    S3ByteStore(s3_server.properties).delete(own_source)
    file = store.create(output)
    file.copy_range(own_source, 0, 11 * MIB)
    error = caught(file.finish)
    assert error.reason == "input_missing"
    assert own_source in str(error)
    file.abort()


# --- never over another's object ---


@pytest.mark.parametrize("large", [True, False])
def test_an_object_that_appears_meanwhile_is_not_overwritten(
    store: S3ByteStore, s3_server: S3Server, folder: str, source: str, output: str, large: bool
) -> None:
    file = store.create(output)
    file.copy_range(source, 0, 11 * MIB if large else 100)
    s3_server.put(output, b"somebody else's")
    assert caught(file.finish).reason == "output_exists"
    file.abort()
    assert s3_server.get(output) == b"somebody else's"
    assert uploads(store, folder) == 0


@pytest.mark.parametrize("large", [True, False])
def test_stores_without_conditional_writes_are_asked_first(
    store: S3ByteStore, s3_server: S3Server, source: str, output: str, large: bool
) -> None:
    def unconditional(request: Any) -> Any:
        return answers.error(501, "NotImplemented") if "If-None-Match" in request.headers else None

    length = 11 * MIB if large else 100
    with answering(store.client, {"CompleteMultipartUpload": unconditional, "PutObject": unconditional}):
        file = store.create(output)
        file.copy_range(source, 0, length)
        assert file.finish() == length
        late = store.create(f"{output}-2")
        late.copy_range(source, 0, length)
        s3_server.put(f"{output}-2", b"somebody else's")
        assert caught(late.finish).reason == "output_exists"
        late.abort()
    assert s3_server.get(output) == LARGE[:length]
    assert s3_server.get(f"{output}-2") == b"somebody else's"


# --- answers that are lost ---


def lost(do: Callable[[Any], object], times: int) -> Callable[[Any], Any]:
    """Have a request carried out by another client, and then answer as if it had failed, `times` times."""
    left = [times]

    def answer(request: Any) -> Any:
        if not left[0]:
            return None
        if left[0] == times:
            do(request)
        left[0] -= 1
        return answers.error(500, "InternalError")

    return answer


@pytest.mark.parametrize("times", [1, 2], ids=["the first answer", "all answers"])
def test_an_upload_that_was_completed_counts_although_the_answer_was_lost(
    store: S3ByteStore, s3_server: S3Server, folder: str, source: str, output: str, times: int
) -> None:
    def complete(request: Any) -> None:
        upload = store.open_uploads(output)[0]
        key = output.split("/", 3)[3]
        client, place = s3_server.client, {"Bucket": s3_server.bucket, "Key": key, "UploadId": upload.upload_id}
        parts = [{name: part[name] for name in ("PartNumber", "ETag")} for part in client.list_parts(**place)["Parts"]]
        client.complete_multipart_upload(**place, MultipartUpload={"Parts": parts})

    file = spliced(store, source, output)
    with answering(store.client, {"CompleteMultipartUpload": lost(complete, times)}):
        assert file.finish() == len(SPLICED)
    assert s3_server.get(output) == SPLICED
    file.abort()
    assert s3_server.keys(folder) == []


def test_a_small_object_that_was_written_counts_although_the_answer_was_lost(
    store: S3ByteStore, s3_server: S3Server, output: str
) -> None:
    file = store.create(output)
    file.write(b"small")
    with answering(store.client, {"PutObject": lost(lambda _: s3_server.put(output, b"small"), 1)}):
        assert file.finish() == 5
    assert s3_server.get(output) == b"small"


def test_a_small_object_of_somebody_else_is_told_from_a_lost_answer(
    store: S3ByteStore, s3_server: S3Server, output: str
) -> None:
    file = store.create(output)
    file.write(b"small")
    with answering(store.client, {"PutObject": lost(lambda _: s3_server.put(output, b"other"), 1)}):
        assert caught(file.finish).reason == "output_exists"
    file.abort()
    assert s3_server.get(output) == b"other"


def test_an_upload_that_could_not_be_completed_is_aborted(
    store: S3ByteStore, s3_server: S3Server, folder: str, source: str, output: str
) -> None:
    file = spliced(store, source, output)
    with answering(store.client, {"CompleteMultipartUpload": lambda _: answers.error(500, "InternalError")}):
        error = caught(file.finish)
    assert isinstance(error, RetryError)
    assert uploads(store, folder) == 1
    file.abort()
    assert uploads(store, folder) == 0
    assert s3_server.keys(folder) == []


def test_a_body_that_breaks_off_is_read_on(store: S3ByteStore, source: str) -> None:
    asked: list[str] = []

    def breaks_off(request: Any) -> Any:
        asked.append(request.headers["Range"])
        if len(asked) > 1:
            return None
        whole = {"content_length": "100", "content_range": f"bytes 0-99/{len(LARGE)}", "etag": etag}
        return answers.response(206, LARGE[:40], **whole)

    etag = store.state(source).etag
    with answering(store.client, {"GetObject": breaks_off}):
        assert store.read(source, 0, 100) == LARGE[:100]
    assert len(asked) == 2


def test_a_body_that_always_breaks_off_is_given_up_for_now(store: S3ByteStore, source: str) -> None:
    whole = {"content_length": "100", "content_range": f"bytes 0-99/{len(LARGE)}", "etag": answers.ETAG}
    with answering(store.client, {"GetObject": lambda _: answers.response(206, LARGE[:40], **whole)}):
        assert isinstance(caught(lambda: store.read(source, 0, 100)), RetryError)


def test_a_server_that_ignores_ranges_is_not_believed(store: S3ByteStore, source: str) -> None:
    ignored = {"content_length": str(len(LARGE)), "etag": answers.ETAG}
    with answering(store.client, {"GetObject": lambda _: answers.response(200, LARGE, **ignored)}):
        assert caught(lambda: store.read(source, 10, 100)).reason == "store_refuses"


def test_an_object_of_another_size_than_was_written_is_an_error(store: S3ByteStore, source: str, output: str) -> None:
    file = spliced(store, source, output)
    wrong = lambda _: answers.response(200, content_length="7", etag=answers.ETAG)  # noqa: E731
    with answering(store.client, {"HeadObject": wrong}):
        assert isinstance(caught(file.finish), RetryError)
    file.abort()
    assert not store.exists(output)


# --- what a writer that died leaves ---


def test_unfinished_uploads_are_found_and_aborted(
    store: S3ByteStore, s3_server: S3Server, folder: str, source: str
) -> None:
    names = [f"{folder}/data/a.parquet", f"{folder}/data/a.parquet-2", f"{folder}/data/b.parquet"]
    for name in names:
        file = store.create(name)
        file.copy_range(source, 0, 6 * MIB)
        file.copy_range(source, 0, 6 * MIB)  # the first range becomes a part; the process ends here
    properties = s3_server.properties
    assert {found.location for found in store.open_uploads(f"{folder}/")} == set(names)
    assert abort_uploads(names[0], properties) == 1
    assert abort_uploads(names[0], properties) == 0
    assert {found.location for found in store.open_uploads(f"{folder}/")} == set(names[1:])
    assert abort_uploads(f"{folder}/data/", properties) == 2
    assert uploads(store, folder) == 0
    assert s3_server.keys(folder) == []


def test_an_upload_aborted_by_a_sweep_is_an_error_for_its_writer(
    store: S3ByteStore, folder: str, source: str, output: str
) -> None:
    file = spliced(store, source, output)
    file.copy_range(source, 0, 6 * MIB)
    file.write(bytes(20 * MIB))
    assert abort_uploads(output, store.properties) == 1
    assert isinstance(caught(file.finish), FirnlineError)
    file.abort()
    assert not store.exists(output)
    assert uploads(store, folder) == 0


# --- answers that say no ---


@pytest.mark.parametrize(
    ("status", "code", "kind", "reason"),
    [
        (403, "AccessDenied", GiveUpError, "access_denied"),
        (403, "InvalidAccessKeyId", GiveUpError, "access_denied"),
        (403, "RequestTimeTooSkewed", RetryError, "unavailable"),
        (400, "ExpiredToken", RetryError, "credentials_expired"),
        (400, "KMS.DisabledException", GiveUpError, "access_denied"),
        (400, "InvalidRequest", GiveUpError, "store_refuses"),
        (404, "NoSuchKey", GiveUpError, "input_missing"),
        (404, "NoSuchBucket", GiveUpError, "input_missing"),
        (409, "OperationAborted", RetryError, "unavailable"),
        (412, "PreconditionFailed", RetryError, "input_changed"),
        (429, "TooManyRequests", RetryError, "unavailable"),
        (500, "InternalError", RetryError, "unavailable"),
        (503, "SlowDown", RetryError, "unavailable"),
        (507, "XMinioStorageFull", RetryError, "no_space"),
    ],
)
def test_every_refusal_asks_for_its_reaction(
    store: S3ByteStore, source: str, output: str, status: int, code: str, kind: type[FirnlineError], reason: str
) -> None:
    no: answers.Answer = lambda _: answers.error(status, code)  # noqa: E731
    with answering(store.client, {"GetObject": no, "UploadPartCopy": no}):
        first = caught(lambda: store.read(source, 0, 1))
        file = store.create(output)
        file.copy_range(source, 0, 6 * MIB)
        actions = [first] if reason == "store_refuses" else [first, caught(file.finish)]
    for error in actions:
        assert type(error) is kind
        assert error.reason == reason
        assert "source.parquet" in str(error)
    file.abort()
    hints = {"access_denied": "check the credentials", "credentials_expired": "ends with its lifetime"}
    assert hints.get(reason, "") in str(first)


def test_wrong_credentials_and_no_server(s3_server: S3Server, source: str) -> None:
    denied = S3ByteStore(s3_server.properties | {"s3.secret-access-key": "wrong"})
    for action in (denied.size, denied.exists, denied.create, denied.delete):
        assert caught(lambda action=action: action(source)).reason == "access_denied"
    assert caught(lambda: denied.read(source, 0, 4)).reason == "access_denied"
    nobody = S3ByteStore({**s3_server.properties, "s3.endpoint": "http://127.0.0.1:9", "s3.retry.num-retries": "0"})
    for action in (nobody.size, nobody.exists, nobody.create, nobody.delete):
        assert isinstance(caught(lambda action=action: action(source)), RetryError)


@pytest.mark.parametrize(
    "failure",
    [EndpointConnectionError(endpoint_url="http://s3"), ReadTimeoutError(endpoint_url="http://s3"), OSError("reset")],
)
def test_what_never_answers_is_retried(failure: Exception) -> None:
    error = s3_errors.translated(failure, "s3://b/k", "reading")
    assert isinstance(error, RetryError)
    assert error.reason == "unavailable"
