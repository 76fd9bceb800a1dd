"""Settings of the log: who reads it, and how much of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from compactor.settings.section import Section


class LogSettings(Section):
    """What is written to stderr."""

    format: Literal["auto", "json", "console"] = Field(
        default="auto",
        description="`json`: one object a line, for machines; `console`: for people. `auto`: console on a terminal, "
        "json elsewhere.",
    )
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO",
        description="Of firnline's own lines; INFO is one line a rewrite and a commit. `--verbose` means DEBUG. Other "
        "libraries speak from WARNING.",
    )

    def as_json(self, *, terminal: bool) -> bool:
        """Whether lines are JSON objects. `terminal`: stderr is one."""
        return self.format == "json" or (self.format == "auto" and not terminal)
