"""Fakes of Spark's state handles, as strict as the real ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class FakeValueState:
    """`pyspark.sql.streaming.stateful_processor.ValueState`: a row tuple, or none."""

    def __init__(self) -> None:
        self._row: tuple[Any, ...] | None = None

    def exists(self) -> bool:
        return self._row is not None

    def get(self) -> tuple[Any, ...] | None:
        return self._row

    def update(self, row: tuple[Any, ...]) -> None:
        assert isinstance(row, tuple)
        self._row = tuple(row)

    def clear(self) -> None:
        self._row = None


class FakeMapState:
    """`MapState`: rows by key row; binary values return as bytearray; changing the map breaks its iterators."""

    def __init__(self) -> None:
        self._rows: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def containsKey(self, key: tuple[Any, ...]) -> bool:  # noqa: N802 - Spark's name
        assert isinstance(key, tuple)
        return key in self._rows

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:  # noqa: N802 - Spark's name
        row = self._rows.get(key)
        return None if row is None else tuple(bytearray(cell) for cell in row)

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:  # noqa: N802 - Spark's name
        assert isinstance(key, tuple)
        assert all(isinstance(cell, bytes) for cell in value)
        self._rows[key] = value

    def removeKey(self, key: tuple[Any, ...]) -> None:  # noqa: N802 - Spark's name
        self._rows.pop(key, None)

    def values(self) -> Iterator[tuple[Any, ...]]:
        for row in self._rows.values():
            yield tuple(bytearray(cell) for cell in row)

    def clear(self) -> None:
        self._rows.clear()
