"""File locations as tables spell them: whether a location is local, and its path. Folders of the user."""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Final

from compactor.errors import InputError
from compactor.reasons import Reason

LONGEST_NAME: Final = 255
LONGEST_LOCATION: Final = 1000
"""Bytes that stores and file systems take: of a folder's or file's name, of an object's key (with room for more)."""

_S3: Final = re.compile("^s3[an]://")


def is_local(location: str) -> bool:
    """Whether the operating system can open the location (also on a mounted network file system)."""
    return location.startswith(("/", "file:"))


def plain_path(location: str) -> str:
    """Normalize `file:/a` and `file:///a` to `/a`; return locations of other schemes unchanged."""
    if location.startswith("file:"):
        return "/" + location.removeprefix("file:").lstrip("/")
    return location


def normal_location(location: str) -> str:
    """One spelling for a place: `s3://` for `s3a://`, `/a` for `file:///a`; no doubled slashes, no `.`, no `..`."""
    scheme, separator, path = _S3.sub("s3://", plain_path(location)).rpartition("://")
    path = posixpath.normpath(f"/{path.lstrip('/')}")
    return f"{scheme}://{path.lstrip('/')}" if separator else path


def is_too_long(location: str) -> bool:
    """Whether some stores have no room for such a name."""
    encoded = location.encode("utf-8", "surrogatepass")
    return len(encoded) > LONGEST_LOCATION or any(len(name) > LONGEST_NAME for name in encoded.split(b"/"))


def user_folder(variable: str, otherwise: str) -> Path:
    """The folder that a variable of the XDG Base Directory Specification names.

    If it names none, or no absolute path (which the specification says to ignore): `otherwise` in the home folder.

    Raises:
        InputError: there is no home folder either.
    """
    named = os.environ.get(variable, "")
    if named.startswith("/"):
        return Path(named)
    try:
        return Path.home() / otherwise
    except RuntimeError as error:
        raise InputError(
            f"user {os.getuid()} has no home folder: set the environment variable HOME to a folder that it "
            f"may write, or {variable} to one for firnline's files",
            reason=Reason.BAD_SETTING,
        ) from error


def attempt_location(location: str, attempt: int) -> str:
    """Location of the file that attempt `attempt` (from 0) of a task writes instead of `location`.

    No two attempts write the same file: one that was taken for lost may still be writing.
    """
    if not attempt:
        return location
    stem, dot, ending = location.rpartition(".")
    return f"{stem}-attempt{attempt}{dot}{ending}"
