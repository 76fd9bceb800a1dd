"""Settings of the policy: for all tables, for some in the file, for one in its own table properties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, ValidationError

from compactor.settings.section import MEBIBYTE, Section
from compactor.table_names import TableName

Strategy = Annotated[
    Literal["tiered", "threshold"], BeforeValidator(lambda given: "tiered" if given == "auto" else given)
]
"""`auto` is what settings files of earlier versions say for `tiered`."""


class PolicyValues(Section):
    """Thresholds of one table; names and defaults are those of Spark's `rewrite_data_files` where it has them."""

    target_file_size: int | Literal["table"] = Field(
        default="table",
        description="Bytes of a healthy file, or `table`: the table's write.target-file-size-bytes (512 MiB unset).",
    )
    min_file_size_ratio: float = Field(
        default=0.75, gt=0, le=1, description="A file smaller than this share of the target is small. 0.75 as in Spark."
    )
    min_file_size: int | None = Field(
        default=None, ge=1, description="The same in bytes, in place of min_file_size_ratio. Unset."
    )
    min_input_files: int = Field(
        default=5,
        ge=2,
        description="Small files in a partition that make it due (`threshold`), or that one merge takes at least "
        "(`tiered`). 5 as in Spark.",
    )
    max_file_group_size: int = Field(
        default=100 * 1024 * MEBIBYTE, ge=1, description="Most input bytes of one group. 100 GiB as in Spark."
    )
    max_file_group_input_files: int | None = Field(
        default=None, ge=2, description="Most input files of one group. Unset as in Spark."
    )
    max_files_to_rewrite: int | None = Field(
        default=None,
        ge=2,
        description="Most input files of one run; the rest is for the next. Unset as in Spark.",
    )
    rewrite_job_order: Literal["none", "bytes-asc", "bytes-desc", "files-asc", "files-desc"] = Field(
        default="none",
        description="Which groups of a run come first, by input bytes or files; matters where it commits in parts or "
        "is limited. `none`: by partition. As in Spark.",
    )
    delete_file_threshold: int = Field(
        default=2**31 - 1, ge=1, description="Delete files applying to a data file that make it due. Off as in Spark."
    )
    delete_ratio_threshold: float = Field(
        default=0.3, gt=0, le=1, description="Share of a file's rows deleted that makes it due. 0.3 as in Spark."
    )
    equality_delete_threshold: int = Field(
        default=10,
        ge=1,
        description="Equality delete files applying to a data file that make it due; more where it is large: one for "
        "each 8 MiB of it. 10: a scan of one column then takes 2.0 to 3.4 times as long (docs/planning.md), and "
        "PyIceberg cannot read the table at all. Spark's action has no such rule.",
    )
    strategy: Strategy = Field(
        default="tiered",
        description="How the service picks files; no other key changes it. `tiered`: as a log-structured merge, each "
        "byte is rewritten a bounded number of times; at least min_input_files are merged at once. `threshold`: all "
        "small files once there are min_input_files, as Spark's action; `compact` and `plan` do that unless "
        "`--strategy` names the other: a single run has no later one to leave work to. `auto` means `tiered`.",
    )
    growth: float = Field(
        default=8.0,
        gt=1,
        description="Tiered: files are merged once they are so many times the largest of them. 8 spends few bytes; "
        "take 4 where reads dominate: fewer open files, a third more bytes.",
    )
    settle_after_seconds: float = Field(
        default=600.0,
        ge=0,
        description="Tiered: a partition without commits for so long has its last small files merged. Longer than the "
        "interval of the writers' commits, or every commit is followed by a settling merge.",
    )
    settle_growth: float = Field(
        default=2.0,
        gt=1,
        description="Tiered: as `growth`, for settling. 2 leaves out a file larger than all the others together.",
    )
    max_small_files: int | None = Field(
        default=None,
        ge=2,
        description="Tiered: all small files of a partition are merged from so many. Off by default.",
    )
    max_small_bytes: int | None = Field(
        default=None, ge=1, description="Tiered: all small files are merged from so many bytes of them. Unset."
    )
    max_small_file_age_seconds: float | None = Field(
        default=None,
        gt=0,
        description="All small files of a partition are merged once the oldest of them is so old; what a rewrite "
        "wrote is as old as the newest commit it can hold. The ledger knows no ages: with this, each commit is "
        "followed by a look at the partition's files. Unset.",
    )
    where: str | None = Field(
        default=None,
        description="Only partitions that can hold rows matching this filter (docs/where.md) are rewritten, e.g. "
        "`day >= '2024-01-01'`. Meant for single tables: `policy.tables.<name>.where`. Unset.",
    )
    prune_files: bool = Field(
        default=False,
        description="Under a filter, also leave out files whose column bounds say that no row can match, as Spark's "
        "action does. Reads the manifests' statistics. Off: a chosen partition is compacted whole, so that it is left "
        "with fewer files, whatever the filter.",
    )
    skip_newer_than_seconds: float = Field(
        default=0.0,
        ge=0,
        description="A partition with a commit in the last so many seconds is left alone, until a sweep finds it cool. "
        "For partitions whose writers would conflict. Off by default.",
    )
    min_row_group_size: int = Field(
        default=4 * MEBIBYTE,
        ge=0,
        description="Average row-group bytes below which row groups are decoded and joined instead of copied: copying "
        "keeps row groups as they are, and tiny ones make every later scan slower.",
    )


class PolicyOverride(Section):
    """The same keys for one table; whatever is left out falls back to `policy`."""

    target_file_size: int | Literal["table"] | None = None
    min_file_size_ratio: float | None = Field(default=None, gt=0, le=1)
    min_file_size: int | None = Field(default=None, ge=1)
    min_input_files: int | None = Field(default=None, ge=2)
    max_file_group_size: int | None = Field(default=None, ge=1)
    max_file_group_input_files: int | None = Field(default=None, ge=2)
    max_files_to_rewrite: int | None = Field(default=None, ge=2)
    rewrite_job_order: Literal["none", "bytes-asc", "bytes-desc", "files-asc", "files-desc"] | None = None
    delete_file_threshold: int | None = Field(default=None, ge=1)
    delete_ratio_threshold: float | None = Field(default=None, gt=0, le=1)
    equality_delete_threshold: int | None = Field(default=None, ge=1)
    strategy: Strategy | None = None
    growth: float | None = Field(default=None, gt=1)
    settle_after_seconds: float | None = Field(default=None, ge=0)
    settle_growth: float | None = Field(default=None, gt=1)
    max_small_files: int | None = Field(default=None, ge=2)
    max_small_bytes: int | None = Field(default=None, ge=1)
    max_small_file_age_seconds: float | None = Field(default=None, gt=0)
    where: str | None = None
    prune_files: bool | None = None
    skip_newer_than_seconds: float | None = Field(default=None, ge=0)
    min_row_group_size: int | None = Field(default=None, ge=0)


class PolicySettings(PolicyValues):
    """When a partition is due, for all tables and per table."""

    tables: dict[str, PolicyOverride] = Field(
        default_factory=dict, description="Overrides by table name or glob; the first that matches wins."
    )

    def for_table(self, table: TableName, properties: Mapping[str, str] | None = None) -> PolicyValues:
        """The values in force for one table: its properties `firnline.policy.<key>` before the file's.

        A property that cannot be used is left out (`refused_properties`).
        """
        values = self.model_dump(exclude={"tables"})
        override = next((each for glob, each in self.tables.items() if table.matches(glob)), PolicyOverride())
        own, _ = _of_properties(properties or {})
        return PolicyValues(**(values | override.model_dump(exclude_none=True) | own))


PROPERTY: Final = "firnline."
POLICY_PROPERTY: Final = "firnline.policy."
SWITCH: Final = "firnline.enabled"


def refused_properties(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Table properties in firnline's name that are not used, each with the reason; the file's settings hold instead."""
    return _of_properties(properties)[1]


def checked_override(key: str, text: str) -> Any:
    """The value of one key of `PolicyOverride`, from text.

    Raises:
        ValueError: no such value; the message says what it must be.
    """
    try:
        return getattr(PolicyOverride.model_validate({key: text}), key)
    except ValidationError as error:
        raise ValueError(error.errors()[0]["msg"]) from None


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint at the known name that looks most like `name`, empty if none does."""
    found = get_close_matches(name, list(names), n=1)
    return f"; did you mean {found[0]}?" if found else ""


def _of_properties(properties: Mapping[str, str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    values: dict[str, Any] = {}
    refused: list[str] = []
    known = [SWITCH, *(POLICY_PROPERTY + key for key in PolicyOverride.model_fields)]
    for name, text in sorted(properties.items()):
        if not name.startswith(PROPERTY):
            continue
        if name not in known:
            refused.append(f"table property {name} is unknown{nearest(name, known)}")
        elif name == SWITCH:
            if text.strip().lower() not in {"true", "false", ""}:
                refused.append(f"table property {name}={text!r} is neither true nor false")
        else:
            key = name.removeprefix(POLICY_PROPERTY)
            try:
                values[key] = checked_override(key, text.strip())
            except ValueError as error:
                refused.append(f"table property {name}={text!r} is not used: {error}")
    return values, tuple(refused)
