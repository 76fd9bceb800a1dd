"""What changes at run time and what holds until a restart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from compactor.settings.current import CHANGING, CurrentSettings, reloaded
from compactor.settings.tree import Settings

CATALOG = {"lake": {"type": "sql", "uri": "sqlite:///:memory:"}}


def settings(**sections: object) -> Settings:
    return Settings.model_validate({"catalogs": CATALOG, **sections})


def test_the_sections_of_the_work_change_and_the_others_hold() -> None:
    running = settings(tables={"include": ["a.*"]}, http={"port": 1})
    secret = {"lake": {**CATALOG["lake"], "password": "hunter2"}}
    loaded = settings(
        catalogs=secret,
        tables={"include": ["b.*"]},
        limits={"bytes_per_hour": 5},
        policy={"tables": {"b.t": {"min_input_files": 3}}},
        logging={"level": "DEBUG", "format": "json"},
        http={"port": 2},
    )
    found = reloaded(running, loaded)
    assert found.changed == ("limits.bytes_per_hour", "logging.level", "policy.tables.b.t", "tables.include")
    assert found.kept == ("catalogs.lake.password", "http.port", "logging.format")
    assert found.settings == settings(
        tables=loaded.tables, limits=loaded.limits, policy=loaded.policy, logging={"level": "DEBUG"}, http={"port": 1}
    )


def test_what_did_not_change_is_the_same_object() -> None:
    current = CurrentSettings(settings(tables={"include": ["a.*"]}))
    tables, policy = current.tables, current.policy
    assert current.take(settings(tables={"include": ["a.*"]}, policy={"min_input_files": 9})).kept == ()
    assert current.tables is tables
    assert current.policy is not policy
    assert current.policy.min_input_files == 9
    assert current.service is current.now.service


SECTIONS = st.fixed_dictionaries(
    {},
    optional={
        "tables": st.just({"include": ["b.*"]}),
        "limits": st.just({"bytes_per_hour": 5}),
        "manifests": st.just({"rewrite": False}),
        "policy": st.just({"min_input_files": 9}),
        "http": st.just({"port": 2}),
        "service": st.just({"concurrent_runs": 3}),
        "kafka": st.just({"commit_topic": "other"}),
        "commit": st.just({"hold_seconds": 7}),
        "history": st.just({"table": "lake.ops.history"}),
    },
)


@given(SECTIONS, SECTIONS)
def test_after_a_reload_only_what_was_said_to_need_a_restart_differs(
    one: dict[str, object], other: dict[str, object]
) -> None:
    current, loaded = CurrentSettings(settings(**one)), settings(**other)
    first = current.take(loaded)
    assert {key.split(".")[0] for key in first.changed} <= {*CHANGING, "logging"}
    assert not {key.split(".")[0] for key in first.kept} & set(CHANGING)
    assert (current.now == loaded) == (first.kept == ())
    again = current.take(loaded)
    assert (again.changed, again.kept) == ((), first.kept)
