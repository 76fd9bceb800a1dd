"""Break the ledger on purpose, one way at a time, and play sequences until one fails.

The project is copied to a temporary folder and changed there, as `tests/mutations/` does.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from tests.ledger.play import Order
from tests.mutations.mutation import Mutation, MutationError
from tests.mutations.trial import _environment, copied

ROOT: Final = Path(__file__).parents[2]
SAMPLE: Final = "tests/properties/test_ledger_histories.py::test_the_ledger_is_exact_under_random_histories"
BROKEN: Final = 2
_ARITHMETIC: Final = "compactor/debt/ledger.py"
_CHANGES: Final = "compactor/debt/table_changes.py"
_LOOKER: Final = "streaming/ledger/looker.py"
_WRITER: Final = "streaming/ledger/board_writer.py"


def _broken(what: str, path: str, before: str, after: str) -> Mutation:
    return Mutation("16", what, path, before, after, SAMPLE)


MUTATIONS: Final = (
    _broken(
        "removed files are ignored",
        _CHANGES,
        "deltas[entry.key] += counts if entry.status is Status.ADDED else -counts",
        "deltas[entry.key] += counts if entry.status is Status.ADDED else PartitionCounts()",
    ),
    _broken(
        "removed delete files are ignored",
        _CHANGES,
        "counts if entry.status is Status.ADDED else -counts",
        "counts if entry.status is Status.ADDED else -counts if entry.content is Content.DATA else PartitionCounts()",
    ),
    _broken(
        "files that a snapshot keeps in a new manifest are counted as removed",
        _CHANGES,
        "if entry.status is not Status.EXISTING and entry.snapshot_id == snapshot.snapshot_id:",
        "if True:",
    ),
    _broken(
        "the newest snapshot of any branch is counted",
        "compactor/iceberg/tables.py",
        "return metadata.current_snapshot() if ref == MAIN else metadata.snapshot_by_name(ref)",
        "return max(metadata.snapshots, key=lambda each: each.timestamp_ms, default=None)",
    ),
    _broken(
        "the partition spec is forgotten",
        "compactor/manifests/columns.py",
        "key = PartitionKey(self.layout.spec_id, str(self.texts[index]))",
        "key = PartitionKey(0, str(self.texts[index]))",
    ),
    _broken(
        "a gap in the history is no reason to recount",
        _CHANGES,
        "            return gap_in(metadata)",
        "            break",
    ),
    _broken(
        "a rollback is taken for appends",
        _CHANGES,
        "        if snapshot is None:\n            return gap_in",
        "        if snapshot_id is None:\n            break\n        if snapshot is None:\n            return gap_in",
    ),
    _broken(
        "a table that was dropped stays on the board",
        _LOOKER,
        "        self.board.forget(table, keep_requests=keep_requests)\n        if was_known or",
        "        if was_known or",
    ),
    _broken(
        "tables that are not listed any more are not looked at",
        "streaming/ledger/table_watcher.py",
        "if table.catalog == catalog and table not in found and self._watches(table)",
        "if False",
    ),
    _broken(
        "the snapshot that was counted last is counted again",
        _CHANGES,
        "    return tuple(reversed(new))\n",
        "    last = metadata.snapshot_by_id(counted_snapshot_id)\n"
        "    return tuple(reversed([*new, *([] if last is None else [last])]))\n",
    ),
    _broken(
        "any event of a known table is taken for a duplicate",
        _LOOKER,
        "return known is not None and announced_at <= known.loaded_at and snapshot_id in known.seen",
        "return known is not None",
    ),
    _broken(
        "an event about a rollback is taken for a duplicate",
        _LOOKER,
        "return known is not None and announced_at <= known.loaded_at and snapshot_id in known.seen",
        "return known is not None and snapshot_id in known.seen",
    ),
    _broken(
        "snapshots of all branches are taken for counted, and any event for an old one",
        _LOOKER,
        '        seen = array("q", _newest_ancestors(view))\n',
        '        seen = array("q", (each.snapshot_id for each in view.metadata.snapshots))\n        started += 1e9\n',
    ),
    _broken(
        "a rewritten file is one sequence number older than it is",
        _CHANGES,
        "before = bisect_right(self.by_sequence, data_sequence_number, key=itemgetter(0))",
        "before = bisect_right(self.by_sequence, data_sequence_number - 1, key=itemgetter(0))",
    ),
    _broken(
        "delete files are counted as data files",
        _CHANGES,
        "    if entry.content is Content.DATA:\n",
        "    if entry.content is not Content.EQUALITY_DELETES:\n",
    ),
    _broken(
        "equality deletes are counted as position deletes",
        _CHANGES,
        "by_position = content[part] == _POSITION_DELETES",
        "by_position = content[part] >= _POSITION_DELETES",
    ),
    _broken(
        "a file of another partition of the same slot is lost",
        _ARITHMETIC,
        "        counts = dict(unpack(packed)) if packed else {}\n",
        "        counts = {key: each for key, each in unpack(packed) if key in changes} if packed else {}\n",
    ),
    _broken(
        "the last piece of a long recount is lost",
        _ARITHMETIC,
        "range(SLOTS + number, SLOTS * (earlier + 2), SLOTS)",
        "range(SLOTS + number, SLOTS * (earlier + 1), SLOTS)",
    ),
    _broken(
        "a recount whose table has moved on is the last look",
        _ARITHMETIC,
        "more=not done or behind",
        "more=not done",
    ),
    _broken(
        "a walk that its budget has cut short is the last look",
        _ARITHMETIC,
        "more=len(taken) < len(unseen)",
        "more=False",
    ),
    _broken(
        "another target size is no reason to recount",
        _ARITHMETIC,
        "    if head.sizes != sizes:\n",
        "    if False:\n",
    ),
    _broken(
        "a recount leaves counts of the last state on disk",
        "compactor/storage/ledger_database.py",
        "self._head, self._cleared, self._changed = None, True, {}",
        "self._head, self._cleared, self._changed = None, False, {}",
    ),
    _broken(
        "what could not be saved is taken for saved",
        _LOOKER,
        "if update.more or not saved:  # the next look",
        "if update.more:  # the next look",
    ),
    _broken(
        "partitions without files stay",
        _ARITHMETIC,
        "            if counts[key].is_empty:\n                del counts[key]\n",
        "",
    ),
    _broken(
        "a table that was unreadable for a while stays stale",
        _WRITER,
        "debt = replace(known, stale=None, recounting=False)",
        "debt = known",
    ),
    _broken(
        "another policy does not reach a large table",
        _WRITER,
        "and self._is_fresh(kept, now) and kept.by == by:",
        "and self._is_fresh(kept, now):",
    ),
    _broken(
        "new settings do not reach a table that has not changed",
        _LOOKER,
        " and not any(map(is_not, known.settings, self._sections))",
        "",
    ),
    _broken(
        "a look that dies half way leaves half a state on disk",
        "compactor/storage/ledger_database.py",
        "        self._changed[number] = packed\n",
        "        self._changed[number] = packed\n"
        "        self._database.save(self._name, head=None, cleared=False, slots={number: packed})\n",
    ),
)


@dataclass(frozen=True)
class Tried:
    """One mutation: whether a sequence failed, after how many, and how."""

    what: str
    verdict: str
    sequences: int
    seconds: float
    how: str

    @property
    def caught(self) -> bool:
        return self.verdict == "caught"


def try_mutations(console: Console, order: Order, match: str, output: str) -> int:
    """Try all whose words contain `match`; the exit code: 1 if one is not caught, 2 if one does not fit the code."""
    chosen = [mutation for mutation in MUTATIONS if match in mutation.what]
    try:
        with tempfile.TemporaryDirectory(prefix="ledger-mutations-") as folder:
            copy = copied(ROOT, Path(folder))
            tried = [_tried(copy, mutation, order, console) for mutation in chosen]
    except MutationError as error:
        console.print(f"[bold red]{error}", soft_wrap=True)
        return BROKEN
    if output == "json":
        click.echo(json.dumps([each.__dict__ for each in tried], indent=2))
    else:
        _show(console, tried)
    return int(not all(each.caught for each in tried))


def _tried(copy: Path, mutation: Mutation, order: Order, console: Console) -> Tried:
    file = copy / mutation.path
    whole, broken = file.read_text(encoding="utf-8"), mutation.applied_to(copy)
    started = time.monotonic()
    file.write_text(broken, encoding="utf-8")
    try:
        document, tail = _played(copy, replace(order, sequences=order.sequences // 2, spark=False))
        if order.spark and document is not None and not document["failed"]:
            document, tail = _played(copy, order)
    finally:
        file.write_text(whole, encoding="utf-8")
    seconds = time.monotonic() - started
    if document is None:
        done = Tried(mutation.what, "UNCLEAR", 0, seconds, tail)
    else:
        failed = document["failed"]
        how = _last_error(failed[0]) if failed else ""
        done = Tried(mutation.what, "caught" if failed else "NOT CAUGHT", document["sequences"], seconds, how)
    console.print(
        f"{done.verdict} after {done.sequences} sequences, {seconds:.0f} s: {done.what}: {done.how}", markup=False
    )
    return done


def _played(copy: Path, order: Order) -> tuple[dict[str, Any] | None, str]:
    """The result of playing in the copy; None if it did not run to an end. And the end of the output."""
    options = ["--sequences", order.sequences, "--steps", order.steps, "--seed", order.seed, "--jobs", 1, "--no-shrink"]
    options += ["--writers", "both" if order.spark else "pyiceberg", "--output", "json"]
    command = [sys.executable, "-m", "tests.ledger", *map(str, options)]
    done = subprocess.run(command, cwd=copy, env=_environment(copy), capture_output=True, text=True, check=False)
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return None, (done.stdout + done.stderr)[-2000:]
    return document, ""


def _last_error(text: str) -> str:
    """The line of a traceback that names the error."""
    lines = [line for line in text.splitlines() if "Error" in line.partition(":")[0] and not line.startswith(" ")]
    return lines[-1][:160] if lines else text[-160:]


def _show(console: Console, tried: list[Tried]) -> None:
    table = Table("broken", "", "sequences", "s", "how")
    for each in tried:
        style = "green" if each.caught else "bold red"
        table.add_row(each.what, f"[{style}]{each.verdict}[/]", str(each.sequences), f"{each.seconds:.0f}", each.how)
    console.print(table)
    console.print(f"{sum(each.caught for each in tried)} of {len(tried)} caught")
