"""`firnline pause` and `firnline resume`: forbid and allow rewrites of tables, without Kafka and without a restart.

Both change small documents in the folder of the checkpoint, which the service reads every few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from compactor.errors import InputError
from compactor.reasons import Reason
from compactor.runs.pauses import Pause, PauseFolder
from compactor.settings.texts import GLOB
from compactor.settings.tree import load_settings
from compactor.settings.units import read_seconds
from streaming.commands.options import OUTPUT, print_result
from streaming.commands.streams import printable

EVERYTHING = "*"
LONGEST_REASON = 500
LONGEST_SECONDS = 3_653 * 86_400.0
"""Ten years."""


def _glob(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    if text is not None and not text.isprintable():
        raise click.BadParameter(f"{text!r} has characters that cannot be printed")
    try:
        return None if text is None else GLOB.check(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _seconds(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
    found = None if text is None else read_seconds(text)
    if isinstance(found, float) and found > LONGEST_SECONDS:
        raise click.BadParameter(
            f"{text!r} is more than ten years: leave out --for, and the pause holds until `firnline resume`"
        )
    if found is None or (isinstance(found, float) and found > 0):
        return found
    what = "has no unit" if str(found).strip().isdecimal() else "is not a time"
    raise click.BadParameter(f"{text!r} {what}: write e.g. 30min, 2h or 1d")


def _reason(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    if len(text) > LONGEST_REASON or not text.isprintable():
        raise click.BadParameter(f"write one line of at most {LONGEST_REASON} characters")
    return text


@click.command()
@click.argument("glob", required=False, callback=_glob)
@click.option("--for", "seconds", metavar="TIME", callback=_seconds, help="Resume after this time, e.g. 30min, 2h, 1d. "
              "Without it, until `firnline resume`.")  # fmt: skip
@click.option("--reason", metavar="TEXT", default="", callback=_reason, help="Shown on the status page and in the log.")
@click.option("--list", "only_list", is_flag=True, help="Show the pauses; change nothing.")
@OUTPUT
@click.pass_obj
def pause(
    config: Path | None, /, glob: str | None, seconds: float | None, reason: str, only_list: bool, output: str
) -> None:
    """Stop the running service from rewriting tables that match GLOB (default: all tables), within 15 seconds.

    Running rewrites of these tables stop before their commit; a commit that is being sent ends. Tables are still
    counted. Works while Kafka is down: the pause is a small file in the folder state.checkpoint, so run this where
    that is. `compact` is not affected.
    """
    if only_list and (glob is not None or seconds is not None or reason):
        raise click.UsageError("--list shows all pauses and changes none; leave out the other options")
    folder, now = _folder(config), time.time()
    if not only_list:
        until = None if seconds is None else now + seconds
        folder.add(Pause(glob or EVERYTHING, now, until, reason))
    _show(folder.load(), now, output)


@click.command()
@click.argument("glob", required=False)
@OUTPUT
@click.pass_obj
def resume(config: Path | None, /, glob: str | None, output: str) -> None:
    """End the pause of exactly this GLOB; without GLOB, all pauses. The service notices within seconds."""
    folder, now = _folder(config), time.time()
    known = [each.glob for each in folder.load()]
    if glob is not None and glob not in known:
        there = f"there are pauses of: {', '.join(map(printable, known))}" if known else "nothing is paused"
        raise InputError(f"there is no pause of {printable(glob)}; {there}")
    for each in known if glob is None else [glob]:
        folder.remove(each)
    _show(folder.load(), now, output)


def _folder(config: Path | None) -> PauseFolder:
    checkpoint = load_settings(config).state.checkpoint
    if not checkpoint:
        raise InputError(
            "state.checkpoint is not set; pauses are kept in that folder, where the service reads them",
            reason=Reason.BAD_SETTING,
        )
    folder = PauseFolder(checkpoint)
    folder.check_place()
    return folder


def _show(pauses: Sequence[Pause], now: float, output: str) -> None:
    holding = [each for each in pauses if each.holds(now)]
    text = "\n".join(f"paused: {pause_text(each)}" for each in holding) or "nothing is paused"
    print_result(output, {"pauses": [asdict(each) for each in holding]}, lambda: click.echo(text))


def pause_text(pause: Pause) -> str:
    """A pause in one line."""
    end = "`firnline resume`" if pause.until is None else f"{datetime.fromtimestamp(pause.until, UTC):%F %TZ}"
    return f"{pause.glob} until {end}{f': {pause.reason}' if pause.reason else ''}"
