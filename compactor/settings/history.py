"""Settings of the history: the table that takes every decision, and how it is filled."""

from __future__ import annotations

from collections.abc import Collection

from pydantic import Field

from compactor.errors import InputError
from compactor.reasons import Reason
from compactor.settings.section import Section
from compactor.table_names import TableName

DAY_SECONDS = 86_400.0


class HistorySettings(Section):
    """Where decisions are kept (docs/history.md). A history that cannot be written fails no rewrite."""

    table: str = Field(
        default="",
        description="[catalog.]namespace.table that every decision is appended to; made if missing. Empty: none is.",
    )
    batch_rows: int = Field(default=1000, ge=1, description="Decisions in one append at most; about 100 KB of Parquet.")
    batch_seconds: float = Field(
        default=300.0,
        gt=0,
        description="How long a decision waits for others: each append is a commit and a file, 288 a day at most. A "
        "crash loses so much of the history; a stop does not.",
    )
    buffer_rows: int = Field(
        default=20_000,
        ge=1,
        description="Decisions kept in memory, about 1 KB each, while the table cannot be written; the oldest go.",
    )
    repeat_skips_seconds: float = Field(
        default=DAY_SECONDS,
        ge=0,
        description="For so long the same reason to leave a partition alone is not recorded again: it is found anew "
        "with every commit. A day, so that each day tells its own story.",
    )

    def table_name(self, catalogs: Collection[str]) -> TableName | None:
        """The table, None if none is named.

        Raises:
            InputError: the name is no table's in one of the `catalogs`.
        """
        if not self.table:
            return None
        try:
            return TableName.parse(self.table, catalogs)
        except InputError as error:
            raise InputError(f"history.table: {error}", reason=Reason.BAD_SETTING) from None
