"""Prune data files by their column bounds (`policy.prune_files`): files that the filter's columns rule out.

A pruned file is not merged; that is safe even if its bounds are wrong. It stays as it is, and so do the deletes
that apply to it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from pyiceberg.manifest import ManifestFile

from compactor.filters.where import Where
from compactor.iceberg.manifest_entries import read_entries
from compactor.manifests.live_files import LiveFiles
from compactor.planning.inventory import Inventory

READERS = 8


def prune_files(inventory: Inventory, where: Where) -> Inventory:
    """The inventory without selected files whose bounds rule out a match, and without partitions left empty.

    PyIceberg reads the files' manifests once more, with the column bounds, which the manifest cache does not keep.

    Raises:
        RetryError: a manifest cannot be read.
    """
    entries = [file.entry for files in inventory.selected.values() for file in files]
    paths, manifests = {entry.path for entry in entries}, {entry.manifest_path for entry in entries}

    def ruled_out(manifest: ManifestFile) -> set[str]:
        files = (entry.data_file for entry in read_entries(inventory.table.io, manifest))
        return {file.file_path for file in files if file.file_path in paths and not where.keeps_file(file)}

    with ThreadPoolExecutor(READERS, thread_name_prefix="bounds") as pool:
        wanted = [manifest for manifest in inventory.manifests if manifest.manifest_path in manifests]
        pruned = set[str]().union(*pool.map(ruled_out, wanted))
    kept = {key: [file for file in files if file.entry.path not in pruned] for key, files in inventory.selected.items()}
    return replace(inventory, selected={key: LiveFiles.of(files) for key, files in kept.items() if files})
