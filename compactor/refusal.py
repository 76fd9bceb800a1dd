"""An engine's refusal: it cannot rewrite these files without loss, or should not."""

from __future__ import annotations

from dataclasses import dataclass

from compactor.reasons import Reason


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an engine does not rewrite these files: the reason, and a sentence for display."""

    reason: Reason
    sentence: str
