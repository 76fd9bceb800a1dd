"""Settings: one frozen tree, read from a YAML file and the environment. A wrong key is an error at start.

Every key can also be set as an environment variable: `FIRNLINE_` + the path in capitals, levels joined by `__`
(`policy.min_input_files` → `FIRNLINE_POLICY__MIN_INPUT_FILES`; maps and lists as JSON). The environment wins.

In names of properties, write `__` for a dot; in catalogs also `_` for a dash, as PyIceberg does
(`FIRNLINE_CATALOGS__LAKE__S3__ACCESS_KEY_ID` → `s3.access-key-id` of catalog `lake`,
`FIRNLINE_KAFKA__OPTIONS__SASL__MECHANISM` → `sasl.mechanism`). If the file has a key that differs only in these
characters, its spelling is kept. Names with capitals (some of Spark's) need the whole map as JSON
(`FIRNLINE_SPARK__CONF`).

Sizes are bytes, or have a unit (`512MB`, `512MiB`); times are seconds, or have a unit (`30s`, `10min`).
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from compactor.errors import InputError
from compactor.reasons import Reason
from compactor.redaction import remember, secrets_in
from compactor.settings.catalogs import EXAMPLE, Properties, checked_catalogs
from compactor.settings.environment import put_environment
from compactor.settings.history import HistorySettings
from compactor.settings.hooks import HookSettings
from compactor.settings.http import HttpSettings
from compactor.settings.kafka import KafkaSettings
from compactor.settings.limits import LimitSettings
from compactor.settings.locks import LockSettings
from compactor.settings.origins import CONFIG_FILE_VARIABLE, Sources
from compactor.settings.policy import PolicySettings
from compactor.settings.problems import explained, hidden_secrets
from compactor.settings.removed import drop_removed
from compactor.settings.section import MEBIBYTE, KeyProblemError, Section, fixed
from compactor.settings.texts import Checkpoint, Glob, Master
from compactor.settings.units import Bytes, Seconds
from compactor.settings.yaml_file import read_file
from compactor.shards import Shard
from compactor.table_names import TableName

LOG: Final = logging.getLogger("firnline")
GLOBS = ['["db.*"]']


def table_switch(properties: Mapping[str, str]) -> bool | None:
    """The table property `firnline.enabled`: True (rewrite), False (never rewrite) or None (unset or invalid)."""
    return {"true": True, "false": False}.get(properties.get("firnline.enabled", "").strip().lower())


class TableRules(Section):
    """Which tables are rewritten, only observed, or ignored: globs over `[catalog.]namespace.table`."""

    include: tuple[Glob, ...] = Field(
        default=(),
        examples=GLOBS,
        description="Globs of tables to rewrite. Tables with the property `firnline.enabled=true` need none. "
        "Empty: only those are rewritten.",
    )
    observe: tuple[Glob, ...] = Field(
        default=("*",), examples=GLOBS, description="Globs of tables to count without writing to them."
    )
    exclude: tuple[Glob, ...] = Field(
        default=(), examples=GLOBS, description="Globs of tables to ignore. Wins over the other two."
    )
    other_compactors: Literal["share", "leave"] = Field(
        default="share",
        description="For a table that another compactor has rewritten within the last day: `share` (rewrite what is "
        "due) or `leave` (do not rewrite). `firnline debt --why` shows the other compactor in both cases.",
    )

    def ignores(self, table: TableName) -> bool:
        """Whether the table is neither rewritten nor observed."""
        if any(table.matches(glob) for glob in self.exclude):
            return True
        return not any(table.matches(glob) for glob in (*self.include, *self.observe))

    def excludes_namespace(self, catalog: str, namespace: tuple[str, ...]) -> bool:
        """Whether `exclude` names all tables of the namespace, e.g. `lake.private.*`."""
        return any(TableName(catalog, namespace, "*").matches(glob) for glob in self.exclude)

    def acts_on(self, table: TableName, properties: Mapping[str, str]) -> bool:
        """Whether the table may be rewritten: not excluded, and switched on by its property, else by `include`."""
        if any(table.matches(glob) for glob in self.exclude):
            return False
        switch = table_switch(properties)
        if switch is not None:
            return switch
        return any(table.matches(glob) for glob in self.include)


class SparkSettings(Section):
    master: Master = Field(default="local[*]", description="Spark master URL.")
    conf: Properties = Field(
        default_factory=dict,
        examples=["{spark.executor.memory: 4g}"],
        description="Spark configuration, passed on unchanged.",
    )

    @field_validator("conf")
    @classmethod
    def _conf_is_sparks_own(cls, conf: dict[str, str]) -> dict[str, str]:
        for name in conf:
            if name == "spark.master":
                raise KeyProblemError((name,), "use the setting spark.master instead")
            if not name.startswith("spark."):
                raise KeyProblemError((name,), f"Spark ignores names without its prefix; write spark.{name}")
        return conf


OTHERS_PROPERTY: Final = re.compile(
    r"(added|deleted|removed|total|changed|replace|engine|kafka|published|source|manifests|entries|partition)-"
    r"|(firnline|flink|kafka|spark|wap|polaris|partitions|iceberg)[.-]|operation$|app-id$"
)
"""Names in summaries that Iceberg counts with, or that engines and catalogs read back."""


class CommitSettings(Section):
    """How many commits a run makes, and when."""

    groups: int = fixed(
        1000,
        "File groups per commit. A larger run commits several times.",
        ge=1,
    )
    bytes: Bytes = fixed(
        100 * 1024 * MEBIBYTE,
        "Input bytes per commit. Limits the work that a crash or a conflict can waste. 100 GiB, the largest file "
        "group by default.",
        ge=1,
    )
    max_commits: int | None = fixed(
        None,
        "Most commits of one run. Its file groups are spread evenly over them; `groups` and `bytes` are then "
        "ignored. 1: all or nothing. Unset: no limit.",
        ge=1,
    )
    max_failed_commits: int = fixed(
        0,
        "Commits of one run that may fail before it ends; their file groups are left to the next run. 0: after the "
        "first, since what fails a commit usually fails the next one.",
        ge=0,
    )
    snapshot_properties: Properties = Field(
        default_factory=dict,
        examples=["{team: ingest}"],
        description="Properties for the summary of each snapshot that rewrites or converts files. Not names that "
        "Iceberg, engines or firnline write.",
    )
    hold_seconds: Seconds = Field(
        default=60.0,
        ge=0,
        le=3600,
        description="How long a finished rewrite waits for the next commit of a writer that deletes rows "
        "(MERGE, UPDATE, DELETE), if one is expected within this time. It commits directly after that writer: the next "
        "one has hardly started then, and does not fail. On a new table whose properties announce such a writer "
        "(write.merge.mode and its like) it follows any writer. It waits up to twice as long if the writer is behind "
        "its schedule or the catalog does not answer. Deletes that are committed during the wait are applied to the "
        "outputs, so no work is lost. Where the catalog rolls rewrites back for writers, also the longest time that a "
        "commit beside a writer that commits every few seconds is watched, to be made again. 0: neither.",
    )
    polaris_rollback: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="Ask Apache Polaris, by a snapshot property, to roll back a rewrite instead of failing a writer "
        "that conflicts with it. `auto`: for tables of format version 1 and 2 in REST catalogs whose uri ends with "
        "/api/catalog. On tables of version 3, Polaris up to 1.7 would refuse the writer's commit, also an append "
        "(`first-row-id is behind`, status 400): `always` asks there too: only for a catalog that does not refuse.",
    )

    @field_validator("snapshot_properties")
    @classmethod
    def _properties_are_the_users(cls, properties: dict[str, str]) -> dict[str, str]:
        for name in properties:
            if not name or OTHERS_PROPERTY.match(name):
                raise KeyProblemError((name,), "Iceberg, engines or firnline write this property; choose another name")
        return properties

    def rolls_back(self, *, is_polaris: bool, row_lineage: bool) -> bool:
        """Whether the catalog is asked to roll back; `row_lineage`: the table is of format version 3."""
        if self.polaris_rollback == "auto":
            return is_polaris and not row_lineage
        return self.polaris_rollback == "always"


class ManifestSettings(Section):
    """When the manifests of a table are merged. This never runs beside a rewrite of the table's data files."""

    rewrite: bool = Field(default=True, description="Whether the service merges manifests.")
    min_count: int = fixed(
        100,
        "Manifests of one partition spec from which they are merged. 100, the default of Iceberg's "
        "commit.manifest.min-count-to-merge, from which Iceberg's own writers merge.",
        ge=2,
    )
    min_reduction: float = fixed(
        4.0,
        "Merge only if the number of manifests falls by at least this factor (at commit.manifest.target-size-bytes "
        "each), because a merge reads and writes all of them.",
        gt=1,
    )
    wait_seconds: Seconds = fixed(
        3600.0,
        "How long a merge of manifests waits for another writer's commit after a rewrite of files, and a rewrite of"
        " files after a merge of manifests: some incremental readers (StarRocks) give up at two `replace` snapshots"
        " in a row. 3600: a table that nobody writes to is in no hurry.",
        ge=0,
    )


class StateSettings(Section):
    checkpoint: Checkpoint = Field(
        default="",
        description="URI of the stream's checkpoint. The lease of the active service, in-flight records and open "
        "requests are stored in its folder. Required by `run`. Use a volume: on object stores Spark's checkpoint needs "
        "an abortable file manager.",
    )


class ServiceSettings(Section):
    """Intervals, parallelism and caches of the service."""

    looks_per_catalog: int = Field(
        default=4,
        ge=1,
        le=64,
        description="Tables of one catalog that the ledger looks at concurrently: its calls to the catalog at a time. "
        "Each catalog has its own threads, so a catalog that does not answer delays no other.",
    )
    sweep_seconds: Seconds = Field(
        default=300.0,
        gt=0,
        le=86_400.0,
        description="Interval of sweeps, which list the catalogs. Between them a table is looked at as often as its "
        "commits suggest: without events twice per commit, at least every 4 intervals and at most every 15 seconds; "
        "with events every 12 intervals.",
    )
    sweep_calls_per_second: float = Field(
        default=200.0,
        gt=0,
        le=10_000,
        description="Budget of each catalog: most calls for looks that no event asks for; if more are needed, all come "
        "later. 200: such a call costs a catalog few milliseconds, and 10,000 tables are looked at in 50 s. A start "
        "looks at all tables at once.",
    )
    concurrent_runs: int = Field(
        default=16,
        ge=1,
        description="Tables rewritten at the same time at most, by one run each. At most as many runs as there "
        "are rewrite slots (at least two) plan or wait without one, so a small machine has fewer. 16 keeps a cluster "
        "busy while some runs plan or commit; more would only fill the driver's memory with plans.",
    )
    max_concurrent_file_group_rewrites: int | None = fixed(
        None,
        "Rewrite slots that a run holds at the same time; each writes one output file. The name is that of Spark's "
        "option (5 there). Never more than there are slots (cores of the executors less one for the stream). Unset:"
        " all slots, shared fairly with other runs.",
        ge=1,
    )
    shard: str = Field(
        default="",
        examples=['"2/4"'],
        description="Which of several services this is that divide the tables among themselves: `2/4` is number 2 of 0 "
        "to 3. Each takes care of its part of the tables, and needs a checkpoint of its own. Empty: this service takes "
        "care of all tables.",
    )
    manifests_per_batch: int = fixed(
        500,
        "Manifests that one look at a table may read; the next look continues.",
        ge=1,
    )
    manifest_cache_bytes: Bytes = Field(
        default=256 * MEBIBYTE, ge=0, description="Memory for decoded manifests. A million files take half of it."
    )
    manifest_disk_bytes: Bytes = fixed(
        1024 * MEBIBYTE,
        "Bytes on local disk for decoded manifests. They survive a restart; processes of one host share them. 0: none.",
        ge=0,
    )

    @field_validator("shard")
    @classmethod
    def _shard_is_of_a_count(cls, text: str) -> str:
        Shard.of(text)
        return text


class LogSettings(Section):
    format: Literal["auto", "json", "console"] = Field(
        default="auto",
        description="`json`: one JSON object per line; `console`: for people; `auto`: `console` on a terminal, else "
        "`json`.",
    )
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO",
        description="Lowest level of firnline's lines. INFO: one line per rewritten file group and commit. "
        "`--verbose` sets DEBUG. Lines of other libraries are written from WARNING on.",
    )

    def as_json(self, *, terminal: bool) -> bool:
        """Whether lines are JSON objects. `terminal`: whether stderr is a terminal."""
        return self.format == "json" or (self.format == "auto" and not terminal)


class Settings(Section):
    catalogs: dict[str, dict[str, str]] = Field(
        description="Catalogs by name: maps of PyIceberg's properties.", examples=[EXAMPLE]
    )
    tables: TableRules = TableRules()
    kafka: KafkaSettings = KafkaSettings()
    spark: SparkSettings = SparkSettings()
    policy: PolicySettings = PolicySettings()
    commit: CommitSettings = CommitSettings()
    limits: LimitSettings = LimitSettings()
    manifests: ManifestSettings = ManifestSettings()
    http: HttpSettings = HttpSettings()
    state: StateSettings = StateSettings()
    service: ServiceSettings = ServiceSettings()
    history: HistorySettings = HistorySettings()
    logging: LogSettings = LogSettings()
    hooks: tuple[HookSettings, ...] = Field(
        default=(), description="Refresh hooks, called after each run that has rewritten files: a list of maps."
    )
    locks: tuple[LockSettings, ...] = Field(
        default=(),
        description="Locks of Flink's table maintenance, a list of maps. While a lock is held, firnline does not write "
        "to its tables.",
    )

    _catalogs_are_usable = field_validator("catalogs", mode="before")(checked_catalogs)

    @model_validator(mode="after")
    def _event_sources_mean_catalogs(self) -> Settings:
        for name, catalog in self.kafka.catalog_names.items():
            if catalog and catalog not in self.catalogs:
                found = f"{catalog!r} is not one of catalogs ({', '.join(self.catalogs)}); empty: ignore its events"
                raise KeyProblemError(("kafka", "catalog_names", name), found)
        return self

    @model_validator(mode="after")
    def _history_has_a_catalog(self) -> Settings:
        try:
            self.history.table_name(self.catalogs)
        except InputError as error:
            raise KeyProblemError(("history", "table"), str(error).removeprefix("history.table: ")) from None
        return self

    @model_validator(mode="after")
    def _hook_topics_are_their_own(self) -> Settings:
        for hook in self.hooks:
            if hook.kind == "kafka" and (self.kafka.reads(hook.topic) or hook.topic == self.kafka.dead_letter_topic):
                found = f"topic {hook.topic} is one of kafka.*; give the hook a topic of its own"
                raise KeyProblemError(("hooks",), found)
        return self


@dataclass(frozen=True)
class Loaded:
    """Settings, and where they come from."""

    settings: Settings
    sources: Sources
    removed: tuple[str, ...] = ()
    """What to say of keys that are no settings any more."""


def load_settings(path: Path | None, environment: Mapping[str, str] | None = None) -> Settings:
    """Read settings from `path` (YAML, may be None) and the environment; `hide` knows their secrets from now on.

    Raises:
        InputError: the file is missing or not YAML, or a key is unknown or its value invalid. The message names it.
    """
    loaded = load_with_sources(path, environment)
    for notice in loaded.removed:
        LOG.warning("%s", notice)
    return loaded.settings


def load_with_sources(path: Path | None, environment: Mapping[str, str] | None = None) -> Loaded:
    """As `load_settings`, with the origin of each value."""
    sources = read_file(path) if path else Sources()
    variables = os.environ if environment is None else environment
    put_environment(sources, variables, Settings.model_fields)
    removed = drop_removed(sources)
    remember(secrets_in(sources.values))
    remember(secrets_in(variables))  # of the stores' own clients and of hooks
    problems = hidden_secrets(sources)
    if not problems:
        try:
            return Loaded(Settings.model_validate(sources.values), sources, removed)
        except ValidationError as error:
            problems = explained(error, Settings, sources)
    if path is None and "catalogs" not in sources.values:
        problems.append(f"no settings file is given: name one with -c FILE, or in {CONFIG_FILE_VARIABLE}")
    where = f" in {path}" if path else ""
    raise InputError("\n  ".join([f"settings{where} are not valid:", *problems]), reason=Reason.BAD_SETTING)
