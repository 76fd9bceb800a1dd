"""Keys that are no settings any more: accepted without effect, and named once with what holds instead."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from click.testing import CliRunner
from pydantic.fields import FieldInfo

from compactor.errors import InputError
from compactor.settings.hooks import HookSettings
from compactor.settings.removed import REMOVED
from compactor.settings.section import is_setting
from compactor.settings.tree import Settings, load_settings, load_with_sources
from streaming.cli import main

CATALOG = "catalogs: {lake: {type: rest, uri: http://c}}\n"


def field_of(key: str) -> FieldInfo | None:
    """The field of a dotted key, if the sections still have one."""
    section, _, name = key.partition(".")
    fields = (
        HookSettings.model_fields
        if section == "hooks[*]"
        else type(Settings.model_fields[section].default).model_fields
    )
    return fields.get(name)


@pytest.mark.parametrize("key", REMOVED)
def test_a_removed_key_is_no_setting_and_says_what_holds_instead(key: str) -> None:
    field = field_of(key)
    assert field is None or not is_setting(field)
    assert len(REMOVED[key]) > 15


def test_every_value_that_no_file_sets_is_a_removed_key() -> None:
    fixed = {
        f"{name}.{key}"
        for name, section in Settings.model_fields.items()
        for key, field in getattr(section.annotation, "model_fields", {}).items()
        if not is_setting(field)
    }
    assert fixed <= REMOVED.keys()


def test_removed_keys_have_no_effect_and_are_named_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "firnline.yaml"
    path.write_text(
        f"{CATALOG}service: {{lease_seconds: 5 parsecs, concurrent_runs: 3}}\n"
        "policy:\n  tables: {'db.*': {max_file_size: 1GB, growth: 4}}\nhooks: [{kind: kafka, timeout_seconds: 3}]\n"
    )
    loaded = load_with_sources(path, {"FIRNLINE_COMMIT__GROUPS": "7"})
    assert [notice.partition(" is no setting")[0] for notice in loaded.removed] == [
        "service.lease_seconds", "policy.tables.db.*.max_file_size", "hooks[0].timeout_seconds", "commit.groups"
    ]  # fmt: skip
    assert "(line 2)" in loaded.removed[0]
    assert "firnline.policy.max_file_size instead" in loaded.removed[1]
    assert "(FIRNLINE_COMMIT__GROUPS)" in loaded.removed[3]
    expected = load_settings(
        None, {"FIRNLINE_CATALOGS__LAKE__TYPE": "rest", "FIRNLINE_CATALOGS__LAKE__URI": "http://c"}
    )
    assert (loaded.settings.commit, loaded.settings.service.concurrent_runs) == (expected.commit, 3)
    assert loaded.settings.policy.tables["db.*"].growth == 4


def test_a_removed_key_in_a_value_that_stands_twice_is_taken_out_of_it_once(tmp_path: Path) -> None:
    path = tmp_path / "firnline.yaml"
    path.write_text(f"{CATALOG}policy:\n  tables: {{'a.*': &big {{max_file_size: 1GB, growth: 4}}, 'b.*': *big}}\n")
    loaded = load_with_sources(path, {})
    assert len(loaded.removed) == 2
    assert [each.growth for each in loaded.settings.policy.tables.values()] == [4, 4]


def test_a_start_logs_each_and_check_config_prints_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "firnline.yaml"
    path.write_text(f"{CATALOG}history: {{buffer_rows: 9}}\n")
    with caplog.at_level(logging.WARNING, "firnline"):
        load_settings(path, {})
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        "history.buffer_rows is no setting any more and has no effect"
    ]
    done = CliRunner().invoke(main, ["-c", str(path), "check-config"])
    assert done.exit_code == 0
    assert done.stderr.startswith("warning: history.buffer_rows is no setting any more")
    assert "buffer_rows" not in done.stdout


def test_an_unknown_key_beside_a_removed_one_is_still_refused(tmp_path: Path) -> None:
    path = tmp_path / "firnline.yaml"
    path.write_text(f"{CATALOG}history: {{buffer_rows: 9, buffer_row: 9}}\n")
    with pytest.raises(InputError, match=r"history\.buffer_row: unknown key"):
        load_settings(path, {})
