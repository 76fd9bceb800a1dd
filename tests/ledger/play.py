"""Play sequences in this process: a folder with a catalog, a Spark session if one is wanted, and hypothesis."""

from __future__ import annotations

import logging
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, Phase, seed
from hypothesis import settings as hypothesis_settings
from hypothesis.internal.conjecture.engine import ConjectureRunner
from hypothesis.stateful import run_state_machine_as_test

from compactor.events import ignore
from compactor.iceberg.tables import Catalogs
from compactor.manifests.cache import ManifestCache
from compactor.settings.tree import Settings
from tests.ledger.machine import LedgerMachine
from tests.ledger.rules import FIGURES, Figures
from tests.ledger.tables import CATALOG, NAMESPACE

PROGRESS_SECONDS = 2.0


@dataclass(frozen=True)
class Order:
    """What to play. `shrink`: whether a failing sequence is made as short as possible, which takes minutes."""

    sequences: int
    steps: int
    seed: int
    spark: bool
    shrink: bool = True


@contextmanager
def open_place(folder: Path, *, spark: bool) -> Iterator[type[LedgerMachine]]:
    """The machine's class, ready to play in a catalog below `folder`."""
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    settings = Settings(catalogs={CATALOG: properties})
    catalogs = Catalogs(settings.catalogs)
    catalogs.catalog(CATALOG).create_namespace_if_not_exists(NAMESPACE)
    made: dict[str, Any] = {"folder": folder, "catalogs": catalogs, "catalog_settings": properties}
    with ExitStack() as stack:
        base = _with_spark(folder, catalogs, properties, made, stack) if spark else LedgerMachine
        yield type(base.__name__, (base,), made)


def _with_spark(
    folder: Path, catalogs: Catalogs, properties: dict[str, Any], made: dict[str, Any], stack: ExitStack
) -> type[LedgerMachine]:
    """Start Spark, and build what rewrites tables."""
    from compactor.commit import decisions  # noqa: PLC0415 - none of this without Spark
    from compactor.lease.right import CommitRight  # noqa: PLC0415
    from compactor.spark.session import spark_session  # noqa: PLC0415
    from streaming.wiring import rewriting  # noqa: PLC0415
    from tests.conftest import Lake  # noqa: PLC0415
    from tests.ledger.spark_machine import SparkLedgerMachine  # noqa: PLC0415
    from tests.services.quick_java import SPARK_CONF  # noqa: PLC0415

    conf = {**SPARK_CONF, "spark.sql.sources.partitionOverwriteMode": "static"}
    settings = Settings(
        catalogs={CATALOG: properties}, spark={"master": "local[2]", "conf": conf}, commit={"hold_seconds": 0}
    )
    stack.enter_context(patch.object(decisions, "WAIT_SECONDS", 0.0))  # no other job publishes a branch
    session = spark_session(settings, "firnline-ledger-test")
    stack.callback(session.stop)
    cache, checkpoint = ManifestCache(1 << 24), f"file://{folder}/rewriting"
    right = CommitRight("ledger-test")
    parts = rewriting(
        settings, session, catalogs, cache, ignore, checkpoint=checkpoint, beside_stream=False, right=right
    )
    stack.callback(parts.cluster.stop)
    made |= {"lake": Lake(folder, settings, session, catalogs), "parts": parts}
    return SparkLedgerMachine


def play(machine: type[LedgerMachine], order: Order) -> None:
    """Play sequences until one fails.

    Raises:
        AssertionError: of the sequence that fails, with its steps in a note.
    """
    phases = [Phase.generate, *([Phase.shrink] if order.shrink else [])]
    settings = hypothesis_settings(
        max_examples=order.sequences,
        stateful_step_count=order.steps,
        deadline=None,
        database=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
        phases=phases,
        report_multiple_bugs=False,
        print_blob=False,
    )
    with _each_sequence_new():
        run_state_machine_as_test(seed(order.seed)(machine), settings=settings)


@contextmanager
def _each_sequence_new() -> Iterator[None]:
    """Else hypothesis makes five of six sequences from an earlier one, by writing one of its steps over others."""
    real = ConjectureRunner.generate_mutations_from
    ConjectureRunner.generate_mutations_from = lambda _runner, _data: None
    try:
        yield
    finally:
        ConjectureRunner.generate_mutations_from = real


def play_alone(order: Order, folder: Path, tell: Callable[[Figures, str | None, bool], None]) -> None:
    """Play in a process of its own, in a new folder.

    `tell` gets the figures every two seconds; at the end also what failed, if anything, and True.
    """
    warnings.simplefilter("ignore")  # PyIceberg warns of deletes that match nothing
    logging.disable(logging.CRITICAL)
    failed, told = None, [time.monotonic()]

    def on_step() -> None:
        if time.monotonic() > told[0] + PROGRESS_SECONDS:
            told[0] = time.monotonic()
            tell(FIGURES, None, False)

    folder.mkdir()
    try:
        with open_place(folder, spark=order.spark) as machine:
            machine.on_step = staticmethod(on_step)
            play(machine, order)
    except Exception:  # noqa: BLE001 - whatever it is, the parent process reports it
        failed = traceback.format_exc()
    tell(FIGURES, failed, True)
