"""The settings in force: some sections can change while the service works, all others hold until a restart.

Parts that work with changing sections are given `CurrentSettings` and read a section each time that they use it. Each
section is frozen, and one that did not change stays the same object.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Protocol

from compactor.settings.origins import dotted
from compactor.settings.policy import PolicySettings
from compactor.settings.tree import ManifestSettings, ServiceSettings, Settings, TableRules

CHANGING: Final = ("tables", "policy", "limits", "manifests")
"""Sections that can change at run time; besides them `logging.level`. What others build at the start, e.g. connections,
threads and Spark, holds until a restart."""


class WorkSettings(Protocol):
    """The sections that counting, planning and rewriting read: of `Settings`, or of `CurrentSettings`."""

    @property
    def tables(self) -> TableRules: ...

    @property
    def policy(self) -> PolicySettings: ...

    @property
    def manifests(self) -> ManifestSettings: ...

    @property
    def service(self) -> ServiceSettings: ...


@dataclass(frozen=True)
class Reloaded:
    """Keys that changed at run time, and keys that have another value in the file but hold until a restart."""

    settings: Settings
    changed: tuple[str, ...]
    kept: tuple[str, ...]


def reloaded(running: Settings, loaded: Settings) -> Reloaded:
    """The running settings with those values of `loaded` that can change at run time. Pure."""
    update: dict[str, Any] = {
        name: getattr(loaded, name) for name in CHANGING if getattr(loaded, name) != getattr(running, name)
    }
    if loaded.logging.level != running.logging.level:
        update["logging"] = running.logging.model_copy(update={"level": loaded.logging.level})
    settings = running.model_copy(update=update)
    return Reloaded(settings, _different(running, settings), _different(settings, loaded))


class CurrentSettings:
    """The settings in force now. One thread changes them; others may read at any time."""

    def __init__(self, settings: Settings) -> None:
        self.now = settings

    def take(self, loaded: Settings) -> Reloaded:
        """Put into force what can change at run time."""
        found = reloaded(self.now, loaded)
        self.now = found.settings
        return found

    @property
    def tables(self) -> TableRules:
        return self.now.tables

    @property
    def policy(self) -> PolicySettings:
        return self.now.policy

    @property
    def manifests(self) -> ManifestSettings:
        return self.now.manifests

    @property
    def service(self) -> ServiceSettings:
        return self.now.service


def _different(one: Settings, other: Settings) -> tuple[str, ...]:
    """Keys whose values differ, sorted; values are not shown: some are secrets."""
    return tuple(sorted(_keys(one.model_dump(), other.model_dump(), ())))


def _keys(one: Any, other: Any, key: tuple[str, ...]) -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        names = {**one, **other}
        return [found for name in names for found in _keys(one.get(name), other.get(name), (*key, str(name)))]
    return [] if one == other else [dotted(key)]
