"""Sizes and times: plain numbers keep their meaning, units are never guessed."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import Field, ValidationError

from compactor.settings.section import Section
from compactor.settings.units import Bytes, Seconds


class Sample(Section):
    size: Bytes = Field(default=1, ge=1)
    most: Bytes | None = Field(default=None, ge=1)
    time: Seconds = Field(default=1, gt=0, le=3600)


@pytest.mark.parametrize(
    ("given_", "size"),
    [
        (512, 512),
        ("512", 512),
        ("512B", 512),
        ("512MB", 512_000_000),
        ("512 MiB", 536_870_912),
        ("1gib", 2**30),
        ("1.5GiB", 3 * 2**29),
        ("0.5 kB", 500),
        ("2TiB", 2**41),
        ("1PB", 10**15),
        (" 8 KiB ", 8192),
    ],
)
def test_sizes_are_bytes_or_have_a_unit(given_: Any, size: int) -> None:
    found = Sample(size=given_, most=given_)
    assert (found.size, found.most, type(found.size)) == (size, size, int)


@pytest.mark.parametrize(
    ("given_", "seconds"),
    [(1, 1.0), ("1.5", 1.5), ("500ms", 0.5), ("30s", 30.0), ("10min", 600.0), ("10m", 600.0), ("1h", 3600.0), (60, 60)],
)
def test_times_are_seconds_or_have_a_unit(given_: Any, seconds: float) -> None:
    assert Sample(time=given_).time == seconds


@pytest.mark.parametrize(
    "values",
    [
        *(
            {"size": text}
            for text in ("512m", "512MBit", "1.5B", "-1MB", "0MB", "MB", "1 2 MB", "1e3MB", "5min", "", True)
        ),
        *({"time": text} for text in ("10 weeks", "-1s", "0s", "2h", "1MB", "inf", "nan", float("inf"), False)),
        {"most": "0B"},
    ],
)
def test_anything_else_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Sample(**values)
