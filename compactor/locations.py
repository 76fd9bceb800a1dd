"""File locations as tables spell them: whether a location is local, and its path."""

from __future__ import annotations


def is_local(location: str) -> bool:
    """Whether the operating system can open the location (also on a mounted network file system)."""
    return location.startswith(("/", "file:"))


def plain_path(location: str) -> str:
    """Normalize `file:/a` and `file:///a` to `/a`; return locations of other schemes unchanged."""
    if location.startswith("file:"):
        return "/" + location.removeprefix("file:").lstrip("/")
    return location
