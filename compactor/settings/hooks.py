"""Settings of refresh hooks: whom to tell of a commit, so that others' metadata caches follow."""

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
    """One hook, called after each commit of a rewrite. A hook that fails is counted and logged; it fails no rewrite."""

    kind: Literal["kafka", "spark", "trino", "starrocks", "doris"] = Field(
        description="`kafka`: a `compacted` event; `spark`: a statement in the service's own session; `trino`: over "
        "its HTTP protocol; `starrocks`, `doris`: over MySQL's."
    )
    tables: tuple[str, ...] = Field(default=("*",), description="Globs over [catalog.]namespace.table.")
    topic: str = Field(default="firnline.compacted", description="Topic of the `kafka` kind; made if missing.")
    uri: str = Field(default="", description="Of the engines: http(s)://host:8080, mysql://host:9030.")
    user: str = Field(default="firnline", description="As whom the engine is asked.")
    password_env: str = Field(default="", description="Environment variable that holds the password; empty: none.")
    catalog: str = Field(default="", description="What the engine calls the catalog; empty: what it is called here.")
    statement: str = Field(
        default="",
        description="What is run, with {catalog}, {namespace}, {name} and {table} (all three, quoted). Empty: the "
        "engine's own refresh statement; Trino has no general one.",
    )
    timeout_seconds: float = Field(default=10.0, gt=0, description="Of one attempt; there are three.")

    @model_validator(mode="after")
    def _is_complete(self) -> HookSettings:
        if self.kind in {"trino", "starrocks", "doris"} and "://" not in self.uri:
            raise ValueError(f"uri: {self.kind} needs an address, e.g. http://trino:8080 or mysql://starrocks:9030")
        if self.kind == "trino" and not self.statement:
            raise ValueError(
                "statement: Trino has no refresh of all connectors; e.g. CALL {catalog}.system.flush_metadata_cache("
                "schema_name => '{namespace}', table_name => '{name}')"
            )
        unknown = {field for _, field, _, _ in Formatter().parse(self.statement) if field is not None} - {*PLACEHOLDERS}
        if unknown:
            raise ValueError(f"statement: {{{unknown.pop()}}} is none of {', '.join(PLACEHOLDERS)}")
        return self

    @property
    def template(self) -> str:
        """The statement, or the engine's own."""
        return self.statement or DEFAULT_STATEMENTS.get(self.kind, "")
