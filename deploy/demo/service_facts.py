"""The service's state as seen by the demo, read from /metrics."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from http.client import HTTPException

from prometheus_client.parser import text_string_to_metric_families

from metrics import definitions as d

ANSWER_SECONDS = 5.0

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Readings:
    """The values of one scrape, or the difference of two."""

    samples: dict[tuple[str, Labels], float] = field(default_factory=dict)

    def __sub__(self, earlier: Readings) -> Readings:
        return Readings({key: value - earlier.samples.get(key, 0.0) for key, value in self.samples.items()})

    def total(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples with all of `labels`."""
        wanted = set(labels.items())
        return sum(value for (one, has), value in self.samples.items() if one == name and wanted <= set(has))

    @property
    def ready(self) -> bool:
        return self.total(d.SERVICE_READY.name) > 0

    @property
    def idle(self) -> bool:
        return self.total(d.RUNNING_RUNS.name) == 0 and self.total(d.QUEUED_RUNS.name) == 0

    @property
    def engines(self) -> dict[str, int]:
        """File groups rewritten, by engine and the reason for its choice."""
        return self._counts(d.REWRITE_GROUPS.name, "{engine} ({reason})")

    @property
    def failures(self) -> dict[str, int]:
        """Runs that ended without a commit, by stage, reason and reaction."""
        return self._counts(d.RUN_FAILURES.name, "{stage} ({reason}, {reaction})")

    def stage_seconds(self, stage: str) -> float:
        return self.total(f"{d.STAGE_SECONDS.name}_sum", stage=stage)

    @property
    def event_to_compacted_seconds(self) -> float | None:
        """Mean over the commits; None without commits."""
        count = self.total(f"{d.EVENT_TO_COMPACTED_SECONDS.name}_count")
        return self.total(f"{d.EVENT_TO_COMPACTED_SECONDS.name}_sum") / count if count else None

    def _counts(self, name: str, text: str) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for (one, labels), value in self.samples.items():
            if one == name and value > 0:
                counts[text.format(**dict(labels))] += round(value)
        return dict(counts)


def read_metrics(address: str) -> Readings | None:
    """Scrape the service; None if it does not answer (yet)."""
    try:
        with urllib.request.urlopen(f"{address}/metrics", timeout=ANSWER_SECONDS) as answer:  # noqa: S310 - our own http
            text = answer.read().decode()
    except (urllib.error.URLError, HTTPException, OSError):
        return None
    families = text_string_to_metric_families(text)
    return Readings(
        {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in families
            for sample in family.samples
        }
    )
