"""Typed events as log lines: work and trouble are logged, what happens every second is left to the metrics."""

from __future__ import annotations

import logging

from compactor.events import (
    Event,
    GroupDropped,
    ManifestsRewritten,
    RunCommitted,
    RunFailed,
    RunWouldRewrite,
    TableUnreadable,
    UnreferencedFilesRemoved,
)

LOG = logging.getLogger("firnline")


def log_event(event: Event) -> None:
    """One line an event; what has none of its own is shown by `--verbose`."""
    match event:
        case RunCommitted():
            LOG.info(
                "%s: %d files -> %d in %d groups, %.1f MB, plan %.2fs rewrite %.2fs commit %.2fs, snapshot %d, run %s",
                event.table, event.files_in, event.files_out, event.groups, event.bytes_in / 1e6, event.plan_seconds,
                event.rewrite_seconds, event.commit_seconds, event.snapshot_id, event.run_id,
            )  # fmt: skip
        case RunWouldRewrite():
            LOG.info(
                "%s: would rewrite %d files -> %d in %d groups, %.1f MB",
                event.table, event.files, event.files_after, event.groups, event.bytes / 1e6,
            )  # fmt: skip
        case RunFailed():
            LOG.warning(
                "%s: run %s failed in %s (%s): %s",
                event.table, event.run_id, event.stage, event.reaction, event.message,
            )  # fmt: skip
        case ManifestsRewritten():
            LOG.info("%s: %d manifests -> %d, run %s", event.table, event.before, event.after, event.run_id)
        case GroupDropped():
            LOG.warning("%s: partition %s is left as it was: %s", event.table, event.key.values, event.message)
        case TableUnreadable():
            LOG.warning("%s: %s", event.table, event.message)
        case UnreferencedFilesRemoved():
            LOG.info("%s: removed %d unreferenced outputs of ended runs", event.table, event.files)
        case _:
            LOG.debug("%s", event)
