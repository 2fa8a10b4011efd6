"""`sotto reproduce`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from sottovoce.cli.display import gentle_stop, print_json, progress_of_rounds
from sottovoce.errors import SottoError

if TYPE_CHECKING:
    from sottovoce.papers.engine.trial import Paper

Flag = Annotated[bool, Parameter(negative=())]
Many = Parameter(consume_multiple=True, negative=())


def reproduce(
    paper: Literal["mcmahan2018", "schultz2019", "popov2018"] | None = None,
    *,
    figure: Annotated[list[int] | None, Many] = None,
    table: Annotated[list[int] | None, Many] = None,
    experiment: Annotated[list[str] | None, Many] = None,
    size: Literal["smoke", "cpu", "gpu"] = "smoke",
    users: Annotated[list[Path] | None, Many] = None,
    other: Path | None = None,
    public: Path | None = None,
    declared_users: int = 0,
    out: Path | None = None,
    seeds: int = 1,
    rounds: int | None = None,
    from_results: Flag = False,
    claims: Flag = False,
    list: Flag = False,
    json: Flag = False,
) -> None:
    """Run the tables and figures of a paper again; a call that was stopped goes on where it was.

    Parameters
    ----------
    paper
        Which paper; mcmahan2018 unless told. `--list` without one lists them all.
    figure
        Figures by number.
    table
        Tables by number.
    experiment
        Others by name, as `--list` shows them. Without any of these: everything.
    size
        smoke: seconds. cpu: minutes. gpu: the paper's model, with 100 users a round (popov2018: 10).
    users
        A prepared store; three of the same users for Figures 11 and 12, with 10,000, 20,000 and 30,000 words. Without:
        synthetic users.
    other
        A store of another corpus with the same words, for other-corpus and private-tuning; the folder of the Penn
        Treebank's text, for ptb. With --users.
    public
        A store of public text with the same words, to pre-train on (`sotto prepare --plain-text`), for private-model
        and popov2018. With --users.
    declared_users
        The population that private-model declares: round, and not counted from the store.
    out
        Folder for runs, results, figures and tables.
    seeds
        Runs of every setting: from two on, tables give the spread.
    rounds
        Rounds of a run, instead of the size's.
    from_results
        Train nothing: draw what is in the folder.
    claims
        Train nothing: check the claims of the paper against what is in the folder.
    list
        Only say what there is, and what it costs.
    json
        One JSON object.
    """
    names = [f"figure-{number}" for number in figure or ()] + [f"table-{number}" for number in table or ()]
    names += experiment or ()
    if list:
        _list(paper, names, seeds, rounds, json=json)
        return
    if out is None:
        raise SottoError("--out is missing: name a folder for runs, results, figures and tables (or say --list)")
    from sottovoce.papers import reproduce as running
    from sottovoce.papers.registry import PAPERS

    if claims or from_results:
        running.check_paper(out, paper)
    if claims:
        judged, text = running.judge(out)
        print_json({"claims": judged}) if json else print(text)
        return
    say = (lambda text: None) if json else (lambda text: print(text, flush=True))
    done = True
    if from_results:
        for part in running.redraw(names, out):
            say(part)
    else:
        with gentle_stop() as stop:
            done = running.reproduce(
                PAPERS[paper or "mcmahan2018"], names, size=size, out=out, users=users or (), other=other,
                public=public, declared=declared_users, seeds=seeds, rounds=rounds, say=say,
                progress=partial(progress_of_rounds, quiet=json), stop=stop,
            )  # fmt: skip
    if json:
        print_json({"out": str(out), "finished": done, "experiments": running.summary(names, out)})
    else:
        print(f"figures, tables and results are in {out}" if done else "stopped; the same command goes on")


def _list(name: str | None, names: list[str], seeds: int, rounds: int | None, *, json: bool) -> None:
    from sottovoce.papers.registry import PAPERS

    if name is None and names:
        name = "mcmahan2018"
    told = [_costs(paper, names, seeds, rounds) for paper in PAPERS.values() if name in (None, paper.name)]
    if json:
        print_json(told[0] if name else {"papers": told})
        return
    for paper in told:
        print(f"{paper['paper']}: {paper['title']}\n")
        for row in paper["experiments"]:
            costs = [
                f"{size}: {row['runs'][size]} runs, {row['user_updates'][size]:,} user updates" for size in row["runs"]
            ]
            print(f"{row['name']:<16}{row['title']}\n{'':<16}{row['shows']}")
            print(f"{'':<16}{' · '.join(costs)}\n" if row["runs"]["gpu"] else f"{'':<16}no runs\n")
    print("Settings that several of them share are run once.")


def _costs(paper: Paper, names: list[str], seeds: int, rounds: int | None) -> dict[str, Any]:
    sizes = [paper.size(name, rounds if name == "gpu" else None) for name in paper.sizes]
    rows = [
        {
            "name": experiment.name,
            "title": experiment.title,
            "shows": experiment.shows,
            "runs": {size.name: sum(count for _, count in experiment.runs(size, seeds)) for size in sizes},
            "user_updates": {size.name: experiment.user_updates(size, seeds) for size in sizes},
        }
        for experiment in paper.choose(names)
    ]
    return {"paper": paper.name, "title": paper.title, "experiments": rows}
