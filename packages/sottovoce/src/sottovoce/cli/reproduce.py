"""`sotto reproduce`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from sottovoce.cli.display import gentle_stop, print_json, progress_of_rounds
from sottovoce.cli.options import Flag, Json, Paths, option
from sottovoce_evidence.errors import SottoError, count_of
from sottovoce_evidence.files import Json as JsonObject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sottovoce.papers.engine.paper import Paper
    from sottovoce.papers.reproduce import MissingRuns

DEFAULT_PAPER = "mcmahan2018"
Many = Parameter(consume_multiple=True, negative=())


@Parameter(name="*")
@dataclass(frozen=True)
class What:
    """Which experiments, and how much of them."""

    figure: Annotated[list[int] | None, Many, option("Figures by number.")] = None
    table: Annotated[list[int] | None, Many, option("Tables by number.")] = None
    experiment: Annotated[list[str] | None, Many, option("Others by name, as `--list` shows them; else all.")] = None
    size: Annotated[
        Literal["smoke", "cpu", "gpu"],
        option("smoke: seconds. cpu: minutes. gpu: the paper's model."),
    ] = "smoke"
    seeds: Annotated[int, option("Runs of every setting: from two on, tables give the spread.")] = 1
    rounds: Annotated[int | None, option("Rounds of a run, instead of the size's.")] = None
    undecided: Annotated[Flag, option("Only more seeds (--seeds) for claims: those that cannot be told first.")] = False

    @property
    def names(self) -> list[str]:
        figures, tables = self.figure or (), self.table or ()
        return [*(f"figure-{n}" for n in figures), *(f"table-{n}" for n in tables), *(self.experiment or ())]


@Parameter(name="*")
@dataclass(frozen=True)
class Texts:
    """The stores to train on."""

    users: Annotated[Paths, option("A prepared store (three for Figures 11 and 12). Without: synthetic users.")] = None
    other: Annotated[Path | None, option("A store of another corpus with the same words, or the Penn Treebank.")] = None
    public: Annotated[Path | None, option("A store of public text with the same words, to pre-train on.")] = None
    declared_users: Annotated[int, option("The population that private-model declares: a round number.")] = 0


@Parameter(name="*")
@dataclass(frozen=True)
class Mode:
    """What to do with the experiments."""

    from_results: Annotated[Flag, option("Train nothing: draw what is in the folder.")] = False
    claims: Annotated[Flag, option("Train nothing: check claims against the folder, or those in it.")] = False
    list: Annotated[Flag, option("Print what there is (or is left: --undecided) and what it costs.")] = False
    json: Json = False


WHAT, TEXTS, MODE = What(), Texts(), Mode()
Name = Literal["mcmahan2018", "schultz2019", "popov2018"]


def reproduce(
    paper: Annotated[Name | None, option("Which paper (default: mcmahan2018; with --list: all).")] = None,
    *,
    what: What = WHAT,
    texts: Texts = TEXTS,
    out: Annotated[Path | None, option("Folder for runs, results, figures and tables.")] = None,
    mode: Mode = MODE,
) -> None:
    """Run the tables and figures of a paper again. A call that was stopped continues where it was.

    Exit status 130 if Ctrl-C stopped it.

    Examples:
        sotto reproduce --list
        sotto reproduce mcmahan2018 --figure 3 --out results
    """
    if mode.list and not what.undecided:
        _list(paper, what, json=mode.json)
        return
    if out is None:
        raise SottoError("--out is missing: name a folder for runs, results, figures and tables (or say --list)")
    from sottovoce.papers import reproduce as running

    if mode.list:
        running.check_paper(out, paper)
        _list_missing(running.missing_runs(out, what.seeds), json=mode.json)
        return
    if mode.claims and paper is None and not mode.json and out.is_dir() and not running.holds_reproduction(out):
        print(running.write_claims_page(out), end="")
        return
    if mode.claims or mode.from_results:
        running.check_paper(out, paper)
    if mode.claims:
        checked, table = running.check_claims(out)
        print_json({"claims": [each.to_json() for each in checked]}) if mode.json else print(table)
        return
    stopped = None
    if mode.from_results:
        for part in running.redraw(what.names, out):
            if not mode.json:
                print(part, flush=True)
    else:
        stopped = _run(paper or DEFAULT_PAPER, what, texts, out, quiet=mode.json)
    if mode.json:
        print_json({"out": str(out), "finished": not stopped, "experiments": running.summary(what.names, out)})
    else:
        print("stopped; the same command goes on" if stopped else f"figures, tables and results are in {out}")
    if stopped:
        sys.exit(stopped)


def _run(name: str, what: What, texts: Texts, out: Path, *, quiet: bool) -> int | None:
    """Do what is asked; the exit status where it was stopped."""
    from sottovoce.papers import reproduce as running
    from sottovoce.papers.engine.populations import Stores
    from sottovoce.papers.engine.runner import Console
    from sottovoce.papers.registry import PAPERS

    paper = PAPERS[name]
    request = running.Request(paper, what.names, paper.size(what.size, what.rounds), what.seeds, what.undecided)
    stores = Stores(tuple(texts.users or ()), texts.other, texts.public, texts.declared_users)
    log = (lambda text: None) if quiet else partial(print, flush=True)
    with gentle_stop() as stop:
        console = Console(log, partial(progress_of_rounds, quiet=quiet), stop)
        return None if running.reproduce(request, out, stores, console) else stop.status


def _list(name: str | None, what: What, *, json: bool) -> None:
    from sottovoce.papers.registry import PAPERS

    if name is None and what.names:
        name = DEFAULT_PAPER
    papers = [_costs(paper, what) for paper in PAPERS.values() if name in (None, paper.name)]
    if json:
        print_json(papers[0] if name else {"papers": papers})
        return
    for paper in papers:
        print(f"{paper['paper']}: {paper['title']}\n")
        for row in paper["experiments"]:
            runs, updates = row["runs"], row["user_updates"]
            costs = " · ".join(
                f"{size}: {count_of(runs[size], 'run')}, {updates[size]:,} user updates" for size in runs
            )
            print(f"{row['name']:<16}{row['title']}\n{'':<16}{row['shows']}")
            print(f"{'':<16}{costs if runs['gpu'] else 'no runs'}\n")
    print("Settings that several of them share are run once.")


def _list_missing(rows: Sequence[MissingRuns], *, json: bool) -> None:
    if json:
        print_json({"claims": [dict(row) for row in rows]})
        return
    for row in rows:
        print(f"{row['says']}\n    {count_of(len(row['runs']), 'run')}, {row['seconds']:,.0f} s")
        print("".join(f"    {name}\n" for name in row["runs"]))
    runs, seconds = sum(len(row["runs"]) for row in rows), sum(row["seconds"] for row in rows)
    print(f"{count_of(runs, 'run')} in all, {seconds:,.0f} s if each takes as long as before.")


def _costs(paper: Paper, what: What) -> JsonObject:
    sizes = [paper.size(name, what.rounds if name == "gpu" else None) for name in paper.sizes]
    rows = [
        {
            "name": experiment.name,
            "title": experiment.title,
            "shows": experiment.shows,
            "runs": {size.name: sum(count for _, count in experiment.runs(size, what.seeds)) for size in sizes},
            "user_updates": {size.name: experiment.user_updates(size, what.seeds) for size in sizes},
        }
        for experiment in paper.choose(what.names)
    ]
    return {"paper": paper.name, "title": paper.title, "experiments": rows}
