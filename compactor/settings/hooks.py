"""Settings of refresh hooks: after a commit, make query engines refresh their metadata caches."""

from __future__ import annotations

from string import Formatter
from typing import Final, Literal

from pydantic import Field, model_validator

from compactor.settings.section import Section

PLACEHOLDERS: Final = ("catalog", "namespace", "name", "table")
DEFAULT_STATEMENTS: Final = {
    "spark": "REFRESH TABLE {table}",
    "starrocks": "REFRESH EXTERNAL TABLE {table}",
    "doris": "REFRESH TABLE {table}",
}


class HookSettings(Section):
    """One hook, called after each commit of a rewrite. A failed hook is counted and logged; the rewrite stays."""

    kind: Literal["kafka", "spark", "trino", "starrocks", "doris"] = Field(
        description="`kafka`: publish a `compacted` event. `spark`: run a statement in the service's own session. "
        "`trino`: run it over HTTP. `starrocks`, `doris`: run it over the MySQL protocol."
    )
    tables: tuple[str, ...] = Field(
        default=("*",), description="Globs of tables ([catalog.]namespace.table) for which the hook is called."
    )
    topic: str = Field(default="firnline.compacted", description="Topic of a `kafka` hook. Created if it is missing.")
    uri: str = Field(default="", description="Address of the engine: http(s)://host:8080 or mysql://host:9030.")
    user: str = Field(default="firnline", description="User name for the engine.")
    password_env: str = Field(default="", description="Environment variable with the password. Empty: no password.")
    catalog: str = Field(
        default="", description="The catalog's name in the engine. Empty: its name in firnline's settings."
    )
    statement: str = Field(
        default="",
        description="Statement to run, with {catalog}, {namespace}, {name} and {table} (the quoted full name). Empty: "
        "the engine's refresh statement. Required for Trino, which has no general one.",
    )
    timeout_seconds: float = Field(default=10.0, gt=0, description="Seconds for one attempt. There are three attempts.")

    @model_validator(mode="after")
    def _is_complete(self) -> HookSettings:
        if self.kind in {"trino", "starrocks", "doris"} and "://" not in self.uri:
            raise ValueError(f"uri: {self.kind} needs an address, e.g. http://trino:8080 or mysql://starrocks:9030")
        if self.kind == "trino" and not self.statement:
            raise ValueError(
                "statement: Trino has no refresh statement for all connectors; e.g. CALL "
                "{catalog}.system.flush_metadata_cache(schema_name => '{namespace}', table_name => '{name}')"
            )
        unknown = {field for _, field, _, _ in Formatter().parse(self.statement) if field is not None} - {*PLACEHOLDERS}
        if unknown:
            raise ValueError(f"statement: {{{unknown.pop()}}} is not one of {', '.join(PLACEHOLDERS)}")
        return self

    @property
    def template(self) -> str:
        return self.statement or DEFAULT_STATEMENTS.get(self.kind, "")
