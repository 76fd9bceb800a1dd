"""Settings: one frozen tree, read from a YAML file and the environment. A wrong key is an error at start.

Every key can also be set as an environment variable: `FIRNLINE_` + the path in capitals, levels joined by `__`
(`policy.min_input_files` → `FIRNLINE_POLICY__MIN_INPUT_FILES`; maps and lists as JSON). The environment wins.

In names of properties, write `__` for a dot; in catalogs also `_` for a dash, as PyIceberg does
(`FIRNLINE_CATALOGS__LAKE__S3__ACCESS_KEY_ID` → `s3.access-key-id` of catalog `lake`,
`FIRNLINE_KAFKA__OPTIONS__SASL__MECHANISM` → `sasl.mechanism`). If the file has a key that differs only in these
characters, its spelling is kept. Names with capitals (some of Spark's) need the whole map as JSON
(`FIRNLINE_SPARK__CONF`).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from datetime import time
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from compactor.errors import InputError
from compactor.reasons import Reason
from compactor.settings.history import HistorySettings
from compactor.settings.hooks import HookSettings
from compactor.settings.policy import PolicySettings
from compactor.settings.section import MEBIBYTE, Section
from compactor.table_names import TableName

ENVIRONMENT_PREFIX = "FIRNLINE_"
CONFIG_FILE_VARIABLE = "FIRNLINE_CONFIG_FILE"  # path of the settings file; not a setting
PROPERTY_MAPS = {("kafka", "options"), ("spark", "conf")}


def table_switch(properties: Mapping[str, str]) -> bool | None:
    """The table property `firnline.enabled`: True (rewrite), False (never rewrite) or None (unset or invalid)."""
    return {"true": True, "false": False}.get(properties.get("firnline.enabled", "").strip().lower())


class TableRules(Section):
    """Which tables are rewritten, only observed, or ignored: globs over `[catalog.]namespace.table`."""

    include: tuple[str, ...] = Field(
        default=(), description="Globs of tables to rewrite. Empty: no table is rewritten."
    )
    observe: tuple[str, ...] = Field(default=("*",), description="Globs of tables to count without writing to them.")
    exclude: tuple[str, ...] = Field(default=(), description="Globs of tables to ignore. Wins over the other two.")
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

    def acts_on(self, table: TableName, properties: Mapping[str, str]) -> bool:
        """Whether the table may be rewritten: not excluded, and switched on by its property, else by `include`."""
        if any(table.matches(glob) for glob in self.exclude):
            return False
        switch = table_switch(properties)
        if switch is not None:
            return switch
        return any(table.matches(glob) for glob in self.include)


class KafkaSettings(Section):
    """Where commit events arrive, and where unusable events go."""

    bootstrap_servers: str = Field(default="", description="Brokers, as a host:port list. Required by `run`.")
    commit_topic: str = Field(
        default="iceberg-commits",
        description="Topic of commit events. It must belong to firnline: `firnline request` writes to it. A topic with "
        "records of another system is refused.",
    )
    control_topics: tuple[str, ...] = Field(
        default=(),
        description="Control topics of Iceberg's Kafka Connect sinks (`iceberg.control.topic`). They are read like the "
        "commit topic and never written to, because a sink fails on a foreign record. firnline waits for a topic that "
        "does not exist yet.",
    )
    dead_letter_topic: str = Field(
        default="iceberg-commits-dead-letter", description="Topic for events that cannot be used, each with the reason."
    )
    options: dict[str, str] = Field(
        default_factory=dict,
        description="Kafka client options by Kafka's names (security.protocol, sasl.mechanism, …), for Spark's source "
        "and for the Python client.",
    )
    max_events_per_batch: int = Field(
        default=2_000,
        ge=1,
        description="Most events of a micro-batch. Limits how long an event waits for the batch before it: 2,000 "
        "events take 0.3 s of processor time, if each has 1 MB about 10 s. Memory does not depend on it. Raise it if "
        "more events arrive in `service.trigger_seconds`. Batches of the dead-letter query have ten times as many.",
    )

    @model_validator(mode="after")
    def _control_topics_are_only_read(self) -> KafkaSettings:
        written = {self.commit_topic, self.dead_letter_topic} & {*self.control_topics}
        if written:
            raise ValueError(f"control_topics: firnline writes to {written.pop()}; a sink fails on records of others")
        if self.commit_topic == self.dead_letter_topic:
            raise ValueError(f"dead_letter_topic: {self.commit_topic} is the commit_topic; name another topic")
        return self


class SparkSettings(Section):
    master: str = Field(default="local[*]", description="Spark master URL.")
    conf: dict[str, str] = Field(default_factory=dict, description="Spark configuration, passed on unchanged.")


class CommitSettings(Section):
    """How many commits a run makes."""

    groups: int = Field(default=1000, ge=1, description="File groups per commit. A larger run commits several times.")
    bytes: int = Field(
        default=100 * 1024 * MEBIBYTE,
        ge=1,
        description="Input bytes per commit. Limits the work that a crash or a conflict can waste. 100 GiB, the "
        "largest file group by default.",
    )
    max_commits: int | None = Field(
        default=None,
        ge=1,
        description="Most commits of one run. Its file groups are spread evenly over them; `groups` and `bytes` are "
        "then ignored. 1: all or nothing. Unset: no limit.",
    )
    polaris_rollback: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="Ask Apache Polaris, by a snapshot property, to roll back a rewrite instead of failing a writer "
        "that conflicts with it. `auto`: for REST catalogs whose uri ends with /api/catalog.",
    )

    def rolls_back(self, *, is_polaris: bool) -> bool:
        return self.polaris_rollback == "always" or (self.polaris_rollback == "auto" and is_polaris)


class LimitSettings(Section):
    """Limits of the service. They delay the start of runs; they do not stop a running one."""

    quiet_hours: tuple[str, ...] = Field(
        default=(), description='Hours in UTC in which no run starts, e.g. ["22:00-06:00"].'
    )
    bytes_per_hour: int | None = Field(
        default=None,
        ge=1,
        description="Bytes that runs of all tables may read in any 60 minutes. A table with more bytes due starts "
        "when nothing was read in the last 60 minutes, and rewrites that many bytes. Exceeded by one output file at "
        "most. Unset: no limit.",
    )
    requests_per_hour: int | None = Field(
        default=None,
        ge=1,
        description="Estimated requests to the store that runs of all tables may make in any 60 minutes: two for each "
        "file read or written, one for each 8 MiB. Unset: no limit.",
    )
    catalog_calls_per_hour: int | None = Field(
        default=None,
        ge=12,
        description="Estimated catalog calls that runs of all tables may make in any 60 minutes: 12 for each commit. "
        "Calls of the ledger and of sweeps (one per table and look) are not counted. Unset: no limit.",
    )
    commits_per_table_and_hour: int | None = Field(
        default=None, ge=1, description="`replace` commits that one table may have in any 60 minutes. Unset: no limit."
    )

    @field_validator("quiet_hours")
    @classmethod
    def _quiet_hours_are_spans(cls, spans: tuple[str, ...]) -> tuple[str, ...]:
        for span in spans:
            _span(span)
        return spans

    @property
    def quiet_spans(self) -> tuple[tuple[time, time], ...]:
        """`quiet_hours` as (from, until) in UTC."""
        return tuple(_span(span) for span in self.quiet_hours)


def _span(text: str) -> tuple[time, time]:
    start, separator, end = text.partition("-")
    try:
        if not separator:
            raise ValueError  # noqa: TRY301 - one message for all
        return time.fromisoformat(start.strip()), time.fromisoformat(end.strip())
    except ValueError:
        raise ValueError(f"{text!r} is not a span of hours; write e.g. 22:00-06:00 (UTC)") from None


class ManifestSettings(Section):
    """When the manifests of a table are merged. This never runs beside a rewrite of the table's data files."""

    rewrite: bool = Field(default=True, description="Whether the service merges manifests.")
    min_count: int = Field(
        default=100,
        ge=2,
        description="Manifests of one partition spec from which they are merged. 100, the default of Iceberg's "
        "commit.manifest.min-count-to-merge, from which Iceberg's own writers merge.",
    )
    min_reduction: float = Field(
        default=4.0,
        gt=1,
        description="Merge only if the number of manifests falls by at least this factor (at "
        "commit.manifest.target-size-bytes each), because a merge reads and writes all of them.",
    )


class HttpSettings(Section):
    """Address of /metrics, /healthz, /readyz and the status page."""

    host: str = Field(default="0.0.0.0", description="Interface to listen on.")  # noqa: S104 - scraped from outside
    port: int = Field(default=9464, ge=0, le=65535, description="Port to listen on. 0: any free port.")


class StateSettings(Section):
    checkpoint: str = Field(
        default="",
        description="URI of the stream's checkpoint. In-flight records and open requests are stored beside it. "
        "Required by `run`. Use a volume: on object stores Spark's checkpoint needs an abortable file manager.",
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
    trigger_seconds: float = Field(
        default=1.0,
        gt=0,
        description="Micro-batch interval: an event waits half of it on average. Without events, 1 s costs 0.7 % of a "
        "core, 0.5 s 1 %, 0.25 s 1.5 %.",
    )
    sweep_seconds: float = Field(
        default=300.0, gt=0, description="Interval of sweeps, which list the catalogs and find commits without events."
    )
    switch_check_seconds: float = Field(
        default=15.0, gt=0, le=60, description="Interval of checks of `firnline.enabled` during a rewrite."
    )
    concurrent_runs: int = Field(
        default=16,
        ge=1,
        description="Tables rewritten at the same time at most, by one run each. At most as many runs as there "
        "are rewrite slots (at least two) plan or wait without one, so a small machine has fewer. 16 keeps a cluster "
        "busy while some runs plan or commit; more would only fill the driver's memory with plans.",
    )
    max_concurrent_file_group_rewrites: int | None = Field(
        default=None,
        ge=1,
        description="Rewrite slots that a run holds at the same time; each writes one output file. The name is that of "
        "Spark's option (5 there). Never more than there are slots (cores of the executors less one for the stream). "
        "Unset: all slots, shared fairly with other runs.",
    )
    shard_group: str = Field(
        default="",
        max_length=200,
        description="Name of the group of services that divide the tables among themselves. Services with the same "
        "name on the same brokers find each other; each takes care of its part of the tables. The name is part of the "
        "consumer group firnline-shards-<name>. Empty: no group; this service takes care of all tables.",
    )
    retry_seconds: float = Field(
        default=10.0, gt=0, description="First back-off of a failed table. Doubles up to 10 min."
    )
    manifests_per_batch: int = Field(
        default=500, ge=1, description="Manifests that a table may read in one micro-batch; the next continues."
    )
    manifest_cache_bytes: int = Field(
        default=256 * MEBIBYTE, ge=0, description="Memory for decoded manifests. A million files take half of it."
    )
    manifest_disk_bytes: int = Field(
        default=1024 * MEBIBYTE,
        ge=0,
        description="Bytes on local disk for decoded manifests. They survive a restart; processes of one host share "
        "them. 0: none.",
    )
    manifest_job_bytes: int = Field(
        default=256 * MEBIBYTE,
        ge=0,
        description="Bytes of manifests from which executors decode them, if Spark is not local. The default is about "
        "400,000 files, or one to two seconds of the driver's cores.",
    )
    manifest_disk_folder: str = Field(
        default="", description="Their folder. Empty: firnline/manifests in XDG_CACHE_HOME, else in ~/.cache."
    )
    worst_partitions: int = Field(
        default=20, ge=0, description="Partitions with metric series: those with most small files."
    )
    lease_seconds: float = Field(
        default=60.0, gt=0, description="A process silent for this time is dead; its outputs may be swept."
    )
    grace_seconds: float = Field(
        default=2700.0,
        gt=0,
        description="Seconds to keep the outputs of a dead run while the table has no new snapshot, because its commit "
        "may still arrive. Longer than Iceberg's commit timeout of 30 minutes.",
    )

    @field_validator("shard_group")
    @classmethod
    def _shard_group_is_a_name(cls, name: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9._-]*", name):
            raise ValueError(f"{name!r} must consist of letters, digits, '.', '_' and '-', e.g. lake")
        return name


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
    catalogs: dict[str, dict[str, str]] = Field(description="Catalogs by name: maps of PyIceberg's properties.")
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
        default=(), description="Refresh hooks, called after each commit: a list of maps."
    )

    @field_validator("catalogs", mode="before")
    @classmethod
    def _property_values_are_text(cls, catalogs: Any) -> Any:
        if not isinstance(catalogs, dict) or not catalogs:
            raise ValueError("at least one catalog is needed, e.g. {lake: {type: rest, uri: 'http://…'}}")
        return {
            name: {key: _as_text(value) for key, value in properties.items()} if isinstance(properties, dict) else {}
            for name, properties in catalogs.items()
        }

    @model_validator(mode="after")
    def _names_are_usable(self) -> Settings:
        for name in self.catalogs:
            if not name or "." in name or not name.replace("_", "").replace("-", "").isalnum():
                raise ValueError(f"catalog name {name!r} must consist of letters, digits, '_' and '-'")
        self.history.table_name(self.catalogs)  # raises if the catalog of the name is not configured
        return self

    @model_validator(mode="after")
    def _hook_topics_are_their_own(self) -> Settings:
        taken = {self.kafka.commit_topic, self.kafka.dead_letter_topic, *self.kafka.control_topics}
        for hook in self.hooks:
            if hook.kind == "kafka" and hook.topic in taken:
                raise ValueError(f"hooks: topic {hook.topic} is one of kafka.*; give the hook a topic of its own")
        return self


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def load_settings(path: Path | None, environment: Mapping[str, str] | None = None) -> Settings:
    """Read settings from `path` (YAML, may be None) and the environment.

    Raises:
        InputError: the file is missing or not YAML, or a key is unknown or its value invalid. The message names it.
    """
    tree = _read_yaml(path) if path else {}
    for name, value in sorted((environment if environment is not None else os.environ).items()):
        if name.startswith(ENVIRONMENT_PREFIX) and name != CONFIG_FILE_VARIABLE:
            _set_from_environment(tree, name, value)
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise InputError(_explain(error, path), reason=Reason.BAD_SETTING) from None


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"settings file {path} does not exist; name a file with -c FILE") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"settings file {path} cannot be read: {error}") from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise InputError(f"settings file {path} must hold a map of sections (catalogs, tables, kafka, …)")
    return tree


def _set_from_environment(tree: dict[str, Any], name: str, value: str) -> None:
    levels = name[len(ENVIRONMENT_PREFIX) :].lower().split("__")
    if levels[0] not in Settings.model_fields:
        known = ", ".join(Settings.model_fields)
        raise InputError(
            f"environment variable {name} names no section; sections are: {known}", reason=Reason.BAD_SETTING
        )
    is_property = bool(levels[2:]) and (levels[0] == "catalogs" or tuple(levels[:2]) in PROPERTY_MAPS)
    if is_property:
        property_name = ".".join(levels[2:])
        levels[2:] = [property_name.replace("_", "-") if levels[0] == "catalogs" else property_name]
    section: Any = tree
    for level in levels[:-1]:
        key = _existing_key(section, level)
        if not isinstance(section.get(key), dict):
            section[key] = {}
        section = section[key]
    section[_existing_key(section, levels[-1])] = value if is_property else _parse_environment_value(value)


def _existing_key(section: dict[str, Any], key: str) -> str:
    """The file's spelling of `key`, if it has one: environment names cannot contain '-' or '.'."""
    return next((known for known in section if _folded(str(known)) == _folded(key)), key)


def _folded(key: str) -> str:
    return key.lower().replace("-", "_").replace(".", "_")


def _parse_environment_value(value: str) -> Any:
    if value[:1] in "[{":
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            return value
    return value


def _explain(error: ValidationError, path: Path | None) -> str:
    where = f" in {path}" if path else ""
    lines = [f"settings{where} are not valid:"]
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"]) or "(top level)"
        message = "unknown key; see `firnline check-config --help`" if problem["type"] == "extra_forbidden" else None
        lines.append(f"  {key}: {message or problem['msg']}")
    return "\n".join(lines)
