"""Settings of locks: while Flink's table maintenance holds its lock on a table, firnline does not write to it."""

from __future__ import annotations

from pydantic import Field, model_validator

from compactor.redaction import without_password
from compactor.settings.section import KeyProblemError, Section
from compactor.settings.texts import Glob, VariableName


class LockSettings(Section):
    """A lock of Flink's table maintenance, in a database or in ZooKeeper."""

    tables: tuple[Glob, ...] = Field(
        examples=['["db.upserts"]'], description="Globs of the tables that the Flink job maintains."
    )
    lock_id: str = Field(
        min_length=1,
        description="The lock id of the Flink job (`flink-maintenance.lock.lock-id`).",
    )
    database: str = Field(
        default="",
        description="Database of a JDBC lock, as SQLAlchemy's address: postgresql+psycopg2://user@host/database. "
        "Install its driver.",
    )
    password_env: VariableName = Field(
        default="", description="Environment variable with the password of the database. Empty: no password."
    )
    zookeeper: str = Field(
        default="",
        description="Servers of a ZooKeeper lock: host:2181, separated by commas. Needs `firnline[zookeeper]`.",
    )

    @model_validator(mode="after")
    def _is_in_one_place(self) -> LockSettings:
        if bool(self.database) == bool(self.zookeeper):
            raise KeyProblemError(("database",), "set database or zookeeper: where the Flink job keeps its lock")
        if self.database.startswith("jdbc:"):
            remedy = "write it as SQLAlchemy does, e.g. postgresql+psycopg2://user@host/database"
            raise KeyProblemError(("database",), f"it is a JDBC address; {remedy}")
        if without_password(self.database) != self.database:
            raise KeyProblemError(("database",), "it holds a password; name its environment variable in password_env")
        return self
