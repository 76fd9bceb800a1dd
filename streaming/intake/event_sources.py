"""What decoding takes of the settings: formats of topics, and what sources of events call the catalogs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compactor.settings.kafka import CommitTopic, KafkaSettings, format_of
from compactor.table_names import TableName
from streaming.commit_events import canonical
from streaming.commit_events.decoder import (
    MAX_LEVELS,
    MAX_NAME_CHARACTERS,
    SEND_ANOTHER,
    SWEEPS_FIND,
    BadEvent,
    BadEventReason,
    Decoded,
    RawEvent,
    TableChanged,
    decode,
    shown,
)
from streaming.commit_events.formats import BY_NAME, DECODERS

DETECT = "detect"
NO_NAME = ""
"""How settings name the catalog of events that name none."""


@dataclass(frozen=True)
class EventSources:
    """Pickled to Python workers, so it has no secrets.

    `catalogs`: the configured ones. `names`: what sources call a catalog, to its configured name; empty: its events are
    ignored. `topics`: of commit events, with their formats.
    """

    catalogs: tuple[str, ...]
    names: Mapping[str, str] = field(default_factory=dict)
    topics: tuple[CommitTopic, ...] = ()

    @classmethod
    def of(cls, kafka: KafkaSettings, catalogs: tuple[str, ...]) -> EventSources:
        """The parts of the settings."""
        return cls(catalogs, kafka.catalog_names, kafka.topics)

    def decoded(self, event: RawEvent, topic: str) -> Decoded:
        """The event, by the format of its topic."""
        name = format_of(topic, self.topics)
        if name == DETECT:
            return decode(event, DECODERS)
        decoded = decode(event, (BY_NAME[name],))
        if isinstance(decoded, BadEvent) and decoded.reason is BadEventReason.UNRECOGNISED:
            return _of_another_format(event, topic, name)
        return decoded

    def table(self, changed: TableChanged) -> TableName | BadEvent | None:
        """The table of an event, in a configured catalog; None: events of that catalog are ignored."""
        oversize = _oversize(changed)
        if oversize is not None:
            return oversize
        catalog = self._catalog(changed)
        if isinstance(catalog, BadEvent):
            return catalog
        return TableName(catalog, changed.namespace, changed.name) if catalog else None

    def _catalog(self, changed: TableChanged) -> str | BadEvent:
        """The configured catalog; empty: its events are ignored.

        A canonical event uses firnline's catalog names: a configured one is not translated (our own events were
        already), and an unknown one is an error. Other formats use names of their own: take such a name as it is if a
        catalog has it. Otherwise the catalog is only known if settings translate the name, or if a single catalog is
        configured and no name is translated.
        """
        if changed.source == canonical.SOURCE and changed.catalog in self.catalogs:
            return changed.catalog
        for name in _spellings(changed):
            if name in self.names:
                return self.names[name]
        if changed.catalog in self.catalogs:
            return changed.catalog
        if changed.source == canonical.SOURCE and changed.catalog is not None:
            return self._unknown(changed, BadEventReason.UNKNOWN_CATALOG)
        if len(self.catalogs) == 1 and (changed.catalog is None or not self.names):
            return self.catalogs[0]
        reason = BadEventReason.UNKNOWN_CATALOG if len(self.catalogs) == 1 else BadEventReason.AMBIGUOUS_CATALOG
        return self._unknown(changed, reason)

    def _unknown(self, changed: TableChanged, reason: BadEventReason) -> BadEvent:
        configured, names = ", ".join(sorted(self.catalogs)) or "none", _spellings(changed)
        named = f"catalog {shown(names[0])}" if names[0] else "no catalog"
        detail = f"the event names {named}; configured catalogs: {configured}"
        return BadEvent(reason, f"{detail}; set kafka.catalog_names: {{{shown(names[0])}: <one of them>}}")


def _oversize(changed: TableChanged) -> BadEvent | None:
    """Why the table's name is too large to be looked for; None if it is not."""
    levels, characters = len(changed.namespace), sum(map(len, (*changed.namespace, changed.name)))
    if levels > MAX_LEVELS:
        found = f"the namespace has {levels:,} levels; at most {MAX_LEVELS}"
    elif characters > MAX_NAME_CHARACTERS:
        found = f"namespace and name have {characters:,} characters; at most {MAX_NAME_CHARACTERS:,}"
    else:
        return None
    return BadEvent(BadEventReason.OVERSIZE, f"{found} are read; {SWEEPS_FIND}")


def _of_another_format(event: RawEvent, topic: str, name: str) -> BadEvent:
    found = decode(event, DECODERS)
    if isinstance(found, BadEvent):
        looks = found.detail.removesuffix(f"; {SEND_ANOTHER}")
    else:
        looks = f"the event looks like {found.source}"
    detail = f"topic {topic} is set to format {name}; {looks}; correct kafka.commit_topics, or the sender"
    return BadEvent(BadEventReason.UNRECOGNISED, detail)


def _spellings(changed: TableChanged) -> tuple[str, ...]:
    """What settings can call the event's catalog, most exact first."""
    catalog = changed.catalog or NO_NAME
    return (catalog,) if changed.realm is None else (f"{changed.realm}/{catalog}", catalog)
