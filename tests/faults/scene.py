"""What faults are tried on: a broker, a REST catalog and an S3 server, each behind a faulty proxy, and the service.

The writer reaches all of them directly: no fault of a proxy concerns it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from compactor.commit.in_flight import InFlightRecords
from compactor.iceberg.tables import Catalogs
from compactor.lease.owner import Owner
from deploy.demo.broker import LocalBroker, new_broker
from deploy.demo.object_store import ObjectStore, s3proxy
from deploy.demo.rest_catalog import files_on, rest_catalog
from tests.faults.proxy import FaultyProxy, Mode
from tests.integration.service_process import ServiceProcess, Site
from tests.services.quick_java import quick_java
from tests.services.s3_server import S3Server
from tests.services.shifted_clock import ShiftedClock
from tests.services.short_credentials import TAKES_TOKENS
from tests.services.spark_cluster import SparkCluster

COMMITS, PARTS, ROWS = 6, 4, 3000
VOLUME_BYTES = "16m"


@dataclass
class Server:
    """A server process that can be killed, frozen and started again; the proxy stays where it is."""

    name: str
    folder: Path
    start_it: Callable[[ExitStack], tuple[str, int]]
    proxy: FaultyProxy = field(init=False)
    running: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.proxy = FaultyProxy(self.start_it(self.running))

    @property
    def pid(self) -> int:
        """The Java process whose folder is this server's."""
        for link in Path("/proc").glob("[0-9]*/cwd"):
            with suppress(OSError):
                if link.readlink() == self.folder and "java" in (link.parent / "comm").read_text():
                    return int(link.parent.name)
        raise AssertionError(f"{self.name} does not run")

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.running.close()

    def start(self) -> None:
        self.proxy.target = self.start_it(self.running)

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


@dataclass
class Scene:
    """Everything, started. `close` ends it. `sections`: more settings of the service; `port`: of its pages."""

    folder: Path
    sections: Mapping[str, Any] = field(default_factory=dict)
    port: int | None = None
    volume: Path = field(init=False)
    servers: dict[str, Server] = field(default_factory=dict)
    site: Site = field(init=False)
    service: ServiceProcess = field(init=False)
    broker: LocalBroker = field(init=False)
    store: ObjectStore = field(init=False)
    door: FaultyProxy = field(init=False)
    catalog_uri: str = ""
    tables: int = 0
    doors: object = None
    clock: ShiftedClock | None = None
    cluster: SparkCluster | None = None
    more: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.volume = self.folder / "volume"
        self.volume.mkdir(parents=True)
        if os.geteuid() == 0:
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={VOLUME_BYTES}", "tmpfs", str(self.volume)], check=True
            )
        kafka, s3, rest = (self.folder / name for name in ("kafka", "s3", "rest"))
        for each in (s3, rest):
            each.mkdir()
        self._add("store", s3, self._start_store)
        self._add("catalog", rest, self._start_catalog)
        self.broker = new_broker(kafka)
        proxy = FaultyProxy(("127.0.0.1", self.broker.port))
        with (kafka / "server.properties").open("a") as properties:
            properties.write(f"advertised.listeners=PLAINTEXT://127.0.0.1:{proxy.port}\n")
        self._add("broker", kafka, self._start_broker)
        self.servers["broker"].proxy.close()
        self.servers["broker"].proxy = proxy
        broken = self.store_behind(self.servers["store"].proxy.port).properties
        catalog = {"type": "rest", "uri": f"http://127.0.0.1:{self.servers['catalog'].proxy.port}", **broken}
        sections: dict[str, Any] = {
            "catalogs": {"lake": catalog},
            "state": {"checkpoint": f"file://{self.volume}/checkpoint"},
            "kafka": {"options": {"default.api.timeout.ms": "8000", "request.timeout.ms": "6000"}},
            "service": {"sweep_seconds": 5},
        }
        for section, values in self.sections.items():
            sections[section] = {**sections.get(section, {}), **values}
        self.site = Site(self.folder / "site", f"127.0.0.1:{proxy.port}", sections)
        self.use_directly()
        self.start_service()

    def use_directly(self) -> None:
        """Let the writer use the catalog without the proxy."""
        properties = {"type": "rest", "uri": self.catalog_uri, **self.store.properties}
        self.site.catalogs = Catalogs({"lake": properties})

    @property
    def records(self) -> InFlightRecords:
        return InFlightRecords(f"file://{self.volume}/checkpoint/in-flight", Owner.this_process(), 60, time.time)

    def written(self, table: str) -> set[Path]:
        """Objects of the table's data, as the store keeps them on its disk."""
        place = self.folder / "s3" / "objects" / self.site.view(table).metadata.location.split("://", 1)[1] / "data"
        return {path for path in place.rglob("*.parquet") if path.is_file()}

    def _add(self, name: str, folder: Path, start: Callable[[ExitStack], tuple[str, int]]) -> None:
        self.servers[name] = Server(name, folder, start)

    def _start_store(self, running: ExitStack) -> tuple[str, int]:
        started = running.enter_context(quick_java(s3proxy(self.folder / "s3", options=TAKES_TOKENS)))
        address = S3Server(**vars(started)).address
        if not hasattr(self, "door"):
            self.door = FaultyProxy(address)  # the way of the writer and of the catalog's server
            self.store = replace(started, endpoint=f"http://127.0.0.1:{self.door.port}")
        self.door.target = address
        return address

    def _start_catalog(self, running: ExitStack) -> tuple[str, int]:
        warehouse = f"s3://{self.store.bucket}/warehouse"
        self.catalog_uri = running.enter_context(
            quick_java(rest_catalog(self.folder / "rest", warehouse, files_on(self.store)))
        )
        if hasattr(self, "site"):
            self.use_directly()
        return "127.0.0.1", int(self.catalog_uri.rpartition(":")[2])

    def _start_broker(self, running: ExitStack) -> tuple[str, int]:
        running.enter_context(quick_java(self.broker.running()))
        return "127.0.0.1", self.broker.port

    def store_behind(self, port: int) -> S3Server:
        return S3Server(**{**vars(self.store), "endpoint": f"http://127.0.0.1:{port}"})

    def start_service(self) -> None:
        clock = {} if self.clock is None else self.clock.environment
        self.service = self.site.started(port=self.port, **clock)

    def use_own_clock(self) -> None:
        """Start the service again without a shifted clock."""
        if self.clock is not None:
            self.service.terminate()
            self.clock = None
            self.start_service()

    def use_catalog(self, properties: dict[str, str]) -> None:
        """Start the service again, with another way to the same catalog and store."""
        self.use_sections(catalogs={"lake": properties})

    def use_sections(self, **sections: Any) -> None:
        """Start the service again, with other settings."""
        self.service.terminate()
        self.site.sections = {**self.site.sections, **sections}
        self.site.write_config()
        self.start_service()

    def objects(self, table: str) -> set[str]:
        """Locations of all objects in the table's data folder."""
        location = self.site.view(table).metadata.location
        found = S3Server(**vars(self.store)).keys(f"{location}/data")
        return {each for each in found if not each.endswith("/")}  # s3proxy shows the folders of its disk

    def uploads(self) -> int:
        """Multipart uploads that nobody has finished."""
        store = S3Server(**vars(self.store))
        return len(store.client.list_multipart_uploads(Bucket=store.bucket).get("Uploads", []))

    def well(self) -> None:
        """Everything works again."""
        for server in self.servers.values():
            if server.proxy.mode is not Mode.PASS:
                server.proxy.mode = Mode.PASS

    def close(self) -> None:
        self.well()
        with suppress(AssertionError):
            self.site.close()
        self.more.close()
        for server in self.servers.values():
            server.proxy.close()
            server.running.close()
        if os.geteuid() == 0:
            time.sleep(0.5)
            subprocess.run(["umount", "-l", str(self.volume)], check=False)
