"""Choose the lease store for a checkpoint, and read the deployment's id from it."""

from __future__ import annotations

import logging
from pathlib import Path

from compactor.errors import FirnlineError
from compactor.lease.document import decode
from compactor.lease.local_store import LocalLeaseStore
from compactor.lease.plain_store import PlainLeaseStore
from compactor.lease.s3_store import S3LeaseStore, s3_lease_store
from compactor.lease.store import LeaseStore
from compactor.locations import plain_path

LOG = logging.getLogger("firnline")
FOLDER = "lease"


def lease_store(checkpoint: str) -> LeaseStore:
    """The store beside this checkpoint. Logs once if it cannot promise a single holder.

    Raises:
        OSError: an object store does not answer.
    """
    store = _store(checkpoint)
    if not store.conditional and isinstance(store, S3LeaseStore):
        store = PlainLeaseStore(_folder(checkpoint))
    if not store.conditional:
        LOG.warning(
            "%s: this store has no conditional writes, so that two services may both be active for some seconds after "
            "a take-over; use a volume or S3 for state.checkpoint if you run a standby",
            store.location,
        )
    return store


def known_deployment(checkpoint: str) -> str:
    """The id of the deployment whose checkpoint this is; empty if there is none, or if it cannot be read."""
    if not checkpoint:
        return ""
    try:
        stored = _store(checkpoint).read()
    except (OSError, ValueError, FirnlineError):
        return ""
    lease = decode(stored.content) if stored is not None else None
    return lease.deployment if lease is not None else ""


def _store(checkpoint: str) -> LeaseStore:
    """The store by the checkpoint's scheme; nothing is asked or written."""
    folder = _folder(checkpoint)
    if "://" not in folder or folder.startswith("file:"):
        return LocalLeaseStore(Path(plain_path(folder)))
    return s3_lease_store(folder) if folder.startswith("s3://") else PlainLeaseStore(folder)


def _folder(checkpoint: str) -> str:
    return f"{checkpoint.rstrip('/')}/{FOLDER}"
