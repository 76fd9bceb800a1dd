"""Hypothesis profiles: the same examples every time in CI, fresh ones elsewhere; no deadline, machines are shared."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "firnline",
    deadline=None,
    derandomize=os.environ.get("CI", "").lower() == "true",
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("firnline")
