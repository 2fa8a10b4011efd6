"""Run the experiments of a paper into a folder, draw them, and check the claims of the paper."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from sottovoce.files import write_aside
from sottovoce.papers.engine.claims import CheckedClaim, spread_note
from sottovoce.papers.engine.claims import check_claims as judge
from sottovoce.papers.engine.claims_page import MARK, ClaimsOfFolder, render_claims
from sottovoce.papers.engine.paper import Paper
from sottovoce.papers.engine.populations import Populations, Stores
from sottovoce.papers.engine.render import Renderer, Summary, render_page, summarise
from sottovoce.papers.engine.results import ResultStore
from sottovoce.papers.engine.runner import Console, Runner
from sottovoce.papers.engine.setting import SETTING_FILE, Setting
from sottovoce.papers.engine.trial import Size
from sottovoce.papers.registry import PAPERS
from sottovoce_evidence.errors import SettingError, SottoError

CLAIMS_FILE = "claims.json"


@dataclass(frozen=True)
class Request:
    """What to run: experiments of a paper by name, at a size, every setting with some seeds.

    Without names, all experiments are run whose stores are given. With `undecided`, it is only more seeds of settings
    in the folder: those of claims that cannot be told first, then those of claims that rest on one seed.
    """

    paper: Paper
    names: Sequence[str]
    size: Size
    seeds: int = 1
    undecided: bool = False


def reproduce(request: Request, out: Path, stores: Stores | None = None, console: Console | None = None) -> bool:
    """Run experiments into a folder and draw each when it is done. False when it was asked to stop.

    The folder holds the result of every run (`results`), the runs themselves (`runs`), a figure and a table for each
    experiment, and a page with all of them. A run with a result is not repeated, and an interrupted run is resumed.

    Args:
        request: which experiments of which paper, at which size.
        out: the folder, new or of the same request.
        stores: of real users; synthetic ones by default.
        console: shows progress, and is asked to stop.
    """
    paper, size, stores, console = request.paper, request.size, stores or Stores(), console or Console()
    if request.seeds < 1:
        raise SettingError("{seeds} must be 1 or more; it is how often every setting is run", seeds=request.seeds)
    if not stores.users and (stores.other or stores.public):
        name, given = ("--other", stores.other) if stores.other else ("--public", stores.public)
        raise SottoError(f"{name} {given} needs --users too, a store of people: without one all text is synthetic")
    if request.undecided:
        check_paper(out, paper.name)
        if request.seeds < 2:
            raise SettingError("{seeds} is no more than there is; to decide claims give 2 or more", seeds=request.seeds)
        if request.names:
            raise SottoError("--undecided finds the experiments itself; leave --figure, --table and --experiment out")
        experiments = paper.undecided(ResultStore(out / "results"), size)
    else:
        experiments = paper.choose(request.names)
    out.mkdir(parents=True, exist_ok=True)
    runner = Runner(paper, size, out, Populations(out / "users", stores, size), console)
    ready = [experiment for experiment in experiments if request.names or runner.can_run(experiment)]
    for experiment in ready:
        runner.check_stores(experiment)
    runner.save_setting()
    renderer = Renderer(paper, size, runner.results, out)
    for experiment in ready:
        if not runner.run(experiment, request.seeds):
            return False
        if not request.undecided:
            console.log(renderer.render(experiment))
            write_page(out)
    if request.undecided:
        console.log(check_claims(out)[1])
    return True


class MissingRuns(TypedDict):
    """What one claim lacks. `seconds` are those that runs of these settings took before, evaluation not counted."""

    claim: str
    says: str
    runs: list[str]
    seconds: float


def missing_runs(out: Path, seeds: int) -> list[MissingRuns]:
    """What `undecided` would run, in its order. A run that several claims lack is counted with the first of them."""
    paper, size, results = read_folder(out)
    rows: list[MissingRuns] = []
    counted: set[Path] = set()
    for experiment in paper.undecided(results, size):
        found = {
            path: next((run.seconds for run in results.outcomes(trial) if run.seconds), 0.0)
            for trial, count in experiment.runs(size, seeds)
            for seed in range(count)
            if not (path := results.path(trial, seed)).exists() and path not in counted
        }
        counted.update(found)
        seconds = round(sum(found.values()), 1)
        runs = [path.stem for path in found]
        rows.append({"claim": experiment.name, "says": experiment.title, "runs": runs, "seconds": seconds})
    return rows


def redraw(names: Sequence[str], out: Path) -> Iterator[str]:
    """Draw the figures and tables of the results in a folder; nothing is trained."""
    paper, size, results = read_folder(out)
    renderer = Renderer(paper, size, results, out)
    for experiment in paper.choose(names):
        trials = experiment.trials(size)
        if not trials or any(results.outcomes(trial) for trial in trials):
            yield renderer.render(experiment)
    write_page(out)


def summary(names: Sequence[str], out: Path) -> dict[str, list[Summary]]:
    """What is known of every setting of some experiments."""
    paper, size, results = read_folder(out)
    return {experiment.name: summarise(experiment.trials(size), size, results) for experiment in paper.choose(names)}


def check_claims(out: Path) -> tuple[list[CheckedClaim], str]:
    """Check the claims of the paper against the results in a folder. The list and the table are written there too."""
    paper, size, results = read_folder(out)
    checked, table = paper.check_claims(results, size)
    rows = [each.to_json() for each in checked]
    write_aside(out / CLAIMS_FILE, json.dumps(rows, indent=1, ensure_ascii=False).encode() + b"\n")
    write_aside(out / "claims.md", table.encode())
    write_page(out)
    return checked, table


def claims_page(out: Path) -> str:
    """One page with the claims of all papers whose folders are in `out`: those in which claims were checked."""
    found = {Setting.load(path.parent).paper: path.parent for path in sorted(out.glob(f"*/{CLAIMS_FILE}"))}
    if not found:
        raise SottoError(
            f"{out} holds no folder whose claims were checked; run `sotto reproduce --claims --out` on one"
        )
    folders = []
    for name in (name for name in PAPERS if name in found):
        paper, size, results = read_folder(found[name])
        evidence = paper.evidence(results, size)
        checked = judge(paper.claims, evidence)
        setting = Setting.load(found[name])
        printed = {
            paper.experiments[each].title: Renderer(paper, size, results, found[name]).table(paper.experiments[each])
            for each in paper.printed
        }
        folders.append(ClaimsOfFolder(found[name].name, paper, setting, checked, spread_note(evidence), printed))
    return render_claims(folders, _titles(out))


def write_claims_page(out: Path) -> str:
    """Write `claims_page` as the README.md of a folder, which code hosts show; another README.md is left as it is."""
    page, path = claims_page(out), out / "README.md"
    if path.exists() and not path.read_text(encoding="utf-8").startswith(MARK):
        raise SottoError(f"{path} was not written by this command; move it away first")
    write_aside(path, page.encode())
    return page


def _titles(out: Path) -> dict[str, str]:
    """The pages in a folder by name, with their first headings."""
    pages = (path for path in sorted(out.glob("*.md")) if path.name != "README.md")
    first = {path.name: path.read_text(encoding="utf-8").partition("\n")[0] for path in pages}
    return {name: line.removeprefix("# ") for name, line in first.items() if line.startswith("# ")}


def write_page(out: Path) -> None:
    """Put all tables and figures of a folder on one page, `results.md`."""
    paper, _, _ = read_folder(out)
    write_aside(out / "results.md", render_page(paper, Setting.load(out), out).encode())


def read_folder(out: Path) -> tuple[Paper, Size, ResultStore]:
    """The paper, the size and the results of a folder."""
    setting = _setting_of(out)
    paper = PAPERS[setting.paper]
    return paper, paper.size(setting.size, setting.rounds), ResultStore(out / "results")


def holds_reproduction(out: Path) -> bool:
    """Is a folder that of one reproduction? Else it may hold the folders of several."""
    return (out / SETTING_FILE).exists()


def check_paper(out: Path, name: str | None) -> None:
    """Refuse a folder that is of another paper than the one named."""
    known = _setting_of(out).paper
    if name not in (None, known):
        raise SottoError(f"{out} holds a reproduction of {known}, not of {name}; name its folder, or that paper")


def _setting_of(out: Path) -> Setting:
    setting = Setting.load(out)
    if setting.paper not in PAPERS:
        raise SottoError(
            f"{out / SETTING_FILE} is of the paper {setting.paper!r}, and this version has {', '.join(PAPERS)}"
        )
    return setting
