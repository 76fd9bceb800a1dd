"""Locations of files as tables spell them: which are files of this host, and their paths."""

from __future__ import annotations


def is_local(location: str) -> bool:
    """Whether the kernel reaches it; a network file system looks the same."""
    return location.startswith(("/", "file:"))


def plain_path(location: str) -> str:
    """`file:/a`, `file:///a` and `/a` name one file; other schemes are compared as they are."""
    if location.startswith("file:"):
        return "/" + location.removeprefix("file:").lstrip("/")
    return location
