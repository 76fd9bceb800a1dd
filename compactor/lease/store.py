"""The contract of a lease store: one small document that is replaced only by who knows its present version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

Version = int | str | bytes
"""A document's version as its store names it: a number, an ETag, the content."""


@dataclass(frozen=True)
class Stored:
    """The document, and its version."""

    content: bytes
    version: Version


class LeaseStore(Protocol):
    """Every method raises OSError if the store does not answer or refuses."""

    @property
    def location(self) -> str:
        """Where the document is, for people."""
        ...

    @property
    def conditional(self) -> bool:
        """Whether `replace` is atomic: of several that replace one version, exactly one succeeds."""
        ...

    def read(self) -> Stored | None:
        """The newest document; None if there is none."""
        ...

    def replace(self, content: bytes, expected: Version | None) -> Version | None:
        """Write the document if `expected` is its present version (None: there is none); returns the new version.

        None: another process was faster, or the answer to an earlier try of this call was lost. Then read.
        """
        ...
