"""Users a second against users a round, size of the model and users on disk, all in one process. Writes JSON.

    python benchmarks/curves.py --out curves.json                 # all, after each other
    python benchmarks/curves.py --out curves.json --draw speed.png  # draws what is there; measures nothing

The workload is mcmahan-lstm of `workloads.py`, whole rounds, and medians of five. Other sizes of the
model keep its proportions: embeddings have 3/8 of the hidden numbers. They run by the program for any model, by the
general program (`--kernels off`) and by `benchmarks/plain.py`. Populations are made in `--stores`, or used if there.

What is measured is written to the file at once, next to what other calls have left there. So a first call may compile
everything (jax's compilation cache) or make the stores, and a second one measures alone on the device.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import plain
from scaling import frame, line
from workloads import WORKLOADS, make_population, measure

from sottovoce_evidence.errors import SottoError

NAME = "mcmahan-lstm"
Measure = Callable[[], dict[str, Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="JSON")
    parser.add_argument("--cohort", type=int, nargs="*", default=[100, 200, 500, 1000, 2048, 5000])
    parser.add_argument("--block", type=int, nargs="+", default=[0, 1024], help="users at once; 0: as the program does")
    parser.add_argument("--hidden", type=int, nargs="*", default=[128, 256, 512, 768])
    parser.add_argument("--by", nargs="+", choices=PROGRAMS, default=[*PROGRAMS], help="programs for these sizes")
    parser.add_argument("--cohort-of-sizes", type=int, default=256)
    parser.add_argument("--population", type=int, nargs="*", default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--cohort-of-populations", type=int, default=100)
    parser.add_argument("--stores", type=Path, help="folder of the populations; a temporary one unless said otherwise")
    parser.add_argument("--make-stores", action="store_true", help="make the populations and measure nothing")
    parser.add_argument("--draw", type=Path, metavar="FIGURE", help="draw what was measured before")
    options = parser.parse_args()
    if options.draw:
        draw(json.loads(options.out.read_text()), options.draw)
        return
    with tempfile.TemporaryDirectory() as work:
        stores = options.stores or Path(work)
        if options.make_stores:
            for users in options.population:
                store_of(stores, users)
            return
        for curve, point in points(options, stores):
            add(options.out, curve, point)


def points(options: argparse.Namespace, stores: Path) -> Iterator[tuple[str, Measure]]:
    """Each measurement, and the curve that it is of."""
    for cohort in options.cohort:
        for block in [block for block in options.block if block <= cohort]:
            yield "by_cohort", lambda cohort=cohort, block=block: own(cohort, block) | {"asked_block": block}
    for users in options.population:
        yield "by_population", lambda users=users: own(options.cohort_of_populations, folder=store_of(stores, users))
    for program in options.by:
        for hidden in options.hidden:
            yield "by_size", lambda hidden=hidden, by=program: of_size(hidden, by, options.cohort_of_sizes)


def own(cohort: int, block: int = 0, folder: Path | None = None) -> dict[str, Any]:
    return measure(WORKLOADS[NAME], cohort, block, population=folder)


def of_size(hidden: int, program: str, cohort: int) -> dict[str, Any]:
    """A model with so many hidden numbers, trained by one of the programs."""
    size = hidden * plain.SIZE // plain.HIDDEN
    weights = plain.WORDS * size + 4 * hidden * (size + hidden) + hidden * size
    found = PROGRAMS[program](size, hidden, cohort)
    return {"program": program, "hidden": hidden, "embedding": size, "weights": weights, "cohort": cohort, **found}


def by_bench(kernels: str, size: int, hidden: int, cohort: int) -> dict[str, Any]:
    workload = replace(WORKLOADS["lstm"], changes={"model": {"embedding": size, "hidden": hidden}})
    return measure(workload, cohort, kernels=kernels)


PROGRAMS: dict[str, Callable[[int, int, int], dict[str, Any]]] = {
    "any model": lambda *sizes: by_bench("any_model", *sizes),
    "general": lambda *sizes: by_bench("off", *sizes),
    "plain JAX": lambda size, hidden, cohort: plain.rates(cohort, size=size, hidden=hidden),
}


def store_of(stores: Path, users: int) -> Path:
    folder = stores / str(users)
    if not (folder / "store.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        make_population(folder, WORKLOADS[NAME], users)
    return folder


def add(path: Path, curve: str, point: Measure) -> None:
    """Measure and write; one that fails is left out."""
    try:
        found = point()
    except (RuntimeError, ValueError, TypeError, SottoError) as error:  # for memory perhaps; there are other points
        print(f"{curve}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr, flush=True)
        return
    curves = json.loads(path.read_text()) if path.exists() else {}
    curves.setdefault(curve, []).append(
        {name: float(f"{value:.4g}") if isinstance(value, float) else value for name, value in found.items()}
    )
    path.write_text(json.dumps(curves, indent=1) + "\n")
    print(curve, json.dumps(curves[curve][-1]), file=sys.stderr, flush=True)


def draw(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    from sottovoce.reporting.draw.style import ACCENT, DEEP, MIDDLE, PAPER, drawing

    colours = (DEEP, ACCENT, MIDDLE)
    with drawing(10.4, 3.4) as canvas:
        canvas.set_layout_engine("constrained")
        canvas.get_layout_engine().set(w_pad=0.15, h_pad=0.12)
        by_cohort, by_size, by_population = canvas.subplots(1, 3)
        for block, colour in zip(sorted({row["asked_block"] for row in found["by_cohort"]}), colours, strict=False):
            rows = [row for row in found["by_cohort"] if row["asked_block"] == block]
            label = f"{block:,} at once" if block else f"{max(row['block'] for row in rows):,} at once"
            line(by_cohort, rows, "cohort", "users_per_second", 1, label, colour)
        frame(by_cohort, "users a second", "users a round", named=True)
        by_cohort.set_xticks([100, 500, 2000, 5000])
        for program, colour in zip(PROGRAMS, colours, strict=True):
            rows = [row for row in found["by_size"] if row["program"] == program]
            line(by_size, rows, "weights", "users_per_second", 1, program, colour)
        frame(by_size, f"users a second, {found['by_size'][0]['cohort']:,} a round", "weights of the model", log=True)
        by_size.set_xticks([1e6, 3e6, 6e6], ["1 million", "3", "6"])
        by_size.set_yticks([300, 1000, 3000])
        rows = found["by_population"]
        line(by_population, rows, "population", "seconds_a_round", 1000, "", DEEP)
        frame(by_population, f"milliseconds a round of {rows[0]['cohort']:,}", "users on disk")
        powers = [f"$10^{{{len(str(row['population'])) - 1}}}$" for row in rows]
        by_population.set_xticks([row["population"] for row in rows], powers)
        canvas.savefig(path, dpi=110, facecolor=PAPER)


if __name__ == "__main__":
    main()
