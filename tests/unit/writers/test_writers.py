"""The writers of `make test-writers`: their code knows nothing of firnline, and their journals mean what they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compactor.spark.jar_digests import pinned_digests
from streaming.commit_events.decoder import RawEvent
from tests.services.flink_job import SOURCE, upserted
from tests.services.writer_jars import DIGESTS
from tests.writers.announced import announced
from tests.writers.spark_writer import JOB


@pytest.mark.parametrize("job", [SOURCE, JOB], ids=lambda path: path.name)
def test_no_code_of_a_job_names_firnline_or_its_reporter(job: Path) -> None:
    text = job.read_text().lower()
    assert [word for word in ("firnline", "reporter", "announce") if word in text] == []


def test_a_journal_of_upserts_keeps_the_last_value_of_each_key() -> None:
    assert upserted(["1\ta", "2\tb", "1\tc", "2", "3", "3\td\te", "2\tf", "1"]) == {2: "f", 3: "d\te"}


def test_events_of_several_formats_name_their_snapshots() -> None:
    report = {
        "report-type": "commit-report", "table-name": "lake.db.a", "snapshot-id": 7, "sequence-number": 1,
        "operation": "append", "metrics": {}, "metadata": {},
    }  # fmt: skip
    event = {"event-id": "e", "catalog": "lake", "identifier": {"namespace": ["db"], "name": "a"}, "snapshot-id": 8}
    without = {"event-id": "f", "catalog": "lake", "identifier": {"namespace": ["db"], "name": "b"}}
    values = [json.dumps(each).encode() for each in (report, event, without)] + [b"?"]
    assert announced(RawEvent(None, value, (), 1) for value in values) == {"a": frozenset({7, 8})}


def test_jars_of_both_lists_have_the_same_digest() -> None:
    ours = pinned_digests()
    theirs = {name: digest for digest, _, name in (line.partition("  ") for line in DIGESTS.read_text().splitlines())}
    shared = ours.keys() & theirs.keys()
    assert shared
    assert {name for name in shared if ours[name] != theirs[name]} == set()
