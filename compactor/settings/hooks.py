"""Settings of refresh hooks: after a commit, make query engines refresh their metadata caches."""

from __future__ import annotations

from string import Formatter
from typing import Final, Literal

from pydantic import Field, model_validator

from compactor.settings.section import KeyProblemError, Section
from compactor.settings.texts import Glob, Topic, VariableName, address_problem
from compactor.settings.units import Seconds

PLACEHOLDERS: Final = ("catalog", "namespace", "name", "table")
DEFAULT_STATEMENTS: Final = {
    "spark": "REFRESH TABLE {table}",
    "starrocks": "REFRESH EXTERNAL TABLE {table}",
    "doris": "REFRESH TABLE {table}",
}

ADDRESSES: Final = {
    "trino": (("http", "https"), "http://trino:8080"),
    "starrocks": (("mysql",), "mysql://starrocks:9030"),
    "doris": (("mysql",), "mysql://doris:9030"),
}


class HookSettings(Section):
    """One hook, called after each run that has rewritten files. A failure is counted and logged; the rewrite stays."""

    kind: Literal["kafka", "spark", "trino", "starrocks", "doris"] = Field(
        description="`kafka`: publish a `compacted` event. `spark`: run a statement in the service's own session. "
        "`trino`: run it over HTTP. `starrocks`, `doris`: run it over the MySQL protocol."
    )
    tables: tuple[Glob, ...] = Field(
        default=("*",),
        examples=['["db.*"]'],
        description="Globs of tables ([catalog.]namespace.table) for which the hook is called.",
    )
    topic: Topic = Field(default="firnline.compacted", description="Topic of a `kafka` hook. Created if it is missing.")
    uri: str = Field(default="", description="Address of the engine: http(s)://host:8080 or mysql://host:9030.")
    user: str = Field(default="firnline", description="User name for the engine.")
    password_env: VariableName = Field(
        default="", description="Environment variable with the password. Empty: no password."
    )
    catalog: str = Field(
        default="", description="The catalog's name in the engine. Empty: its name in firnline's settings."
    )
    statement: str = Field(
        default="",
        description="Statement to run, with {catalog}, {namespace}, {name} and {table} (the quoted full name). Empty: "
        "the engine's refresh statement. Required for Trino, which has no general one.",
    )
    timeout_seconds: Seconds = Field(
        default=10.0, gt=0, le=3600, description="Seconds for one attempt. There are three attempts."
    )

    @model_validator(mode="after")
    def _is_complete(self) -> HookSettings:
        if self.kind in ADDRESSES:
            schemes, example = ADDRESSES[self.kind]
            problem = address_problem(self.uri, schemes, example)
            if problem is not None:
                raise KeyProblemError(("uri",), f"{self.kind} needs an address; {problem}")
        if self.kind == "trino" and not self.statement:
            raise KeyProblemError(
                ("statement",),
                "Trino has no refresh statement for all connectors; e.g. CALL "
                "{catalog}.system.flush_metadata_cache(schema_name => '{namespace}', table_name => '{name}')",
            )
        try:
            names = {field for _, field, _, _ in Formatter().parse(self.statement) if field is not None}
        except ValueError as error:
            raise KeyProblemError(("statement",), f"{error}; write {{{{ and }}}} for braces of the statement") from None
        unknown = sorted(names - {*PLACEHOLDERS})
        if unknown:
            allowed = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            raise KeyProblemError(("statement",), f"{{{unknown[0]}}} is not one of {allowed}")
        return self

    @property
    def template(self) -> str:
        return self.statement or DEFAULT_STATEMENTS.get(self.kind, "")
