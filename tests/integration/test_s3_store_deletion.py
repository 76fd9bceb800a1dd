"""What a sweep leaves in S3: no empty object in the place of a folder, and no unfinished upload."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from compactor.commit import in_flight
from compactor.commit.in_flight import InFlightRecords
from compactor.commit.sweep import sweep
from compactor.iceberg.tables import Catalogs
from compactor.lease.owner import Owner
from compactor.manifests.cache import ManifestCache
from compactor.table_names import TableName
from tests.services.s3_server import S3Server

DEAD = replace(Owner.this_process(), started="1")


def test_a_sweep_leaves_no_folder_marker(s3_server: S3Server, tmp_path: Path) -> None:
    """Arrow's `delete_file` writes one for each folder, and needs the right to do so."""
    properties = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": s3_server.folder(), **s3_server.properties}
    catalog = SqlCatalog("lake", **properties)
    catalog.create_namespace("db")
    table = catalog.create_table("db.t", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1]}))
    before = s3_server.keys(table.location())
    catalogs = Catalogs({"lake": {"type": "sql", **properties}})
    view = catalogs.load(TableName("lake", ("db",), "t"))
    run_id = in_flight.new_run_id(view) if hasattr(in_flight, "new_run_id") else "run-1"
    data = f"{table.location()}/data"
    outputs = [f"{data}/p={number}/0000{number}-firnline-{run_id}.parquet" for number in range(3)]
    by_spark = f"{data}/firnline-{run_id}/p=a%2Fb c/x.parquet"
    too_long = f"{data}/p={'x' * 1100}/00000-firnline-{run_id}.parquet"
    for location in (*outputs, by_spark):
        s3_server.put(location, b"rows")
    key = f"{data}/p=0/00009-firnline-{run_id}.parquet".split("/", 3)[3]
    s3_server.client.create_multipart_upload(Bucket=s3_server.bucket, Key=key)
    records = InFlightRecords(f"file://{tmp_path}/in-flight", DEAD, 60, time.time)
    unfinished = f"s3://{s3_server.bucket}/{key}"
    folder = f"{data}/firnline-{run_id}"
    record = records.open(run_id, view, [*outputs, unfinished, too_long], [folder.replace("s3://", "s3a://")])
    records.save(replace(record, abandoned=True, seen_at=0.0, sends=()))
    found = [sweep(records, catalogs, ManifestCache(2**20), now=time.time(), grace_seconds=0.0) for _ in range(2)]
    assert [sum(each.values()) for each in found] == [4, 0]
    assert s3_server.keys(table.location()) == before
    uploads = s3_server.client.list_multipart_uploads(Bucket=s3_server.bucket, Prefix=key).get("Uploads", [])
    assert (uploads, records.all()) == ([], [])
