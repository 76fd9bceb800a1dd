"""Settings of the log: format and level."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from compactor.settings.section import Section


class LogSettings(Section):
    format: Literal["auto", "json", "console"] = Field(
        default="auto",
        description="`json`: one JSON object per line; `console`: for people; `auto`: `console` on a terminal, else "
        "`json`.",
    )
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO",
        description="Lowest level of firnline's lines. INFO: one line per rewritten file group and commit. "
        "`--verbose` sets DEBUG. Lines of other libraries are written from WARNING on.",
    )

    def as_json(self, *, terminal: bool) -> bool:
        """Whether lines are JSON objects. `terminal`: whether stderr is a terminal."""
        return self.format == "json" or (self.format == "auto" and not terminal)
