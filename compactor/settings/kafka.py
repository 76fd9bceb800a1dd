"""Settings of Kafka: the topics of commit events, their formats, and what their sources call a catalog."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from compactor.settings.catalogs import Properties
from compactor.settings.kafka_options import check_options
from compactor.settings.section import KeyProblemError, Section
from compactor.settings.texts import Brokers, Topic, TopicPattern

INTERNAL = "__"
"""Begin of the names of Kafka's own topics."""
EventFormat = Literal[
    "detect",
    "canonical",
    "kafka_connect",
    "commit_report",
    "polaris",
    "s3",
    "glue",
    "lakekeeper",
    "openlineage",
    "nessie",
]


class CommitTopic(Section):
    """One topic of another system, or all topics that match a pattern."""

    topic: Topic = Field(default="", description="Name of the topic.")
    pattern: TopicPattern = Field(
        default="",
        description="Instead of `topic`: a regular expression for whole names. Topics that appear later are read from "
        "their beginning. It must be valid in Java and Python.",
    )
    format: EventFormat = Field(
        default="detect",
        description="Format of the events. `detect`: by their content, each for itself. Set it if a topic holds one "
        "format only: then everything else is a dead letter. For a topic that is named and matches a pattern, the item "
        "with its name counts.",
    )

    @model_validator(mode="before")
    @classmethod
    def _a_text_is_a_name(cls, given: Any) -> Any:
        return {"topic": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _names_topics(self) -> CommitTopic:
        if bool(self.topic) == bool(self.pattern):
            raise ValueError("an item needs either a topic or a pattern")
        return self

    def names(self, topic: str) -> bool:
        """Whether this topic is meant."""
        return topic == self.topic or bool(self.pattern and re.fullmatch(self.pattern, topic))


def format_of(topic: str, topics: Iterable[CommitTopic]) -> EventFormat:
    """The format of a topic's events: the first of `topics` that names it decides, else the first that matches it."""
    meant = [each for each in topics if each.names(topic)]
    return next((each.format for each in (*(each for each in meant if each.topic), *meant)), "detect")


class KafkaSettings(Section):
    """Where commit events arrive, and where unusable events go."""

    bootstrap_servers: Brokers = Field(default="", description="Brokers, as a host:port list. Required by `run`.")
    commit_topic: Topic = Field(
        default="iceberg-commits",
        description="Topic of commit events. It must belong to firnline: `firnline request` writes to it. A topic with "
        "records of another system is refused.",
    )
    commit_topics: tuple[CommitTopic, ...] = Field(
        default=(),
        examples=['["control-iceberg", {topic: polaris-catalog-events, format: polaris}, {pattern: "lake-.*"}]'],
        description="More topics with commit events, of catalogs, stores and sinks (control topics of Iceberg's Kafka "
        "Connect sinks: `iceberg.control.topic`); they are only read: a sink fails on a foreign record. Each is a "
        "name, or a map with `topic` or `pattern`, and `format`. firnline waits for a topic that does not exist yet.",
    )
    catalog_names: Properties = Field(
        default_factory=dict,
        examples=["{POLARIS/prod: lake}"],
        description="What sources of events call a catalog, and the catalog of `catalogs` that it is: a warehouse, an "
        'account, a repository, or `realm/catalog`; `""` for events that name none. An empty value: events of that '
        "catalog are ignored. Without an entry, a name is taken as it is if a catalog has it. Else the only catalog is "
        "meant, by an event that names none or while this map is empty.",
    )
    dead_letter_topic: Topic = Field(
        default="iceberg-commits-dead-letter", description="Topic for events that cannot be used, each with the reason."
    )
    options: Properties = Field(
        default_factory=dict,
        examples=["{security.protocol: SASL_SSL}"],
        description="Kafka client options by Kafka's names (security.protocol, sasl.mechanism, …), for Spark's source "
        "and for the Python client. `sasl.username` and `sasl.password` serve both, for PLAIN and SCRAM; GSSAPI and "
        "AWS_MSK_IAM need `sasl.jaas.config`, and their libraries on the class path and in Python. Give certificates "
        "as PEM files: `ssl.truststore.location` with `ssl.truststore.type: PEM`.",
    )

    @model_validator(mode="after")
    def _other_topics_are_only_read(self) -> KafkaSettings:
        written = {self.commit_topic, self.dead_letter_topic} & {each.topic for each in self.commit_topics}
        if written:
            found = f"firnline writes to {written.pop()}; a sink fails on records of others: name other topics"
            raise KeyProblemError(("commit_topics",), found)
        if self.commit_topic == self.dead_letter_topic:
            found = f"{self.commit_topic} is the commit_topic; name another topic"
            raise KeyProblemError(("dead_letter_topic",), found)
        return self

    @model_validator(mode="after")
    def _each_topic_is_named_once(self) -> KafkaSettings:
        """Of two items for one topic only the first would count, and the format of the other would be ignored."""
        named: set[str] = set()
        for number, each in enumerate(self.commit_topics):
            what = f"topic {each.topic}" if each.topic else f"pattern {each.pattern}"
            if what in named:
                raise KeyProblemError(
                    ("commit_topics", number), f"{what} is named twice; name it once, with its format"
                )
            named.add(what)
        return self

    @property
    def topics(self) -> tuple[CommitTopic, ...]:
        """All topics of commit events with their formats; the commit topic first."""
        return (CommitTopic(topic=self.commit_topic), *self.commit_topics)

    @property
    def offsets_group(self) -> str:
        """The consumer group for lag monitors."""
        return f"firnline-{self.commit_topic}"

    @property
    def named_topics(self) -> tuple[str, ...]:
        """Topics of commit events that settings name, each once; the commit topic first."""
        return tuple(dict.fromkeys(each.topic for each in self.topics if each.topic))

    @property
    def patterns(self) -> tuple[str, ...]:
        """Regular expressions of further topics of commit events."""
        return tuple(each.pattern for each in self.commit_topics if each.pattern)

    def reads(self, topic: str) -> bool:
        """Whether the topic holds commit events. Dead letters and Kafka's own topics match no pattern."""
        if topic == self.dead_letter_topic or topic.startswith(INTERNAL):
            return topic in self.named_topics
        return any(each.names(topic) for each in self.topics)

    @field_validator("options")
    @classmethod
    def _options_are_kafkas_own(cls, options: dict[str, str]) -> dict[str, str]:
        check_options(options)
        return options
