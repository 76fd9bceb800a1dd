"""Settings: one frozen tree, read from a YAML file and the environment, refused at start when a key is wrong.

Every key can also be set as an environment variable: `FIRNLINE_` + the path in capitals, levels joined by `__`
(`policy.min_input_files` → `FIRNLINE_POLICY__MIN_INPUT_FILES`; maps and lists as JSON). The environment wins.

Dotted property names are spelled with `__` for the dot, in catalogs with `_` for the dash as PyIceberg does
(`FIRNLINE_CATALOGS__LAKE__S3__ACCESS_KEY_ID` → `s3.access-key-id` of catalog `lake`,
`FIRNLINE_KAFKA__OPTIONS__SASL__MECHANISM` → `sasl.mechanism`); a key of the file that differs only in these is kept as
the file spells it. Names with capitals, as some of Spark's, need the whole map as JSON (`FIRNLINE_SPARK__CONF`).
"""

from __future__ import annotations

import json
import os
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
from compactor.settings.log import LogSettings
from compactor.settings.policy import PolicySettings
from compactor.settings.section import MEBIBYTE, Section
from compactor.table_names import TableName

ENVIRONMENT_PREFIX = "FIRNLINE_"
CONFIG_FILE_VARIABLE = "FIRNLINE_CONFIG_FILE"  # names the settings file for the command line; no setting itself
PROPERTY_MAPS = {("kafka", "options"), ("spark", "conf")}


def table_switch(properties: Mapping[str, str]) -> bool | None:
    """What a table's property `firnline.enabled` says: rewrite, never rewrite, or (None) nothing."""
    return {"true": True, "false": False}.get(properties.get("firnline.enabled", "").strip().lower())


class TableRules(Section):
    """Which tables are rewritten, only watched, or ignored: globs over `[catalog.]namespace.table`."""

    include: tuple[str, ...] = Field(default=(), description="Rewritten. Empty by default: nothing is touched unasked.")
    observe: tuple[str, ...] = Field(default=("*",), description="Counted and shown in metrics, never written.")
    exclude: tuple[str, ...] = Field(default=(), description="Ignored altogether; wins over the other two.")
    other_compactors: Literal["share", "leave"] = Field(
        default="share",
        description="A table that somebody else has compacted within a day: `share` it, rewriting what is due when it "
        "is due, or `leave` it alone. Either way `debt` shows who it was.",
    )

    def ignores(self, table: TableName) -> bool:
        """Whether the table is not even looked at."""
        if any(table.matches(glob) for glob in self.exclude):
            return True
        return not any(table.matches(glob) for glob in (*self.include, *self.observe))

    def acts_on(self, table: TableName, properties: Mapping[str, str]) -> bool:
        """Whether the table may be rewritten: its property `firnline.enabled` decides, else `include`."""
        if any(table.matches(glob) for glob in self.exclude):
            return False
        switch = table_switch(properties)
        if switch is not None:
            return switch
        return any(table.matches(glob) for glob in self.include)


class KafkaSettings(Section):
    """Where commit events arrive and where bad ones go."""

    bootstrap_servers: str = Field(default="", description="host:port list of the brokers; needed by `run`.")
    commit_topic: str = Field(
        default="iceberg-commits",
        description="Topic of commit events, firnline's own: it also writes to it, what the sweep finds and its own "
        "commits. A topic with another system's records is refused.",
    )
    control_topics: tuple[str, ...] = Field(
        default=(),
        description="Control topics of Iceberg's Kafka Connect sinks (`iceberg.control.topic`): read like the commit "
        "topic, never written to, since a sink fails on any record that is not its own. One that does not exist yet is "
        "waited for. None by default.",
    )
    dead_letter_topic: str = Field(
        default="iceberg-commits-dead-letter", description="Topic that takes events nobody can use, with the reason."
    )
    options: dict[str, str] = Field(
        default_factory=dict,
        description="Client options in Kafka's dotted names (security.protocol, sasl.mechanism, …), given to Spark's "
        "source and to the Python client alike.",
    )
    max_events_per_batch: int = Field(
        default=100_000, ge=1, description="Events per micro-batch; bounds a first batch over a long backlog."
    )

    @model_validator(mode="after")
    def _control_topics_are_only_read(self) -> KafkaSettings:
        written = {self.commit_topic, self.dead_letter_topic} & {*self.control_topics}
        if written:
            raise ValueError(f"control_topics: firnline writes to {written.pop()}, which a sink would fail on")
        if self.commit_topic == self.dead_letter_topic:
            raise ValueError(f"dead_letter_topic: {self.commit_topic} is the commit_topic, which reads them again")
        return self


class SparkSettings(Section):
    """Where tasks run."""

    master: str = Field(default="local[*]", description="Spark master URL.")
    conf: dict[str, str] = Field(default_factory=dict, description="Spark configuration, passed on as it is.")


class CommitSettings(Section):
    """How a run commits."""

    groups: int = Field(
        default=1000, ge=1, description="Groups per commit. A run of more commits what it has and goes on."
    )
    bytes: int = Field(
        default=100 * 1024 * MEBIBYTE,
        ge=1,
        description="Input bytes per commit: bounds what a crash or a lost race can cost a long run. 100 GiB, as the "
        "largest group.",
    )
    max_commits: int | None = Field(
        default=None,
        ge=1,
        description="Most commits of one run: its groups are spread evenly over them, whatever `groups` and `bytes` "
        "say. 1 commits all or nothing. Unset.",
    )
    polaris_rollback: Literal["auto", "always", "never"] = Field(
        default="auto",
        description="Ask Apache Polaris, through a snapshot property, to roll a rewrite back rather than fail a writer "
        "that conflicts with it. `auto`: for REST catalogs whose uri ends with /api/catalog.",
    )

    def rolls_back(self, *, is_polaris: bool) -> bool:
        """Whether commits carry Polaris' rollback property."""
        return self.polaris_rollback == "always" or (self.polaris_rollback == "auto" and is_polaris)


class LimitSettings(Section):
    """What the service may spend. A run that has started is never cut short by these."""

    quiet_hours: tuple[str, ...] = Field(
        default=(), description='No run starts in these, e.g. ["22:00-06:00"]. UTC. None by default.'
    )
    bytes_per_hour: int | None = Field(
        default=None,
        ge=1,
        description="Bytes that runs of all tables may read in any hour. A table with more bytes due than that starts "
        "when the hour is empty, and does so much of it. Exceeded by one output file at most. Unset.",
    )
    requests_per_hour: int | None = Field(
        default=None,
        ge=1,
        description="Requests to the store that runs of all tables may make in any hour, about: two a file read or "
        "written, one for each 8 MiB. Unset.",
    )
    catalog_calls_per_hour: int | None = Field(
        default=None,
        ge=12,
        description="Catalog calls that runs of all tables may make in any hour, about: 12 a run. What the ledger and "
        "the sweeps ask, one call a table each time, is not counted. Unset.",
    )
    commits_per_table_and_hour: int | None = Field(
        default=None, ge=1, description="`replace` commits that one table may have in any hour. Unset."
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
        raise ValueError(f"{text!r} is no span of hours; write e.g. 22:00-06:00 (UTC)") from None


class ManifestSettings(Section):
    """When the manifests of a table are merged, in the same lane as its data files."""

    rewrite: bool = Field(default=True, description="Whether the service rewrites manifests at all.")
    min_count: int = Field(
        default=100,
        ge=2,
        description="Fewest manifests of a partition spec worth rewriting. 100 as Iceberg's "
        "commit.manifest.min-count-to-merge, at which writers that merge do so by themselves.",
    )
    min_reduction: float = Field(
        default=4.0,
        gt=1,
        description="Only where their bytes would fit in so many times fewer manifests of "
        "commit.manifest.target-size-bytes: each rewrite reads and writes all of them.",
    )


class HttpSettings(Section):
    """The address of /metrics, /healthz, /readyz and the status page."""

    host: str = Field(default="0.0.0.0", description="Interface to listen on.")  # noqa: S104 - scraped from outside
    port: int = Field(default=9464, ge=0, le=65535, description="Port; 0 takes a free one.")


class StateSettings(Section):
    """What must survive a restart."""

    checkpoint: str = Field(
        default="",
        description="URI of the stream's checkpoint; in-flight records and open requests are kept beside it. Needed by "
        "`run`. Use a volume: on plain object stores Spark's checkpoint needs an abortable file manager.",
    )


class ServiceSettings(Section):
    """How often the service does things, and how many at once."""

    trigger_seconds: float = Field(default=2.0, gt=0, description="Micro-batch interval: the floor of event latency.")
    sweep_seconds: float = Field(
        default=300.0, gt=0, description="Catalog listing interval: finds commits that no event announced."
    )
    switch_check_seconds: float = Field(
        default=15.0, gt=0, le=60, description="How often a running rewrite looks at `firnline.enabled`; 60 at most."
    )
    concurrent_runs: int = Field(default=1, ge=1, description="Tables rewritten at once; one commit lane per table.")
    max_concurrent_file_group_rewrites: int | None = Field(
        default=None,
        ge=1,
        description="Output files that a run writes at once, and so its groups at work; named as in Spark's action, "
        "where it is 5. Never more than there are rewrite slots (cores, less the stream's). Unset: as many.",
    )
    retry_seconds: float = Field(default=10.0, gt=0, description="First back-off of a failed table; doubles to 10 min.")
    manifests_per_batch: int = Field(
        default=500, ge=1, description="Manifests one table may read in one micro-batch; a longer recount continues."
    )
    manifest_cache_bytes: int = Field(
        default=256 * MEBIBYTE, ge=0, description="Memory for decoded manifests: of a million files, about half of it."
    )
    manifest_disk_bytes: int = Field(
        default=1024 * MEBIBYTE,
        ge=0,
        description="Local disk for decoded manifests, kept over restarts and shared by the host's processes; 0: none.",
    )
    manifest_job_bytes: int = Field(
        default=256 * MEBIBYTE,
        ge=0,
        description="Bytes of manifests from which executors decode them, where Spark is not local: about 400,000 "
        "files, one or two seconds of the driver's cores.",
    )
    manifest_disk_folder: str = Field(
        default="", description="Where; empty: firnline/manifests in XDG_CACHE_HOME, else in ~/.cache."
    )
    worst_partitions: int = Field(default=20, ge=0, description="Partitions that get metric series of their own.")
    lease_seconds: float = Field(
        default=60.0, gt=0, description="How long outputs of a silent process stay its own before they may be swept."
    )
    grace_seconds: float = Field(
        default=2700.0,
        gt=0,
        description="How long a dead run's outputs are kept while the table's head stands still: longer than Iceberg's "
        "commit timeout of 30 min, for a commit that was sent before the crash.",
    )


class Settings(Section):
    """The whole configuration."""

    catalogs: dict[str, dict[str, str]] = Field(description="Catalogs by name, in PyIceberg's property names.")
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
    hooks: tuple[HookSettings, ...] = Field(default=(), description="Whom to tell of a commit: a list of hooks.")

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
                raise ValueError(f"catalog name {name!r} may hold letters, digits, '_' and '-' only")
        self.history.table_name(self.catalogs)  # refuses a name of no configured catalog
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
        InputError: the file is missing or not YAML, or a key is unknown or has a bad value; the message names the key.
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
        raise InputError(f"settings file {path} does not exist; name one with -c FILE") from None
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
    """Environment names cannot hold '-' or '.': prefer a key of the file that is spelled so."""
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
