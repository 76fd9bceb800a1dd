"""Tables that cannot be read stop no other, and each is named with what is wrong."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner
from pyiceberg.catalog import load_catalog

from compactor.locations import plain_path
from streaming.cli import main


@pytest.mark.parametrize("command", ["debt", "assess"])
def test_every_table_that_cannot_be_read_is_named(tmp_path: Path, command: str) -> None:
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    catalog = load_catalog("lake", **properties)
    catalog.create_namespace("db")
    for name in ("gone", "sound", "strange"):
        table = catalog.create_table(f"db.{name}", pa.schema([pa.field("id", pa.int64())]))
        table.append(pa.table({"id": [1]}))
        metadata = Path(plain_path(table.metadata_location))
        if name == "gone":
            metadata.unlink()
        if name == "strange":
            metadata.write_text(metadata.read_text().replace('"long"', '"polygon"'))
    config = tmp_path / "firnline.yaml"
    config.write_text(yaml.safe_dump({"catalogs": {"lake": properties}}))
    done = CliRunner().invoke(main, ["-c", str(config), command])
    assert done.exit_code == 3
    assert "lake.db.sound" in done.stdout
    said = done.stderr.splitlines()
    assert len([line for line in said if "lake.db.gone cannot be loaded" in line]) == 1
    (strange,) = (line for line in said if "lake.db.strange" in line)
    assert "PyIceberg cannot parse its metadata" in strange
    assert "polygon" in strange
    assert "pydantic" not in done.stderr
