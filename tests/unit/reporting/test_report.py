from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from typing import Any

import pytest

from sottovoce.recipe import Recipe
from sottovoce.reporting.figures import DEEP, MIDDLE, PALE, Figure, Level, Line, spread
from sottovoce.reporting.report import Evidence, render
from sottovoce.reporting.statement import NOT_COVERED, Statement, _source
from sottovoce.reporting.wording import bytes_text

INTERNAL = "Internal: exact figures of private data, do not publish"
ROUNDS = 60


def make_statement(private: bool = True, done: int = ROUNDS, secrets: str = "entropy", **more: Any) -> dict[str, Any]:
    spent = 4.6231 * math.sqrt(done / ROUNDS)
    facts: dict[str, Any] = {
        "statement": 1,
        "run": "b1946ac9",
        "unit": "user",
        "relation": "add-or-remove-one-user" if private else "none",
        "epsilon_spent": spent if private else "infinity",
        "epsilon_store": 6.9174 if private else "infinity",
        "rounds_planned": ROUNDS,
        "rounds_done": done,
        "charges": done,
        "charged_again": 0,
        "accountant": "PLD (dp-accounting 0.6.0)",
        "sampling": "poisson",
        "declared": {"users": 20000, "cohort": 200.0, "user_rate": 0.01, "total_weight": 20000.0, "weight_cap": 160.0},
        "mechanism": {
            "mode": "private" if private else "none",
            "algorithm": "fedavg",
            "clipping": "flat",
            "clip_when": "every_step",
            "clip_norm": 15.0 if private else None,
            "estimator": "fixed_denominator",
            "sensitivity": 0.075 if private else None,
            "noise_multiplier": 0.8125 if private else 0.0,
            "noise_std": 0.0609 if private else 0.0,
        },
        "secrets": secrets,
        "noise_generator": "JAX threefry2x32, float32",
        "released": ["the model after every round", "record.jsonl", "this statement", "the report without --internal"],
        "not_covered": list(NOT_COVERED),
        "vocabulary": {"fingerprint": "9f86d081884c7d65", "source": "declared public by whoever prepared the store"},
        "software": {"sottovoce": "0.1.0", "jax": "0.10.2", "dp-accounting": "0.6.0", "numpy": "2.3.4"},
    }
    return Statement(private, 4.6231 if private else math.inf, 1e-6, facts | more).to_json()


def make_record(private: bool = True, done: int = ROUNDS, every: int = 5, skill: float = 1.0) -> list[dict[str, Any]]:
    record = []
    for round_number in range(1, done + 1):
        epsilon = 4.6231 * math.sqrt(round_number / ROUNDS) if private else "infinity"
        line: dict[str, Any] = {"round": round_number, "epsilon": epsilon, "delta": 1e-6, "noise_std": 0.0609}
        if every and round_number % every == 0:
            learned = skill * (1 - math.exp(-round_number / 18))
            perplexity = 120 + 4000 * math.exp(-round_number / 7)
            line["evaluation"] = {
                "users": 200, "targets": 31_482, "top1": 0.04 + 0.15 * learned, "top3": 0.09 + 0.22 * learned,
                "top5": 0.12 + 0.26 * learned, "top1_words": 0.03 + 0.12 * learned, "perplexity": perplexity / skill,
                "perplexity_in_vocabulary": 0.8 * perplexity / skill, "oov_rate": 0.043,
            }  # fmt: skip
        record.append(line)
    return record


def make_diagnostics() -> list[dict[str, Any]]:
    lines = []
    for at in range(1, ROUNDS + 1):
        middle = 6 + 7 * math.exp(-at / 20) + 0.4 * math.sin(at)
        lines.append({
            "round": at, "users": 200, "weight": 181.2, "not_finite": 0, "seconds": 1.2,
            "clipped_share": 0.1 + 0.5 * math.exp(-at / 20), "loss": 4.5 + 3 * math.exp(-at / 15),
            "norm_quantiles": [0.5 * middle, middle, 1.9 * middle],
        })  # fmt: skip
    return lines


SUGGESTIONS = [
    ("good morning ,", [("how", 0.124), ("everyone", 0.081), ("i", 0.062)]),
    ("thank you so", [("much", 0.612), ("i", 0.021), ("for", 0.017)]),
    ("see you", [("tomorrow", 0.213), ("there", 0.104), ("at", 0.096)]),
    ("i am going to the", [("<b>", 0.08), ("r&d", 0.055), ("shop", 0.031)]),
]


def make_evidence(**changes: Any) -> Evidence:
    recipe = Recipe().replace(
        data={"store": "/data/forum"},
        privacy={"users": 20000, "cohort": 200.0, "epsilon": 5.0, "noise_multiplier": 0.8125, "weight_cap": 160.0},
        run={"rounds": ROUNDS, "evaluate_every": 5},
    )
    values: dict[str, Any] = {
        "name": "forum-lstm", "recipe": recipe.to_dict(), "statement": make_statement(), "record": make_record(),
        "suggestions": SUGGESTIONS, "baseline": 0.051,
    }  # fmt: skip
    return Evidence(**(values | changes))


def make_public_run() -> Evidence:
    return make_evidence(statement=make_statement(private=False), record=make_record(private=False))


def figures(page: str) -> dict[str, ET.Element]:
    found = [ET.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]
    return {str(svg.get("aria-labelledby")).split("-title")[0]: svg for svg in found}


def sections(page: str) -> list[str]:
    return re.findall(r'<section id="(\w+)"', page)


def text_of(page: str) -> str:
    """What a reader sees, without tags."""
    pieces: list[str] = []
    parser = HTMLParser()
    parser.handle_data = pieces.append  # type: ignore[method-assign]
    parser.feed(re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL))
    return " ".join(" ".join(pieces).split())


def test_a_private_run_leads_with_its_epsilon():
    page = render(make_evidence())
    assert "<title>forum-lstm: ε = 4.63 at δ = 1e-6, per user</title>" in page
    assert "<h1>ε\u00a0=\u00a04.63 at δ\u00a0=\u00a01e-6, per user</h1>" in page
    assert sections(page) == ["statement", "progress", "suggestions", "evaluation", "audit", "recipe"]
    assert list(figures(page)) == ["accuracy", "perplexity", "epsilon", "bounds"]
    words = text_of(page)
    assert "This run satisfies (4.63, 1e-6)-differential privacy" in words
    assert "all planned rounds: 4.6231" in words
    assert "ε of the store 6.92" in words
    assert "one user is added or removed" in words
    assert "noise multiplier: 0.8125" in words
    assert "jax 0.10.2" in words
    assert "clip_norm = 15.0" in words
    assert "Unfinished" not in words
    assert "Seeded" not in words
    assert "projected" not in words


def test_what_is_not_covered_is_a_list_and_is_said_once():
    page = text_of(render(make_evidence()))
    assert page.count("What is not covered") == 1
    assert all(page.count(line) == 1 for line in NOT_COVERED)


def test_a_run_without_a_guarantee_says_so_in_words():
    page = render(make_public_run())
    assert '<h1 class="none">No privacy guarantee</h1>' in page
    assert list(figures(page)) == ["accuracy", "perplexity"]
    assert "ε is infinite from the first round on" in page
    assert "What is not covered" not in page
    assert "4.63" not in text_of(page)
    assert "Accountant" not in page
    assert "protected by the guarantee" not in page
    assert "ε infinite no guarantee" in text_of(page)


def test_an_infinite_epsilon_is_never_a_guarantee():
    page = render(make_evidence(statement={**make_statement(), "epsilon": "infinity"}))
    assert "No privacy guarantee</h1>" in page
    assert "epsilon" not in figures(page)


def test_an_unknown_total_of_the_store_is_not_shown_as_a_number():
    page = text_of(render(make_evidence(statement=make_statement(epsilon_store="infinity"))))
    assert "ε of the store not known to be finite" in page


def test_a_total_for_another_relation_says_so():
    other = make_statement(relation_store="replace-one-user")
    page = text_of(render(make_evidence(statement=other)))
    assert "6.92 all private runs on it, when one user is replaced by another" in page
    assert "all private runs on the store, when one user is replaced by another: 6.9174" in page
    same = text_of(render(make_evidence(statement=make_statement(relation_store="add-or-remove-one-user"))))
    assert "when one user is replaced" not in same


def test_diagnostics_are_shown_only_when_they_are_given():
    public, internal = render(make_evidence()), render(make_evidence(diagnostics=make_diagnostics()))
    assert "Internal" not in public
    assert INTERNAL in internal
    assert set(figures(internal)) - set(figures(public)) == {"norms", "clipped_share", "loss"}
    assert "clip norm: 15." in text_of(internal)


def test_an_internal_report_without_lines_is_still_marked():
    page = render(make_evidence(diagnostics=[]))
    assert INTERNAL in page
    assert "No diagnostics were recorded" in page


def test_empty_cohorts_leave_gaps_in_the_diagnostics():
    lines = make_diagnostics()
    lines[3] |= {"users": 0, "clipped_share": None, "norm_quantiles": None, "loss": None}
    assert set(figures(render(make_evidence(diagnostics=lines)))) >= {"norms", "clipped_share", "loss"}
    assert "No diagnostics were recorded" in render(make_evidence(diagnostics=[lines[3]]))


def test_an_unfinished_run_says_that_its_epsilon_is_projected():
    page = render(make_evidence(statement=make_statement(done=20), record=make_record(done=20)))
    words = text_of(page)
    assert "per user (projected)</h1>" in page
    assert "Unfinished run. 20 of 60 planned rounds are done. ε = 4.63 is projected" in words
    assert "2.67 is spent" in words
    assert "all planned rounds, projected: 4.6231" in words
    assert (
        "satisfies (4.63, 1e-6)-differential privacy for users whose text it was trained on, not for those held out "
        "(projected: ε is that of all 60 planned rounds, of which 20 are done): whatever"
    ) in words
    assert "projected: 4.624 at round 60." in text_of(ET.tostring(figures(page)["epsilon"], encoding="unicode"))


def test_an_epsilon_by_round_is_never_shown_below_itself():
    record = make_record(done=2)
    record[0]["epsilon"], record[1]["epsilon"] = 3.16334, 4.62302
    page = render(make_evidence(record=record))
    drawn = next(figure for figure in re.findall(r"<figure.*?</figure>", page, re.DOTALL) if "epsilon-title" in figure)
    assert "spent: 3.164 at round 1, 4.624 at round 2." in text_of(drawn)
    assert "spent 3.164 4.624" in text_of(drawn)


def test_the_total_of_a_store_that_is_gone_is_not_shown_as_of_today():
    words = text_of(render(make_evidence(statement=make_statement(store_gone=True))))
    assert "ε of the store 6.92 all private runs on it when this run ended" in words
    assert "all private runs on the store when this run ended: 6.9174" in words
    assert "ε was 6.92 at the same δ, when this run ended." in words
    assert "when this run ended" not in text_of(render(make_evidence()))


def test_the_headline_says_on_how_many_users():
    words = text_of(render(make_evidence()))
    assert "about 200 held-out users; most frequent word: 5.1%" in words
    assert "Perplexity 120.8 about 200 held-out users" in words
    assert "31,482" not in words  # how much they wrote
    assert "200 held-out users Perplexity" in text_of(render(make_evidence(baseline=None)))


def test_seeded_secrets_are_noticed():
    assert "Seeded secrets." in text_of(render(make_evidence(statement=make_statement(secrets="seeded"))))


def test_rounds_charged_again_are_in_the_table():
    page = text_of(render(make_evidence(statement=make_statement(charged_again=3, charges=63))))
    assert "3 begun, broken off and charged again" in page


def test_a_baseline_and_a_run_beside_are_drawn_and_named():
    beside = {"name": "twin <public>", "record": make_record(private=False, skill=1.3)}
    page = render(make_evidence(beside=beside))
    assert "Dotted: top-1 of the run twin &lt;public&gt;." in page
    assert "twin &lt;public&gt;, round 60" in page
    assert "always saying the most frequent word, 5.1%" in page
    labels = {text.text for text in figures(page)["accuracy"].iter("{http://www.w3.org/2000/svg}text")}
    assert {"top-1", "top-3", "top-5", "baseline", "beside"} <= labels
    assert "baseline" not in render(make_evidence(baseline=None))


@pytest.mark.parametrize("record", [[], make_record(every=0)], ids=["empty", "never evaluated"])
def test_a_run_without_evaluations(record):
    page = render(make_evidence(record=record))
    assert sections(page) == ["statement", "progress", "suggestions", "audit", "recipe"]
    assert "No evaluation was made in this run." in page
    assert list(figures(page)) == (["epsilon", "bounds"] if record else ["bounds"])
    assert ("No round was recorded." in page) == (not record)


def test_one_evaluation_is_a_marker():
    page = render(make_evidence(record=make_record(done=5)))
    marks = [use.get("style", "") for use in figures(page)["accuracy"].iter("{http://www.w3.org/2000/svg}use")]
    assert all(any(f"fill: {colour}" in mark for mark in marks) for colour in (DEEP, MIDDLE, PALE))
    assert "top-1: 7.64% at round 5." in page


@pytest.mark.parametrize("missing", [None, math.nan, "infinity"])
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


def test_no_suggestions_no_section():
    assert "suggestions" not in sections(render(make_evidence(suggestions=[])))
    assert "suggestions" in sections(render(make_evidence(suggestions=[("hello", [])])))


def test_everything_is_escaped():
    attack = "<script>alert(1)</script>&"
    recipe = make_evidence().recipe | {"data": {"store": attack}}
    statement = make_statement(accountant=attack) | {"prose": attack}
    page = render(
        make_evidence(name=attack, recipe=recipe, statement=statement, suggestions=[(attack, [(attack, 0.5)])])
    )
    assert "<script" not in page
    assert page.count("&lt;script&gt;") == 7
    page = render(make_evidence())
    assert "<b>&lt;b&gt;</b>" in page
    assert "r&amp;d" in page


def test_nothing_is_fetched():
    page = render(make_evidence(diagnostics=make_diagnostics()))
    page = re.sub(r'xmlns(:\w+)?="[^"]*"', "", page)
    assert not re.search(r"https?://|//www|@import|<link|<script|<img|<iframe|url\((?!#)|src=", page)


def test_the_page_is_the_same_every_time():
    evidence = make_evidence(diagnostics=make_diagnostics(), beside={"name": "twin", "record": make_record(skill=1.2)})
    assert render(evidence) == render(evidence)


def test_tags_are_closed_and_ids_are_unique():
    page = render(make_evidence(diagnostics=make_diagnostics()))
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([\w.-]+)', page)) <= set(ids)
    for tag in ("div", "section", "figure", "table", "tr", "td", "th", "ul", "li", "p", "dl", "dd", "dt", "svg", "g"):
        assert len(re.findall(rf"<{tag}[\s>]", page)) == page.count(f"</{tag}>") + len(re.findall(rf"<{tag} ?/>", page))


def test_figures_have_words():
    for svg in figures(render(make_evidence(diagnostics=make_diagnostics()))).values():
        title, description = svg[0], svg[1]
        assert title.text
        assert re.search(r"at round \d+|at most \d+", description.text or "")
        assert svg.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"


def test_every_figure_by_round_has_its_numbers_underneath():
    beside = {"name": "twin", "record": make_record(private=False, skill=1.3)}
    page = render(make_evidence(diagnostics=make_diagnostics(), beside=beside))
    drawn = [figure for figure in re.findall(r"<figure.*?</figure>", page, re.DOTALL) if "<svg" in figure]
    assert len(drawn) == 6
    assert all(figure.index("</svg>") < figure.index("<table>") for figure in drawn)
    assert "round 5 15 20 30 35 45 50 60 top-5 18.3% " in text_of(drawn[0])
    assert text_of(drawn[0]).endswith("baseline 5.1%")
    assert "8 of the 12 rounds that are drawn." in drawn[0]


def test_numbers_are_those_that_are_drawn():
    lines = [Line("a", [(at, at / 8) for at in range(1, 101)]), Line("b", [(40, 2.5)], hollow=True), Line("c", [])]
    table = Figure("f", "t", "u", lines, [Level("l", 9.0)]).numbers()
    assert len(table.columns) == 8
    assert {"1", "40", "100"} <= set(table.columns)
    (a, of_a), (b, of_b), level = table.rows
    assert (a, b, level) == ("a", "b", ("l", "9"))
    assert dict(zip(table.columns, of_a, strict=True))["40"] == "5"
    assert [cell for cell in of_b if cell != "–"] == ["2.5"]
    few = Figure("f", "t", "u", [Line("", [(3, 0.25), (5, 0.5)])], percent=True).numbers()
    assert (few.columns, few.rows, few.remark) == (["3", "5"], [("u", ["25%", "50%"])], "")


def test_a_wide_scale_is_logarithmic_and_a_long_run_is_thinned():
    wide = Figure("f", "t", "u", [Line("a", [(at, 10 ** (4 - at / 2000)) for at in range(1, 5001)])], widen=True).svg()
    labels = [text.text for text in ET.fromstring(wide).iter("{http://www.w3.org/2000/svg}text")]
    assert {"100", "1,000", "10,000"} <= set(labels)
    assert len(wide) < 20_000


def test_labels_move_apart_and_stay_inside():
    assert spread([], 0.1) == []
    assert spread([0.2, 0.5], 0.1) == [0.2, 0.5]
    assert spread([0.5, 0.5], 0.1) == pytest.approx([0.5, 0.6])
    assert spread([0.98, 0.99, 1.0], 0.1) == pytest.approx([0.8, 0.9, 1.0])


def test_flat_and_zero_values_have_a_scale():
    for value in (0.0, 2.0):
        ET.fromstring(Figure("f", "t", "u", [Line("a", [(1, value), (2, value)])], [Level("l", value)]).svg())


def test_reading_evidence_needs_no_jax():
    code = "import sys, sottovoce.reporting.report; assert not {'jax', 'matplotlib', 'jinja2'} & set(sys.modules)"
    path = os.pathsep.join(entry for entry in sys.path if entry)
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path})


def test_rendering_needs_no_jax_and_no_pyplot():
    code = (
        "import sys; from sottovoce.reporting.figures import Figure, Line; Figure('f', 't', 'u', "
        "[Line('a', [(1, 2.0)])]).svg(); assert not {'jax', 'matplotlib.pyplot'} & set(sys.modules)"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": path})


def test_a_statement_says_where_the_vocabulary_is_from():
    assert "wordfreq" in _source({"source": "public", "list": "wordfreq"})
    assert _source({"source": "file", "file": "words.txt"}) == _source({"source": "declared"})
    private = _source({"source": "private", "epsilon": 2.0, "delta": 1e-6, "words_found": 7})
    assert "ε = 2 at δ = 1e-06" in private
    assert "part of this run's ε" in private
    facts = make_statement() | {"vocabulary": {"fingerprint": "9f86d081884c7d65", "source": private}}
    prose = Statement(True, 2.0, 1e-6, facts | {"epsilon_training": 1.25}).prose()
    assert private in prose
    assert "Training alone has ε = 1.25" in prose


def test_bytes_are_told_in_units_of_a_thousand():
    told = {0: "0 B", 999: "999 B", 1000: "1 kB", 224_352: "224 kB", 999_600: "1,000 kB", 3_663_656_000: "3.66 GB"}
    assert {count: bytes_text(count) for count in told} == told
