"""Settings of refresh hooks: after a commit, tell others, or make a query engine refresh its metadata cache."""

from __future__ import annotations

from string import Formatter
from typing import Final, Literal

from pydantic import Field, model_validator

from compactor.settings.section import KeyProblemError, Section, fixed
from compactor.settings.texts import Glob, Topic, VariableName, address_problem
from compactor.settings.units import Seconds

PLACEHOLDERS: Final = ("catalog", "namespace", "name", "table")


class HookSettings(Section):
    """One hook, called after each run that has rewritten files. A failure is counted and logged; the rewrite stays."""

    kind: Literal["kafka", "trino"] = Field(
        description="`kafka`: publish a `compacted` event. `trino`: run a statement over Trino's HTTP protocol."
    )
    tables: tuple[Glob, ...] = Field(
        default=("*",),
        examples=['["db.*"]'],
        description="Globs of tables ([catalog.]namespace.table) for which the hook is called.",
    )
    topic: Topic = Field(default="firnline.compacted", description="Topic of a `kafka` hook. Created if it is missing.")
    uri: str = Field(
        default="",
        description="Address of Trino: http(s)://host:8080, or with a user name: http(s)://user@host:8080. Without "
        "one, statements run as user firnline.",
    )
    password_env: VariableName = Field(
        default="", description="Environment variable with the password. Empty: no password."
    )
    statement: str = Field(
        default="",
        description="Statement to run, with {catalog}, {namespace}, {name} and {table} (the quoted full name). "
        "Required for Trino, which has no general one. {catalog} is the name in `catalogs`: write Trino's own name if "
        "that is another.",
    )
    timeout_seconds: Seconds = fixed(
        10.0,
        "Seconds for one attempt. There are three attempts.",
        gt=0,
        le=3600,
    )

    @model_validator(mode="after")
    def _is_complete(self) -> HookSettings:
        if self.kind == "trino":
            problem = address_problem(self.uri, ("http", "https"), "http://trino:8080")
            if problem is not None:
                raise KeyProblemError(("uri",), f"trino needs an address; {problem}")
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
