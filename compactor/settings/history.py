"""Settings of the history: the table of decisions, and how rows are appended to it."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import Field

from compactor.errors import InputError
from compactor.reasons import Reason
from compactor.settings.section import Section, fixed
from compactor.settings.units import Seconds
from compactor.table_names import TableName

DAY_SECONDS = 86_400.0


class HistorySettings(Section):
    """Where decisions are recorded (docs/history.md). A failed append does not fail a rewrite."""

    table: str = Field(
        default="",
        description="Table ([catalog.]namespace.table) to which every decision is appended. Created if missing. "
        "Empty: no history.",
    )
    batch_rows: int = fixed(
        1000,
        "Most decisions in one append. 1,000 are about 100 KB of Parquet.",
        ge=1,
    )
    batch_seconds: Seconds = Field(
        default=300.0,
        gt=0,
        le=DAY_SECONDS,
        description="Most seconds before a decision is appended. Each append is a commit and a file: at most 288 a day "
        "by default. A crash loses the decisions of that time; a normal stop loses none.",
    )
    buffer_rows: int = fixed(
        20_000,
        "Most decisions in memory (about 1 KB each) while appends fail. The oldest are dropped first.",
        ge=1,
    )
    repeat_skips_seconds: Seconds = fixed(
        DAY_SECONDS,
        "Seconds in which the same reason to skip a partition is recorded only once, although every commit finds it"
        " again. One day: every day of the history is complete.",
        ge=0,
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
