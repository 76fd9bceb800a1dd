"""The interface of refresh hooks: a function of a commit that raises if it fails."""

from __future__ import annotations

import os
from collections.abc import Callable

from compactor.events import RunCommitted
from compactor.settings.hooks import HookSettings

Hook = Callable[[RunCommitted], None]


def statement(settings: HookSettings, committed: RunCommitted, quote: str) -> str:
    """The statement for one table. `quote`: the engine's quotation mark for names."""
    table = committed.table
    catalog = settings.catalog or table.catalog
    namespace = ".".join(table.namespace)
    parts = (catalog, *table.namespace, table.name)
    quoted = ".".join(quote + part.replace(quote, quote * 2) + quote for part in parts)
    text = {"catalog": catalog, "namespace": namespace, "name": table.name}
    literals = {key: value.replace("'", "''") for key, value in text.items()}  # statements use them in literals
    return settings.template.format(**literals, table=quoted)


def password(settings: HookSettings) -> str:
    """The password from the environment, so that settings files do not contain it."""
    return os.environ.get(settings.password_env, "") if settings.password_env else ""
