"""What every refresh hook is: something to call with a commit; an exception means that nobody was told."""

from __future__ import annotations

import os
from collections.abc import Callable

from compactor.events import RunCommitted
from compactor.settings.hooks import HookSettings

Hook = Callable[[RunCommitted], None]


def statement(settings: HookSettings, committed: RunCommitted, quote: str) -> str:
    """The statement about one table; `quote` is what the engine puts around names."""
    table = committed.table
    catalog = settings.catalog or table.catalog
    namespace = ".".join(table.namespace)
    parts = (catalog, *table.namespace, table.name)
    quoted = ".".join(quote + part.replace(quote, quote * 2) + quote for part in parts)
    text = {"catalog": catalog, "namespace": namespace, "name": table.name}
    literals = {key: value.replace("'", "''") for key, value in text.items()}  # they stand in literals, if anywhere
    return settings.template.format(**literals, table=quoted)


def password(settings: HookSettings) -> str:
    """Out of the environment, so that no settings file holds it."""
    return os.environ.get(settings.password_env, "") if settings.password_env else ""
