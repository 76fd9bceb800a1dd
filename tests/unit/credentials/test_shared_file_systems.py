"""File systems are shared by tables that reach a store in the same way, and by no others."""

from __future__ import annotations

import pickle
from pathlib import Path

from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from compactor.credentials.shared_file_systems import sharing

S3 = {"s3.endpoint": "http://127.0.0.1:1", "s3.access-key-id": "a", "s3.secret-access-key": "b", "s3.region": "eu-1"}


def shared(**more: str) -> PyArrowFileIO:
    io = sharing(PyArrowFileIO({**S3, **more}))
    assert isinstance(io, PyArrowFileIO)
    return io


def test_properties_of_the_table_alone_make_no_difference() -> None:
    one, other = shared(owner="me").fs_by_scheme("s3", "lake"), shared(owner="you").fs_by_scheme("s3", "lake")
    assert one is other
    assert one is not shared().fs_by_scheme("s3", "elsewhere")
    assert one is not shared(**{"s3.secret-access-key": "c"}).fs_by_scheme("s3", "lake")
    assert one is not shared(**{"client.region": "us-1"}).fs_by_scheme("s3", "lake")


def test_a_pickled_io_and_one_of_others_work_as_before(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"text")
    copied = pickle.loads(pickle.dumps(sharing(PyArrowFileIO({}))))  # noqa: S301 - its own
    assert copied.new_input(f"file://{tmp_path}/x").open().read() == b"text"
    others = FsspecFileIO({})
    assert sharing(others) is others
