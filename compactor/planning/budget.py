"""Estimate the cost of a run (bytes, requests to the store, catalog calls), and the limits of a run's cost. Pure."""

from __future__ import annotations

from dataclasses import dataclass

PART_BYTES = 8 * 1024 * 1024
"""Bytes of one request of a multipart upload."""
REQUESTS_PER_FILE = 2
"""The fewest requests per file: footer and data for reading, start and end for writing."""
CATALOG_CALLS = 12
"""Estimated catalog calls of a run with one commit: look, plan, load, switch, check, commit, look again."""


def requests_of(files_in: int, files_out: int, size: int) -> int:
    """Estimated requests to the store of a rewrite of `size` bytes."""
    return REQUESTS_PER_FILE * (files_in + files_out) + -(-size // PART_BYTES)


@dataclass(frozen=True)
class Spent:
    """The estimated cost of a run: bytes read, requests to the store, catalog calls. All 0 without a commit."""

    bytes: int = 0
    requests: int = 0
    catalog_calls: int = 0


@dataclass(frozen=True)
class Grant:
    """The limits of a run's cost; None: no limit. A run may always write one output file, even above the limits."""

    bytes: int | None = None
    requests: int | None = None


NO_GRANT = Grant()
"""A run without limits."""
