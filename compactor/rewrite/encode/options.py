"""A table's `write.parquet.*` properties → options of Arrow's Parquet writer.

Source: Iceberg's TableProperties and Parquet.WriteBuilder (Java) for names, defaults and meaning. Invalid values are
replaced by the default: a property must not stop a rewrite.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.types import BooleanType, UUIDType

from compactor.rewrite.reading.schema import UUID_WIDTH, WrittenLeaf, WrittenSchema, leaf_values

_PREFIX: Final = "write.parquet."
CODEC_KEY: Final = _PREFIX + "compression-codec"
LEVEL_KEY: Final = _PREFIX + "compression-level"
ROW_GROUP_KEY: Final = _PREFIX + "row-group-size-bytes"
PAGE_SIZE_KEY: Final = _PREFIX + "page-size-bytes"
PAGE_ROWS_KEY: Final = _PREFIX + "page-row-limit"
PAGE_VERSION_KEY: Final = _PREFIX + "page-version"
DICTIONARY_SIZE_KEY: Final = _PREFIX + "dict-size-bytes"
DICTIONARY_PREFIX: Final = _PREFIX + "dict-encoding-enabled.column."
STATISTICS_PREFIX: Final = _PREFIX + "stats-enabled.column."
BLOOM_PREFIX: Final = _PREFIX + "bloom-filter-enabled.column."
BLOOM_FPP_PREFIX: Final = _PREFIX + "bloom-filter-fpp.column."
BLOOM_NDV_PREFIX: Final = _PREFIX + "bloom-filter-ndv.column."
BLOOM_BYTES_KEY: Final = _PREFIX + "bloom-filter-max-bytes"

MIB: Final = 1024 * 1024
DEFAULT_CODEC: Final = "zstd"
BROTLI: Final = "brotli"
# Levels of Iceberg's Java writer when none is set; Arrow's own defaults differ (zstd 1, gzip 9).
DEFAULT_LEVELS: Final[Mapping[str, int]] = {"zstd": 3, "gzip": 6}
_CODECS: Final = {
    "uncompressed": "none",
    "none": "none",
    "snappy": "snappy",
    "gzip": "gzip",
    "zstd": "zstd",
    BROTLI: BROTLI,
    "lz4": "lz4",  # Arrow writes LZ4_RAW; Hadoop's framing, which Java's LZ4 means, is deprecated by the format
    "lz4_raw": "lz4",
}
SCHEMA_ARGUMENTS: Final[Mapping[str, Any]] = {"store_schema": False, "store_decimal_as_integer": True}
"""The writer's arguments that decide about the Parquet schema."""
_BLOOM_HASHES: Final = 8  # bits set per value in a split block filter
SAMPLE_ROWS: Final = 64 * 1024
MOST_DISTINCT: Final = 0.7
"""This many distinct values in so many rows mean about 85,000 in total: 0.7 MB of 8-byte values, which fit into a
core's cache. With 100,000 distinct values a dictionary makes the file 4 % smaller and Spark's scan of it 6 % slower.
"""
_MAX_FPP: Final = 0.5
_MAX_INTEGER: Final = 2**31 - 1  # Java reads these properties as int


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """Options of the Parquet writer.

    Attributes:
        row_group_bytes: Target size of row groups.
        arguments: For `pyarrow.parquet.ParquetWriter`, except those about dictionaries.
        dictionaries: Columns that the table's properties allow to have a dictionary.
        requested: Paths of columns for which they request a dictionary.
    """

    row_group_bytes: int
    arguments: Mapping[str, Any]
    dictionaries: tuple[WrittenLeaf, ...]
    requested: frozenset[str]

    def for_rows(self, table: pa.Table) -> dict[str, Any]:
        """All arguments for a file that starts with these rows.

        A column whose values rarely repeat gets no dictionary: after much hashing the dictionary would exceed its
        limit. parquet-java finds this by comparing sizes on the first page.
        """
        paths = [leaf.path for leaf in self.dictionaries if leaf.path in self.requested or _repeats(table, leaf)]
        return {**self.arguments, "use_dictionary": paths}


def writer_options(written: WrittenSchema, properties: Mapping[str, str], rows: int) -> WriterOptions:
    """The options for writing about `rows` rows of a schema into a table with these properties."""
    codec = codec_of(properties)
    arguments = {
        "compression": codec,
        "compression_level": _level(codec, properties.get(LEVEL_KEY)),
        "write_statistics": [leaf.path for leaf in _enabled(written.leaves, properties, STATISTICS_PREFIX)],
        "data_page_size": _positive(properties, PAGE_SIZE_KEY, MIB),
        "max_rows_per_page": _positive(properties, PAGE_ROWS_KEY, 20_000),
        "dictionary_pagesize_limit": _positive(properties, DICTIONARY_SIZE_KEY, 2 * MIB),
        "data_page_version": "2.0" if properties.get(PAGE_VERSION_KEY, "").strip().lower() == "v2" else "1.0",
        "bloom_filter_options": _bloom_filters(written.leaves, properties, rows) or None,
        **SCHEMA_ARGUMENTS,
        "write_page_index": True,
        "write_page_checksum": True,
    }
    return WriterOptions(
        row_group_bytes=_positive(properties, ROW_GROUP_KEY, 128 * MIB),
        arguments=arguments,
        dictionaries=_enabled(written.leaves, properties, DICTIONARY_PREFIX),
        requested=frozenset(leaf.path for leaf in written.leaves if DICTIONARY_PREFIX + leaf.name in properties),
    )


def codec_of(properties: Mapping[str, str]) -> str:
    """The codec of a table's new files, by Arrow's name."""
    return _CODECS.get(properties.get(CODEC_KEY, DEFAULT_CODEC).strip().lower(), DEFAULT_CODEC)


def _repeats(table: pa.Table, leaf: WrittenLeaf) -> bool:
    """Whether a column's first values repeat enough for a dictionary. True for columns inside lists and maps."""
    if leaf.indexes is None:
        return True
    values = leaf_values(table, leaf.indexes).slice(0, SAMPLE_ROWS)
    if isinstance(leaf.field.field_type, UUIDType):
        values = values.cast(pa.binary(UUID_WIDTH))
    present = len(values) - values.null_count
    return bool(pc.count_distinct(values, mode="only_valid").as_py() <= MOST_DISTINCT * present)


def _positive(properties: Mapping[str, str], key: str, default: int) -> int:
    try:
        found = int(properties.get(key, default))
    except ValueError:
        return default
    return found if 0 < found <= _MAX_INTEGER else default


def _level(codec: str, text: str | None) -> int | None:
    default = DEFAULT_LEVELS.get(codec)
    if text is None or not pa.Codec.supports_compression_level(codec if codec != "none" else "snappy"):
        return default
    try:
        level = int(text)
    except ValueError:
        return default
    allowed = range(pa.Codec.minimum_compression_level(codec), pa.Codec.maximum_compression_level(codec) + 1)
    return level if level in allowed else default


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"


def _enabled(leaves: Collection[WrittenLeaf], properties: Mapping[str, str], prefix: str) -> tuple[WrittenLeaf, ...]:
    """The columns that the properties under `prefix` do not disable."""
    return tuple(leaf for leaf in leaves if _is_true(properties.get(prefix + leaf.name, "true")))


def _bloom_filters(
    leaves: Collection[WrittenLeaf], properties: Mapping[str, str], rows: int
) -> dict[str, dict[str, Any]]:
    most_bytes = _positive(properties, BLOOM_BYTES_KEY, MIB)
    filters = {}
    for leaf in leaves:
        wanted = _is_true(properties.get(BLOOM_PREFIX + leaf.name, "false"))
        if not wanted or isinstance(leaf.field.field_type, BooleanType):
            continue
        fpp = _probability(properties.get(BLOOM_FPP_PREFIX + leaf.name))
        distinct = _positive(properties, BLOOM_NDV_PREFIX + leaf.name, max(1, rows))
        filters[leaf.path] = {"ndv": min(distinct, _fitting_values(most_bytes, fpp)), "fpp": fpp}
    return filters


def _probability(text: str | None) -> float:
    try:
        found = float(text or "")
    except ValueError:
        return 0.01
    return found if 0 < found <= _MAX_FPP else 0.01


def _fitting_values(most_bytes: int, fpp: float) -> int:
    """The most distinct values that a filter of `most_bytes` holds at false-positive probability `fpp`.

    Arrow rounds a filter's size up to a power of two, so request at most half of the allowed bytes.
    """
    bits = most_bytes * 8 / 2
    return max(1, int(-bits * math.log(1 - fpp ** (1 / _BLOOM_HASHES)) / _BLOOM_HASHES))
