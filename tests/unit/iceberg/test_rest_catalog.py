"""A catalog that takes connections and says nothing must not hold up the others for good."""

from __future__ import annotations

import socket

import pytest

from compactor.errors import RetryError
from compactor.iceberg import rest_catalog
from compactor.iceberg.tables import Catalogs
from compactor.table_names import TableName


def test_a_silent_catalog_is_a_catalog_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_catalog, "ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        catalogs = Catalogs({"quiet": {"type": "rest", "uri": f"http://127.0.0.1:{silent.getsockname()[1]}"}})
        with pytest.raises(RetryError, match="timed out") as error:
            catalogs.load(TableName("quiet", ("db",), "t"))
        assert error.value.reason == "catalog_unavailable"
