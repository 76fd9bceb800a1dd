"""Iceberg's REST catalog over a local warehouse, behind a proxy that can lose answers, refuse, let others in first, or
treat `replace` commits as Apache Polaris does: roll them back when a writer's commit would conflict with them.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyiceberg.io import load_file_io

from compactor.iceberg.other_compactors import POLARIS_ROLLBACK
from deploy.demo.rest_catalog import rest_catalog
from tests.services.http_proxy import Answer, Proxy, proxy, send
from tests.services.quick_java import quick_java

CONFLICT = 409
BEHIND = "Cannot add a snapshot, first-row-id is behind table next-row-id"
FORWARDED = ("Authorization", "Content-Type", "Polaris-Realm")
Headers = Mapping[str, str]
NONE: Headers = {}


class Fault(Enum):
    """What happens to a commit of a table on its way."""

    ANSWER_LOST = "it is committed, then an error is answered"
    NOT_SENT = "it is not committed, an error is answered"
    UNDER_WAY = "an error is answered, and it is committed when the test says so"


class OnV3(Enum):
    """What becomes of a commit of a V3 table that the catalog would roll back: its row ids do not go back."""

    REFUSES_THE_WRITER = "status 400, as Apache Polaris up to 1.7"
    ROLLS_BACK = "no released catalog does"
    KEEPS = "the writer gets status 409, as if nobody had asked for a rollback"


@dataclass
class FaultyCatalog:
    """The proxy's address and its switches. `commits` counts commits that the catalog has accepted.

    `files`: properties of the store where the tables' metadata is; none for a local folder.
    `defaults`: put into its configuration; `keys_for`: how long it says that it knows idempotency keys; `keys`: those
    that commits brought; `prefix`: of its paths, which `upstream` does not have.
    """

    uri: str
    warehouse: str
    upstream: str
    honours_rollback: bool = False
    on_v3: OnV3 = OnV3.REFUSES_THE_WRITER
    prefix: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    fault: Fault | None = None
    status: int = 500
    before_commit: Callable[[], None] | None = None
    half_way: Callable[[], None] = lambda: None  # called after a rollback, before the writer's commit lands
    commits: int = 0
    rolled_back: int = 0
    defaults: dict[str, str] = field(default_factory=dict)
    keys_for: str | None = None
    keys: list[str | None] = field(default_factory=list)
    under_way: list[Callable[[], int]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def failing(self, fault: Fault, status: int = 500, times: int = 1) -> Iterator[None]:
        """The next commits meet the fault; the catalog is well again afterwards."""
        left = [None] * times
        self.fault, self.status = fault, status
        self._left = left
        try:
            yield
        finally:
            self.fault = None

    def arrive(self) -> list[int]:
        """All requests that are still under way arrive now; returns the catalog's status for each."""
        late, self.under_way = self.under_way, []
        return [arrives() for arrives in late]

    def take_fault(self) -> Fault | None:
        """The fault for one commit, if there is still one to come."""
        with self.lock:
            if self.fault is None or not self._left:
                return None
            self._left.pop()
            return self.fault

    def take_visitor(self) -> Callable[[], None] | None:
        """Whoever is to be let in before one commit."""
        with self.lock:
            visitor, self.before_commit = self.before_commit, None
            return visitor


@contextmanager
def faulty_catalog(folder: Path) -> Iterator[FaultyCatalog]:
    """Start the catalog and its proxy."""
    warehouse = f"file://{folder}/warehouse"
    files = {"io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}
    with (
        quick_java(rest_catalog(folder, warehouse, files)) as upstream,
        in_front_of(upstream, warehouse) as catalog,
    ):
        yield catalog


@contextmanager
def in_front_of(upstream: str, warehouse: str) -> Iterator[FaultyCatalog]:
    """Start the proxy of a catalog that runs already. `upstream` may be set to another address at any time."""
    catalog = FaultyCatalog("", warehouse, upstream)
    with proxy(_Handler, catalog) as catalog.uri:
        yield catalog


def _send(catalog: FaultyCatalog, method: str, path: str, body: bytes | None, headers: Headers = NONE) -> Answer:
    sent = {name: value for name, value in headers.items() if name.title() in FORWARDED}
    return send(
        catalog.upstream, method, path, body, {**({"Content-Type": "application/json"} if body else {}), **sent}
    )


def _is_commit(method: str, path: str) -> bool:
    parts = path.partition("?")[0].strip("/").split("/")
    return method == "POST" and len(parts) >= 5 and parts[-4] == "namespaces" and parts[-2] == "tables"


def _commit(catalog: FaultyCatalog, path: str, body: bytes, headers: Headers) -> Answer:
    visitor = catalog.take_visitor()
    if visitor is not None:
        visitor()
    fault = catalog.take_fault()
    if fault is Fault.NOT_SENT:
        return _error(catalog.status)
    if fault is Fault.UNDER_WAY:
        catalog.under_way.append(lambda: _send(catalog, "POST", path, body, headers).status)
        return _error(catalog.status)
    answer = _send(catalog, "POST", path, body, headers)
    if answer.status == CONFLICT and catalog.honours_rollback:
        answer = _rolled_back(catalog, path, body, headers) or answer
    if answer.status == http.client.OK:
        with catalog.lock:
            catalog.commits += 1
    return _error(catalog.status) if fault is Fault.ANSWER_LOST else answer


def _error(status: int, message: str = "as the test says") -> Answer:
    return Answer.error(status, "InternalServerError", message)


def _rolled_back(catalog: FaultyCatalog, path: str, body: bytes, headers: Headers) -> Answer | None:
    """Polaris: when only snapshots that allow it stand between the writer's base and the head, they are removed.

    The table's last sequence number is set back to the base's: the writer's snapshot has the next one.
    """
    requirements = json.loads(body).get("requirements", [])
    expected = next((each for each in requirements if each["type"] == "assert-ref-snapshot-id"), None)
    if expected is None or expected.get("snapshot-id") is None:
        return None
    metadata: dict[str, Any] = json.loads(_send(catalog, "GET", path, None).body)["metadata"]
    head = metadata["refs"][expected["ref"]]["snapshot-id"]
    removed = _in_between(metadata, expected["snapshot-id"], head)
    if removed is None:
        return None
    if metadata["format-version"] > 2 and catalog.on_v3 is not OnV3.ROLLS_BACK:
        return _error(http.client.BAD_REQUEST, BEHIND) if catalog.on_v3 is OnV3.REFUSES_THE_WRITER else None
    update = {
        "requirements": [{"type": "assert-ref-snapshot-id", "ref": expected["ref"], "snapshot-id": head}],
        "updates": [
            {
                "action": "set-snapshot-ref",
                "ref-name": expected["ref"],
                "type": "branch",
                "snapshot-id": expected["snapshot-id"],
            },
            {"action": "remove-snapshots", "snapshot-ids": removed},
        ],
    }
    done = _send(catalog, "POST", path, json.dumps(update).encode()).status == http.client.OK
    with catalog.lock:
        catalog.rolled_back += int(done)
    if not done:
        return None
    if metadata["format-version"] > 1:
        _set_back(catalog, path)
    catalog.half_way()
    return _send(catalog, "POST", path, body, headers)


def _set_back(catalog: FaultyCatalog, path: str) -> None:
    """Change the metadata file: no REST request sets a sequence number back, and Polaris does it within its server."""
    table: dict[str, Any] = json.loads(_send(catalog, "GET", path, None).body)
    location, metadata = table["metadata-location"], table["metadata"]
    metadata["last-sequence-number"] = max(each["sequence-number"] for each in metadata["snapshots"])
    if location.startswith("file:"):
        file = Path(urlsplit(location).path)
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # Hadoop compares what it reads with it
    with load_file_io(dict(catalog.files), location).new_output(location).create(overwrite=True) as stream:
        stream.write(json.dumps(metadata).encode())


def _in_between(metadata: dict[str, Any], base: int, head: int) -> list[int] | None:
    """The snapshots between the writer's base and the head; None: one of them does not allow its removal."""
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata["snapshots"]}
    current, removed = head, list[int]()
    while current != base:
        snapshot = snapshots.get(current)
        if snapshot is None:
            return None
        summary = snapshot["summary"]
        if summary["operation"] != "replace" or summary.get(POLARIS_ROLLBACK) != "rollback":
            return None
        removed.append(current)
        current = snapshot.get("parent-snapshot-id")
    return removed


def _configured(catalog: FaultyCatalog, answer: Answer) -> Answer:
    config = json.loads(answer.body)
    config["defaults"] = {**(config.get("defaults") or {}), **catalog.defaults}
    if catalog.keys_for is not None:
        config["idempotency-key-lifetime"] = catalog.keys_for
    return Answer.of(answer.status, config)


class _Handler(Proxy):
    def answer_to(self, body: bytes) -> Answer:
        catalog: FaultyCatalog = self.state
        path = self.path.removeprefix(catalog.prefix)
        if _is_commit(self.command, path):
            catalog.keys.append(self.headers.get("Idempotency-Key"))
            return _commit(catalog, path, body or b"{}", dict(self.headers))
        answer = _send(catalog, self.command, path, body, dict(self.headers))
        if path.startswith("/v1/config") and answer.status == http.client.OK:
            return _configured(catalog, answer)
        return answer
