from __future__ import annotations

import json
import re
from typing import Any

import pytest
from builders import figures, make_record, make_statement, sections, text_of

from made_audits import audit_files
from scores import score
from sottovoce.audit.results import Audits
from sottovoce.reporting.compare import Compared, Comparison, render_comparison
from sottovoce.reporting.draw.style import short
from sottovoce.reporting.findings import HIDDEN, findings

ATTACK = {"attacks": [{"attack": "loss", "auc": 0.777, "low": 0.75, "high": 0.8}]}
AUDITS = Audits.from_json(audit_files({"membership": ATTACK}))
SPREAD = {"top1_p5": 0.0512, "top1_p25": 0.1, "top1_p50": 0.15, "top1_p75": 0.2, "top1_p95": 0.3}


def make_run(name: str = "forum", private: bool = True, **changes: Any) -> Compared:
    statement = make_statement(private=private)
    values: dict[str, Any] = {
        "name": name, "model": "lstm", "statement": statement,
        "record": make_record(private, skill=1 if private else 1.3),
        "budget": 5.0 if private else None, "findings": tuple(findings(statement, AUDITS)),
        "evaluation": score(200, 0.1834 if private else 0.2291, perplexity=120.5, targets=31_482),
        "within": 0.0042, "head_words": {"10": [0.5, 0.25, 0.25], "50": [0.0, 0.5, 0.5]}, "spread": SPREAD,
    }  # fmt: skip
    return Compared(**(values | changes))


def make_comparison(**changes: Any) -> Comparison:
    return Comparison([make_run(), make_run("twin <b>", private=False)], "200 held-out users", **changes)


def test_a_comparison_has_its_figures_and_every_figure_its_numbers():
    page = render_comparison(make_comparison())
    assert sections(page) == ["runs", "utility", "curves", "audits"]  # "head-words" is no word
    assert list(figures(page)) == ["utility", "top1", "perplexity", "epsilon", "head-words"]
    for figure in re.findall(r"<figure.*?</figure>", page, re.DOTALL):
        assert figure.count("<svg") == figure.count("<table>") == 1
        assert figure.index("<svg") < figure.index("<table>")
    words = text_of(page)
    assert "forum 4.63 at δ = 1e-6 18.34% ± 0.42 120.5 – the same users 60 of 60 lstm" in words
    assert "twin <b> no guarantee 22.91% ± 0.42" in words
    assert "forum, top 10 0.75 50.0% 25.0% 25.0%" in words
    assert "budget 5" in words


def test_an_epsilon_is_never_shown_below_itself():
    run = make_run(budget=5.0000012)
    run.record[-1]["epsilon"] = 4.62302
    page = text_of(render_comparison(Comparison([run, make_run("twin", budget=6.0)])))
    assert "4.63 at round 60." in page
    assert "budget 5.00001" in page


def test_what_is_the_owners_is_on_internal_pages_alone():
    public, internal = make_comparison(), make_comparison(internal=True)
    for told in (render_comparison(public), json.dumps(public.to_json())):
        assert "0.777" not in told
        assert not re.search(r"5\.12|0\.0512|spread", re.sub(r"<style>.*?</style>|<svg.*?</svg>", "", told, flags=re.S))
        assert HIDDEN in told
    page = render_comparison(internal)
    assert "AUC 0.777" in page
    assert "5.1%" in text_of(page)
    assert "Internal comparison." in text_of(page)
    assert internal.to_json()["runs"][0]["spread"] == SPREAD


def test_the_page_is_escaped_fetches_nothing_and_is_the_same_every_time(drawings):
    drawings.clear()
    page = render_comparison(make_comparison(internal=True))
    assert drawings
    drawings.clear()
    assert page == render_comparison(make_comparison(internal=True))
    assert "twin <b>" not in page
    page = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    assert not re.search(r"https?://|//www|@import|<link|<script|<img|<iframe|url\((?!#)|src=", page)
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


RARER = ("a$b", "x" * 150 + "-2", "line\nbreak")


@pytest.mark.parametrize("name", ["$x^2$", "名前", *(pytest.param(name, marks=pytest.mark.slow) for name in RARER)])
@pytest.mark.filterwarnings("error")
def test_any_name_of_a_folder_is_drawn_as_it_is(name):
    page = render_comparison(Comparison([make_run(name), make_run("twin", private=False)]))
    for svg in figures(page).values():
        drawn = " ".join("".join(svg.itertext()).split())
        assert " ".join(short(name).split()) in drawn
        assert len(name) < 20 or name not in svg.findtext(".//{http://www.w3.org/2000/svg}text", "")


def test_guarantees_that_cannot_be_compared_are_noticed():
    unlike = [make_run(), make_run("other", statement=make_statement(delta=1e-9))]
    assert "The runs differ in δ" in Comparison(unlike).to_json()["notes"][0]
    unlike[1] = make_run("other", statement=make_statement(relation="replace-one-user"))
    unlike[0] = make_run(statement=make_statement(epsilon_replaced=7.654321))
    note = Comparison(unlike).to_json()["notes"][0]
    assert "what may change between two data sets" in note
    assert note.endswith("When one user is replaced by another, forum has 7.66.")
    assert make_comparison().to_json()["notes"] == []


def test_an_unfinished_run_has_a_projected_epsilon():
    run = make_run(statement=make_statement(done=20), record=make_record(done=20))
    comparison = Comparison([run])
    assert "4.63 at δ = 1e-6, projected" in text_of(render_comparison(comparison))
    assert comparison.to_json()["runs"][0]["projected"]


def test_runs_that_were_not_measured_together_are_shown_as_recorded():
    bare = {"evaluation": None, "within": None, "head_words": None, "spread": None}
    page = render_comparison(Comparison([make_run(**bare), make_run("never", record=[], **bare)], internal=True))
    assert list(figures(page)) == ["utility", "top1", "perplexity", "epsilon"]
    words = text_of(page)
    assert "its own users, round 60" in words
    assert "never 4.63 at δ = 1e-6 – – – – – 60 of 60" in words
    page = render_comparison(Comparison([make_run("never", record=[], **bare)]))
    assert list(figures(page)) == []
    assert page.count("Nothing was recorded.") == 3
