"""Deletions of tables' files: what a run may delete, the one function that deletes, and the trail that it leaves.

Paths come from records. Anyone who can write beside the checkpoint can forge one. So nothing that a record says is
trusted before a deletion: a file must be the run's own by its name, in the table's own folders, and in no snapshot.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import unquote

from compactor.commit.in_flight import Record
from compactor.credentials.renewing_file_io import vended_of
from compactor.errors import FirnlineError, GiveUpError
from compactor.events import DeletionRefused, FileDeleted, Listener
from compactor.iceberg.tables import TableView
from compactor.locations import normal_location
from compactor.reasons import Reason
from compactor.storage.opening import abort_uploads, byte_store_for

LOG = logging.getLogger("firnline")
AT_ONCE: Final = 16
"""Requests to the store: after attempts that failed, a thousand outputs can have sixteen thousand names."""

ENDED_RUN: Final = "ended_run"
NOT_COMMITTED: Final = "not_committed"
UNUSED_METADATA: Final = "unused_metadata"
"""Why files were deleted: outputs of a run that a sweep found, outputs that a run did not commit, manifests and their
lists of attempts to commit. Label values of a metric.
"""

OWN_LOCATIONS: Final = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)
"""Table properties that name folders of the table beside its location."""


@dataclass(frozen=True)
class OwnFiles:
    """Which files are a run's own. `folders`: of its table; `genuine`: the run's id was made for this table."""

    run_id: str
    folders: tuple[str, ...]
    genuine: bool

    @classmethod
    def of(cls, record: Record, table: TableView) -> OwnFiles:
        """Those of the run that the record names, on its table as it is now."""
        return cls(record.run_id, own_folders(table), record.is_genuine and record.table_uuid == table.uuid)

    def refusal(self, location: str) -> str:
        """Why the file, or the folder, is not the run's own; empty: it is. Pure."""
        if not self.genuine:
            return "the run's id was not made for this table and the snapshot that the record names"
        for spelling in (str, decoded):
            below = _below(spelling(location), map(spelling, self.folders))
            if not below:
                return "it lies outside the table's own locations"
            if not any(f"firnline-{self.run_id}" in path for path in below):
                return "neither its name nor its folder has the run's id"
        return ""


def own_folders(table: TableView) -> tuple[str, ...]:
    """The folders that the table's metadata name as its own."""
    named = (table.properties.get(key) for key in OWN_LOCATIONS)
    return (table.metadata.location, *(folder for folder in named if folder))


def _below(location: str, folders: Iterable[str]) -> list[str]:
    """The location's path below each folder that it lies in."""
    place = normal_location(location)
    prefixes = (f"{normal_location(folder).rstrip('/')}/" for folder in folders)
    return [place.removeprefix(prefix) for prefix in prefixes if place.startswith(prefix)]


def decoded(location: str) -> str:
    """The location without percent escapes, also those of escapes."""
    while (plain := unquote(location)) != location:
        location = plain
    return location


def refuse(own: OwnFiles, record: Record, locations: Iterable[str], listener: Listener) -> list[str]:
    """The locations that are the run's own; the others are reported at the first sweep, and left alone."""
    allowed: list[str] = []
    refused: dict[str, list[str]] = {}
    for location in locations:
        why = own.refusal(location)
        (refused.setdefault(why, []) if why else allowed).append(location)
    for why, paths in refused.items() if not record.swept else ():
        listener(DeletionRefused(record.table, record.run_id, tuple(paths), why))
    return allowed


def abort_uploads_to(table: TableView, places: Sequence[str]) -> None:
    """Abort unfinished uploads to these files, and below these folders, which end in `/`."""

    def abort(place: str) -> None:
        _possible(lambda: abort_uploads(place, table.io.properties, vended_of(table.io)))

    with ThreadPoolExecutor(AT_ONCE, "sweep-uploads") as pool:
        list(pool.map(abort, places))


def delete_unused_metadata(
    table: TableView, run_id: str, written: Iterable[str], used: AbstractSet[str], listener: Listener
) -> None:
    """Delete manifests and manifest lists that this process has written for a commit, and that are not `used`.

    Raises:
        FirnlineError: as `delete_files`.
    """
    unused = sorted(path for path in set(written) - used if _below(path, own_folders(table)))
    delete_files(table, run_id, unused, UNUSED_METADATA, listener)


def delete_files(table: TableView, run_id: str, paths: Sequence[str], reason: str, listener: Listener) -> int:
    """Delete files of a table with their store's own client, and tell it; returns how many there were.

    The caller has made sure that they are the run's own and that no snapshot has them.

    Raises:
        FirnlineError: the store does not answer, or denies access; the others were deleted.
    """

    def delete(path: str) -> bool | FirnlineError:
        try:
            deleted = _possible(partial(_delete, table, path))
        except FirnlineError as error:
            return error
        if deleted:
            listener(FileDeleted(table.name, run_id, path, reason))
        return deleted

    with ThreadPoolExecutor(AT_ONCE, "delete-files") as pool:
        outcomes = list(pool.map(delete, paths))
    for outcome in outcomes:
        if isinstance(outcome, FirnlineError):
            raise outcome
    return outcomes.count(True)


def _delete(table: TableView, path: str) -> bool:
    store = byte_store_for(path, table.io.properties, vended_of(table.io))
    if not store.exists(path):
        return False
    store.delete(path)
    return True


def _possible(request: Callable[[], object]) -> bool:
    """Carry out a request; False where no file can be at its location, e.g. because the name is too long."""
    try:
        return bool(request())
    except GiveUpError as error:
        if error.reason is not Reason.UNSUPPORTED_LOCATION:
            raise
        return False
