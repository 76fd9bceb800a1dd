"""Sizes of the cases, as the user chose them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Fields of a case carry its letter in the comment."""

    start_seconds: float  # most seconds of a first count or a sweep
    sweep_seconds: float  # interval of sweeps
    rate: float  # a: commits a second
    seconds: float  # a
    busy_tables: int  # a
    wide_partitions: int  # d
    idle_seconds: float  # e
    due_commits: int  # h
    due_tables: int  # h
