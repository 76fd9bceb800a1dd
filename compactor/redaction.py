"""Secrets: which settings hold one, and how texts are kept free of them.

`hide` removes from a text the secrets that this process knows (`remember`), and forms that are secret wherever they
appear: a bearer token, the password of a URL, a signed link. All errors of firnline, log lines and health details pass
through it. `masked` hides the secrets of a settings tree.
"""

from __future__ import annotations

import html
import json
import re
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote, quote_plus, unquote, unquote_plus

HIDDEN: Final = "********"
_SECRETS: Final = (
    "secret", "passw", "passphrase", "token", "credential", "jaas", "private", "basic_?auth", "account[._-]?key",
    "api[._-]?key", "sse[.]key", "connection[._-]?string", "encryption[._-]?key", "keystore[.]key",
    "fs[.]azure[.]sas[.]", "ssl[.]key[.]pem", "header[.](?!accept|content-|user-agent|x-iceberg-)",
)  # fmt: skip
SECRET_NAMES: Final = "|".join(_SECRETS)
"""Names of settings whose values are secret, ignoring case; valid in Java too. A header is secret unless it is known to
be harmless."""
SHORTEST: Final = 8
"""Characters. A shorter value is not searched for: it could be a part of any word."""
MOST_PASSING: Final = 256
"""Credentials that are known at a time: catalogs vend new ones all day."""

_SECRET_NAME: Final = re.compile(SECRET_NAMES, re.IGNORECASE)
_NAMES_A_PLACE: Final = re.compile(r"(_env|_credentials|-provider|[._-]file|[._-]path|[._-]location)$", re.IGNORECASE)
_HARMLESS: Final = frozenset({"", "true", "false", "none", "null"})
_DATABASE: Final = r"\b(?:postgres|mysql|mariadb|oracle|mssql|sqlserver|redshift)\w*(?:\+\w+)?"
_PORT: Final = re.compile(r"\d{1,5}[/?#,;]")
_BEFORE_PASSWORD: Final = (
    rf"(?:{_DATABASE}://(?!\[)[^/@:\s\"]*:|://(?!\[)[^/@:\s\"]*(?:@[^/@:\s\"]*)?:(?!{_PORT.pattern}))"
)
"""What precedes the password of a URL: scheme and user, who may have an @. What looks like a port is taken for one, but
not in the address of a database, whose password people write as it is."""
_IN_URL: Final = re.compile(rf"({_BEFORE_PASSWORD})((?:(?!://)[^\s\"])+)(@)", re.IGNORECASE)
"""The password of a URL inside of a text, up to the last @ before a blank, a quote or the next URL."""
_IN_ADDRESS: Final = re.compile(rf"^(\s*[\w+.:-]*?{_BEFORE_PASSWORD})(.+)(@)", re.IGNORECASE | re.DOTALL)
"""The password of a text that is an address as a whole: it may hold any character."""
_PARAMETER: Final = r"([?&;](?:(?!passw|pwd|secret)\w)*(?:passw(?:or)?d|pwd|secret)\w*=)"
_IN_PARAMETER: Final = re.compile(rf"{_PARAMETER}([^&\s\"\\]+)", re.IGNORECASE)
_IN_LAST_PARAMETER: Final = re.compile(rf"{_PARAMETER}([^&]+)", re.IGNORECASE)
"""A password in a parameter of an address: of one inside of a text, of a text that is an address as a whole."""
_SEPARATORS: Final = re.compile(r"[/@:?#]")
_PARTS: Final = re.compile(r"""(?:passw(?:or)?d|secret|key|signature)\s*=\s*["']?([^"';,&\s]+)""", re.IGNORECASE)
"""Secrets inside of a value: of Kafka's JAAS configuration, of a connection string."""
_PASSWORD_OPTION: Final = re.compile(r"((?:passw(?:or)?d|secret)\w*\s*=\s*[\"']?)([^\"';,&\s]+)", re.IGNORECASE)
"""A password beside other things: in options of Java, in an address."""
_VALUE: Final = r"(?:\\[^\s\"']|[^\s\"',;&}\])\\]){4,}"
"""A value without quotes, also inside of a string of JSON: never the backslash of a quote, or the line would break."""
_QUOTE: Final = r"(?:\\?[\"'])?"
_FORMS: Final = (
    (re.compile(r"\b(bearer|basic)(\s+)(?=\S*[\d=])[\w+/=.~-]{8,}", re.IGNORECASE), rf"\1\2{HIDDEN}"),
    (_IN_URL, rf"\1{HIDDEN}\3"),
    (_IN_PARAMETER, rf"\1{HIDDEN}"),
    (re.compile(r"([?&](?:X-(?:Amz|Goog)-\w[\w-]*|sig|signature)=)[^&\s\"'\\]+", re.IGNORECASE), rf"\1{HIDDEN}"),
    (
        re.compile(
            r"((?:access|refresh|session|id|sas|security)[._-]?token|client[._-]?secret|secret[._-]?(?:access[._-]?)?key"
            rf"|passw(?:or)?d)({_QUOTE}\s*[=:]\s*{_QUOTE})(?!\*){_VALUE}",
            re.IGNORECASE,
        ),
        rf"\1\2{HIDDEN}",
    ),
    (re.compile(rf"(token{_QUOTE}\s*[=:]\s*{_QUOTE})(?=\S*\d)[\w+/=.~-]{{16,}}", re.IGNORECASE), rf"\1{HIDDEN}"),
    (re.compile(r"\beyJ[\w-]{6,}\.[\w-]{6,}\.[\w-]*"), HIDDEN),  # a JSON web token
)


def is_secret(name: str, value: object) -> bool:
    """Whether a setting of this name with this value must not be shown."""
    if str(value).strip().lower() in _HARMLESS or _NAMES_A_PLACE.search(name):
        return False
    return _SECRET_NAME.search(name) is not None


def holds_secret(text: str) -> bool:
    """Whether a value holds a password beside other things: in a URL, in options of Java."""
    return any(form.search(text) for form in (_IN_URL, _IN_ADDRESS, _PASSWORD_OPTION, _IN_PARAMETER))


def shown(name: str, value: str) -> str:
    """The value of a property as it may be shown."""
    return HIDDEN if is_secret(name, value) else _without_secrets(value)


def without_password(address: str) -> str:
    """One address, or several, with all hidden that may be of a password: it may hold any character, also / and @."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        scheme, rest = "", address
    user, colon, after = rest.partition(":")
    password, at, host = after.rpartition("@")
    is_path = "@" in user or (bool(separator) and "/" in user)
    if password and at and not is_path:
        address = f"{scheme}{separator}{user}{colon}{HIDDEN}{at}{host}"
    return _IN_URL.sub(rf"\1{HIDDEN}\3", address)


def _without_secrets(text: str) -> str:
    """The value of a setting, with all secrets inside of it hidden, also short ones."""
    text = _IN_ADDRESS.sub(rf"\1{HIDDEN}\3", text)
    if _is_address(text):
        text = _IN_LAST_PARAMETER.sub(rf"\1{HIDDEN}", text)
    return _PASSWORD_OPTION.sub(rf"\1{HIDDEN}", hide(text))


def _is_address(text: str) -> bool:
    return re.match(r"\s*[\w+.:-]+://", text) is not None


def masked(tree: Any, *, secret: bool = False) -> Any:
    """A settings tree (maps, lists, values) as it may be shown. `secret`: whether all its values are."""
    if isinstance(tree, Mapping):
        return {name: masked(value, secret=secret or _hides(name, value)) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [masked(value, secret=secret) for value in tree]
    if secret:
        return HIDDEN
    return _without_secrets(tree) if isinstance(tree, str) else tree


def secrets_in(tree: Any, *, secret: bool = False) -> Iterator[str]:
    """The secrets of a settings tree, and parts of them that are secret by themselves."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from secrets_in(value, secret=secret or _hides(name, value))
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from secrets_in(value, secret=secret)
    elif isinstance(tree, str | int | float):
        text = str(tree)
        yield from _passwords_in(text)
        if secret:
            yield from (text, *_PARTS.findall(text), *text.split(":", 1)[1:])  # client:secret of OAuth2


def _passwords_in(text: str) -> Iterator[str]:
    """Passwords beside other things, as they are written and as clients decode them."""
    for form in (_IN_URL, _IN_ADDRESS):
        for found in form.finditer(text):
            yield from (found[2], unquote(found[2]), *_misread(found[2], text[found.end() :]))
    parameters = _IN_LAST_PARAMETER.findall(text) if _is_address(text) else []
    for _, password in (*_PASSWORD_OPTION.findall(text), *_IN_PARAMETER.findall(text), *parameters):
        yield from (password, unquote(password), unquote_plus(password))


def _misread(password: str, host: str) -> Iterator[str]:
    """Parts of a password that clients take for the host, the port or the database, and name in their errors.

    A client ends the password at a / or an @ that is not percent-encoded. `host`: the text that follows.
    """
    if _SEPARATORS.search(password) is None or _PORT.match(password) or "://" in password:
        return
    parts = _SEPARATORS.split(password)
    yield from parts
    yield f"{parts[-1]}@{_SEPARATORS.split(host)[0]}"


def _hides(name: object, value: object) -> bool:
    """Whether a map's entry is secret as a whole. A map under such a name holds secrets only."""
    return is_secret(str(name), "" if value is None else "map" if isinstance(value, Mapping) else value)


class _Known:
    """The secrets of this process, in every spelling in which a text may show them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spellings: frozenset[str] = frozenset()
        self._passing: deque[frozenset[str]] = deque(maxlen=MOST_PASSING)
        self.longest_first: tuple[str, ...] = ()

    def add(self, secrets: Iterable[str], *, passing: bool = False) -> None:
        found = frozenset(spelling for secret in secrets if len(secret) >= SHORTEST for spelling in _spellings(secret))
        with self._lock:
            if found <= self._spellings or found in self._passing:
                return
            if passing:
                self._passing.append(found)
            else:
                self._spellings |= found
            self.longest_first = tuple(sorted(self._spellings.union(*self._passing), key=len, reverse=True))


_known = _Known()


def remember(secrets: Iterable[str]) -> None:
    """From now on, `hide` removes these from texts. A secret that was replaced stays known: old texts may hold it."""
    _known.add(secrets)


def remember_for_now(secrets: Iterable[str]) -> None:
    """As `remember`, for secrets that end by themselves: only the last `MOST_PASSING` of these calls count."""
    _known.add(secrets, passing=True)


def hide(text: str) -> str:
    """The text without secrets."""
    for spelling in _known.longest_first:  # no expression: one of 256 tokens takes megabytes, and `re` keeps hundreds
        text = text.replace(spelling, HIDDEN)
    for form, replacement in _FORMS:
        text = form.sub(replacement, text)
    return text


def _spellings(secret: str) -> Iterator[str]:
    """As it is, in a URL (as SQLAlchemy writes it, too) or form, in JSON, in Python's repr, in HTML."""
    yield from (secret, quote(secret, safe=""), quote(secret, safe=" +"), quote_plus(secret))
    yield from (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1])
    yield from (repr(secret)[1:-1], html.escape(secret))
