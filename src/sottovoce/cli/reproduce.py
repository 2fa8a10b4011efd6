"""`sotto reproduce`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

from cyclopts import Parameter

from sottovoce.cli.display import gentle_stop, print_json, progress_of_rounds
from sottovoce.errors import SottoError

if TYPE_CHECKING:
    from sottovoce.papers.engine.paper import Paper

DEFAULT_PAPER = "mcmahan2018"
Flag = Annotated[bool, Parameter(negative=())]
Many = Parameter(consume_multiple=True, negative=())


@Parameter(name="*")
@dataclass(frozen=True)
class What:
    """Which experiments, and how much of them."""

    figure: Annotated[list[int] | None, Many] = None
    "Figures by number."
    table: Annotated[list[int] | None, Many] = None
    "Tables by number."
    experiment: Annotated[list[str] | None, Many] = None
    "Others by name, as `--list` shows them. Without any of these: everything."
    size: Literal["smoke", "cpu", "gpu"] = "smoke"
    "smoke: seconds. cpu: minutes. gpu: the paper's model, with 100 users a round (popov2018: 10)."
    seeds: int = 1
    "Runs of every setting: from two on, tables give the spread."
    rounds: int | None = None
    "Rounds of a run, instead of the size's."

    @property
    def names(self) -> list[str]:
        figures, tables = self.figure or (), self.table or ()
        return [*(f"figure-{n}" for n in figures), *(f"table-{n}" for n in tables), *(self.experiment or ())]


@Parameter(name="*")
@dataclass(frozen=True)
class Texts:
    """The stores to train on."""

    users: Annotated[list[Path] | None, Many] = None
    """A prepared store; three of the same users for Figures 11 and 12, with 10,000, 20,000 and 30,000 words. Without:
    synthetic users."""
    other: Path | None = None
    """A store of another corpus with the same words, for other-corpus and private-tuning; the folder of the Penn
    Treebank's text, for ptb. With --users."""
    public: Path | None = None
    """A store of public text with the same words, to pre-train on (`sotto prepare --plain-text`), for private-model
    and popov2018. With --users."""
    declared_users: int = 0
    "The population that private-model declares: round, and not counted from the store."


@Parameter(name="*")
@dataclass(frozen=True)
class Mode:
    """What to do with the experiments."""

    from_results: Flag = False
    "Train nothing: draw what is in the folder."
    claims: Flag = False
    "Train nothing: check the claims of the paper against what is in the folder."
    list: Flag = False
    "Print what there is and what it costs, and run nothing."
    json: Flag = False
    "One JSON object."


def reproduce(
    paper: Literal["mcmahan2018", "schultz2019", "popov2018"] | None = None,
    *,
    what: What | None = None,
    texts: Texts | None = None,
    out: Path | None = None,
    mode: Mode | None = None,
) -> None:
    """Run the tables and figures of a paper again. A call that was stopped continues where it was.

    Parameters
    ----------
    paper
        Which paper; mcmahan2018 by default. `--list` without one lists them all.
    out
        Folder for runs, results, figures and tables.
    """
    what, texts, mode = what or What(), texts or Texts(), mode or Mode()
    if mode.list:
        _list(paper, what, json=mode.json)
        return
    if out is None:
        raise SottoError("--out is missing: name a folder for runs, results, figures and tables (or say --list)")
    from sottovoce.papers import reproduce as running

    if mode.claims or mode.from_results:
        running.check_paper(out, paper)
    if mode.claims:
        checked, table = running.check_claims(out)
        print_json({"claims": [each.to_json() for each in checked]}) if mode.json else print(table)
        return
    done = True
    if mode.from_results:
        for part in running.redraw(what.names, out):
            if not mode.json:
                print(part, flush=True)
    else:
        done = _run(paper or DEFAULT_PAPER, what, texts, out, quiet=mode.json)
    if mode.json:
        print_json({"out": str(out), "finished": done, "experiments": running.summary(what.names, out)})
    else:
        print(f"figures, tables and results are in {out}" if done else "stopped; the same command goes on")


def _run(name: str, what: What, texts: Texts, out: Path, *, quiet: bool) -> bool:
    from sottovoce.papers import reproduce as running
    from sottovoce.papers.engine.populations import Stores
    from sottovoce.papers.engine.runner import Console
    from sottovoce.papers.registry import PAPERS

    paper = PAPERS[name]
    request = running.Request(paper, what.names, paper.size(what.size, what.rounds), what.seeds)
    stores = Stores(tuple(texts.users or ()), texts.other, texts.public, texts.declared_users)
    log = (lambda text: None) if quiet else partial(print, flush=True)
    with gentle_stop() as stop:
        return running.reproduce(request, out, stores, Console(log, partial(progress_of_rounds, quiet=quiet), stop))


class ExperimentCosts(TypedDict):
    name: str
    title: str
    shows: str
    runs: dict[str, int]
    user_updates: dict[str, int]


class PaperCosts(TypedDict):
    paper: str
    title: str
    experiments: list[ExperimentCosts]


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
            costs = [
                f"{size}: {row['runs'][size]} runs, {row['user_updates'][size]:,} user updates" for size in row["runs"]
            ]
            print(f"{row['name']:<16}{row['title']}\n{'':<16}{row['shows']}")
            print(f"{'':<16}{' · '.join(costs)}\n" if row["runs"]["gpu"] else f"{'':<16}no runs\n")
    print("Settings that several of them share are run once.")


def _costs(paper: Paper, what: What) -> PaperCosts:
    sizes = [paper.size(name, what.rounds if name == "gpu" else None) for name in paper.sizes]
    rows: list[ExperimentCosts] = [
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
