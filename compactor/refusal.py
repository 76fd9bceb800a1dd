"""What an engine answers when it cannot rewrite some files without losing something, or should not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an engine does not rewrite these files: a slug from a bounded set, and a sentence for people."""

    reason: str
    sentence: str
