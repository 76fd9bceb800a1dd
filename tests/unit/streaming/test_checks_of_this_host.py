"""`check-config --connect` fails where `run` would: clients that are not installed, passwords, the certificate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from compactor.errors import InputError
from compactor.iceberg.open_catalog import open_catalog
from compactor.settings.tree import Settings
from streaming.commands.connection_checks import Check, Status, check_connections
from streaming.service.service import Service
from tests.services.certificates import issue

TRINO = {"kind": "trino", "uri": "http://trino:8080", "statement": "CALL flush()"}


def settings_of(folder: Path, **sections: Any) -> Settings:
    lake = {"type": "sql", "uri": f"sqlite:///{folder}/c.db", "warehouse": f"file://{folder}/warehouse"}
    checkpoint = f"file://{folder}/checkpoint"
    return Settings.model_validate({"catalogs": {"lake": lake}, "state": {"checkpoint": checkpoint}, **sections})


def checks(folder: Path, *, observe: bool = False, **sections: Any) -> dict[str, Check]:
    return {each.name: each for each in check_connections(settings_of(folder, **sections), observe=observe)}


def test_a_catalog_that_writers_call_otherwise_fails(tmp_path: Path) -> None:
    """A database holds several catalogs; under a wrong name it looks empty."""
    assert checks(tmp_path)["catalog lake"].detail == "0 namespaces"
    properties = settings_of(tmp_path).catalogs["lake"]
    open_catalog("prod", properties).create_namespace("db")
    check = checks(tmp_path)["catalog lake"]
    assert (check.status, check.again) == (Status.FAILED, False)
    assert (
        "no namespaces of a catalog named lake, but of prod: the key below `catalogs` must be the name" in check.detail
    )
    open_catalog("lake", properties).create_namespace("db")
    assert checks(tmp_path)["catalog lake"].detail == "1 namespaces"


def test_a_hook_whose_client_is_not_installed_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, hooks = "hook 1-trino", [{"kind": "kafka"}, TRINO]
    assert checks(tmp_path, hooks=hooks)[name].status is Status.OK
    monkeypatch.setitem(sys.modules, "trino.auth", None)
    check = checks(tmp_path, hooks=hooks)[name]
    assert (check.status, check.again) == (Status.FAILED, False)
    assert "pip install 'firnline[" in check.detail
    assert "hooks[1]" in check.remedy
    assert checks(tmp_path, hooks=hooks, observe=True)[name].status is Status.SKIPPED


def test_a_hook_whose_password_is_not_in_the_environment_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, hooks = "hook 0-trino", [{**TRINO, "password_env": "ENGINE_PASSWORD"}]
    monkeypatch.delenv("ENGINE_PASSWORD", raising=False)
    check = checks(tmp_path, hooks=hooks)[name]
    assert (check.status, check.again) == (Status.FAILED, False)
    assert "ENGINE_PASSWORD" in check.detail
    monkeypatch.setenv("ENGINE_PASSWORD", "hunter2")
    check = checks(tmp_path, hooks=hooks)[name]
    assert check.status is Status.OK
    assert "hunter2" not in check.detail


def test_hooks_that_need_nothing_here_are_not_among_the_checks(tmp_path: Path) -> None:
    found = checks(tmp_path, hooks=[{"kind": "kafka"}, {"kind": "kafka", "topic": "more"}])
    assert not [name for name in found if name.startswith(("hook 0", "hook 1", "http"))]


def test_a_certificate_that_run_refuses_fails(tmp_path: Path) -> None:
    made, other = issue(tmp_path / "tls"), issue(tmp_path / "other")
    pages = {"port": 0, "tls_certificate": str(made.certificate), "tls_key": str(made.key)}
    assert checks(tmp_path, http=pages)["http certificate"].status is Status.OK
    for key in (str(other.key), str(tmp_path / "missing.key")):
        with pytest.raises(InputError):
            Service(settings_of(tmp_path, http={**pages, "tls_key": key}))
        check = checks(tmp_path, http={**pages, "tls_key": key})["http certificate"]
        assert (check.status, check.again) == (Status.FAILED, False)
        assert key in check.detail
