"""The state of a service of which the test names the parts that have started."""

from __future__ import annotations

from typing import Any

from compactor.settings.tree import Settings
from streaming.kafka.broker_watch import BrokerWatch
from streaming.service.controls import Controls, Parts
from streaming.service.pages import Phase, ServiceState


def state_of(phase: Phase = Phase.READY, **parts: Any) -> ServiceState:
    settings, made = Settings(catalogs={"lake": {}}), Parts(**parts)
    return ServiceState(made, Controls(settings, None, made), BrokerWatch(settings.kafka), phase=phase)
