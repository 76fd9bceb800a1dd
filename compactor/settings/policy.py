"""Settings of the policy: defaults for all tables, overrides in the file, overrides in table properties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from compactor.settings.allowed import nearest
from compactor.settings.problems import checked
from compactor.settings.section import MEBIBYTE, Section, fixed
from compactor.settings.texts import FILTER, Glob
from compactor.settings.units import Bytes, Seconds
from compactor.table_names import TableName

Strategy = Literal["tiered", "threshold"]
JobOrder = Annotated[
    Literal["none", "bytes-asc", "bytes-desc", "files-asc", "files-desc"],
    BeforeValidator(lambda given: given.lower().replace("_", "-") if isinstance(given, str) else given),
]
"""As Spark reads it: in any case, with `-` or `_`."""


class PolicyValues(Section):
    """Thresholds of one table. Names and defaults follow Spark's `rewrite_data_files` where it has the same option."""

    target_file_size: Annotated[Bytes, Field(ge=1)] | Literal["table"] = Field(
        default="table",
        description="Target size of a file, or `table`: its write.target-file-size-bytes (512 MiB if not set).",
    )
    min_file_size_ratio: float = fixed(
        0.75,
        "A file below this fraction of the target is small. 0.75 as in Spark.",
        gt=0,
        le=1,
    )
    min_file_size: Bytes | None = fixed(
        None,
        "The same threshold as a size, below the target. If set, replaces min_file_size_ratio. 0: no file is small.",
        ge=0,
    )
    max_file_size: Bytes | None = fixed(
        None,
        "Most bytes of an output of several files, above the target. Larger files are never split. Unset: 180 % of "
        "the target, as in Spark.",
        ge=1,
    )
    min_input_files: int = Field(
        default=5,
        ge=1,
        description="`threshold`: small files that make a file group due. `tiered`: fewest files of one merge. 5 as in "
        "Spark; 1 means 2.",
    )
    max_file_group_size: Bytes = fixed(
        100 * 1024 * MEBIBYTE,
        "Most input bytes of one file group. 100 GiB as in Spark.",
        ge=1,
    )
    max_file_group_input_files: int | None = fixed(
        None,
        "Most input files of one file group. Unset (no limit) as in Spark.",
        ge=1,
    )
    max_files_to_rewrite: int | None = fixed(
        None,
        "Most input files of one run; the next run takes the rest. 1: only files that are due by themselves. Unset "
        "(no limit) as in Spark.",
        ge=1,
    )
    rewrite_job_order: JobOrder = fixed(
        "none",
        "Order of the file groups of a run, by input bytes or files. Matters if the run commits in parts or is "
        "limited. `none` (as in Spark): by partition.",
    )
    delete_file_threshold: int = fixed(
        2**31 - 1,
        "Delete files applying to a data file that make it due. Off (2^31 - 1) as in Spark.",
        ge=1,
    )
    delete_ratio_threshold: float = fixed(
        0.3,
        "Fraction of deleted rows that makes a data file due. 0.3 as in Spark.",
        gt=0,
        le=1,
    )
    carried_delete_ratio: float = fixed(
        0.125,
        "Fraction of deleted rows up to which a rewrite copies row groups and deletes the rows in the output (a "
        "vector on V3, a position delete file on V2) instead of decoding the files. At most half of "
        "`delete_ratio_threshold` counts, or the output would soon be due again. 0: every rewrite leaves deleted "
        "rows out, as Spark's action.",
        ge=0,
        le=1,
    )
    equality_delete_threshold: int = fixed(
        10,
        "Equality delete files applying to a data file that make it due; a large file needs more, one for each 8 "
        "MiB. 10: a scan of one column then takes 2.0 to 3.4 times as long (docs/planning.md), and PyIceberg cannot"
        " read the table. Spark's action has no such rule.",
        ge=1,
    )
    convert_equality_deletes: int | None = Field(
        default=None,
        ge=1,
        description="Equality delete files of a partition from which the service replaces those of the table by "
        "deletion vectors (V3) or position deletes (V2), without rewriting data; `firnline convert` does so once. "
        "Reads key columns only, and adds a snapshot. Unset: off, they go when their data files are rewritten. 5 suits "
        "tables with upserts that are read often. Needs snapshots of at least a day (keep them for two): they show "
        "whether another compactor rewrites the table, whose rewrites would bring deleted rows back.",
    )
    strategy: Strategy = Field(
        default="tiered",
        description="How the service chooses files. `tiered`: as a log-structured merge, in which each byte is "
        "rewritten a bounded number of times; a merge takes at least min_input_files. `threshold`: all small files of "
        "a partition that has min_input_files of them, as Spark's action. `compact` and `plan` use `threshold` unless "
        "`--strategy` says otherwise, because no later run continues their work.",
    )
    growth: float = Field(
        default=8.0,
        gt=1,
        description="`tiered`: merge files once their total size is this many times the largest of them. 8 rewrites "
        "few bytes. 4 suits tables that are mostly read: fewer small files remain, a third more bytes are rewritten.",
    )
    settle_after_seconds: Seconds = Field(
        default=600.0,
        ge=0,
        description="`tiered`: seconds without a commit after which the remaining small files of a partition are "
        "merged. Choose more than the interval of the writers' commits, or every commit is followed by such a merge.",
    )
    max_small_files: int | None = fixed(
        None,
        "`tiered`: number of small files from which all of a partition are merged. Unset: off.",
        ge=2,
    )
    max_small_file_age_seconds: Seconds | None = fixed(
        None,
        "Age in seconds of the oldest small file from which all small files of a partition are merged. A rewritten "
        "file is as old as the newest commit that it can contain. Costs a plan of the partition after each commit, "
        "because the ledger does not know ages. Unset: off.",
        gt=0,
    )
    consecutive_replaces: int | None = fixed(
        None,
        "`replace` snapshots that may follow one another before another writer commits, for tables with readers "
        "that accept no more (1: incremental views of StarRocks). What is due then waits, also a request; a run "
        "makes no more commits than are left. `replace` snapshots that may have expired, or that the catalog does "
        "not list (Nessie), count as so many. Unset: no limit.",
        ge=1,
    )
    where: str | None = Field(
        default=None,
        description="Rewrite only partitions that can contain rows matching this filter (docs/where.md), e.g. "
        "`day >= '2024-01-01'`. Set it for single tables: `policy.tables.<name>.where`. Unset: all partitions.",
    )
    prune_files: bool = fixed(
        False,
        "With a filter, also skip files whose column bounds exclude every row of it, as Spark's action does. Reads "
        "the manifests' statistics. Off: chosen partitions are compacted as a whole, which leaves fewer files.",
    )
    skip_newer_than_seconds: Seconds = fixed(
        0.0,
        "Skip partitions with a commit in the last so many seconds; a later sweep finds them again. For partitions "
        "whose writers would conflict with a rewrite. 0: off.",
        ge=0,
    )
    min_row_group_size: Bytes = fixed(
        4 * MEBIBYTE,
        "Average bytes of a row group below which row groups are decoded and joined instead of copied: copied row "
        "groups keep their size, and tiny ones make every later scan slower.",
        ge=0,
    )

    def unfit_for(self, target: int) -> tuple[str, str] | None:
        """The key of a size that does not go with a target of so many bytes, and why; None if all do, as in Spark."""
        least, most = self.min_file_size, self.max_file_size
        if least is not None and least >= target:
            return (
                "min_file_size",
                f"{least:,} bytes must be below the target of {target:,}: all outputs would be small",
            )
        if most is not None and most <= target:
            return "max_file_size", f"{most:,} bytes must be above the target of {target:,}"
        return None

    @property
    def most_carried(self) -> float:
        """Fraction of deleted rows that an output may hold; 0 if one delete file makes a data file due."""
        return (
            0.0 if self.delete_file_threshold == 1 else min(self.carried_delete_ratio, self.delete_ratio_threshold / 2)
        )


def _check_filter(text: str | None) -> str | None:
    return text if text is None else FILTER.check(text)


class PolicyOverride(PolicyValues):
    """The same keys for one table. A key that is missing or null falls back to `policy`."""

    _where_is_a_filter = field_validator("where")(_check_filter)

    @model_validator(mode="before")
    @classmethod
    def _null_is_unset(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {key: value for key, value in given.items() if value is not None or key not in cls.model_fields}

    @property
    def given(self) -> dict[str, Any]:
        """The values that are set."""
        return {key: getattr(self, key) for key in self.model_fields_set}

    @model_serializer(mode="wrap")
    def _without_defaults(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A default would read, and load again, as an override."""
        return {key: value for key, value in serialize(self).items() if key in self.model_fields_set}


class PolicySettings(PolicyValues):
    """When a partition is due: for all tables, and overrides per table."""

    tables: dict[Glob, PolicyOverride] = Field(
        default_factory=dict,
        description="Overrides by table name or glob: a map of the keys above. The first match wins.",
    )
    _where_is_a_filter = field_validator("where")(_check_filter)

    def for_table(self, table: TableName, properties: Mapping[str, str] | None = None) -> PolicyValues:
        """The values of one table: its properties `firnline.policy.<key>` win over the file.

        Ignores properties that cannot be used; `refused_properties` lists them.
        """
        values = {key: getattr(self, key) for key in PolicyValues.model_fields}
        override = next((each.given for glob, each in self.tables.items() if table.matches(glob)), {})
        own, _ = _of_properties(properties or {})
        return PolicyValues.model_construct(**(values | override | own))  # all are checked already


PROPERTY: Final = "firnline."
POLICY_PROPERTY: Final = "firnline.policy."
SWITCH: Final = "firnline.enabled"
MOST_SHOWN: Final = 80
"""Characters of a bad property in messages."""


def refused_properties(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Table properties `firnline.*` that cannot be used, each with the reason. The file's settings apply instead."""
    return _of_properties(properties)[1]


def _of_properties(properties: Mapping[str, str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The values that can be used, and what is wrong with the others.

    A bad filter is used: the table's plan fails with it. Without it, the rewrite would take more than its owner wants.
    """
    values: dict[str, Any] = {}
    refused: list[str] = []
    known = [SWITCH, *(POLICY_PROPERTY + key for key in PolicyValues.model_fields)]
    for name, text in sorted(properties.items()):
        if not name.startswith(PROPERTY):
            continue
        if name not in known:
            refused.append(f"table property {name} is unknown{nearest(name, known)}")
        elif name == SWITCH:
            if text.strip().lower() not in {"true", "false", ""}:
                refused.append(f"table property {name}={text[:MOST_SHOWN]!r} is neither true nor false")
        else:
            key = name.removeprefix(POLICY_PROPERTY)
            try:
                values[key] = checked(PolicyValues, key, text.strip())
            except ValueError as error:
                refused.append(f"table property {name}={text[:MOST_SHOWN]!r} is not used: {error}")
    return values, tuple(refused)
