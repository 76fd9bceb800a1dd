"""The properties of catalogs, checked: types, addresses, and values that are one text each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from compactor.redaction import is_secret, without_password
from compactor.settings.section import KeyProblemError, kind_of
from compactor.settings.texts import address_problem

CATALOG_TYPES: Final = ("rest", "sql", "hive", "glue")
EXAMPLE: Final = '{lake: {type: rest, uri: "http://catalog:8181"}}'
_NESSIE: Final = (
    "PyIceberg has no such type; Nessie serves Iceberg's REST protocol: use type rest and a uri that ends with /iceberg"
)
_DATABASES: Final = re.compile(r"(?:sqlite|postgres(?:ql)?|mysql|mariadb)(?:\+\w+)?://.*")
_DATABASE_EXAMPLE: Final = "postgresql+psycopg2://user@host/database or sqlite:////folder/catalog.db"
_EXAMPLES: Final = {"rest": "http://catalog:8181", "sql": _DATABASE_EXAMPLE}
"""Addresses by type. Spark and PyIceberg's REST client get the properties alone, so PyIceberg's own settings do not
count."""
_NAME: Final = re.compile(r"[\w-]+")


def catalog_type(properties: Mapping[str, str]) -> str:
    """The type in small letters: as given, else by the address, as PyIceberg infers it."""
    if properties.get("type"):
        return properties["type"].lower()
    uri = properties.get("uri", "")
    if uri.startswith(("http://", "https://")):
        return "rest"
    return "hive" if uri.startswith("thrift://") else "sql"


def type_problem(kind: str) -> str | None:
    """Why there are no catalogs of this type; None if there are."""
    if kind in CATALOG_TYPES:
        return None
    if kind == "nessie":
        return f"{kind!r}: {_NESSIE}"
    near = get_close_matches(kind, CATALOG_TYPES, n=1)
    hint = f"did you mean {near[0]}? allowed" if near else "allowed"
    return f"{kind!r} is not a type of catalog that PyIceberg and Spark share; {hint}: {', '.join(CATALOG_TYPES)}"


def checked_catalogs(given: Any) -> dict[str, dict[str, str]]:
    """The catalogs with all values as text.

    Raises:
        ValueError: what is given are no usable catalogs; the message names the property.
    """
    if given and not isinstance(given, dict):
        raise ValueError(f"{kind_of(given)} is not a map of catalogs; write e.g. {EXAMPLE}")
    if not given:
        raise ValueError(f"at least one catalog is needed, e.g. {EXAMPLE}")
    return {_name(name): _checked(str(name), properties) for name, properties in given.items()}


def _name(name: Any) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"catalog name {name!r} must consist of letters, digits, '_' and '-'")
    return name


def _checked(name: str, given: Any) -> dict[str, str]:
    if not isinstance(given, dict):
        raise KeyProblemError((name,), f"{kind_of(given)} is not a map of properties; write e.g. {EXAMPLE}")
    try:
        properties: dict[str, str] = texts(given)
        if "py-catalog-impl" not in properties:
            _check_address(properties)
    except KeyProblemError as problem:
        raise KeyProblemError((name, *problem.key), problem.message) from None
    return properties


def texts(given: Any) -> Any:
    """A map of properties with all values as text, as clients take them; what is no map stays as it is.

    Raises:
        KeyProblemError: a key is not text, or a value is null, a list or a map.
    """
    return {_key(key): _text(key, value) for key, value in given.items()} if isinstance(given, dict) else given


Properties = Annotated[dict[str, str], BeforeValidator(texts)]
"""Names and values of a client; numbers and booleans become text."""


def _key(key: Any) -> str:
    if not isinstance(key, str):
        raise KeyProblemError((str(key),), f"the key {key!r} is not text; put it in quotes")
    return key


def _text(key: str, value: Any) -> str:
    if isinstance(value, dict):
        inner = next(iter(value), "name")
        remedy = f"write the property's full name, e.g. {key}.{inner}"
        if is_secret(key, "map"):  # then what looks like a key of the map is the secret
            remedy = "put the value in quotes"
        raise KeyProblemError((key,), f"a map is not allowed; {remedy}")
    if value is None or isinstance(value, list):
        what = "no value" if value is None else "a list"
        raise KeyProblemError((key,), f"{what} is not allowed; write one text, or remove the key")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_address(properties: Mapping[str, str]) -> None:
    kind, uri = catalog_type(properties), properties.get("uri", "")
    problem = type_problem(kind)
    if problem is not None:
        raise KeyProblemError(("type",), problem)
    found = None
    if kind in _EXAMPLES and not uri and "type" in properties:  # without a type, PyIceberg's own settings may say all
        found = f"this key is missing: write e.g. {_EXAMPLES[kind]}"
    elif kind == "rest" and uri:
        found = address_problem(uri, ("http", "https"), _EXAMPLES["rest"])
    elif kind == "hive":
        hosts = uri.split(",") if uri else []
        problems = (address_problem(host.strip(), ("thrift",), "thrift://metastore:9083") for host in hosts)
        found = next(filter(None, problems), None)
    elif kind == "sql" and uri and not _DATABASES.fullmatch(uri):
        found = f"{without_password(uri)!r} is not the address of a database: write e.g. {_DATABASE_EXAMPLE}"
        if "type" not in properties:
            found += "; or set type to one of " + ", ".join(CATALOG_TYPES)
    if found is not None:
        raise KeyProblemError(("uri",), found)
