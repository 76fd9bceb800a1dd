"""When Python looks for garbage that only a collection finds: rarely, since plans make tens of thousands of objects."""

from __future__ import annotations

import gc
from typing import Final

NEW_OBJECTS: Final = 50_000
"""Between two looks at the young ones. At Python's 700 a plan over 10,000 due files stops 50 times, a sixth of its
time; objects that wait for a look, and are garbage only to a collection, are a few megabytes."""


def collect_rarely() -> None:
    """Called once, when everything is imported: modules live as long as the process, so that they are not looked at
    again (a full collection would take 0.15 s), and new objects are looked at less often.
    """
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])
