"""Old tables (V1) whose metadata name no UUID: PyIceberg invents one each time that it reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyiceberg.table.metadata import TableMetadataUtil

from compactor.errors import GiveUpError
from compactor.iceberg.tables import TableView
from compactor.spark.java_table import JavaTable
from tests.properties.table_history import NAME, TableHistory


def read_without_uuid(history: TableHistory, **changes: str) -> TableView:
    table = history.table
    document = {**json.loads(table.metadata.model_dump_json(by_alias=True)), **changes}
    del document["table-uuid"]
    return TableView(NAME, TableMetadataUtil.parse_raw(json.dumps(document)), table.metadata_location, table.io)


def test_a_table_without_a_uuid_is_the_same_table_each_time_it_is_read(tmp_path: Path) -> None:
    """Else each commit would be taken for another table's, and the table be counted as a whole."""
    history = TableHistory(tmp_path, 1)
    found = read_without_uuid(history)
    history.append_unreal("a", [1])
    assert read_without_uuid(history).uuid == found.uuid
    assert read_without_uuid(history, location="s3://another/place").uuid != found.uuid
    assert not found.has_uuid


def test_a_table_with_a_uuid_keeps_it(tmp_path: Path) -> None:
    for version in (1, 2):
        (tmp_path / str(version)).mkdir()
        history = TableHistory(tmp_path / str(version), version)
        assert history.view().uuid == str(history.table.metadata.table_uuid)
        assert history.view().has_uuid


def test_a_table_without_a_uuid_is_not_rewritten(tmp_path: Path) -> None:
    """Its commit could meet another table of its name. Java's own `uuid()` fails without a message."""
    table = JavaTable(None, None, read_without_uuid(TableHistory(tmp_path, 1)), 1)  # type: ignore[arg-type]
    with pytest.raises(GiveUpError, match=r"lake\.db\.t has no table-uuid.*; append to it once with Spark") as refused:
        table.check_unchanged()
    assert refused.value.reason == "bad_metadata"
