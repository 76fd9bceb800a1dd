"""Every metric is named by convention, explained, exposed, and on the reference page."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from deploy.generate.metrics_page import metrics_page
from metrics.definitions import CATALOGUE
from metrics.gauges import Gauges
from metrics.metric_definition import Kind, MetricDefinition
from metrics.moment import OTHER, slug
from metrics.recorder import Recorder
from metrics.service_view import Memory, StateSpace
from tests.unit.metrics.support import Service, hostile_board, site
from tests.unit.metrics.test_metrics_recorder import EXAMPLES

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"

every_metric = pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)


@every_metric
def test_name_follows_the_conventions(metric: MetricDefinition):
    words = metric.name.split("_")
    assert re.fullmatch(r"firnline(_[a-z]+)+", metric.name)
    assert (words[-1] == "total") == (metric.kind is Kind.COUNTER)
    assert words[-1] not in {"count", "sum", "bucket", "created"}, "kept for histograms"
    assert not {"counter", "gauge", "histogram", "summary"} & set(words), "the kind does not belong in the name"
    derived = {"milliseconds", "ms", "minutes", "hours", "days", "kb", "mb", "gb", "kilobytes", "megabytes", "mib"}
    assert not derived & set(words), "base units only"


@every_metric
def test_unit_is_the_end_of_the_name_where_prometheus_knows_the_unit(metric: MetricDefinition):
    last = metric.name.removesuffix("_total").rsplit("_", 1)[-1]
    for unit in ("seconds", "bytes"):
        assert (metric.unit == unit) == (last == unit)


@every_metric
def test_labels_follow_the_conventions(metric: MetricDefinition):
    assert len(set(metric.labels)) == len(metric.labels)
    for label in metric.labels:
        assert re.fullmatch(r"[a-z]+", label)
        assert label not in {"le", "quantile", "job", "namespace", "instance"}


@every_metric
def test_only_gauges_that_vanish_with_their_table_name_a_table(metric: MetricDefinition):
    if {"table", "partition"} & set(metric.labels):
        assert metric.read is not None


@every_metric
def test_meaning_and_remedy_are_one_plain_sentence_or_more(metric: MetricDefinition):
    for text in (metric.meaning, metric.remedy):
        assert len(text) > 20
        assert text.endswith(".")
        assert not {"\n", "|"} & set(text), "it becomes a cell of a Markdown table"
        assert "  " not in text


@every_metric
def test_histograms_alone_have_buckets_and_they_span_a_blink_to_hours(metric: MetricDefinition):
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
    if metric.buckets:
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert metric.buckets[0] == 0.1
        assert metric.buckets[-1] >= 4 * 3600


def test_metrics_are_few():
    assert len(CATALOGUE) <= 70, "each is one more that somebody has to know"


def test_every_definition_is_exposed_and_nothing_else():
    registry = CollectorRegistry()
    Recorder(registry)
    registry.register(Gauges(hostile_board(), Service(), "1"))
    exposed = {
        (family.name + "_total" if family.type == "counter" else family.name, family.type, family.documentation)
        for family in registry.collect()
    }
    assert exposed == {(metric.name, metric.kind.value, metric.meaning) for metric in CATALOGUE}


@pytest.mark.parametrize("odd", ["", "a" * 61, "two words", "a\n", 'a"b', "é", "٣", ".a", "a/b", "\ud800"])
def test_anything_else_becomes_other(odd):
    assert slug(odd) == OTHER


@given(st.text())
def test_no_text_makes_a_bad_label_value(text):
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,60}", slug(text))


def test_reference_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == metrics_page(), "run: make generate"


def test_promtool_finds_nothing_to_complain_about(full_exposition):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on PATH; it comes with Prometheus")
    check = subprocess.run([promtool, "check", "metrics"], input=full_exposition, capture_output=True, check=False)
    assert (check.returncode, check.stdout + check.stderr) == (0, b"")


@pytest.fixture
def full_exposition() -> bytes:
    """An exposition with a sample of every metric, as the server sends it."""
    registry = CollectorRegistry()
    recorder = Recorder(registry)
    for event in EXAMPLES:
        recorder(event)
    parts = {"space": StateSpace(False, 1), "memory": Memory({"jvm": 5}, 7)}
    service = Service(waiting_looks={"lake": 1}, listed={"lake": True}, **parts)
    registry.register(Gauges(hostile_board(), service, "1"))
    body = site(registry=registry).answer("/metrics", {}).body
    for metric in CATALOGUE:
        assert re.search(rb"(?m)^" + metric.name.encode() + rb"(_count)?[{ ]", body), metric.name
    return body
