"""Which settings are secrets, and how they are shown: hidden, in a form that is refused when it is read back."""

from __future__ import annotations

import re
from typing import Final

HIDDEN: Final = "********"
_WORDS: Final = (
    "secret", "password", "token", "credential", "jaas", "account-key", "connection-string", "encryption-key"
)  # fmt: skip
_PASSWORD_IN_URL: Final = re.compile(r"(://[^/@:]*:)[^/@]+(@)")


def is_secret(key: str) -> bool:
    """Whether the values of this property are secrets."""
    return any(word in key.lower() for word in _WORDS)


def hidden(key: str, value: str) -> str:
    """The value of a property as it may be shown. An empty value hides nothing."""
    return HIDDEN if is_secret(key) and value else without_password(value)


def without_password(text: str) -> str:
    """The text, with passwords in URLs hidden."""
    return _PASSWORD_IN_URL.sub(rf"\1{HIDDEN}\2", text)
