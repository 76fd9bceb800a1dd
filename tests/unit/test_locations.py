"""Folders of the user: where there is no home folder, the error says what to set."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from compactor.errors import InputError
from compactor.locations import user_folder


def test_without_home_and_passwd_entry_the_error_names_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = next(uid for uid in range(54321, 65000) if uid not in {each.pw_uid for each in pwd.getpwall()})
    monkeypatch.setattr(os, "getuid", lambda: nobody)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", "not/absolute")
    with pytest.raises(InputError, match=f"user {nobody} .* HOME .* XDG_STATE_HOME"):
        user_folder("XDG_STATE_HOME", ".local/state")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert user_folder("XDG_STATE_HOME", ".local/state") == Path("/state")
    monkeypatch.setenv("HOME", "/home/me")
    assert user_folder("XDG_CACHE_HOME_NOT_SET", ".cache") == Path("/home/me/.cache")
