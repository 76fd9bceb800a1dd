"""Keep table statistics (Puffin sketches) after a rewrite: they belong to a snapshot id.

The rows are the same after a rewrite, a conversion of deletes or a merge of manifests, so the same file is registered
for the new snapshot (spec: table statistics; the blobs keep the id of the snapshot that they were computed from).
Partition statistics count files and are not kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from py4j.protocol import Py4JError
from pyspark.errors.exceptions.captured import CapturedException

from compactor.errors import FirnlineError
from compactor.spark.java_table import JavaTable, first_line

LOG = logging.getLogger("firnline")


def carry_statistics(table: JavaTable, snapshot_id: int, about_to_send: Callable[[], object]) -> bool:
    """Register the parent snapshot's statistics file for `snapshot_id` too; False if there is none, or on failure.

    A failure costs readers an estimate, never a row, so it is only logged. `about_to_send` is called right before the
    commit; a FirnlineError from it is such a failure.
    """
    try:
        table.refresh()
        handle = table.handle
        snapshot = handle.snapshot(snapshot_id)
        files = {int(file.snapshotId()): file for file in handle.statisticsFiles()} if snapshot is not None else {}
        known = files.get(int(snapshot.parentId() or 0)) if files else None
        if known is None or snapshot_id in files:
            return False
        carried = table.jvm.org.apache.iceberg.GenericStatisticsFile(
            snapshot_id, known.path(), known.fileSizeInBytes(), known.fileFooterSizeInBytes(), known.blobMetadata()
        )
        about_to_send()
        handle.updateStatistics().setStatistics(carried).commit()
    except (Py4JError, CapturedException, FirnlineError) as error:
        LOG.warning(
            "%s: table statistics could not be registered for the new snapshot: %s", table.view.name, first_line(error)
        )
        return False
    return True
