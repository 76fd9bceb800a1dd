"""List the tables of a catalog, namespace by namespace. One that cannot be listed is skipped, and reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, RESTError, ServerError

from compactor.iceberg.conditional_load import aws_code
from compactor.iceberg.rest_catalog import concerns_catalog

Namespace = tuple[str, ...]

MOST_FAILURES: Final = 3
"""In a row, of namespaces whose error does not say what it concerns. As many: the catalog fails. Each may have waited
for a time-out."""


def listed_tables(catalog: Catalog, skipped: Callable[[Namespace, Exception], None]) -> Iterator[tuple[str, ...]]:
    """Identifiers of every table of the catalog, nested namespaces included.

    `skipped` gets each namespace that cannot be listed, with the error. It may raise it.

    Raises:
        Exception: of the catalog's client: the catalog itself cannot be listed.
    """
    waiting: list[Namespace] = [tuple(namespace) for namespace in catalog.list_namespaces()]
    seen: set[Namespace] = set()
    failures = 0
    while waiting:
        namespace = waiting.pop()
        if namespace in seen:
            continue
        seen.add(namespace)
        try:
            waiting.extend(_children(catalog, namespace))
            tables = _tables(catalog, namespace)
        except Exception as error:
            failures = 0 if refuses(error) else failures + 1
            if failures >= MOST_FAILURES or (concerns_catalog(error) and not isinstance(error, ServerError)):
                raise
            skipped(namespace, error)
        else:
            failures = 0
            yield from tables


def refuses(error: Exception) -> bool:
    """Whether the catalog's answer concerns the namespace alone: this principal may not list it.

    500, and throttling by AWS, do not say what they concern.
    """
    if isinstance(error, RESTError):
        return not concerns_catalog(error)
    return aws_code(error).startswith("AccessDenied")


def _children(catalog: Catalog, namespace: Namespace) -> list[Namespace]:
    try:
        found = [tuple(child) for child in catalog.list_namespaces(namespace)]
    except (NotImplementedError, NoSuchNamespaceError, ValueError):
        return []  # catalogs without nested namespaces
    return [child if len(child) > len(namespace) else (*namespace, *child) for child in found]


def _tables(catalog: Catalog, namespace: Namespace) -> list[tuple[str, ...]]:
    try:
        return catalog.list_tables(namespace)
    except NoSuchNamespaceError:
        return []  # dropped since the namespaces were listed
