"""A tag of 32 bits can be that of another version: it is trusted for an hour after the catalog named the location."""

from __future__ import annotations

from itertools import pairwise

import pytest

from compactor.iceberg.conditional_load import Same
from compactor.iceberg.tables import ETAG_TRUST_SECONDS, Catalogs, KnownVersion, Unchanged
from compactor.table_names import TableName

NAME = TableName("lake", ("db",), "t")
LOCATION = "s3://lake/t/metadata/1.json"


class AnswersByTag:
    """A loader whose catalog answers with status 304 whenever a tag is sent, else with the known location."""

    def __init__(self) -> None:
        self.sent: list[str | None] = []

    def load_if_changed(self, _identifier: tuple[str, ...], location: str, etag: str | None) -> Same:
        assert location == LOCATION
        self.sent.append(etag)
        return Same("tag", by_tag=etag is not None)


def test_an_answer_by_tag_does_not_renew_the_trust_in_the_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks every five minutes for a day: the location itself is asked for once an hour or more often."""
    loader = AnswersByTag()
    monkeypatch.setattr(Catalogs, "_loader", lambda _self, _name: loader)
    catalogs, known = Catalogs({"lake": {}}), KnownVersion(LOCATION, "tag", checked_at=0.0)
    asked_at = [0]
    for now in range(300, 86_400, 300):
        found = catalogs.load_if_changed(NAME, known, now)
        assert isinstance(found, Unchanged)
        known = found.known
        if loader.sent[-1] is None:
            asked_at.append(now)
            assert known.checked_at == now
    pauses = [after - before for before, after in pairwise(asked_at)]
    assert len(pauses) >= 23
    assert max(pauses) <= ETAG_TRUST_SECONDS
    assert loader.sent.count(None) <= 48, "and by its tag in between"
