"""`assess` foretells what the service does: a real history, replayed through the service's own parts."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator

import pytest

from compactor.iceberg.tables import file_sizes
from compactor.manifests.cache import ManifestCache
from compactor.planning.tiered_policy import policy_of
from compactor.settings.tree import Settings
from compactor.whatif.assessment import Scenario, assess
from compactor.whatif.table_history import commits_of
from tests.conftest import Lake
from tests.integration.replayed_table import FIRST_MOMENT, Append, ClockedTable, FollowedTable

pytestmark = pytest.mark.spark

KIBIBYTE = 1024
TARGET = 8 * 1024 * KIBIBYTE
"""Small as the sizes are, a footer is less than a hundredth of a file, as in files of a real table."""
MINUTE = 60.0


def bursts(chance: random.Random) -> Iterator[Append]:
    """Bursts into some of three partitions, sizes from 16 KiB to the target, pauses from minutes to three quarters."""
    at = FIRST_MOMENT
    for _ in range(10):
        for _ in range(chance.randrange(4, 12)):
            parts = chance.sample(["a", "b", "c"], chance.randrange(1, 4))
            yield Append(at, {part: int(16 * KIBIBYTE * 2 ** (9 * chance.random() ** 2)) for part in parts})
            at += 20
        at += chance.choice([4, 8, 11, 13, 20, 45]) * MINUTE


def history(lake: Lake) -> ClockedTable:
    chance = random.Random("bursts")
    made = ClockedTable(lake, f"db.history_{uuid.uuid4().hex[:8]}", TARGET)
    for append in bursts(chance):
        made.append(append, chance)
    return made


def foretold(table: ClockedTable, settings: Settings) -> Scenario:
    view = table.lake.view(table.name)
    values = settings.policy.for_table(view.name)
    sizes = file_sizes(values, view.properties)
    return assess(
        commits_of(view, ManifestCache(1 << 24)),
        values,
        sizes,
        policy_of(values, sizes),
        [],
        settings.service.sweep_seconds,
    )[-1]


@pytest.fixture
def settings(lake: Lake) -> Settings:
    """Everything may be rewritten; nothing is kept on the disk of this machine."""
    tables = lake.settings.tables.model_copy(update={"include": ("*",)})
    service = lake.settings.service.model_copy(update={"manifest_disk_bytes": 0})
    return lake.settings.model_copy(update={"tables": tables, "service": service})


@pytest.mark.slow
def test_what_assess_foretells_is_what_the_service_does(lake: Lake, settings: Settings) -> None:
    past = history(lake)
    clocked = ClockedTable(lake, past.name + "_replayed", TARGET)
    followed = FollowedTable.clocked(clocked, settings)
    followed.follow(clocked, past.appended())
    told = foretold(past, settings)

    counts = followed.small_files
    assert len(told.outcome.small_files) == len(counts)
    mean = sum(counts) / len(counts)
    amplification = followed.bytes_rewritten / followed.bytes_in
    told_amplification = told.rewritten / told.outcome.bytes_in
    apart = sum(abs(one - other) for one, other in zip(counts, told.outcome.small_files, strict=True)) / sum(counts)
    print(
        f"{len(counts)} commits, {len(followed.runs)} runs ({told.outcome.rewrites} foretold), "
        f"small files {mean:.2f} ({told.outcome.mean_small_files:.2f} foretold, {apart:.1%} apart), bytes rewritten "
        f"per byte {amplification:.3f} ({told_amplification:.3f} foretold), outputs {followed.shrinkage:.2%} smaller"
    )
    assert told.outcome.mean_small_files == pytest.approx(mean, rel=0.1)
    assert told_amplification == pytest.approx(amplification, rel=0.1)
    assert apart <= 0.1
