"""Translation of the options of Spark's `rewrite_data_files` into settings. Pure.

Every option of Iceberg 1.11 has a row: it is translated, accepted at the only safe value, or refused with a reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from compactor.errors import InputError
from compactor.reasons import Reason
from compactor.settings.allowed import nearest
from compactor.settings.policy import PolicyOverride, PolicyValues
from compactor.settings.problems import checked
from compactor.settings.section import Section
from compactor.settings.tree import CommitSettings, ServiceSettings, Settings
from compactor.whole_numbers import whole_number


@dataclass(frozen=True)
class SparkOption:
    """One option. At most one of `setting`, `only` and `refused` is set.

    Attributes:
        name: Spark's name.
        default: Spark's default.
        setting: The corresponding setting, as `section.key`.
        only: The only value that is accepted; firnline always behaves so.
        refused: Why the option is not offered.
        note: Further text for the docs.
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
DELETE_FILES: Final = "delete-file-threshold"
PROPERTY: Final = "snapshot-property."
_SECTIONS: Final[dict[str, type[Section]]] = {
    "policy": PolicyOverride,
    "commit": CommitSettings,
    "service": ServiceSettings,
}
_ONE_STEP = "an output holds whole input files; for sorted tables, Iceberg's own writer sizes its tasks"

OPTIONS: Final = (
    SparkOption("target-file-size-bytes", "the table's", "policy.target_file_size"),
    SparkOption("min-file-size-bytes", "75 % of the target", "policy.min_file_size", note="Or `min_file_size_ratio`."),
    SparkOption(
        "max-file-size-bytes", "180 % of the target", "policy.max_file_size",
        note="Limits outputs. Larger files are not split: readers split them by row groups, and a split would decode.",
    ),
    SparkOption("min-input-files", "5", "policy.min_input_files"),
    SparkOption(
        REWRITE_ALL, "false",
        note="For `plan` and `compact` only. Files that need no change are copied; `--engine encode` or `--engine "
        "spark` writes them again.",
    ),
    SparkOption("max-file-group-size-bytes", "100 GiB", "policy.max_file_group_size"),
    SparkOption(
        "max-file-group-input-files", "unlimited", "policy.max_file_group_input_files",
        note="Iceberg's action up to 1.11 refuses this option; later versions take it.",
    ),
    SparkOption("max-files-to-rewrite", "unlimited", "policy.max_files_to_rewrite"),
    SparkOption(
        DELETE_FILES, "off", "policy.delete_file_threshold", note="For `plan` and `compact`, 0 is `rewrite-all`.",
    ),
    SparkOption("delete-ratio-threshold", "0.3", "policy.delete_ratio_threshold"),
    SparkOption(
        "max-concurrent-file-group-rewrites", "5", "service.max_concurrent_file_group_rewrites",
        note="Counts output files: a file group with several outputs is written by as many tasks.",
    ),
    SparkOption(
        IN_PARTS, "false",
        note="`false`: one commit. `true`: at most partial-progress.max-commits. Without "
        "this option, a commit has at most 1,000 file groups and 100 GiB of input.",
    ),
    SparkOption(MOST_COMMITS, MOST_COMMITS_DEFAULT, "commit.max_commits", note=f"With {IN_PARTS}=true."),
    SparkOption(
        "partial-progress.max-failed-commits", "max-commits", "commit.max_failed_commits",
        note=f"With {IN_PARTS}=true. A file group that conflicts with another commit is left out and the rest is "
        "committed: that is no failed commit.",
    ),
    SparkOption("rewrite-job-order", "none", "policy.rewrite_job_order"),
    SparkOption(
        f"{PROPERTY}<name>", "unset", "commit.snapshot_properties",
        note="Named as Spark's write option; `snapshotProperty` of the action: a property of the snapshots' summaries.",
    ),
    SparkOption(
        "use-starting-sequence-number", "true", only="true",
        note="Otherwise a delete that is committed during the rewrite would no longer apply.",
    ),
    SparkOption(
        "remove-dangling-deletes", "false", only="true",
        note="The same commit removes delete files that apply to rewritten files only, or to none; with a filter, of "
        "the selected partitions.",
    ),
    SparkOption(
        "output-spec-id", "the table's current", refused="files keep their partition spec"
    ),
    SparkOption("shuffle-partitions-per-file", "1", refused=_ONE_STEP),
    SparkOption("compression-factor", "1.0 (until Iceberg 1.10)", refused=_ONE_STEP),
    SparkOption("var-length-contribution", "8", refused="z-order is not offered"),
    SparkOption("max-output-size", "2 GiB", refused="z-order is not offered"),
)  # fmt: skip


@dataclass(frozen=True)
class RunOptions:
    """Changes by the options of one run: keys of `policy`, `commit` and `service`; `rewrite_all`: take every file."""

    policy: Mapping[str, Any] = field(default_factory=dict)
    commit: Mapping[str, Any] = field(default_factory=dict)
    service: Mapping[str, Any] = field(default_factory=dict)
    rewrite_all: bool = False

    def values(self, values: PolicyValues) -> PolicyValues:
        return values.model_copy(update=dict(self.policy))

    def settings(self, settings: Settings) -> Settings:
        own = {**settings.commit.snapshot_properties, **self.commit.get("snapshot_properties", {})}
        return settings.model_copy(
            update={
                "commit": settings.commit.model_copy(update={**self.commit, "snapshot_properties": own}),
                "service": settings.service.model_copy(update=dict(self.service)),
            }
        )


def run_options(given: Iterable[str]) -> RunOptions:
    """Translate `NAME=VALUE` texts; the last of a name wins.

    Raises:
        InputError: `bad_option`: the name is unknown or not offered, or the value is invalid.
    """
    values = dict(_named(text) for text in given)
    if whole_number(values.get(DELETE_FILES, "")) == 0:  # then every file has too many
        values |= {REWRITE_ALL: "true", DELETE_FILES: "1"}
    found: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    for option in OPTIONS:
        text = values.get(option.name)
        if text is None or option.name.startswith(PROPERTY):
            continue
        if option.refused:
            raise InputError(f"option {option.name} is not offered: {option.refused}", reason=Reason.BAD_OPTION)
        if option.only and text.lower() != option.only:
            raise _bad(option.name, text, f"only {option.only} is possible. {option.note}")
        if option.setting:
            section, key = option.setting.split(".")
            try:
                found[section][key] = checked(_SECTIONS[section], key, text)
            except ValueError as error:
                raise _bad(option.name, text, str(error)) from None
    found["commit"] = _commits(found["commit"], values)
    properties = {name.removeprefix(PROPERTY): text for name, text in values.items() if name.startswith(PROPERTY)}
    if properties:
        try:
            found["commit"]["snapshot_properties"] = checked(CommitSettings, "snapshot_properties", properties)
        except ValueError as error:
            raise InputError(f"option {PROPERTY}{error}", reason=Reason.BAD_OPTION) from None
    rewrite_all = REWRITE_ALL in values and _boolean(REWRITE_ALL, values[REWRITE_ALL])
    return RunOptions(found["policy"], found["commit"], found["service"], rewrite_all)


def _named(text: str) -> tuple[str, str]:
    name, equals, value = (part.strip() for part in text.partition("="))
    names = [option.name for option in OPTIONS]
    if not equals:
        raise InputError(f"option {text!r} is not NAME=VALUE, e.g. min-input-files=3", reason=Reason.BAD_OPTION)
    if name not in names and not name.startswith(PROPERTY):
        hint = nearest(name, names)
        raise InputError(
            f"option {name} is not an option of Spark's rewrite_data_files{hint} (docs/spark-options.md lists all)",
            reason=Reason.BAD_OPTION,
        )
    return name, value


def _commits(commit: dict[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    """As in Spark, without partial progress there is one commit and max-commits is ignored."""
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


def _bad(name: str, text: str, why: str) -> InputError:
    return InputError(f"option {name}={text} cannot be used: {why}", reason=Reason.BAD_OPTION)
