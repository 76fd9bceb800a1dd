"""Spark's own connections: nobody without the secret takes part, and nobody on the way can read what they carry."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.service_process import ROOT, Site, document, firnline, free_port, site
from tests.security.canaries import Canaries, leaks_in_files, readable_by_others, watching
from tests.services.counting_proxy import Wire, counting_proxy
from tests.services.quick_java import SPARK_CONF
from tests.services.spark_cluster import HOST, SparkCluster, spark_cluster

CANARIES = Canaries({name: f"canary-{name}-{uuid.uuid4().hex}" for name in ("rpc", "key")})
NOBODY = "127.0.0.1:1"
TAPPED = "127.0.0.2"
RPC_REQUEST, RPC_FAILURE = 3, 5
LOCAL_DRIVER = """
import sys
from pathlib import Path
from compactor.settings.tree import load_settings
from compactor.spark.session import spark_session
session = spark_session(load_settings(Path(sys.argv[1]), {}))
print(session.sparkContext.getConf().get("spark.driver.port"), flush=True)
sys.stdin.read()
"""


@contextmanager
def tapped(cluster: SparkCluster, folder: Path) -> Iterator[tuple[Site, list[Wire]]]:
    """A site whose executors reach their driver through relays that look for a key, which travels with each task."""
    rpc, blocks = free_port(), free_port()
    conf = {
        **SPARK_CONF,
        **cluster.conf,
        "spark.driver.host": TAPPED,
        "spark.driver.bindAddress": HOST,
        "spark.broadcast.compress": "false",  # what is sent in clear must be found
        "spark.driver.port": str(rpc),
        "spark.driver.blockManager.port": str(blocks),
    }
    key = CANARIES["key"].encode()
    with (
        site(folder, NOBODY, spark={"master": cluster.master, "conf": conf}) as place,
        counting_proxy(HOST, rpc, sought=key, at=(TAPPED, rpc)) as first,
        counting_proxy(HOST, blocks, sought=key, at=(TAPPED, blocks)) as second,
    ):
        yield place, [first, second]


def compact(place: Site, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {"FIRNLINE_CATALOGS__LAKE__PASSWORD": CANARIES["key"], **environment}  # to PyIceberg's FileIO
    return firnline(place.config, "compact", "db.t", "--force", "--output", "json", **environment)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("secured", [True, False], ids=["secured", "not secured"])
def test_credentials_that_travel_with_tasks_cannot_be_read_on_the_way(tmp_path: Path, secured: bool) -> None:
    """Without the recipe they can: the relays would find them."""
    secret = CANARIES["rpc"] if secured else ""
    environment = {"FIRNLINE_SPARK__CONF__SPARK__AUTHENTICATE__SECRET": secret} if secured else {}
    with (
        spark_cluster(tmp_path / "cluster", 1, 1, secret=secret) as cluster,
        tapped(cluster, tmp_path / "site") as (place, wires),
        watching(CANARIES) as watch,
    ):
        place.append("t", commits=4, parts=2, rows=50)
        rows = place.rows("t")
        done = document(compact(place, **environment))
        assert sum(group["files_out"] for group in done["groups"]) == 2
        assert place.rows("t") == rows
        carried, seen = sum(wire.total for wire in wires), sum(wire.seen for wire in wires)
        print(f"\n{carried / 1e6:.1f} MB between executors and driver; a key of tasks in clear: {seen} times")
        assert carried > 100_000
        assert (seen == 0) == secured
        assert not watch.leaks, watch.leaks
        shown = {Path(where) for where, _ in leaks_in_files(CANARIES, [tmp_path])}
        assert {path.name for path in shown} == ({"spark-defaults.conf"} if secured else set()), shown
        assert not any(readable_by_others(path, tmp_path) for path in shown)


@pytest.mark.timeout(600)
def test_a_driver_with_another_secret_gets_no_executor(tmp_path: Path) -> None:
    wrong = f"wrong-{uuid.uuid4().hex}"
    with spark_cluster(tmp_path / "cluster", 1, secret=CANARIES["rpc"]) as cluster:
        conf = {**SPARK_CONF, **cluster.conf}
        with site(tmp_path / "site", NOBODY, spark={"master": cluster.master, "conf": conf}) as place:
            place.append("t", commits=4, parts=1, rows=50)
            before = place.operations("t")
            done = compact(place, FIRNLINE_SPARK__CONF__SPARK__AUTHENTICATE__SECRET=wrong)
            print(f"\n{done.stderr.splitlines()[-1]}")
            assert done.returncode == 3, done.stderr
            assert "spark.authenticate and its secret" in done.stderr
            assert wrong not in done.stdout + done.stderr
            assert place.operations("t") == before
        assert cluster.state["activeapps"] == []
        kind, answer = asked(int(cluster.master.rpartition(":")[2]), b"x" * 40)  # as somebody without any
        assert kind == RPC_FAILURE, answer


@pytest.mark.timeout(300)
def test_the_driver_of_local_mode_answers_nobody_without_its_secret(tmp_path: Path) -> None:
    """Other users of the host can connect to its ports; Spark would run what they send."""
    with site(tmp_path, NOBODY) as place:
        process = subprocess.Popen(
            [sys.executable, "-c", LOCAL_DRIVER, str(place.config)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        )  # fmt: skip
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            kind, answer = asked(port, b"x" * 40)
        finally:
            process.communicate()
    print(f"\n{answer.splitlines()[0][:200]}")
    assert kind == RPC_FAILURE
    assert "Expected SaslMessage" in answer


def asked(port: int, body: bytes) -> tuple[int, str]:
    """Send a request of Spark's protocol; kind and text of the answer."""
    with socket.create_connection((HOST, port), timeout=60) as client:
        head = struct.pack(">bqi", RPC_REQUEST, 1, len(body))
        client.sendall(struct.pack(">q", 8 + len(head) + len(body)) + head + body)
        received = b""
        while len(received) < 8 or len(received) < struct.unpack(">q", received[:8])[0]:
            data = client.recv(1 << 16)
            if not data:
                break
            received += data
    return received[8], received[8 + 1 + 8 + 4 :].decode("utf-8", "replace")
