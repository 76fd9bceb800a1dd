"""What fails after a merge of manifests was committed: the merge has not failed, and costs its commit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from compactor.commit import manifest_rewrite
from compactor.errors import FirnlineError, ReplanError, RetryError
from tests.properties.table_history import NAME


class Java:
    """A table that can be read until the merge is committed."""

    def __init__(self, error: FirnlineError) -> None:
        self.error = error
        self.committed = 0
        manifests = [SimpleNamespace(path=lambda: "1.avro"), SimpleNamespace(path=lambda: "2.avro")]
        snapshot = SimpleNamespace(allManifests=lambda _: manifests)
        self.handle = SimpleNamespace(currentSnapshot=lambda: snapshot, io=lambda: None)

    def refresh(self) -> None:
        if self.committed:
            raise self.error

    def check_unchanged(self) -> None: ...

    def commit(self, *_: Any) -> None:
        self.committed += 1


@pytest.mark.parametrize("keeps_row_lineage", [False, True])
@pytest.mark.parametrize("error", [RetryError("the catalog does not answer"), ReplanError("the table was dropped")])
def test_what_fails_after_the_commit_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: FirnlineError, keeps_row_lineage: bool
) -> None:
    java = Java(error)
    monkeypatch.setattr(manifest_rewrite, "JavaTable", SimpleNamespace(load=lambda *_: java))
    monkeypatch.setattr(manifest_rewrite, "_merge", java.commit)
    monkeypatch.setattr(manifest_rewrite, "_order_and_merge", java.commit)
    context = SimpleNamespace(setJobGroup=lambda *_: None)
    session: Any = SimpleNamespace(sparkContext=context)
    table: Any = SimpleNamespace(
        name=NAME, snapshot=SimpleNamespace(snapshot_id=1), keeps_row_lineage=keeps_row_lineage
    )
    done = manifest_rewrite.rewrite_manifests(session, table, (0,), "run")
    assert (java.committed, done.before, done.after) == (1, 2, 2)
    assert str(error) in caplog.text
