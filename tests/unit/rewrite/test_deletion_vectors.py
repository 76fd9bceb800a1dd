"""Positions of deletion vectors. A damaged or missing vector is an error, never "no deletes"."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from compactor.errors import GiveUpError
from compactor.rewrite.deletes import deletion_vectors
from compactor.rewrite.deletes.position_deletes import DeleteFile, deleted_positions
from compactor.storage.local_store import LocalByteStore
from tests.unit.failing import fails

STORE = LocalByteStore()
VECTOR = "deletion-vector-v1"


def blob(positions: Sequence[int]) -> bytes:
    """A blob in the layout of the Puffin spec."""
    body = bytes((0xD1, 0xD3, 0x39, 0x64)) + BitMap64(positions).serialize()
    return len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")


def described(path: str, data: bytes, offset: int, cardinality: int | None, **more: Any) -> dict[str, Any]:
    properties = {"referenced-data-file": path}
    if cardinality is not None:
        properties["cardinality"] = str(cardinality)
    places = {"offset": offset, "length": len(data), "snapshot-id": -1, "sequence-number": -1}
    return {"type": VECTOR, "fields": [2147483545], "properties": properties, **places, **more}


def puffin(
    path: Path, blobs: Sequence[tuple[dict[str, Any], bytes]], *, flags: int = 0, magic: bytes = b"PFA1"
) -> DeleteFile:
    """A file of blobs; sets the offset in each blob's metadata."""
    content = b"PFA1"
    descriptions = []
    for description, data in blobs:
        descriptions.append({**description, "offset": len(content)})
        content += data
    footer = json.dumps({"blobs": descriptions}).encode()
    content += b"PFA1" + footer + len(footer).to_bytes(4, "little") + flags.to_bytes(4, "little") + magic
    path.write_bytes(content)
    return DeleteFile(str(path), len(content), "puffin")


def vectors(path: Path, wanted: Mapping[str, Sequence[int]]) -> DeleteFile:
    made = [(described(name, blob(each), 0, len(each)), blob(each)) for name, each in wanted.items()]
    return puffin(path, made)


def found(wanted: dict[str, list[DeleteFile]]) -> dict[str, list[int]]:
    return {path: positions.tolist() for path, positions in deleted_positions(STORE, wanted).items()}


@given(st.sets(st.integers(0, 2**40), max_size=60), st.sets(st.integers(0, 5000), max_size=60))
def test_every_position_of_the_files_asked_for(
    tmp_path_factory: pytest.TempPathFactory, far: set[int], near: set[int]
) -> None:
    file = vectors(tmp_path_factory.mktemp("v") / "v.puffin", {"a": sorted(far), "b": sorted(near), "c": [1]})
    assert found({"a": [file], "b": [file]}) == {"a": sorted(far), "b": sorted(near)}


def test_runs_and_full_containers_are_positions_too(tmp_path: Path) -> None:
    bitmap = BitMap64(range(70_000))
    bitmap.run_optimize()
    data = blob(bitmap)
    file = puffin(tmp_path / "v.puffin", [(described("a", data, 0, 70_000), data)])
    assert found({"a": [file]}) == {"a": list(range(70_000))}


def test_a_large_file_is_read_by_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion_vectors, "WHOLE_FILE_BYTES", 10)
    file = vectors(tmp_path / "v.puffin", {"a": [3, 1], "b": [2]})
    assert found({"b": [file]}) == {"b": [2]}


def test_a_newer_vector_elsewhere_leaves_the_older_one_unread(tmp_path: Path) -> None:
    old = vectors(tmp_path / "1.puffin", {"a": [1], "b": [2]})
    new = vectors(tmp_path / "2.puffin", {"a": [1, 5]})
    assert found({"a": [new], "b": [old]}) == {"a": [1, 5], "b": [2]}


def damaged() -> dict[str, list[tuple[dict[str, Any], bytes]]]:
    good = blob([1, 2])
    flipped = good[:-6] + bytes([good[-6] ^ 1]) + good[-5:]
    longer = (len(good)).to_bytes(4, "big") + good[4:]
    no_bitmap = bytes((0xD1, 0xD3, 0x39, 0x64)) + b"rubbish"
    rubbish = len(no_bitmap).to_bytes(4, "big") + no_bitmap + zlib.crc32(no_bitmap).to_bytes(4, "big")
    return {
        "no vector for the file": [(described("b", good, 0, 2), good)],
        "two vectors for the file": [(described("a", good, 0, 2), good)] * 2,
        "another number of positions": [(described("a", good, 0, 3), good)],
        "a bit flipped": [(described("a", flipped, 0, 2), flipped)],
        "another length": [(described("a", longer, 0, 2), longer)],
        "no bitmap": [(described("a", rubbish, 0, None), rubbish)],
        "too short": [(described("a", b"\0" * 9, 0, 2), b"\0" * 9)],
        "beyond the end": [(described("a", good, 0, 2, length=10_000), good)],
        "compressed": [(described("a", good, 0, 2, **{"compression-codec": "zstd"}), good)],
        "another kind of blob": [(described("a", good, 0, 2, type="apache-datasketches-theta-v1"), good)],
    }


@pytest.mark.parametrize("what", damaged())
def test_what_cannot_be_trusted_is_no_vector(tmp_path: Path, what: str) -> None:
    file = puffin(tmp_path / "v.puffin", damaged()[what])
    with fails("unreadable_delete_file"):
        found({"a": [file]})


@pytest.mark.parametrize(("flags", "magic", "cut"), [(1, b"PFA1", 0), (0, b"PAR1", 0), (0, b"PFA1", 5)])
def test_what_is_no_puffin_file(tmp_path: Path, flags: int, magic: bytes, cut: int) -> None:
    good = blob([1])
    file = puffin(tmp_path / "v.puffin", [(described("a", good, 0, 1), good)], flags=flags, magic=magic)
    with fails("unreadable_delete_file"):
        found({"a": [DeleteFile(file.location, file.size - cut, "puffin")]})


def test_a_file_of_a_few_bytes(tmp_path: Path) -> None:
    (tmp_path / "v.puffin").write_bytes(b"PFA1")
    with pytest.raises(GiveUpError, match="too short"):
        found({"a": [DeleteFile(str(tmp_path / "v.puffin"), 4, "puffin")]})
