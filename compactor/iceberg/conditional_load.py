"""Load a table only if its metadata location has changed: one catalog call, and no store read for a known location.

PyIceberg's `load_table` asks the catalog and then reads the table's metadata, from the answer (REST) or from the store
(all others). The question of a thread waits between the two: it sees the catalog's answer first, and ends the load
there if the location is the known one. All that PyIceberg does around it stays: names, retries, errors, credentials.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from botocore.exceptions import ClientError
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

_GLUE_LOADS: Final = "GetTable"
_REFUSED_BY_GLUE: Final = frozenset({"AccessDeniedException", "InvalidInputException", "ValidationException"})
"""By IAM or Lake Formation, or a name that Glue does not allow. Not of DynamoDB, whose one table is the catalog."""
_REFUSED_BY_HIVE: Final = ("Permission denied: user", "does not have privilege")
"""By Ranger or the permissions of the store, and by Sentry."""


class AlreadyKnownError(Exception):
    """Ends a load: the table's metadata location is the known one. Never leaves this package."""


class NoAnswerError(Exception):
    """The catalog did not answer, or with an error that says nothing about the table. Its cause is the first error."""


@dataclass(frozen=True)
class Loaded:
    """A table whose location is not the known one. `etag`: the tag of the catalog's answer, for the next question."""

    table: Table
    etag: str | None


@dataclass(frozen=True)
class Same:
    """The location is the known one. `by_tag`: only the tag says so (status 304), the catalog did not name it."""

    etag: str | None
    by_tag: bool


class Question(threading.local):
    """What this thread asks one catalog, and what the answer was. Threads that share a catalog have one each."""

    asking: bool = False
    location: str | None = None
    sent_etag: str | None = None
    answered: bool = False
    by_tag: bool = False
    etag: str | None = None

    @contextmanager
    def about(self, location: str | None, etag: str | None) -> Iterator[None]:
        """Ask about a known location (None: about none) until the end of the block."""
        self.location, self.sent_etag = location, etag
        self.answered, self.by_tag, self.etag = False, False, None
        self.asking = True
        try:
            yield
        finally:
            self.asking = False

    def answer(self, location: Callable[[], str | None]) -> None:
        """The catalog has answered; `location` finds the metadata location in its answer.

        Raises:
            AlreadyKnownError: it is the known one.
        """
        if not self.asking:
            return
        self.answered = True
        if self.location is not None and location() == self.location:
            raise AlreadyKnownError


class TableLoader:
    """Loads tables of one open catalog. Thread-safe as far as the catalog is."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        own = getattr(catalog, "question", None)
        self._question: Question = own if isinstance(own, Question) else Question()
        self._sees_answers = own is not None or _put_between(catalog, self._question)

    def load(self, identifier: tuple[str, ...]) -> Loaded:
        """The table.

        Raises:
            NoAnswerError: the catalog did not answer; only where its answer can be told from the store's.
            Exception: any other error of the catalog's `load_table`.
        """
        with self._question.about(None, None):
            return Loaded(self._load_table(identifier), self._question.etag)

    def load_if_changed(self, identifier: tuple[str, ...], location: str, etag: str | None) -> Loaded | Same:
        """The table, unless its metadata location is `location`. `etag`: the tag of the answer that named it.

        Raises:
            Exception: as `load`.
        """
        with self._question.about(location, etag):
            try:
                table = self._load_table(identifier)
            except AlreadyKnownError:
                return Same(self._question.etag, self._question.by_tag)
            if table.metadata_location == location:
                return Same(self._question.etag, by_tag=False)
            return Loaded(table, self._question.etag)

    def _load_table(self, identifier: tuple[str, ...]) -> Table:
        try:
            return self.catalog.load_table(identifier)
        except (AlreadyKnownError, NoSuchTableError, NoSuchNamespaceError):
            raise
        except Exception as error:
            if self._sees_answers and not self._question.answered and not _refuses_table(error):
                raise NoAnswerError(str(error)) from error
            raise


def aws_code(error: Exception) -> str:
    """The code of an error that AWS answered with; empty for all others."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def _refuses_table(error: Exception) -> bool:
    """Whether the catalog answered, and will not show this table: the others may be open to this service.

    Hive's metastore gives one class to all its errors, also to those of its database: its message tells them apart.
    """
    if isinstance(error, ClientError):
        return error.operation_name == _GLUE_LOADS and aws_code(error) in _REFUSED_BY_GLUE
    return type(error).__name__ == "MetaException" and any(sign in str(error) for sign in _REFUSED_BY_HIVE)


def _put_between(catalog: Catalog, question: Question) -> bool:
    """Let the question see what the catalog answered before the metadata is read; False if there is no such place."""
    for method, location in _ANSWERS.items():
        convert = getattr(catalog, method, None)
        if convert is not None:
            setattr(catalog, method, partial(_ask_first, question, location, convert))
            return True
    return False


def _ask_first(
    question: Question, location: Callable[[Any], str | None], convert: Callable[..., Table], *args: Any, **kwargs: Any
) -> Table:
    raw = [*args, *kwargs.values()][-1]
    question.answer(lambda: location(raw))
    return convert(*args, **kwargs)


def _in_parameters(parameters: Mapping[str, str] | None) -> str | None:
    return (parameters or {}).get("metadata_location")


def _of_bigquery(table: Any) -> str | None:
    options = table.external_catalog_table_options
    return _in_parameters(options.parameters if options else None)


_ANSWERS: Final[Mapping[str, Callable[[Any], str | None]]] = {
    "_convert_orm_to_iceberg": lambda row: row.metadata_location,
    "_convert_hive_into_iceberg": lambda table: _in_parameters(table.parameters),
    "_convert_glue_to_iceberg": lambda table: _in_parameters(table.get("Parameters")),
    "_convert_dynamo_table_item_to_iceberg_table": lambda item: item.get("p.metadata_location", {}).get("S"),
    "_convert_bigquery_table_to_iceberg_table": _of_bigquery,
}
"""Methods of PyIceberg 0.12's catalogs that read the metadata of a raw answer (their last argument) from the store:
SQL, Hive, Glue, DynamoDB, BigQuery. Where to find the metadata location in that answer. A catalog without one of them
loads the whole table."""
