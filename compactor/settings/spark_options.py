"""Options of Spark's `rewrite_data_files` by their own names → what they are here. Pure.

Every option of Iceberg 1.11 has a row: translated, accepted at the only value that is safe, or refused with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import ValidationError

from compactor.errors import InputError
from compactor.reasons import Reason
from compactor.settings.policy import PolicyValues, checked_override, nearest
from compactor.settings.tree import CommitSettings, ServiceSettings, Settings


@dataclass(frozen=True)
class SparkOption:
    """One option. Exactly one of the next three says what it is here.

    Attributes:
        name: Spark's.
        default: Spark's.
        setting: The setting that it is, as `section.key`.
        only: The one value that is accepted, since it is always so here.
        refused: Why it is not offered.
        note: More for the reader of the docs.
    """

    name: str
    default: str
    setting: str = ""
    only: str = ""
    refused: str = ""
    note: str = ""


REWRITE_ALL: Final = "rewrite-all"
IN_PARTS: Final = "partial-progress.enabled"
MOST_COMMITS: Final = "partial-progress.max-commits"
MOST_COMMITS_DEFAULT: Final = "10"
_ONE_STEP = "an output holds whole input files; where rows are sorted, Iceberg's own writer sizes its tasks"

OPTIONS: Final = (
    SparkOption("target-file-size-bytes", "the table's", "policy.target_file_size"),
    SparkOption("min-file-size-bytes", "75 % of the target", "policy.min_file_size", note="Or `min_file_size_ratio`."),
    SparkOption(
        "max-file-size-bytes", "180 % of the target",
        refused="a file is never cut: readers split large files by row groups, and a cut would decode them",
    ),
    SparkOption("min-input-files", "5", "policy.min_input_files", note="At least 2: one file by itself gets no fewer."),
    SparkOption(
        REWRITE_ALL, "false",
        note="Of `plan` and `compact` alone. Files that need no change are copied; `--engine encode` or `spark` writes "
        "them anew.",
    ),
    SparkOption("max-file-group-size-bytes", "100 GiB", "policy.max_file_group_size"),
    SparkOption("max-file-group-input-files", "unlimited", "policy.max_file_group_input_files"),
    SparkOption("max-files-to-rewrite", "unlimited", "policy.max_files_to_rewrite"),
    SparkOption("delete-file-threshold", "off", "policy.delete_file_threshold"),
    SparkOption("delete-ratio-threshold", "0.3", "policy.delete_ratio_threshold"),
    SparkOption(
        "max-concurrent-file-group-rewrites", "5", "service.max_concurrent_file_group_rewrites",
        note="Counts output files: a group of several is written by as many tasks.",
    ),
    SparkOption(
        IN_PARTS, "false",
        note="`false`: one commit (`commit.max_commits: 1`). `true`: at most partial-progress.max-commits. Without "
        "either, `commit.groups` and `commit.bytes` decide: a small run is one commit.",
    ),
    SparkOption(MOST_COMMITS, MOST_COMMITS_DEFAULT, "commit.max_commits", note=f"With {IN_PARTS}=true."),
    SparkOption(
        "partial-progress.max-failed-commits", "max-commits",
        refused="a group that another commit touches is left out and the others are committed; a commit that fails for "
        "another reason ends the run, and what was committed before stays",
    ),
    SparkOption("rewrite-job-order", "none", "policy.rewrite_job_order"),
    SparkOption(
        "use-starting-sequence-number", "true", only="true",
        note="Otherwise a delete that arrives during the rewrite would no longer apply.",
    ),
    SparkOption(
        "remove-dangling-deletes", "false", only="true",
        note="Delete files that cover nothing but rewritten files leave in the same commit.",
    ),
    SparkOption(
        "output-spec-id", "the table's current", refused="files stay in the spec they are in, as each spec is pruned by"
    ),
    SparkOption("shuffle-partitions-per-file", "1", refused=_ONE_STEP),
    SparkOption("compression-factor", "1.0 (until Iceberg 1.10)", refused=_ONE_STEP),
    SparkOption("var-length-contribution", "8", refused="no z-order is made"),
    SparkOption("max-output-size", "2 GiB", refused="no z-order is made"),
)  # fmt: skip


@dataclass(frozen=True)
class RunOptions:
    """What the options of one run change: keys of `policy`, `commit` and `service`, and whether all is rewritten."""

    policy: Mapping[str, Any] = field(default_factory=dict)
    commit: Mapping[str, Any] = field(default_factory=dict)
    service: Mapping[str, Any] = field(default_factory=dict)
    rewrite_all: bool = False

    def values(self, values: PolicyValues) -> PolicyValues:
        """The table's values, but as the options say."""
        return values.model_copy(update=dict(self.policy))

    def settings(self, settings: Settings) -> Settings:
        """The settings of the run, but as the options say."""
        return settings.model_copy(
            update={
                "commit": settings.commit.model_copy(update=dict(self.commit)),
                "service": settings.service.model_copy(update=dict(self.service)),
            }
        )


def run_options(given: Iterable[str]) -> RunOptions:
    """Translate `NAME=VALUE` texts, the last of a name wins.

    Raises:
        InputError: `bad_option`: an unknown name, one that is not offered, or a value it does not take.
    """
    values = dict(_named(text) for text in given)
    found: dict[str, dict[str, Any]] = {"policy": {}, "commit": {}, "service": {}}
    for option in OPTIONS:
        text = values.get(option.name)
        if text is None:
            continue
        if option.refused:
            raise InputError(f"option {option.name} is not offered: {option.refused}", reason=Reason.BAD_OPTION)
        if option.only and text.lower() != option.only:
            raise _bad(option.name, text, f"only {option.only} is possible. {option.note}")
        if option.setting:
            section, key = option.setting.split(".")
            found[section][key] = _checked(option.name, section, key, text)
    found["commit"] = _commits(found["commit"], values)
    rewrite_all = REWRITE_ALL in values and _boolean(REWRITE_ALL, values[REWRITE_ALL])
    return RunOptions(found["policy"], found["commit"], found["service"], rewrite_all)


def _named(text: str) -> tuple[str, str]:
    name, equals, value = (part.strip() for part in text.partition("="))
    names = [option.name for option in OPTIONS]
    if not equals:
        raise InputError(f"option {text!r} is not NAME=VALUE, e.g. min-input-files=3", reason=Reason.BAD_OPTION)
    if name not in names:
        hint = nearest(name, names)
        raise InputError(
            f"option {name} is none of Spark's rewrite_data_files{hint} (docs/spark-options.md lists them)",
            reason=Reason.BAD_OPTION,
        )
    return name, value


def _commits(commit: dict[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    """As Spark: without partial progress there is one commit, whatever max-commits says."""
    if IN_PARTS not in values:
        return {"max_commits": 1} if commit else {}
    if not _boolean(IN_PARTS, values[IN_PARTS]):
        return {"max_commits": 1}
    return {"max_commits": int(MOST_COMMITS_DEFAULT), **commit}


def _boolean(name: str, text: str) -> bool:
    known = {"true": True, "false": False}.get(text.lower())
    if known is None:
        raise _bad(name, text, "it must be true or false")
    return known


def _checked(name: str, section: str, key: str, text: str) -> Any:
    try:
        if section == "policy":
            return checked_override(key, text)
        kind = CommitSettings if section == "commit" else ServiceSettings
        return getattr(kind.model_validate({key: text}), key)
    except ValidationError as error:
        raise _bad(name, text, error.errors()[0]["msg"]) from None
    except ValueError as error:
        raise _bad(name, text, str(error)) from None


def _bad(name: str, text: str, why: str) -> InputError:
    return InputError(f"option {name}={text} cannot be used: {why}", reason=Reason.BAD_OPTION)
