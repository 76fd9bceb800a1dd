"""Calls of the operating system that fail."""

from __future__ import annotations

import os

import pytest


def refuse(monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> None:
    """Let a function of `os` fail with this error number."""

    def fail(*_arguments: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, fail)
