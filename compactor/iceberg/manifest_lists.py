"""Read manifest lists with the V3 field that PyIceberg 0.12 drops: each manifest's `first_row_id`.

The id belongs to the manifest list, not to the manifest: the first commit after an upgrade to V3 assigns ids to
manifests that had none, and each branch assigns its own (Iceberg spec: row lineage for upgraded tables). PyIceberg's
process-wide cache of manifest files, which is keyed by path, would mix them up.
"""

from __future__ import annotations

from typing import Final

from pyiceberg.io import FileIO
from pyiceberg.manifest import MANIFEST_LIST_FILE_SCHEMAS, ManifestContent, ManifestFile, PartitionFieldSummary

from compactor.iceberg.avro_reference import CompleteAvroFile

RESTORE: Final = "; if the file is missing or damaged, restore it, or roll the table back to a snapshot without it"
"""The remedy for a manifest or manifest list that cannot be read."""
ROW_LINEAGE_VERSION: Final = 3
_SCHEMA: Final = MANIFEST_LIST_FILE_SCHEMAS[ROW_LINEAGE_VERSION]
_FIRST_ROW_ID: Final = [field.name for field in _SCHEMA.fields].index("first_row_id")


def read_manifest_list(io: FileIO, location: str) -> list[ManifestFile]:
    """The manifests of one snapshot, in the list's order; manifests of V1 and V2 have no first row id."""
    with CompleteAvroFile[ManifestFile](
        io.new_input(location),
        _SCHEMA,
        read_types={-1: ManifestFile, 508: PartitionFieldSummary},
        read_enums={517: ManifestContent},
    ) as reader:
        return list(reader)


def first_row_id(manifest: ManifestFile) -> int | None:
    """The id from which the manifest's data files inherit their ids; None before V3 and for delete manifests."""
    values = manifest._data  # noqa: SLF001 - PyIceberg exposes no accessor for V3 fields yet
    found: int | None = values[_FIRST_ROW_ID] if len(values) > _FIRST_ROW_ID else None
    return found if manifest.content == ManifestContent.DATA else None
