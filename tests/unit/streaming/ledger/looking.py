"""Threads that look at the tables of a scene."""

from __future__ import annotations

from collections.abc import Callable

from compactor.table_names import TableName
from streaming.ledger.look_queue import Asked, Lane, LookQueue
from streaming.ledger.lookers import Breakers, Lookers
from tests.unit.streaming.ledger.scene import PATIENCE_SECONDS, Scene, named

EVENT = Asked(Lane.EVENT)


class Looking:
    """Lookers over a scene, started."""

    def __init__(self, scene: Scene, *, threads: int = 2, wanted: Callable[[TableName], bool] = lambda _: True) -> None:
        self.scene = scene
        self.queue = LookQueue()
        self.breakers = Breakers(scene.catalogs.names, scene.published.append)
        self.lookers = Lookers(scene.catalogs.names, self.queue, scene.looker, self.breakers, threads, wanted)
        self.lookers.start()

    def put(self, *names: str, catalog: str = "lake") -> None:
        for name in names:
            self.queue.put(named(name, catalog), EVENT)

    def stop(self) -> None:
        self.scene.catalogs.released.set()
        self.lookers.stop(PATIENCE_SECONDS)
