"""SHA-256 digests of all jars that firnline fetches. A jar that differs from its digest is not used.

`jars.sha256` has one line for each jar, as `sha256sum` prints them; `make jar-digests` writes it. A jar that could not
be fetched where it was written is marked `unknown`: it is used, with a warning.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

from compactor.errors import InputError
from compactor.reasons import Reason

LOG = logging.getLogger("firnline")
UNKNOWN: Final = "unknown"
DIGESTS: Final = Path(__file__).with_name("jars.sha256")


def pinned_digests() -> dict[str, str]:
    """Digests by file name. A file name has the version in it, so a jar of two sets has one line."""
    lines = DIGESTS.read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines if line)}


def digest_of(jar: Path) -> str:
    with jar.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_jars(jars: Iterable[Path]) -> None:
    """Check jars against their digests.

    Raises:
        InputError: a jar differs, or no digest is known; the message has the file and both digests.
    """
    pinned = pinned_digests()
    for jar in jars:
        expected, found = pinned.get(jar.name), digest_of(jar)
        if expected == found:
            continue
        if expected == UNKNOWN:
            LOG.warning(
                "%s was not checked: this version of firnline knows no digest of it; it has SHA-256 %s", jar, found
            )
            continue
        problem = "is not the jar that this version of firnline pins" if expected else "is not a jar that firnline pins"
        raise InputError(
            f"{jar} {problem}: expected SHA-256 {expected or '(none in jars.sha256)'}, found {found}. Do not use it. "
            f"Delete the folder {jar.parent}, and fetch the jars from a repository that you trust (`firnline jars`). "
            "If the same jar comes again, its repository or mirror serves a changed file: report it",
            reason=Reason.JAR_DIFFERS,
        )


@cache
def checked(jars: tuple[Path, ...]) -> tuple[Path, ...]:
    """The jars, checked once in this process: 120 MB take a tenth of a second."""
    check_jars(jars)
    return jars
