"""One page with every claim of several papers: theirs, ours, the seeds, the verdict and the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sottovoce.papers.engine.claims import FAILS, HOLDS, OPEN, CheckedClaim
from sottovoce.papers.engine.paper import Paper
from sottovoce.papers.engine.setting import Setting
from sottovoce.papers.engine.tables import markdown

MARK = "<!-- Written by `sotto reproduce --claims`: change the results, not this page. -->"
_COUNTED = {HOLDS: "hold", FAILS: "do not hold", OPEN: "cannot be told"}


@dataclass(frozen=True)
class ClaimsOfFolder:
    """The claims of a paper, checked against the results in a folder of this name."""

    name: str
    paper: Paper
    setting: Setting
    checked: Sequence[CheckedClaim]
    note: str  # what claims compare, and the spread
    printed: Mapping[str, str] = field(default_factory=dict)  # tables with the paper's figures beside ours, by title


def render_claims(folders: Sequence[ClaimsOfFolder], pages: Mapping[str, str]) -> str:
    """The page.

    Args:
        folders: in the order of the page.
        pages: other pages of results: the title by the file.
    """
    checked = [each for folder in folders for each in folder.checked]
    verdicts = [each.finding.verdict for each in checked]
    counted = ", ".join(f"{verdicts.count(verdict)} {shown}" for verdict, shown in _COUNTED.items())
    once = sum(1 in each.seeds for each in checked)
    parts = [
        MARK,
        "",
        "# All claims, theirs and ours",
        "",
        f"{len(checked)} claims of {len(folders)} papers, each with a criterion that was set beforehand: {counted}. "
        f"{once} of them rest on a setting that was run once, and say *one seed*. ± is two standard errors: of "
        "the spread between seeds, pooled over settings of one kind. Where a limit lies within ±, or no spread of a "
        "difference is known, the claim cannot be told. Counts and single runs say *no spread*. All figures are "
        "computed from the results that are kept here, by `sotto reproduce --claims --out docs/results`.",
        "",
    ]
    for folder in folders:
        parts += [*_section(folder), ""]
    parts += ["## Other results", "", *(f"- [{title}]({file})" for file, title in pages.items()), ""]
    return "\n".join(parts)


def _section(folder: ClaimsOfFolder) -> list[str]:
    paper, setting = folder.paper, folder.setting
    size = paper.size(setting.size, setting.rounds)
    runs = {name: {trial.name for trial, _ in each.runs(size)} for name, each in paper.experiments.items()}
    rows = []
    for each in folder.checked:
        says, seeds = f"{each.claim.text} ({each.claim.where})", " and ".join(map(str, each.seeds))
        run_by = _flags(_experiments_of(set(each.runs), runs)) if each.runs else "`--claims`"
        row = [says, each.claim.criterion, each.finding.measured, seeds or "no runs", f"**{each.verdict}**", run_by]
        rows.append(row)
    people = "synthetic users" if setting.synthetic else "users"
    return [
        f"## {paper.title}",
        "",
        f"{setting.users:,} {people} to train on, {setting.held_out_users:,} held out, {setting.rounds:,} rounds. All "
        f"tables and figures: [{folder.name}]({folder.name}.md). A row is run by `sotto reproduce {paper.name}` with "
        f"the flags of its last column and `--size {setting.size} --out DIR`, on "
        "[stores of your own](../how-to/reproduce.md).",
        "",
        markdown(["the paper says", "criterion", "ours", "seeds", "verdict", "run by"], rows),
        "",
        folder.note,
        *(["", f"{paper.about} ± in these tables is the standard deviation between seeds."] if folder.printed else []),
        *(line for title, table in folder.printed.items() for line in ("", f"### {title}", "", table.rstrip())),
    ]


def _experiments_of(names: set[str], runs: Mapping[str, set[str]]) -> list[str]:
    """Few experiments that run all of these settings, in the paper's order, by the settings that each runs."""
    chosen: list[str] = []
    while names and (found := max(runs, key=lambda name: len(runs[name] & names))) not in chosen:
        chosen.append(found)
        names = names - runs[found]
    return [name for name in runs if name in chosen]


def _flags(experiments: Sequence[str]) -> str:
    """`--figure 5 6 --experiment sigma`."""
    by_flag: dict[str, list[str]] = {}
    for name in experiments:
        kind, _, number = name.rpartition("-")
        numbered = number.isdecimal() and kind in ("figure", "table")
        by_flag.setdefault(f"--{kind}" if numbered else "--experiment", []).append(number if numbered else name)
    return f"`{' '.join(' '.join([flag, *values]) for flag, values in by_flag.items())}`"
