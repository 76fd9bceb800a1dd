"""Arrow's file systems, shared by all tables of a process that reach a store with the same properties.

A file system has connections of its own, three file descriptors each. PyIceberg makes one for each table that it loads,
and Python's garbage collector closes them when it comes by: hundreds would be open beside a service that looks often.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Final

from pyarrow.fs import FileSystem
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

MOST: Final = 32
"""File systems that are kept; one that was used longest ago is closed when no table uses it any more."""
_OF_STORES: Final = ("s3.", "gcs.", "adls.", "hdfs.", "hf.", "oss.", "client.")
"""Beginnings of the properties that PyIceberg makes file systems from. Others, of each table, make no difference."""


def shared_file_system(properties: Mapping[str, str], scheme: str, netloc: str | None) -> FileSystem:
    """The file system that PyIceberg makes from the properties, made once."""
    used = tuple(sorted((key, value) for key, value in properties.items() if key.startswith(_OF_STORES)))
    return _made(used, scheme, netloc)


def sharing(io: FileIO) -> FileIO:
    """The same FileIO; PyIceberg's own on Arrow uses shared file systems from now on."""
    if type(io) is PyArrowFileIO:
        io.fs_by_scheme = partial(shared_file_system, dict(io.properties))
    return io


@lru_cache(maxsize=MOST)
def _made(properties: tuple[tuple[str, str], ...], scheme: str, netloc: str | None) -> FileSystem:
    return PyArrowFileIO(dict(properties))._initialize_fs(scheme, netloc)  # noqa: SLF001 - PyIceberg's own
