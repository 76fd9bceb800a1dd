"""The demo's environment: folder, catalog and store, settings file, and a port for the service's pages."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from compactor.errors import InputError
from compactor.settings.policy import PolicyValues
from deploy.demo.events_table import BUCKETS
from deploy.demo.local_process import free_port
from deploy.demo.object_store import s3proxy
from deploy.demo.rest_catalog import files_on, rest_catalog

USUAL_PORT = 9464
SQLITE = "sqlite"
CATALOG, TABLE = "lake", "db.events"
MIN_INPUT_FILES = PolicyValues().min_input_files
ROOM = 6  # bytes written per ingested byte of one act, with a margin: no snapshot is expired


@dataclass(frozen=True)
class Stage:
    """Folder of the demo, its catalog and store (`on`: sqlite or rest-s3), and the size of its ingestion per act."""

    folder: Path
    commits: int
    file_size: int
    on: str = SQLITE

    @property
    def settings_file(self) -> Path:
        return self.folder / "firnline.yaml"

    def check(self) -> None:
        """Check the options.

        Raises:
            InputError: too few commits, files too small, an old catalog in the folder, or too little disk.
        """
        if self.commits < MIN_INPUT_FILES:
            raise InputError(
                f"--commits must be at least {MIN_INPUT_FILES}: the policy merges from that many small files"
            )
        if self.file_size < 1:
            raise InputError("--file-size must be positive")
        if self.settings_file.exists():
            raise InputError(f"{self.folder} contains an earlier demo; remove it or use another --folder")
        needed = ROOM * self.commits * BUCKETS * self.file_size
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise InputError(
                f"{self.folder} has {free / 1e9:.1f} GB free, about {needed / 1e9:.1f} GB are needed; "
                "use another --folder or a smaller --file-size"
            )

    @contextmanager
    def lake(self) -> Iterator[dict[str, str]]:
        """Run the catalog and the store; yield the catalog's properties."""
        if self.on == SQLITE:
            warehouse = f"file://{self.folder / 'warehouse'}"
            yield {"type": "sql", "uri": f"sqlite:///{self.folder / 'catalog.db'}", "warehouse": warehouse}
            return
        with s3proxy(self.folder / "s3") as store:
            warehouse = f"s3://{store.bucket}/warehouse"
            with rest_catalog(self.folder / "catalog", warehouse, files_on(store)) as uri:
                yield {"type": "rest", "uri": uri, "warehouse": warehouse, **store.properties}

    def write_settings(self, bootstrap_servers: str, catalog: Mapping[str, str]) -> None:
        document = {
            "catalogs": {CATALOG: dict(catalog)},
            "tables": {"include": ["db.*"]},
            "kafka": {"bootstrap_servers": bootstrap_servers},
            "spark": {"master": "local[2]"},
            # The files of one act and bucket become one file of about the target size, which is not rewritten again.
            "policy": {
                "target_file_size": self.commits * self.file_size,
                "strategy": "threshold",  # rewrites every few commits, so that the demo shows it within a minute
            },
            "http": {"host": "127.0.0.1", "port": free_port(USUAL_PORT)},
            "state": {"checkpoint": f"file://{self.folder / 'checkpoint'}"},
        }
        self.settings_file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


@contextmanager
def work_folder(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"folder {folder} cannot be made: {error}; name another one with --folder") from error
        yield folder.resolve()
    else:
        yield Path(tempfile.mkdtemp(prefix="firnline-demo-")).resolve()


def interruptible() -> AbstractContextManager[None]:
    """Handle SIGTERM and a closed terminal like Ctrl-C."""
    return _handled(_interrupt, signal.SIGTERM, signal.SIGHUP)


def uninterrupted() -> AbstractContextManager[None]:
    """Ignore Ctrl-C, so that a second one does not leave children behind."""
    return _handled(signal.SIG_IGN, signal.SIGINT)


@contextmanager
def _handled(handler: Any, *names: signal.Signals) -> Iterator[None]:
    before = {name: signal.signal(name, handler) for name in names}
    try:
        yield
    finally:
        for name, earlier in before.items():
            signal.signal(name, earlier)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    if number == signal.SIGHUP:  # the terminal is gone: printing must not fail
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):
            os.dup2(nowhere, descriptor)
    raise KeyboardInterrupt
