"""A real Prometheus that scrapes one address every second, with the rules of deploy/prometheus."""

from __future__ import annotations

import json
import re
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.demo.local_process import free_port, local_process

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "firnline.rules.yaml"


@dataclass(frozen=True)
class Prometheus:
    """Its HTTP API."""

    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query."""
        found: list[dict[str, Any]] = self._get("/api/v1/query", query=expression)["result"]
        return found

    def exemplars(self, expression: str) -> list[dict[str, str]]:
        """The labels of a series' exemplars of the last minute."""
        now = time.time()
        found = self._get("/api/v1/query_exemplars", query=expression, start=str(now - 60), end=str(now + 1))
        return [exemplar["labels"] for series in found for exemplar in series["exemplars"]]

    def rules(self) -> list[dict[str, Any]]:
        """Every rule with its health."""
        return [rule for group in self._get("/api/v1/rules")["groups"] for rule in group["rules"]]

    def _get(self, path: str, **parameters: str) -> Any:
        address = f"{self.url}{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=10) as answer:  # noqa: S310 - http
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error


def installed() -> bool:
    """Whether there is one to start (Debian's package `prometheus`, which brings promtool along)."""
    return shutil.which("prometheus") is not None


@contextmanager
def prometheus(folder: Path, target: str, every: str = "1s") -> Iterator[Prometheus]:
    """Scrape `target` (host:port) until the end of the block."""
    port = free_port()
    (folder / "prometheus.yaml").write_text(
        json.dumps(
            {
                "global": {"scrape_interval": every, "evaluation_interval": every},
                "rule_files": [str(RULES)],
                "scrape_configs": [{"job_name": "firnline", "static_configs": [{"targets": [target]}]}],
            }
        )
    )
    command = [
        "prometheus",
        f"--config.file={folder}/prometheus.yaml",
        f"--storage.tsdb.path={folder}/data",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
    ]
    started = Prometheus(f"http://127.0.0.1:{port}")
    with local_process("prometheus", command, folder, lambda: _ready(started.url)):
        yield started


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5) as answer:  # noqa: S310 - http
            return bool(answer.status == 200)
    except OSError:
        return False


def shown(legend: str, samples: list[dict[str, Any]]) -> str:
    """A panel's series as its legend would name them, with their newest values; of many the first three."""
    texts = [f"{_named(legend, each['metric'])} {float(each['value'][1]):.6g}".strip() for each in samples[:3]]
    return "; ".join(texts) + ("" if len(samples) <= len(texts) else f"; {len(samples) - len(texts)} more")


def _named(legend: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda label: labels.get(label[1], ""), legend)
