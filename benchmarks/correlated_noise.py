"""Top-1 against ε for kinds of noise, drawn from a table of runs (docs/results/correlated-noise.md).

python benchmarks/correlated_noise.py docs/results/correlated-noise.csv --figure docs/results/correlated-noise.png
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from sottovoce.files import write_aside
from sottovoce.reporting.draw.panels import Panel, Point, Series, draw_panels
from sottovoce.reporting.draw.style import COLOURS, INK

KINDS = {"blt": "BLT, in turn", "independent": "independent, Poisson"}
SETTING = {"cohort": "1000", "rounds": "200", "clip_norm": "7.5", "server_rate": "1.5", "momentum": "0"}
PUBLIC = 0.1392  # top-1 of the public model on the same people


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--figure", type=Path, required=True, help="a PNG file")
    options = parser.parse_args()
    with options.table.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if SETTING.items() <= row.items()]
    places = sorted({float(row["epsilon"]) for row in rows})
    series = [
        Series(label, [_point(rows, kind, place) for place in places], colour)
        for (kind, label), colour in zip(KINDS.items(), COLOURS, strict=False)
    ]
    level = [Point(place, PUBLIC, PUBLIC, PUBLIC) for place in places]
    series.append(Series("public model", level, INK, dotted=True))
    write_aside(options.figure, draw_panels([Panel("", series, "ε at δ = 1e-5, one user added or removed", places)]))


def _point(rows: list[dict[str, str]], kind: str, epsilon: float) -> Point:
    """The mean over seeds, with the least and the largest."""
    found = [float(row["top1"]) / 100 for row in rows if row["noise"] == kind and float(row["epsilon"]) == epsilon]
    return Point(epsilon, sum(found) / len(found), min(found), max(found))


if __name__ == "__main__":
    main()
