"""The table of columns in docs/history.md."""

from __future__ import annotations

from compactor.history.table import COLUMNS


def columns_table() -> str:
    """The table of columns in docs/history.md."""
    rows = (f"| `{name}` | {kind} | {doc} |" for name, kind, doc in COLUMNS)
    return "\n".join(["| column | type | meaning |", "|---|---|---|", *rows])
