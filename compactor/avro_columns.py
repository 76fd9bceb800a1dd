"""Avro records → Arrow columns by compiled code, for reads so large that compiling it pays.

Of a manifest entry nine tenths are statistics. DataFusion takes 2.2 µs to step over those of 20 columns, the compiled
walk less than one. Needs Numba (`pip install 'firnline[jit]'`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from compactor.avro_container import Container

LOG = logging.getLogger("firnline")
WORTH_COMPILING: Final = 256 * 1024 * 1024
"""Bytes of manifests, compressed, from which on one read saves more than Numba takes to load (0.5 s, first 1.5 s)."""
_NUMBERS: Final = {"int": pa.int32(), "long": pa.int64()}
_TEXTS: Final = {"string": pa.string(), "bytes": pa.binary()}
_FIXED: Final = {"boolean": (1, pa.bool_()), "float": (4, pa.float32()), "double": (8, pa.float64())}

_MOST_BYTES: Final = 2**31 - 1
_MORE_BYTES: Final = 1024 * 1024  # the least by which room for texts grows

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class UnknownTypeError(Exception):
    """Reaction: **decode it with another library**: a field is of a type that the walk does not know."""


class NotSuchRecordsError(Exception):
    """Reaction: **read it with another library**, whose message says more: the bytes are not records of the schema."""


@cache
def available() -> bool:
    """Whether Numba is installed and works here, found out by reading one record: that compiles everything."""
    if find_spec("numba") is None:
        return False
    fields: list[dict[str, Any]] = [{"name": "number", "type": "int"}, {"name": "text", "type": ["null", "string"]}]
    try:
        texts = read_columns(fields, [Container("", ((1, b"\x02\x02\x02a"),))], ["number", "text"]).column("text")
        without_prefix(texts.combine_chunks(), "a")
    except Exception as error:  # noqa: BLE001 - compilers fail in many ways, and there is another decoder
        LOG.warning("manifests are decoded without Numba, which is installed but does not work here: %s", error)
        return False
    return True


def loaded() -> bool:
    """Whether the compiled code has been looked for in this process: from then on using it costs nothing."""
    return available.cache_info().currsize > 0


def worth_compiling(size: int) -> bool:
    """Whether so many bytes of manifests are read by compiled code: a large read loads it, small ones use it then."""
    return (loaded() or size >= WORTH_COMPILING) and available()


@cache
def _walk() -> ModuleType:
    from compactor import avro_walk  # noqa: PLC0415 - loads Numba

    return avro_walk


def read_columns(
    fields: Sequence[Mapping[str, Any]], containers: Sequence[Container], wanted: Sequence[str]
) -> pa.Table:
    """The wanted fields of all records, in order. `fields`: Avro's, whose types refer to no named type.

    Raises:
        UnknownTypeError: a field cannot be stepped over, or a wanted one not be read.
        NotSuchRecordsError: the blocks hold something else.
        ContainerError: a block cannot be inflated.
    """
    return _Records.of(fields, wanted).read(containers)


def without_prefix(texts: Any, prefix: str) -> Any:
    """What follows in each text of an Arrow array of strings, all of which begin with the prefix; none is null.

    Arrow's own function counts characters, which takes five times as long.
    """
    ends = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    count = len(prefix.encode())
    left = np.empty(ends[-1] - ends[0] - count * len(texts), np.uint8)
    new_ends = np.empty(len(ends), np.int32)
    _walk().drop_first(np.frombuffer(texts.buffers()[2], np.uint8), ends, count, left, new_ends)
    return pa.Array.from_buffers(pa.string(), len(texts), [None, pa.py_buffer(new_ends), pa.py_buffer(left)])


@dataclass(frozen=True)
class _Records:
    """Per field how to step over it, and its row of positions if it is wanted; the wanted fields with Arrow types."""

    kinds: Numbers
    arguments: Numbers
    null_branches: Numbers
    rows: Numbers
    wanted: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, fields: Sequence[Mapping[str, Any]], wanted: Sequence[str]) -> _Records:
        steps = [_step(field["type"]) for field in fields]
        kinds, arguments, null_branches = (np.array(each, np.int64) for each in zip(*steps, strict=True))
        places = {name: row for row, name in enumerate(wanted)}
        rows = np.array([places.get(field["name"], _walk().NOT_WANTED) for field in fields], np.int64)
        types = {field["name"]: _arrow_type(field["type"]) for field in fields}
        return cls(kinds, arguments, null_branches, rows, tuple((name, types[name]) for name in wanted))

    def read(self, containers: Sequence[Container]) -> pa.Table:
        """Block by block: of each only the wanted values are kept, texts as they are encoded."""
        count = sum(container.count for container in containers)
        if not 0 <= count <= sum(container.nbytes for container in containers):
            raise NotSuchRecordsError("more records than bytes")  # so much room is not made because of a number
        found, there = np.empty((len(self.wanted), count), np.int64), np.empty((len(self.wanted), count), np.bool_)
        values = np.empty(0, np.uint8)
        first = filled = 0
        for records, block in (block for container in containers for block in container.blocks()):
            if records < 0 or first + records > count:
                raise NotSuchRecordsError("the numbers of records of the blocks do not add up")
            if filled + len(block) > len(values):
                values = np.concatenate([values[:filled], np.empty(len(values) + _MORE_BYTES + len(block), np.uint8)])
            filled = _walk().find_values(
                np.frombuffer(block, np.uint8), self.kinds, self.arguments, self.null_branches, self.rows,
                found, there, (first, first + records), values, filled,
            )  # fmt: skip
            if not 0 <= filled <= _MOST_BYTES:
                raise NotSuchRecordsError("no records of the schema, or more bytes than Arrow's texts may have")
            first += records
        own = zip(found, there, self.wanted, strict=True)
        columns = [_column(values, numbers, flags, kind) for numbers, flags, (_, kind) in own]
        return pa.table(columns, [name for name, _ in self.wanted])


def _column(content: Bytes, found: Numbers, there: Flags, kind: Any) -> Any:
    """Values of one field, of an Arrow type."""
    walk = _walk()
    if not there.any():
        return pa.nulls(len(found), kind)
    validity = None if there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    if kind in _NUMBERS.values():
        return pa.Array.from_buffers(pa.int64(), len(found), [validity, pa.py_buffer(found)]).cast(kind)
    if kind in _TEXTS.values():
        ends = np.zeros(len(found) + 1, np.int64)
        walk.read_ends(content, found, there, ends[1:])
        out = np.empty(ends[-1], np.uint8)
        walk.copy_values(content, found, there, ends[1:], out, True)
        buffers = [validity, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(out)]
        texts = pa.Array.from_buffers(kind, len(found), buffers)
        texts.validate(full=True)
        return texts
    if pa.types.is_list(kind):
        raise UnknownTypeError(str(kind))
    size = 1 if pa.types.is_boolean(kind) else kind.byte_width
    out = np.empty(len(found) * size, np.uint8)
    walk.copy_values(content, found, there, np.arange(1, len(found) + 1) * size, out, False)
    if pa.types.is_boolean(kind) and (out > 1).any():
        raise NotSuchRecordsError("a boolean is neither 0 nor 1")
    data = np.packbits(out != 0, bitorder="little") if pa.types.is_boolean(kind) else out
    return pa.Array.from_buffers(kind, len(found), [validity, pa.py_buffer(data)])


def _arrow_type(kind: Any) -> Any:
    """Of a field's values, be they nullable or not."""
    if isinstance(kind, list):
        kind = next(each for each in kind if each != "null")
    if isinstance(kind, str):
        return _NUMBERS.get(kind) or _TEXTS.get(kind) or _FIXED[kind][1]
    return pa.binary(kind["size"]) if kind["type"] == "fixed" else pa.list_(pa.int32())


def _step(kind: Any) -> tuple[int, int, int]:
    """(kind, argument, null branch) of one field; the branches of a union are one byte each: 0, 2."""
    walk = _walk()
    if not isinstance(kind, list):
        return (*_plain_step(kind), walk.NOT_NULLABLE)
    if len(kind) != 2 or "null" not in kind:  # noqa: PLR2004 - a type and null
        raise UnknownTypeError(str(kind))
    null = kind.index("null")
    return (*_plain_step(kind[1 - null]), 2 * null)


def _plain_step(kind: Any) -> tuple[int, int]:
    walk = _walk()
    if isinstance(kind, str):
        if kind in _NUMBERS:
            return walk.VARINT, 0
        if kind in _TEXTS:
            return walk.BYTES, 0
        if kind in _FIXED:
            return walk.FIXED, _FIXED[kind][0]
    elif kind["type"] == "fixed" and kind["size"] >= 0:  # with less the walk would go back, and write without end
        return walk.FIXED, int(kind["size"])
    elif kind["type"] == "array":
        return _array_step(kind["items"])
    raise UnknownTypeError(str(kind))


def _array_step(items: Any) -> tuple[int, int]:
    """Of numbers, or of records of numbers whose last field may be bytes: maps with numbers as keys are such arrays."""
    walk = _walk()
    is_record = isinstance(items, dict) and items["type"] == "record"
    types = [field["type"] for field in items["fields"]] if is_record else [items]
    steps = [_plain_step(each)[0] if isinstance(each, str) else None for each in types]
    if not steps or any(kind != walk.VARINT for kind in steps[:-1]) or steps[-1] not in (walk.VARINT, walk.BYTES):
        raise UnknownTypeError(str(items))
    if steps[-1] == walk.BYTES:
        return walk.ARRAY_ENDING_IN_BYTES, len(steps) - 1
    return walk.ARRAY_OF_VARINTS, len(steps)
