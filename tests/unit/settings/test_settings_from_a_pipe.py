"""Settings from a pipe, as `-c <(sops -d firnline.enc.yaml)` gives them: a pipe can be read once."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from compactor.errors import InputError
from compactor.settings.current import CurrentSettings
from compactor.settings.tree import load_settings
from streaming.cli import main
from streaming.service.settings_reload import LOOK_SECONDS, SettingsReload

TEXT = 'catalogs: {lake: {type: sql, uri: "sqlite:///:memory:"}}\npolicy: {growth: 4}\nlogging: {format: json}\n'
CATALOG = {"FIRNLINE_CATALOGS": '{"lake": {"type": "sql", "uri": "sqlite:///:memory:"}}'}


@pytest.fixture
def pipe() -> Iterator[Callable[[str], Path]]:
    """Makes pipes that a command has written to, and has left."""
    ends = []

    def make(text: str) -> Path:
        read, write = os.pipe()
        ends.append(read)
        os.write(write, text.encode())
        os.close(write)
        return Path(f"/dev/fd/{read}")

    yield make
    for end in ends:
        os.close(end)


@pytest.mark.parametrize("variables", [{}, CATALOG])
def test_a_command_reads_settings_from_a_pipe(pipe: Callable[[str], Path], variables: dict[str, str]) -> None:
    """With catalogs in the environment, an empty second read would be valid, and all else would have its default."""
    done = CliRunner().invoke(main, ["-c", str(pipe(TEXT)), "check-config"], env=variables)
    assert done.exit_code == 0, done.output
    assert yaml.safe_load(done.stdout)["policy"]["growth"] == 4


def test_what_is_wrong_with_settings_from_a_pipe_is_told(pipe: Callable[[str], Path]) -> None:
    done = CliRunner().invoke(main, ["-c", str(pipe(TEXT.replace("4", "four"))), "check-config"])
    assert done.exit_code == 2
    assert "policy.growth: 'four' is not allowed; allowed: a number, above 1 (line 2)" in done.stderr


def test_each_pipe_has_its_own_text(pipe: Callable[[str], Path], tmp_path: Path) -> None:
    first, second = pipe(TEXT), pipe(TEXT.replace("4", "5"))
    assert [load_settings(path, {}).policy.growth for path in (first, second, first, second)] == [4, 5, 4, 5]
    named = tmp_path / "settings"
    os.mkfifo(named)
    writer = threading.Thread(target=named.write_text, args=(TEXT,))
    writer.start()
    assert load_settings(named, {}) == load_settings(named, {})
    writer.join()


def test_a_pipe_without_text_is_an_error(pipe: Callable[[str], Path]) -> None:
    """The command that should have written to it has failed."""
    for text in ("", " \n"):
        path = pipe(text)
        for _ in range(2):
            with pytest.raises(InputError, match="is a pipe without text: see why the command that writes to it"):
                load_settings(path, CATALOG)
    assert load_settings(Path("/dev/null"), CATALOG).policy.growth == 8


def test_a_service_does_not_reload_a_pipe_and_says_so(
    pipe: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    path, steady = pipe(TEXT), 0.0
    current = CurrentSettings(load_settings(path, {}))
    with caplog.at_level(logging.INFO, "firnline"):
        reload = SettingsReload(path, current)
    reload.ticks = lambda: steady
    assert "settings come from a pipe: a change needs a restart" in caplog.text
    caplog.clear()
    assert reload.check(at_once=True) is None
    for _ in range(3):
        steady += LOOK_SECONDS
        assert reload.check() is None
    assert caplog.text == ""
    reload.ask()
    change = reload.check()
    assert "settings not reloaded: they came from a pipe, which can be read only once" in caplog.text
    assert change is not None, "the signal also asks for a look at all tables"
    assert change[0] == change[1]
    assert (current.policy.growth, reload.trouble) == (4, "")
