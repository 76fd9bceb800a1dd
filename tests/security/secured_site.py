"""A site whose broker and catalog want a login, and whose certificates come from an authority of the tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka import KafkaProducer

from streaming.kafka.clients import client_arguments
from tests.integration.service_process import Site
from tests.services.quick_java import SPARK_CONF


@dataclass
class SecuredSite(Site):
    """A site with options for Kafka, properties of a catalog, and an authority that Java trusts."""

    options: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    trust: Path | None = None

    def _tree(self) -> dict[str, Any]:
        tree = super()._tree()
        if self.trust is not None:
            java = f"{SPARK_CONF['spark.driver.extraJavaOptions']} -Djavax.net.ssl.trustStore={self.trust}"
            tree["spark"]["conf"]["spark.driver.extraJavaOptions"] = java
        if self.properties:
            tree["catalogs"] = {"lake": dict(self.properties)}
        return tree | {"kafka": {**tree["kafka"], "options": dict(self.options)}}

    @property
    def producer(self) -> KafkaProducer:  # type: ignore[override]
        if "made" not in self.__dict__:
            self.__dict__["made"] = KafkaProducer(acks="all", **client_arguments(self.settings.kafka, KafkaProducer))
        made: KafkaProducer = self.__dict__["made"]
        return made
