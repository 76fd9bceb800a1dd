"""A real PostgreSQL that ends idle connections: a look after such a pause is one of many, and must not fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from compactor.iceberg.open_catalog import open_catalog
from deploy.demo.local_process import free_port

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
MISSING = [
    *([] if PROGRAMS else ["PostgreSQL in /usr/lib/postgresql"]),
    *([] if find_spec("psycopg2") else ["its driver psycopg2"]),
]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {' and '.join(MISSING)}")
IDLE = 0.5


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Of a database that ends a connection that has been idle for half a second. It does not run as root."""
    port, data = free_port(), tmp_path / "data"
    data.mkdir()
    user: list[str] = []
    if os.geteuid() == 0:
        for folder in (data, *data.parents):
            if folder.is_relative_to("/tmp") and folder != Path("/tmp"):  # noqa: S108 - pytest's own folders
                folder.chmod(0o755)
        shutil.chown(data, "postgres")
        user = ["runuser", "-u", "postgres", "--"]

    def run(program: str, *arguments: str) -> None:
        subprocess.run(
            [*user, str(PROGRAMS[-1] / program), "-D", str(data), *arguments],
            check=True, stdout=subprocess.DEVNULL, cwd="/",
        )  # fmt: skip

    run("initdb", "-A", "trust", "-U", "firnline")
    options = (
        f"-p {port} -k {data} -c fsync=off -c listen_addresses=127.0.0.1 -c idle_session_timeout={IDLE * 1000:.0f}"
    )
    run("pg_ctl", "-w", "-l", f"{data}/log", "-o", options, "start")
    try:
        yield f"postgresql+psycopg2://firnline@127.0.0.1:{port}/postgres"
    finally:
        run("pg_ctl", "-m", "immediate", "stop")


def test_a_connection_that_the_database_has_ended_is_replaced(address: str, tmp_path: Path) -> None:
    catalog = open_catalog("lake", {"type": "sql", "uri": address, "warehouse": f"file://{tmp_path}"})
    assert isinstance(catalog, SqlCatalog)
    with closing(catalog):
        catalog.create_namespace("db")
        for _ in range(2):
            wait_until_ended(address)
            assert catalog.list_namespaces() == [("db",)]


def wait_until_ended(address: str) -> None:
    """Wait until the database has no connection but the one that asks."""
    import psycopg2  # noqa: PLC0415 - may be missing

    deadline = time.monotonic() + 30
    others = None
    while others != 0 and time.monotonic() < deadline:
        with closing(psycopg2.connect(address.replace("+psycopg2", ""))) as asking, asking.cursor() as cursor:
            cursor.execute(
                "select count(*) from pg_stat_activity "
                "where backend_type = 'client backend' and pid <> pg_backend_pid()"
            )
            others = cursor.fetchone()[0]
        time.sleep(IDLE / 5)
    assert others == 0
