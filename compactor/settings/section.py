"""The base of all settings sections."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

MEBIBYTE = 1024 * 1024


class Section(BaseModel):
    """Base of all sections: frozen; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
