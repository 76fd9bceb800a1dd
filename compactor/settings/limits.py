"""Settings of limits: what rewrites may cost in an hour, and when none starts."""

from __future__ import annotations

from datetime import time

from pydantic import Field, field_validator

from compactor.settings.section import KeyProblemError, Section
from compactor.settings.texts import Glob
from compactor.settings.units import Bytes


class HourCaps(Section):
    """What runs may cost in any 60 minutes: of all tables, or of the tables of one namespace."""

    bytes_per_hour: Bytes | None = Field(
        default=None,
        ge=1,
        description="Bytes that runs of all tables may read in any 60 minutes. A table with more bytes due starts "
        "when nothing was read in the last 60 minutes, and rewrites that many bytes. Exceeded at most by one output "
        "file, by one conversion of equality deletes that share data files, or by one merge of manifests. Unset: no "
        "limit.",
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
        description="Estimated catalog calls that runs of all tables may make in any 60 minutes: 6 for each plan, 6 "
        "for each attempt to commit. Calls of the ledger and of sweeps (one per table and look) are not counted. "
        "Unset: no limit.",
    )


class LimitSettings(HourCaps):
    """Limits of the service. They delay the start of runs; they do not stop a running one.

    Everything that rewrites cost counts, also runs that fail or come too late, and merges of manifests. A restart does
    not begin a new hour.
    """

    quiet_hours: tuple[str, ...] = Field(
        default=(),
        examples=['["22:00-06:00"]'],
        description='Hours in UTC in which no run starts, e.g. ["22:00-06:00"].',
    )
    commits_per_table_and_hour: int | None = Field(
        default=None,
        ge=1,
        description="`replace` commits that one table may have in any 60 minutes, each part of a long run and "
        "merges of manifests included. Unset: no limit.",
    )
    namespaces: dict[Glob, HourCaps] = Field(
        default_factory=dict,
        examples=['{"sales.*": {bytes_per_hour: 200GB}}'],
        description="Budgets of namespaces, by glob of their tables: a map of the three `…_per_hour` keys above. All "
        "tables that match a glob share its budget. A table must fit the limits of all tables and every budget whose "
        "glob matches it, so that one team's backlog does not use up the hour of the others.",
    )

    @field_validator("quiet_hours")
    @classmethod
    def _quiet_hours_are_spans(cls, spans: tuple[str, ...]) -> tuple[str, ...]:
        quiet = [_span(span) for span in spans]
        if quiet and all(any(_holds(span, end) for span in quiet) for _, end in quiet):
            raise ValueError(
                "together they leave no open hour, so that nothing would ever be compacted; remove one, or use "
                "`firnline pause`"
            )
        return spans

    @field_validator("namespaces")
    @classmethod
    def _a_budget_limits_something(cls, namespaces: dict[str, HourCaps]) -> dict[str, HourCaps]:
        for glob, caps in namespaces.items():
            if caps == HourCaps():
                keys = ", ".join(HourCaps.model_fields)
                raise KeyProblemError((glob,), f"limits nothing: set one of {keys}, or remove it")
        return namespaces

    @property
    def quiet_spans(self) -> tuple[tuple[time, time], ...]:
        """`quiet_hours` as (from, until) in UTC."""
        return tuple(_span(span) for span in self.quiet_hours)


def _span(text: str) -> tuple[time, time]:
    start, _, end = text.partition("-")
    try:
        found = time.fromisoformat(start.strip()), time.fromisoformat(end.strip())
    except ValueError:
        found = time.min, time.min
    if found[0] == found[1] or any(each.tzinfo for each in found):
        raise ValueError(f"{text!r} is not a span of hours; write two different times in UTC, e.g. 22:00-06:00")
    return found


def _holds(span: tuple[time, time], moment: time) -> bool:
    """Whether the moment lies in the span; one that ends before it starts spans midnight."""
    start, end = span
    return start <= moment < end if start < end else moment >= start or moment < end
