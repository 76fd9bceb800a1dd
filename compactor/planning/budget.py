"""What a run costs, estimated: bytes, requests to the store, calls of the catalog; and what a run may cost. Pure."""

from __future__ import annotations

from dataclasses import dataclass

PART_BYTES = 8 * 1024 * 1024
"""Bytes of one request of a multipart upload."""
REQUESTS_PER_FILE = 2
"""Requests that a file takes at least: its footer and its data when read, to open and to close it when written."""
CATALOG_CALLS = 12
"""Catalog calls of a run of one commit, about: look, plan, load, switch, check, commit, look again."""


def requests_of(files_in: int, files_out: int, size: int) -> int:
    """Requests to the store, about, of a rewrite of `size` bytes."""
    return REQUESTS_PER_FILE * (files_in + files_out) + -(-size // PART_BYTES)


@dataclass(frozen=True)
class Spent:
    """What a run has cost: bytes it read, requests to the store and calls of the catalog, about. All 0: no commit."""

    bytes: int = 0
    requests: int = 0
    catalog_calls: int = 0


@dataclass(frozen=True)
class Grant:
    """What a run may cost; None: as much as it likes. One output file is written even if it costs more."""

    bytes: int | None = None
    requests: int | None = None


NO_GRANT = Grant()
"""A run without a cap."""
