"""`firnline simulate`: replay arrivals through policies and compare them. Touches no data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.box import SIMPLE_HEAD
from rich.progress import track

from compactor.errors import InputError
from compactor.iceberg.tables import Catalogs, FileSizes, file_sizes
from compactor.planning.policy import Policy, ThresholdPolicy
from compactor.planning.tiered_policy import TieredPolicy, policy_of
from compactor.settings.policy import PolicyValues
from compactor.settings.tree import load_settings
from compactor.settings.units import read_bytes
from compactor.table_names import TableName
from compactor.whatif.simulation import FOREVER, Arrival, Outcome, bursts, regular, replay
from compactor.whole_numbers import LARGEST, whole_number
from streaming.commands.console import PlainConsole, columns, result_console
from streaming.commands.options import OUTPUT, numbers, print_result

CURVE = (2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 12.0, 16.0)
CRONS = (10, 60)
BURST, PAUSE_SECONDS = 30, 2 * 3600.0
OF_THE_PATTERN = ("commits", "sizes", "files", "interval", "pattern")
LONGEST_INTERVAL = 366 * 86_400.0  # a year; float times that are much later have no seconds left


def parse_bytes(text: str) -> int:
    """Parse a size as settings do: 1MB is 10^6 bytes, 1MiB is 2^20."""
    number = whole_number(text)
    size = read_bytes(text) if number is None else number
    if not isinstance(size, int) or not 0 < size <= LARGEST:
        raise click.BadParameter(f"{text!r} is not a size; write e.g. 1MB, 512MiB or 1048576 (bytes)")
    return size


def _sizes(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, ...]:
    return tuple(parse_bytes(part) for part in text.split(","))


def _finite(_context: click.Context, _parameter: click.Parameter, number: float) -> float:
    if not math.isfinite(number) or number > LONGEST_INTERVAL:
        raise click.BadParameter(f"{number:g} is not a number of seconds of at most {LONGEST_INTERVAL:.0f} (a year)")
    return number


@dataclass(frozen=True)
class Contender:
    name: str
    policy: Policy
    every: int = 1
    settle_after: float = FOREVER
    skip_newer: float = 0.0

    def outcome(self, arrivals: Sequence[Arrival], is_small: Callable[[int], bool]) -> Outcome:
        return replay(
            arrivals, self.policy, is_small, every=self.every, settle_after=self.settle_after,
            skip_newer=self.skip_newer,
        )  # fmt: skip


@click.command()
@click.argument("table", required=False)
@click.option("--commits", default=10_000, show_default=True, type=click.IntRange(1), help="Commits to replay.")
@click.option("--size", "sizes", default="1MB", show_default=True, callback=_sizes, help="File sizes, used in turn, "
              "e.g. 1MB,40MB. MB: 10^6 bytes, MiB: 2^20.")  # fmt: skip
@click.option("--files", default=1, show_default=True, type=click.IntRange(1), help="Files per commit and bucket.")
@click.option("--interval", default=60.0, show_default=True, type=click.FloatRange(0), callback=_finite,
              help="Seconds between commits.")  # fmt: skip
@click.option("--pattern", type=click.Choice(["regular", "bursts", "idle", "upserts"]),
              default="regular", show_default=True, help=f"bursts: {BURST} commits, then two idle hours. idle: "
              "two idle hours after every commit, the worst case for settling. upserts: each commit also adds an "
              "equality delete file, as Flink's sink does.")  # fmt: skip
@click.option("--target", default="512MB", show_default=True, callback=lambda _c, _p, text: parse_bytes(text),
              help="Target file size.")  # fmt: skip
@click.option("--policy", "chosen", default="tiered", show_default=True, type=click.Choice(["tiered", "threshold"]),
              help="Policy of the first line; the other lines are for comparison.")  # fmt: skip
@click.option("--growth", default="8", show_default=True, help="Growth factor of the tiered policy (first line).")
@click.option("--curve", default=",".join(f"{k:g}" for k in CURVE), show_default=True, callback=numbers(float, 1.01),
              help="Growth factors to compare, comma-separated.")  # fmt: skip
@click.option("--cron", "crons", default=",".join(map(str, CRONS)), show_default=True, callback=numbers(int, 1),
              help="Compare with Spark's rewrite_data_files, run every N commits; comma-separated.")  # fmt: skip
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Write a PNG with the curve and the "
              "number of small files over time. Needs matplotlib.")  # fmt: skip
@OUTPUT
@click.pass_context
def simulate(context: click.Context, /, table: str | None, plot: Path | None, output: str, **options: Any) -> None:
    """Replay an arrival pattern through the policy and through Spark's thresholds on a schedule. Touches no data.

    With TABLE, replay the commits of that table's snapshot history instead of a pattern, with the table's policy and
    target; --policy, --growth and --target replace these.

    \b
    firnline simulate --commits 10000 --size 1MB
    firnline simulate --size 1MB,40MB --pattern bursts --plot out.png
    firnline -c firnline.yaml simulate db.events
    """  # noqa: D301 - \b keeps click from re-wrapping
    values = PolicyValues(growth=_growth(options["growth"]), strategy=options["chosen"])
    sizes = _sizes_of(options["target"], values)
    arrivals: Sequence[Arrival] = list(_pattern(options)) if table is None else ()
    if table is not None:
        given = {name for name in options if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
        arrivals, values, sizes = _history(context.obj, table, options, given)
    console = PlainConsole(stderr=True)
    contenders = _contenders(values, sizes, options)
    shown = track(contenders, "replaying", console=console, transient=True, disable=not console.is_terminal)
    outcomes = [(each.name, each.outcome(arrivals, sizes.is_small)) for each in shown]
    if plot is not None:
        draw(plot, outcomes)
    policies = {"policies": [document(name, outcome) for name, outcome in outcomes]}
    print_result(output, policies, lambda: show(result_console(), outcomes))


def _growth(text: str) -> float:
    try:
        growth = float(text)
    except ValueError:
        growth = 0.0
    if not 1 < growth < math.inf:
        raise InputError(f"--growth {text}: must be a number above 1; 8 rewrites few bytes, 4 leaves fewer small files")
    return growth


def _pattern(options: dict[str, Any]) -> Iterable[Arrival]:
    commits, sizes, interval = options["commits"], options["sizes"], options["interval"]
    if options["pattern"] == "bursts":
        return bursts(commits, sizes, interval, BURST, PAUSE_SECONDS, options["files"])
    pause = PAUSE_SECONDS if options["pattern"] == "idle" else interval
    return regular(commits, sizes, pause, options["files"], upserts=options["pattern"] == "upserts")


def _sizes_of(target: int, values: PolicyValues) -> FileSizes:
    return file_sizes(values.model_copy(update={"target_file_size": target}), {})


def _history(
    config: Path | None, text: str, options: Mapping[str, Any], given: AbstractSet[str]
) -> tuple[Sequence[Arrival], PolicyValues, FileSizes]:
    """The commits of a table, with its policy and sizes; options that were `given` replace these.

    Raises:
        InputError: an option is of a pattern, or the table has no commits.
    """
    for name in OF_THE_PATTERN:
        if name in given:
            raise InputError(
                f"--{name.replace('sizes', 'size')} describes a pattern; with TABLE the commits of {text} are "
                "replayed: leave one of the two out"
            )
    # Start-up time: only needed with TABLE.
    from compactor.whatif.table_history import arrivals_of  # noqa: PLC0415
    from streaming.wiring import manifest_cache  # noqa: PLC0415

    settings = load_settings(config)
    catalogs = Catalogs(settings.catalogs)
    view = catalogs.load(TableName.parse(text, catalogs.names))
    values = settings.policy.for_table(view.name, view.properties)
    with manifest_cache(settings) as cache:
        arrivals = arrivals_of(view, cache)
    if not arrivals:
        raise InputError(f"table {view.name} has no snapshot that added files; use --commits and --size instead")
    if "growth" in given:
        values = values.model_copy(update={"growth": _growth(options["growth"])})
    if "chosen" in given:
        values = values.model_copy(update={"strategy": options["chosen"]})
    sizes = _sizes_of(options["target"], values) if "target" in given else file_sizes(values, view.properties)
    return arrivals, values, sizes


def _contenders(values: PolicyValues, sizes: FileSizes, options: Mapping[str, Any]) -> list[Contender]:
    """The policy of `values` as the service has it; tiers with other growth factors; Spark on a schedule."""
    settle = values.settle_after_seconds

    def tiered(growth: float) -> TieredPolicy:
        least = min(values.min_input_files, max(2, int(growth)))  # so that the curve shows the effect of growth only
        changed = {"growth": growth, "min_input_files": least, "skip_newer_than_seconds": 0.0}
        return TieredPolicy(values.model_copy(update=changed), sizes)

    name = "firnline, thresholds" if values.strategy == "threshold" else f"firnline, growth {values.growth:g}"
    return [
        Contender(name, policy_of(values, sizes), settle_after=settle, skip_newer=values.skip_newer_than_seconds),
        *(Contender(f"  growth {k:g}", tiered(k), settle_after=settle) for k in options["curve"]),
        *(Contender(f"Spark every {n}", ThresholdPolicy(values, sizes), every=n) for n in options["crons"]),
    ]


def document(name: str, outcome: Outcome) -> dict[str, Any]:
    return {
        "policy": name.strip(),
        "commits": outcome.arrivals,
        "bytes_in": outcome.bytes_in,
        "bytes_rewritten": outcome.bytes_rewritten,
        "bytes_settled": outcome.bytes_settled,
        "write_amplification": round(outcome.write_amplification, 3),
        "settling_amplification": round(outcome.settling, 3),
        "rewrite_commits": outcome.rewrites,
        "mean_small_files": round(outcome.mean_small_files, 2),
        "most_small_files": outcome.most_small_files,
        "most_rewrites_of_a_byte": outcome.most_rewrites,
        "overlap": round(outcome.overlap, 3),
        "mean_delete_files": round(outcome.mean_delete_files, 2),
        "most_delete_files": outcome.most_delete_files,
        "vain_rewrites": outcome.vain_rewrites,
    }


def show(console: PlainConsole, outcomes: Sequence[tuple[str, Outcome]]) -> None:
    first = outcomes[0][1]
    rows = (
        (
            name,
            f"{outcome.write_amplification:.2f}",
            f"{outcome.settling:.2f}",
            f"{outcome.mean_small_files:.2f}",
            str(outcome.most_small_files),
            f"{outcome.rewrites:,}",
            str(outcome.most_rewrites),
            f"{outcome.overlap:.2f}",
            f"{outcome.mean_delete_files:.1f}",
            str(outcome.vain_rewrites),
        )
        for name, outcome in outcomes
    )
    table = columns(
        ("", "rewritten", "settled", "mean", "most", "rewrites", "a byte", "overlap", "deletes", "in vain"),
        rows,
        left={""},
        box=SIMPLE_HEAD,
        pad_edge=False,
        title=f"{first.arrivals:,} commits, {first.bytes_in / 1024**2:,.0f} MB",
        caption="rewritten, settled: bytes rewritten per byte written. mean, most: small files after each commit. a "
        "byte: most rewrites of one byte. overlap: files of a bucket with rows of one commit. deletes: delete files, "
        "mean. in vain: rewrites of a bucket that did not reduce its files.",
    )
    console.print(table)


def draw(path: Path, outcomes: Sequence[tuple[str, Outcome]]) -> None:
    """Plot write amplification against small files, and small files over time.

    Raises:
        InputError: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an optional dependency
    except ImportError:
        raise InputError("--plot needs matplotlib: pip install 'firnline[plot]'") from None
    figure = Figure(figsize=(12, 5), layout="constrained")
    curve, time = figure.subplots(1, 2)
    for name, outcome in outcomes:
        total = outcome.write_amplification + outcome.settling
        curve.plot(outcome.mean_small_files, total, "o")
        curve.annotate(name.strip(), (outcome.mean_small_files, total), fontsize=7)
        if not name.startswith(" "):
            time.plot(outcome.small_files[:1500], label=name, linewidth=0.8)
    curve.set(xlabel="small files, mean", ylabel="bytes rewritten per byte written", xscale="log", yscale="log")
    time.set(xlabel="commits", ylabel="small files")
    time.legend(fontsize=7)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write {path}: {error}") from None
