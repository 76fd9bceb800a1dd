"""Settings of the history: the table of decisions, and how rows are appended to it."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import Field

from compactor.errors import InputError
from compactor.reasons import Reason
from compactor.settings.section import Section
from compactor.table_names import TableName


class HistorySettings(Section):
    """Where decisions are recorded (docs/history.md). A failed append does not fail a rewrite."""

    table: str = Field(
        default="",
        description="Table ([catalog.]namespace.table) to which every decision is appended. Created if missing. "
        "Empty: no history.",
    )

    def table_name(self, catalogs: Collection[str]) -> TableName | None:
        """The configured table, or None.

        Raises:
            InputError: the name is not a table name in one of the `catalogs`.
        """
        if not self.table:
            return None
        try:
            return TableName.parse(self.table, catalogs)
        except InputError as error:
            raise InputError(f"history.table: {error}", reason=Reason.BAD_SETTING) from None
