"""Look at the files that a commit is about to add: to other programs they are orphans until it is in the table.

`remove_orphan_files` with a short age, or a lifecycle rule of the store, may have taken them since they were written.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from compactor.commit.deletion import AT_ONCE
from compactor.credentials.renewing_file_io import vended_of
from compactor.errors import GiveUpError
from compactor.iceberg.tables import TableView
from compactor.reasons import Reason
from compactor.storage.opening import byte_store_for


def missing_files(table: TableView, sizes: Mapping[str, int | None]) -> set[str]:
    """Locations that have no file any more, or one of another size. One request a file; `sizes`: None: any.

    Raises:
        FirnlineError: the store does not answer, or denies access.
    """

    def is_missing(location: str, size: int | None) -> bool:
        try:
            found = byte_store_for(location, table.io.properties, vended_of(table.io)).size(location)
        except GiveUpError as error:
            if error.reason is not Reason.INPUT_MISSING:
                raise
            return True
        return size is not None and found != size

    with ThreadPoolExecutor(AT_ONCE, "look-at-outputs") as pool:
        missing = pool.map(is_missing, sizes, sizes.values())
        return {location for location, gone in zip(sizes, missing, strict=True) if gone}
