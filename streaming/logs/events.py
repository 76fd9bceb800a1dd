"""Log typed events: rewrites, commits and failures. Frequent events are only counted in metrics."""

from __future__ import annotations

import logging

import structlog

from compactor import events
from compactor.partitions import partition_text

# Fields are passed as the standard library's `extra`, so that other log configurations still show plain messages.
LOG: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    logging.getLogger("firnline"),
    processors=[
        structlog.stdlib.filter_by_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.stdlib.render_to_log_kwargs,
    ],
    wrapper_class=structlog.stdlib.BoundLogger,
)

LOGGED = 10  # paths in one line


def log_event(event: events.Event) -> None:
    """Log one line per event. `--verbose` also logs the events without a case here."""
    match event:
        case events.GroupCommitted():
            _log_rewrite(event)
        case events.RunCommitted():
            LOG.info(
                "committed",
                run_id=event.run_id, table=str(event.table), snapshot_id=event.snapshot_id, groups=event.groups,
                files_in=event.files_in, files_out=event.files_out, bytes_in=event.bytes_in, bytes_out=event.bytes_out,
                delete_files_removed=event.delete_files_removed, plan_seconds=_rounded(event.plan_seconds),
                rewrite_seconds=_rounded(event.rewrite_seconds), commit_seconds=_rounded(event.commit_seconds),
            )  # fmt: skip
        case events.RunWouldRewrite():
            LOG.info(
                "would rewrite",
                table=str(event.table), groups=event.groups, files_in=event.files, files_out=event.files_after,
                bytes_in=event.bytes,
            )  # fmt: skip
        case (
            events.CommitWaits()
            | events.CommitRolledBack()
            | events.ManifestsRewritten()
            | events.EqualityDeletesConverted()
            | events.FileDeleted()
        ):
            _log_step(event)
        case events.RunFailed() | events.GroupDropped() | events.TableUnreadable() | events.DeletionRefused():
            _log_trouble(event)
        case events.EventsLost():
            LOG.warning(
                "events are skipped, because a record of their batch cannot be read; a sweep counts their commits"
                if event.unreadable
                else "retention removed events before they were read; a sweep counts their commits",
                query=event.query, topic=event.topic, offsets=event.count,
            )  # fmt: skip
        case events.PartitionsSkipped():
            LOG.debug("skipped", table=str(event.table), reason=event.reason, partitions=len(event.partitions))
        case _ if LOG.isEnabledFor(logging.DEBUG):
            LOG.debug(type(event).__name__, detail=str(event))


def _log_step(
    event: events.CommitWaits
    | events.CommitRolledBack
    | events.ManifestsRewritten
    | events.EqualityDeletesConverted
    | events.FileDeleted,
) -> None:
    """Log a wait before a commit, a commit that was undone or changed no data file, or a file that was deleted."""
    match event:
        case events.FileDeleted():
            LOG.info("deleted", path=event.path, run_id=event.run_id, table=str(event.table), reason=event.reason)
        case events.CommitWaits():
            LOG.info(
                "finished, waits to commit right after another writer",
                run_id=event.run_id, table=str(event.table), seconds_at_most=_rounded(event.seconds),
            )  # fmt: skip
        case events.CommitRolledBack():
            LOG.info(
                "the catalog rolled the commit back for a writer",
                run_id=event.run_id, table=str(event.table), snapshot_id=event.snapshot_id,
            )  # fmt: skip
        case events.ManifestsRewritten():
            LOG.info(
                "manifests rewritten",
                run_id=event.run_id, table=str(event.table), before=event.before, after=event.after,
                seconds=_rounded(event.seconds),
            )  # fmt: skip
        case events.EqualityDeletesConverted():
            LOG.info(
                "equality deletes converted",
                run_id=event.run_id, table=str(event.table), snapshot_id=event.snapshot_id,
                delete_files=event.delete_files, rows=event.rows, files=event.files, bytes_read=event.bytes_read,
                seconds=_rounded(event.seconds),
            )  # fmt: skip


def _log_rewrite(event: events.GroupCommitted) -> None:
    group = event.rewritten
    LOG.info(
        "rewritten",
        run_id=group.run_id,
        table=str(group.table),
        partition=partition_text(group.plan.partition),
        reason=group.plan.why,
        engine=group.engine,
        engine_reason=group.reason,
        files_in=group.files_in,
        files_out=group.files_out,
        bytes_in=group.bytes_in,
        bytes_out=group.bytes_out,
        rows_deleted=group.rows_deleted,
        rows_out=group.rows_out,
        rows_carried=event.rows_carried,
        rows_rebased=event.rows_rebased,
        seconds=_rounded(group.seconds),
        snapshot_id=event.snapshot_id,
    )


def _log_trouble(
    event: events.RunFailed | events.GroupDropped | events.TableUnreadable | events.DeletionRefused,
) -> None:
    match event:
        case events.RunFailed():
            LOG.warning(
                "run failed",
                run_id=event.run_id, table=str(event.table), stage=event.stage, reason=event.reason,
                reaction=event.reaction, error=event.message,
            )  # fmt: skip
        case events.GroupDropped():
            LOG.warning(
                "file group not rewritten",
                run_id=event.run_id, table=str(event.table), partition=partition_text(event.plan.partition),
                reason=event.reason, error=event.message,
            )  # fmt: skip
        case events.TableUnreadable():
            LOG.warning("table unreadable", table=str(event.table), reason=event.reason, error=event.message)
        case events.DeletionRefused():
            LOG.warning(
                "files that the record of a run names are not deleted: they are not the run's own. Find out who wrote "
                "the record; if no table references them, remove them by hand",
                run_id=event.run_id, table=str(event.table), why=event.why, files=len(event.paths),
                paths=", ".join(event.paths[:LOGGED]),
            )  # fmt: skip


def _rounded(seconds: float) -> float:
    return round(seconds, 3)
