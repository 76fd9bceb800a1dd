"""Table names and the globs that choose tables."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from fnmatch import fnmatchcase

from compactor.errors import InputError

MAIN = "main"
"""A table's branch that everybody reads who names none."""


@dataclass(frozen=True, order=True)
class TableName:
    """A table in a named catalog. The same namespace and name in two catalogs are two tables."""

    catalog: str
    namespace: tuple[str, ...]
    name: str

    @property
    def identifier(self) -> tuple[str, ...]:
        """Namespace levels and name, without the catalog, as PyIceberg expects them."""
        return (*self.namespace, self.name)

    @property
    def short(self) -> str:
        """`namespace.name`, without the catalog."""
        return ".".join(self.identifier)

    @property
    def key(self) -> str:
        """The name as one text that `of_key` reads: JSON, because names can contain dots."""
        return json.dumps([self.catalog, *self.identifier], ensure_ascii=False)

    @classmethod
    def of_key(cls, text: str) -> TableName:
        """Inverse of `key`.

        Raises:
            ValueError: the text is damaged.
        """
        parts = json.loads(text)
        if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
            raise ValueError(f"no name of a table: {text!r}")
        catalog, *namespace, name = parts
        return cls(catalog, tuple(namespace), name)

    @property
    def spark(self) -> str:
        """The name quoted for Spark SQL: each part in backticks."""
        return ".".join("`" + part.replace("`", "``") + "`" for part in (self.catalog, *self.identifier))

    def __str__(self) -> str:
        return f"{self.catalog}.{self.short}"

    def matches(self, glob: str) -> bool:
        """Whether `glob` matches this table's name, with or without its catalog."""
        return fnmatchcase(self.short, glob) or fnmatchcase(str(self), glob)

    @classmethod
    def parse(cls, text: str, catalogs: Collection[str]) -> TableName:
        """Read `db.t` (one catalog) or `lake.db.t`.

        Raises:
            InputError: no namespace, or several catalogs are configured and none is named.
        """
        *namespace, name = text.split(".")
        if not namespace or not all((*namespace, name)):
            raise InputError(f"table name {text!r} must look like namespace.table or catalog.namespace.table")
        first, *rest = namespace
        if rest and first in catalogs:
            return cls(first, tuple(rest), name)
        if len(catalogs) == 1:
            return cls(next(iter(catalogs)), tuple(namespace), name)
        names = ", ".join(sorted(catalogs))
        raise InputError(f"table name {text!r} must start with its catalog; configured catalogs: {names}")
