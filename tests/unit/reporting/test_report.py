from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from builders import (
    figures,
    lines_of,
    make_diagnostics,
    make_evidence,
    make_public_run,
    make_record,
    make_statement,
    sections,
    text_of,
)

from examples import first_of
from snapshots import assert_kept
from sottovoce.reporting.report import render
from sottovoce_evidence.adversaries import adversaries
from sottovoce_evidence.recipe import Federation
from sottovoce_evidence.statement import Registered, StartFacts
from sottovoce_evidence.statement_text import prose

SETTINGS = make_statement().privacy
INTERNAL = "Internal: exact figures of private data, do not publish"


@cache  # drawing takes most of the time of these tests
def public_page() -> str:
    return render(make_evidence())


@cache
def internal_page() -> str:
    return render(make_evidence(diagnostics=make_diagnostics()))


def without_rounds(**changes) -> str:
    """For what is said in words: a page with one figure is drawn in a third of the time."""
    return render(make_evidence(record=[], **changes))


@pytest.mark.parametrize("name", ["private", "public"])
def test_the_page_reads_as_it_was_kept(name):
    page = public_page() if name == "private" else render(make_public_run())
    assert_kept(Path(__file__).parent / "snapshots" / f"{name}.txt", "\n".join([*lines_of(page), ""]))


def test_an_unfinished_run_says_that_its_epsilon_is_projected():
    page = render(make_evidence(statement=make_statement(done=20), record=make_record(done=20)))
    assert "per user (projected)</h1>" in page
    assert "20 of 60 planned rounds are done. ε = 4.63 is projected" in text_of(page)


def test_a_private_run_leads_with_its_epsilon():
    page = public_page()
    assert "<title>forum-lstm: ε = 4.63 at δ = 1e-6, per user</title>" in page
    assert "<h1>ε\u00a0=\u00a04.63 at δ\u00a0=\u00a01e-\u20606, per user</h1>" in page
    shown = ["meaning", "evaluation", "suggestions", "progress", "statement", "audit", "recipe"]
    assert sections(page) == shown
    assert re.findall(r'<a href="#(\w+)">', page) == shown  # the contents
    assert list(figures(page)) == ["accuracy", "perplexity", "epsilon", "bounds"]


def test_a_run_without_a_guarantee_says_so_in_words():
    page = render(make_public_run())
    assert '<h1 class="none">No privacy guarantee</h1>' in page
    assert list(figures(page)) == ["accuracy", "perplexity"]
    assert "ε is infinite from the first round on" in page
    assert "What is not covered" not in page
    assert "4.63" not in text_of(page)
    assert "accountant" not in text_of(page).split("Recipe")[0]
    assert "protected by the guarantee" not in page
    assert "ε infinite no guarantee" in text_of(page)


def test_an_infinite_epsilon_is_never_a_guarantee():
    page = render(make_evidence(statement=make_statement(epsilon=math.inf)))
    assert "No privacy guarantee</h1>" in page
    assert "epsilon" not in figures(page)


def test_an_unknown_total_of_the_store_is_not_shown_as_a_number():
    page = text_of(without_rounds(statement=make_statement(epsilon_store=math.inf)))
    assert "ε of the store not known to be finite" in page


def test_diagnostics_are_shown_only_when_they_are_given():
    public, internal = public_page(), internal_page()
    assert "Internal" not in public
    assert INTERNAL in internal
    assert set(figures(internal)) - set(figures(public)) == {"norms", "clipped_share", "loss"}
    assert "clip norm: 15." in text_of(internal)


def test_empty_cohorts_leave_gaps_in_the_diagnostics():
    lines = make_diagnostics()
    lines[3] |= {"users": 0, "clipped_share": None, "norm_quantiles": None, "loss": None}
    assert set(figures(render(make_evidence(diagnostics=lines)))) >= {"norms", "clipped_share", "loss"}
    assert "No diagnostics were recorded" in render(make_evidence(diagnostics=[lines[3]]))


def test_an_epsilon_by_round_is_never_shown_below_itself():
    record = make_record(done=2)
    record[0]["epsilon"], record[1]["epsilon"] = 3.16334, 4.62302
    page = render(make_evidence(record=record))
    drawn = next(figure for figure in re.findall(r"<figure.*?</figure>", page, re.DOTALL) if "epsilon-title" in figure)
    assert "spent: 3.17 at round 1, 4.63 at round 2." in text_of(drawn)
    assert "spent 3.17 4.63" in text_of(drawn)


def test_one_epsilon_has_one_figure_wherever_it_is_said():
    """Rounded up, to three digits; only files have all."""
    statement = make_statement(epsilon=8.60191, epsilon_spent=8.60191, epsilon_store=8.60191)
    record = make_record(done=2)
    record[1]["epsilon"] = 8.60191
    page = text_of(render(make_evidence(statement=statement, record=record)))
    assert "spent: 8.61" in page
    for text in (page, prose(statement), statement.short):
        assert set(re.findall(r"8\.6[0-9]*", text)) == {"8.61"}


def test_seeded_secrets_are_noticed():
    assert "Seeded secrets." in text_of(
        without_rounds(statement=make_statement(privacy=replace(SETTINGS, secrets="seeded")))
    )


def test_baselines_are_drawn_and_named():
    page = render(make_evidence())
    assert "without training on people: always “.” 5.1%, base english 11.7%." in page
    labels = {
        name: {text.text for text in figures(page)[name].iter("{http://www.w3.org/2000/svg}text")}
        for name in ("accuracy", "perplexity")
    }
    assert {"top-1", "top-3", "top-5", "always “.”", "base english"} <= labels["accuracy"]
    assert {"a unigram", "base english"} <= labels["perplexity"]
    assert "without training" not in render(make_evidence(baselines=None))


def test_top1_is_drawn_from_zero_with_what_no_training_gives():
    page = public_page()
    shown = re.findall(r'label">(.*?)</span>.*?width: ([\d.]+)%.*?<b>(.*?)</b>', page.split('id="evaluation"')[1])
    assert [(name, value) for name, _, value in shown] == [
        ("always “.”", "5.1%"), ("a unigram", "4.9%"), ("the start, base english", "11.7%"), ("this run", "18.5%"),
    ]  # fmt: skip
    widths = [float(width) / float(value[:-1]) for _, width, value in shown]
    assert max(widths) == pytest.approx(min(widths), rel=0.01)  # in proportion: all begin at 0
    assert float(shown[3][1]) == pytest.approx(92.5, abs=1)
    assert page.count("<span>0%</span><span>20%</span>") == 1  # the whole width, not the best of the models
    assert "Not better than" not in page


@pytest.mark.parametrize("record", [[], make_record(every=0)], ids=["empty", "never evaluated"])
def test_a_run_without_evaluations(record):
    page = render(make_evidence(record=record))
    assert sections(page) == ["meaning", "suggestions", "progress", "statement", "audit", "recipe"]
    assert "No evaluation was made in this run." in page
    assert list(figures(page)) == (["epsilon", "bounds"] if record else ["bounds"])
    assert ("No round was recorded." in page) == (not record)


@pytest.mark.parametrize("missing", first_of([None, math.nan, "infinity"]))
def test_a_perplexity_that_is_not_finite(missing):
    diverged = make_record()
    diverged[-1]["evaluation"]["perplexity"] = missing
    page = text_of(render(make_evidence(record=diverged)))
    assert "Perplexity not finite" in page
    assert "at 1 of the evaluations" in page
    for line in diverged:
        line.get("evaluation", {})["perplexity"] = missing
    page = render(make_evidence(record=diverged))
    assert "the model diverged" in page
    assert list(figures(page)) == ["accuracy", "epsilon", "bounds"]


def test_everything_is_escaped():
    attack = "<script>alert(1)</script>&"
    recipe = make_evidence().recipe | {"data": {"store": attack}}
    statement = make_statement(start=StartFacts("c0ffee00", "public", name=attack))
    page = render(
        make_evidence(name=attack, recipe=recipe, statement=statement, suggestions=[(attack, [(attack, 0.5)])])
    )
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 6
    page = public_page()
    assert "<b>&lt;b&gt;</b>" in page
    assert "r&amp;d" in page


def test_nothing_is_fetched():
    page = internal_page()
    page = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    assert not re.search(r"https?://|//www|@import|<link|<script|<img|<iframe|url\((?!#)|src=", page)


@pytest.mark.slow
def test_the_page_is_the_same_every_time(drawings):
    evidence = make_evidence(diagnostics=make_diagnostics())
    drawings.clear()
    page = render(evidence)
    assert drawings
    drawings.clear()
    assert render(evidence) == page


def test_tags_are_closed_and_ids_are_unique():
    page = internal_page()
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([\w.-]+)', page)) <= set(ids)
    for tag in ("div", "section", "figure", "table", "tr", "td", "th", "ul", "li", "p", "dl", "dd", "dt", "svg", "g"):
        assert len(re.findall(rf"<{tag}[\s>]", page)) == page.count(f"</{tag}>") + len(re.findall(rf"<{tag} ?/>", page))


def test_figures_have_words():
    for svg in figures(internal_page()).values():
        title, description = svg[0], svg[1]
        assert title.text
        assert re.search(r"at round \d+|at most \d+", description.text or "")
        assert svg.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"


def test_every_figure_by_round_has_its_numbers_underneath():
    page = render(make_evidence(diagnostics=make_diagnostics()))
    drawn = [figure for figure in re.findall(r"<figure.*?</figure>", page, re.DOTALL) if "<svg" in figure]
    assert len(drawn) == 6
    assert all(figure.index("</svg>") < figure.index("<table>") for figure in drawn)
    assert "round 5 15 20 30 35 45 50 60 top-5 18.3% " in text_of(drawn[0])
    assert text_of(drawn[0]).endswith("always “.” 5.1% base english 11.7%")
    assert "8 of the 12 rounds that are drawn." in drawn[0]


def test_reading_evidence_needs_no_jax():
    code = "import sys, sottovoce.reporting.report; assert not {'jax', 'matplotlib', 'jinja2'} & set(sys.modules)"
    path = os.pathsep.join(entry for entry in sys.path if entry)
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path})


@pytest.mark.slow
def test_rendering_needs_no_jax_and_no_pyplot():
    code = (
        "import sys; from sottovoce.reporting.draw.curves import Figure, Line; Figure('f', 't', 'u', "
        "[Line('a', [(1, 2.0)])]).svg(); assert not {'jax', 'matplotlib.pyplot'} & set(sys.modules)"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path})


def test_a_clip_norm_that_changes_has_a_figure():
    changing = make_statement(privacy=replace(SETTINGS, adaptive_quantile=0.5))
    record = [line | {"clip_norm": 15.0 - line["round"] / 10} for line in make_record()]
    page = render(make_evidence(statement=changing, record=record, diagnostics=make_diagnostics()))
    assert "clip_norm" in figures(page)
    assert "It follows the 0.5 quantile of users' norms" in text_of(page)
    assert "The clip norm changes: see the clip norm by round." in page
    assert "clip_norm" not in figures(render(make_evidence(record=record)))


@pytest.mark.slow
def test_who_sees_what_of_a_run_across_devices_is_a_table():
    masked = make_statement(registered=Registered(9), federation=Federation(survivors=6, colluding=2))
    page = text_of(without_rounds(statement=masked))
    assert all(one.who in page and one.sees in page for one in adversaries(masked))
    assert "who sees what" in page
    assert "who sees what" not in text_of(without_rounds())
