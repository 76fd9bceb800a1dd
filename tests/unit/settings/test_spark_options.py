"""Spark's options by their own names: translated, pinned or refused, and never in silence."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from compactor.commit.history import CommitSummary
from compactor.errors import InputError
from compactor.settings.policy import PolicyValues
from compactor.settings.spark_options import OPTIONS, RunOptions, run_options
from compactor.settings.tree import Settings, load_settings
from compactor.spark.java import SPARK_JARS, fetch_jars, java_home
from deploy.generate.spark_options_page import spark_options_page

PAGE = Path(__file__).parents[3] / "docs" / "spark-options.md"
MEBIBYTE = 1024 * 1024
TRANSLATED = {
    "target-file-size-bytes=1048576": ("policy", {"target_file_size": MEBIBYTE}),
    "target-file-size-bytes=1MiB": ("policy", {"target_file_size": MEBIBYTE}),
    "min-file-size-bytes=1000": ("policy", {"min_file_size": 1000}),
    "min-file-size-bytes=0": ("policy", {"min_file_size": 0}),
    "max-file-size-bytes=1000": ("policy", {"max_file_size": 1000}),
    "min-input-files=2": ("policy", {"min_input_files": 2}),
    "min-input-files=1": ("policy", {"min_input_files": 1}),
    "max-file-group-size-bytes=5": ("policy", {"max_file_group_size": 5}),
    "max-file-group-input-files=7": ("policy", {"max_file_group_input_files": 7}),
    "max-files-to-rewrite=9": ("policy", {"max_files_to_rewrite": 9}),
    "max-files-to-rewrite=1": ("policy", {"max_files_to_rewrite": 1}),
    "delete-file-threshold=1": ("policy", {"delete_file_threshold": 1}),
    "delete-ratio-threshold=0.5": ("policy", {"delete_ratio_threshold": 0.5}),
    "rewrite-job-order=bytes-desc": ("policy", {"rewrite_job_order": "bytes-desc"}),
    "rewrite-job-order=BYTES_DESC": ("policy", {"rewrite_job_order": "bytes-desc"}),
    "rewrite-job-order=Files_asc": ("policy", {"rewrite_job_order": "files-asc"}),
    "rewrite-job-order=NONE": ("policy", {"rewrite_job_order": "none"}),
    "max-concurrent-file-group-rewrites=3": ("service", {"max_concurrent_file_group_rewrites": 3}),
    "partial-progress.enabled=false": ("commit", {"max_commits": 1}),
    "partial-progress.enabled=true": ("commit", {"max_commits": 10}),
}


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == spark_options_page(), "run: make generate"


@pytest.mark.parametrize("given", TRANSLATED)
def test_an_option_is_a_setting(given: str) -> None:
    section, changed = TRANSLATED[given]
    assert run_options([given]) == RunOptions(**{section: changed})


def test_commits_are_counted_with_partial_progress_alone_as_in_spark() -> None:
    both = ["partial-progress.max-commits=4", "partial-progress.enabled=true"]
    assert run_options(both).commit == {"max_commits": 4}
    assert run_options(both[:1]).commit == {"max_commits": 1}
    may_fail = "partial-progress.max-failed-commits=2"
    assert run_options([both[1], may_fail]).commit == {"max_commits": 10, "max_failed_commits": 2}
    assert run_options([may_fail]).commit == {"max_commits": 1}
    assert run_options([]) == RunOptions()


def test_everything_can_be_rewritten_and_what_is_always_so_may_be_asked_for() -> None:
    asked = ["rewrite-all=true", "use-starting-sequence-number=true", "remove-dangling-deletes=TRUE"]
    assert run_options(asked) == RunOptions(rewrite_all=True)
    assert not run_options(["rewrite-all=true", "rewrite-all=false"]).rewrite_all


@pytest.mark.parametrize("zero", ["0", " 0", "000"])
def test_where_no_delete_file_is_needed_everything_is_rewritten_as_in_spark(zero: str) -> None:
    assert run_options([f"delete-file-threshold={zero}"]).rewrite_all


def test_properties_of_snapshots_are_named_as_in_spark_and_added_to_the_settings(tmp_path: Path) -> None:
    options = run_options(["snapshot-property.ticket=OPS-7", "snapshot-property.by=me", "snapshot-property.by=you"])
    path = tmp_path / "firnline.yaml"
    path.write_text("catalogs: {lake: {type: rest, uri: http://c}}\ncommit: {snapshot_properties: {team: ingest}}\n")
    settings = load_settings(path, {"FIRNLINE_COMMIT__SNAPSHOT_PROPERTIES__BY": "all"})
    own = options.settings(settings).commit.snapshot_properties
    assert own == {"team": "ingest", "ticket": "OPS-7", "by": "you"}
    assert run_options([]).settings(settings).commit.snapshot_properties == {"team": "ingest", "by": "all"}
    summary = CommitSummary("run-1", ("splice",), own=own).properties
    assert summary.items() >= {*own.items(), ("firnline.run-id", "run-1")}


@pytest.mark.parametrize(
    "name",
    ["", "firnline.run-id", "added-records", "total-data-files", "flink.max-committed-checkpoint-id", "wap.id",
     "kafka.connect.offsets.control.1", "operation", "polaris.internal.conflict-resolution", "engine-name",
     "partitions.day=1", "removed-dvs", "deleted-records", "published-wap-id", "source-snapshot-id", "spark.app.id"],
)  # fmt: skip
def test_properties_that_others_write_or_read_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"choose another name") as refused:
        run_options([f"snapshot-property.{name}=1"])
    assert refused.value.reason == "bad_option"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("min-input-file=3", "did you mean min-input-files?"),
        ("taget-file-size-bytes=3", "did you mean target-file-size-bytes?"),
        ("colour=3", "not an option of Spark's"),
        ("min-input-files", "is not NAME=VALUE"),
        ("min-input-files=0", "option min-input-files=0 cannot be used: allowed: a whole number, at least 1"),
        ("max-files-to-rewrite=0", "at least 1"),
        ("min-file-size-bytes=-1", "option min-file-size-bytes=-1 cannot be used"),
        ("delete-file-threshold=-1", "option delete-file-threshold=-1 cannot be used"),
        ("partial-progress.max-failed-commits=-1", "at least 0"),
        ("min-input-files=few", "option min-input-files=few cannot be used"),
        ("rewrite-all=maybe", "must be true or false"),
        ("partial-progress.enabled=1", "must be true or false"),
        ("partial-progress.max-commits=0", "at least 1"),
        ("max-concurrent-file-group-rewrites=0", "at least 1"),
        ("use-starting-sequence-number=false", "only true is possible"),
        ("remove-dangling-deletes=false", "only true is possible"),
        ("max-file-size-bytes=0", "at least 1"),
        ("output-spec-id=1", "is not offered"),
        ("rewrite-job-order=random", "rewrite-job-order=random cannot be used"),
        ("rewrite-job-order=bytes desc", "rewrite-job-order=bytes desc cannot be used"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(given: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        run_options([given])
    assert said in str(refused.value)
    assert refused.value.reason == "bad_option"


def test_options_go_before_the_settings_and_leave_the_others() -> None:
    options = run_options(
        ["min-input-files=9", "partial-progress.enabled=false", "max-concurrent-file-group-rewrites=1"]
    )
    values = options.values(PolicyValues(min_input_files=3, growth=4))
    assert (values.min_input_files, values.growth) == (9, 4)
    settings = options.settings(Settings.model_validate({"catalogs": {"lake": {}}, "commit": {"groups": 7}}))
    assert (settings.commit.max_commits, settings.commit.groups) == (1, 7)
    assert settings.service.max_concurrent_file_group_rewrites == 1


def test_every_option_that_iceberg_knows_has_a_row() -> None:
    """Read from the classes of the very jar that rewrites."""
    javap = java_home() / "bin" / "javap"
    jar = next(each for each in fetch_jars(SPARK_JARS) if "spark-runtime" in each.name)
    if not javap.exists():
        pytest.skip("this Java has no javap")
    packages = "org.apache.iceberg.actions.", "org.apache.iceberg.spark.actions."
    classes = [
        *(
            packages[0] + name
            for name in ("RewriteDataFiles", "SizeBasedFileRewritePlanner", "BinPackRewriteFilePlanner")
        ),
        *(packages[1] + f"Spark{name}FileRewriteRunner" for name in ("BinPack", "Shuffling", "Sort", "ZOrder")),
    ]
    told = subprocess.run(
        [javap, "-constants", "-p", "-cp", jar, *classes], capture_output=True, check=True, text=True
    ).stdout
    constants = [line.rsplit('"', 2)[1] for line in told.splitlines() if "String" in line and '"' in line]
    known = {option.name for option in OPTIONS}
    options = {each for each in constants if "-" in each}
    assert len(options) > 15
    assert options <= known, "options without a row"
