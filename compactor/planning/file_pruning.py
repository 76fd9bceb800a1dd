"""Files that a filter's column bounds rule out (`policy.prune_files`): left out of what is merged, and of nothing else.

Bounds say that no row of the file matches. Leaving a file out is safe whatever they say: it stays as it is, and so do
the deletes that apply to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from pyiceberg.manifest import ManifestContent, ManifestFile

from compactor.filters.where import Where
from compactor.iceberg.manifest_entries import read_entries
from compactor.manifests.live_files import LiveFiles
from compactor.partitions import PartitionKey
from compactor.planning.inventory import Inventory

READERS = 8


def candidates(inventory: Inventory, where: Where) -> Mapping[PartitionKey, LiveFiles]:
    """The files of kept partitions without those whose column bounds rule out a match; partitions left empty are gone.

    Manifests are read again, with their statistics, by PyIceberg: the cache keeps none.

    Raises:
        RetryError: a manifest cannot be read.
    """
    wanted = [
        manifest
        for manifest in inventory.manifests
        if manifest.content == ManifestContent.DATA and where.keeps_manifest(manifest)
    ]

    def ruled_out(manifest: ManifestFile) -> set[str]:
        entries = read_entries(inventory.table.io, manifest)
        return {entry.data_file.file_path for entry in entries if not where.keeps_file(entry.data_file)}

    with ThreadPoolExecutor(READERS, thread_name_prefix="bounds") as pool:
        out = set[str]().union(*pool.map(ruled_out, wanted))
    kept = {
        key: [file for file in files if file.entry.path not in out]
        for key, files in inventory.partitions.items()
        if where.keeps(key)
    }
    return {key: LiveFiles.of(files) for key, files in kept.items() if files}
