"""Predicates: what a filter keeps. A partition that may hold a matching row is never left out."""

from __future__ import annotations

from typing import Final

from tests.mutations.mutation import Mutation

_TIMES: Final = "tests/unit/filters/test_time_projections.py"

MUTATIONS: Final = (
    Mutation(
        "predicates",
        "the projection is strict: partitions with other rows too are left out",
        "compactor/filters/projection.py",
        "projected = field.transform.project(field.name, _bound(weaker, kind))",
        "projected = field.transform.strict_project(field.name, _bound(weaker, kind))",
        f"{_TIMES}::test_projections_read_like_sql[ts >= '2024-01-15'-month-month >= 2024-01]",
    ),
    Mutation(
        "predicates",
        "ts < '2024-01-15 10:00:00' leaves out day 2024-01-15",
        "compactor/filters/projection.py",
        "    expressions.In: Operator.IN,\n",
        "    expressions.In: Operator.IN,\n    expressions.LessThanOrEqual: Operator.LESS,\n",
        f"{_TIMES}::test_projections_read_like_sql[ts < '2024-01-15 10:00:00'-day-day <= 2024-01-15]",
    ),
    Mutation(
        "predicates",
        "!= on a lossy transform leaves out the partition of the value",
        "compactor/filters/projection.py",
        "projected = field.transform.project(field.name, _bound(weaker, kind))",
        "projected = field.transform.project(field.name, _bound(weaker, kind)) or (\n"
        "                expressions.NotIn(field.name, {0, 1}) if leaf.operator is Operator.NOT_IN else None\n"
        "            )",
        f"{_TIMES}::test_projections_read_like_sql[ts <> '2024-01-15'-day-day IS NOT NULL]",
    ),
    Mutation(
        "predicates",
        "a constant that the column cannot hold is rounded: x < 5.255 becomes x < 5.25",
        "compactor/filters/values.py",
        'Fit.BELOW: {"=": None, "!=": Operator.NOT_NULL, "<": Operator.AT_MOST, ">=": Operator.GREATER},',
        'Fit.BELOW: {"=": None, "!=": Operator.NOT_NULL, "<": Operator.LESS, ">=": Operator.GREATER},',
        "tests/unit/filters/test_where.py::test_constants_mean_their_exact_value",
    ),
)
