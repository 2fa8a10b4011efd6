"""The cost of a round by the size of the cohort and of the population. Prints JSON; --figure draws it.

    python benchmarks/scaling.py --figure scaling.png > scaling.json

Populations are made on disk in a temporary folder (TMPDIR), one after the other: ten million users of the demo take
3.6 GB. Each measurement has a process of its own, so that its peak memory is known.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads import WORKLOADS, make_population, measure

from sottovoce.commands.bench import apart, process_peak

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIB = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=WORKLOADS, default="demo")
    parser.add_argument("--population", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6, 10**7])
    parser.add_argument("--cohort", type=int, nargs="+", default=[25, 100, 400, 1600])
    parser.add_argument("--usual-population", type=int, default=10**5, help="population for the curve over cohorts")
    parser.add_argument("--usual-cohort", type=int, default=100, help="cohort for the curve over populations")
    parser.add_argument("--block", type=int, default=0, help="users in a block; 0: automatic")
    parser.add_argument("--figure", type=Path, help="a PNG or SVG file")
    parser.add_argument(
        "--drawn-from", type=Path, metavar="JSON", help="draw the output of an earlier call; measure nothing"
    )
    options = parser.parse_args()
    found = json.loads(options.drawn_from.read_text()) if options.drawn_from else curves(options)
    if options.figure:
        draw(found, options.figure)
    if not options.drawn_from:
        print(json.dumps(found, indent=1))


def curves(options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    pairs = {(population, options.usual_cohort) for population in options.population}
    pairs |= {(options.usual_population, cohort) for cohort in options.cohort}
    found = {}
    for population in sorted({population for population, _ in pairs}):
        with tempfile.TemporaryDirectory() as work:
            made = apart(_make, Path(work), options.workload, population)
            for cohort in sorted(cohort for there, cohort in pairs if there == population):
                found[population, cohort] = made | measure_apart(options, cohort, Path(work))
                print(f"{cohort} of {population}: {found[population, cohort]}", file=sys.stderr)
    return {
        "by_population": [found[population, options.usual_cohort] for population in sorted(options.population)],
        "by_cohort": [found[options.usual_population, cohort] for cohort in sorted(options.cohort)],
    }


def measure_apart(options: argparse.Namespace, cohort: int, folder: Path) -> dict[str, Any]:
    found = apart(measure, WORKLOADS[options.workload], cohort, options.block, "auto", folder)
    return {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in found.items()}


def _make(folder: Path, workload: str, users: int) -> dict[str, Any]:
    begun = time.perf_counter()
    make_population(folder, WORKLOADS[workload], users)
    seconds = time.perf_counter() - begun
    size = (folder / "train.arrow").stat().st_size
    return {"make_seconds": float(f"{seconds:.4g}"), "make_peak_bytes": process_peak(), "store_bytes": size}


def draw(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    from sottovoce.reporting.draw.style import ACCENT, DEEP, MIDDLE, PAPER, drawing

    by_population, by_cohort = found["by_population"], found["by_cohort"]
    with drawing(9.6, 6.2) as canvas:
        canvas.set_layout_engine("constrained")
        canvas.get_layout_engine().set(w_pad=0.15, h_pad=0.12)
        ((seconds, memory), (speed, room)) = canvas.subplots(2, 2)
        cohort, population = by_population[0]["cohort"], by_cohort[0]["population"]
        lines = {
            "make the store": ("make_seconds", ACCENT),
            "open it": ("open_seconds", MIDDLE),
            f"a round of {cohort:,}": ("seconds_a_round", DEEP),
        }
        for label, (name, colour) in lines.items():
            line(seconds, by_population, "population", name, 1, label, colour)
        frame(seconds, "seconds", "users on disk", log=True)
        lines = {
            "file of the store": ("store_bytes", ACCENT),
            "making it": ("make_peak_bytes", MIDDLE),
            f"rounds of {cohort:,}": ("peak_bytes", DEEP),
        }
        for label, (name, colour) in lines.items():
            line(memory, by_population, "population", name, 1 / MIB, label, colour)
        frame(memory, "peak memory of the process, MiB", "users on disk", log=True)
        line(speed, by_cohort, "cohort", "users_per_second", 1, "", DEEP)
        frame(speed, f"users a second, of {population:,} on disk", "users a round")
        line(room, by_cohort, "cohort", "peak_bytes", 1 / MIB, "", DEEP)
        frame(room, f"peak memory of the process, MiB, of {population:,} on disk", "users a round")
        canvas.savefig(path, dpi=110, facecolor=PAPER)


def line(axes: Axes, rows: list[dict[str, Any]], across: str, name: str, scale: float, label: str, colour: str) -> None:
    values = [row[name] * scale for row in rows]
    axes.plot([row[across] for row in rows], values, "o-", color=colour, markersize=3.5, label=label)


def _label_ends(axes: Axes) -> None:
    """Write the name of each line at its end, moved apart where they would overlap."""
    from sottovoce.reporting.draw.style import spread

    to_share = axes.transData + axes.transAxes.inverted()
    ends = [to_share.transform(line.get_xydata()[-1]) for line in axes.lines]
    for line, (x, _), height in zip(axes.lines, ends, spread([y for _, y in ends], 0.08), strict=True):
        axes.annotate(
            line.get_label(),
            (x, height),
            xycoords="axes fraction",
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=line.get_color(),
        )


def frame(axes: Axes, title: str, across: str, *, log: bool = False, named: bool = False) -> None:
    """Title, scales and ticks. Lines have their names at their ends on a logarithmic scale, or where asked for."""
    from matplotlib.ticker import FuncFormatter, LogFormatterSciNotation

    axes.set_title(title, loc="left", fontsize=9, pad=9)
    axes.set_xlabel(across, loc="right")
    axes.set_xscale("log")
    if log:
        axes.set_yscale("log")
    else:
        ticks = axes.lines[0].get_xdata()
        axes.set_xticks(ticks)
        axes.set_ylim(0, 1.15 * max(max(each.get_ydata()) for each in axes.lines))
    if log or named:
        _label_ends(axes)
    axes.minorticks_off()
    plain = FuncFormatter(lambda value, _: f"{value:,.10g}")
    axes.xaxis.set_major_formatter(LogFormatterSciNotation() if log else plain)
    axes.yaxis.set_major_formatter(plain)


if __name__ == "__main__":
    main()
