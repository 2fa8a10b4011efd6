"""What is proved and what was found: a row for each, one picture, and nothing of people's on a public page."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
from builders import make_evidence, make_statement, text_of

from made_audits import audit_files
from sottovoce.audit.results import AUDITS, Audits
from sottovoce.reporting.draw.lanes import Lane, draw_number_line
from sottovoce.reporting.findings import HIDDEN, NOT_RUN, findings, lanes_of, public
from sottovoce.reporting.report import render
from sottovoce_evidence.errors import DamagedRun

RATE = {"fpr": 0.001, "tpr": 0.0432, "low": 0.03, "high": 0.06, "false_alarms": 0, "fpr_at_most": 0.01, "too_few": True}
FOUND: dict[str, Any] = {
    "rounds": {
        "shown": 0.4444, "claimed": 1.357, "confidence": 0.95, "delta": 0.001, "contradicted": False,
        "claimed_multiplier": 1.5, "shown_multiplier": 2.5, "would_notice": 0.75,
    },
    "tails": {
        "epsilon": 0.4321, "delta": 1e-5, "note": "an estimate from sampled texts, not a guarantee", "words": 10,
        "round": 5, "level": 0.05, "rejected": 1, "pairs": [{}, {}], "about": "twins share their noise",
    },
    "canaries": {
        "itself": True, "claimed": 4.7, "delta": 1e-6, "confidence": 0.95, "contradicted": False,
        "exposure": [{"bits": 3.25, "extracted": False}, {"bits": 7.777, "extracted": True}],
        "one_run": {"canaries": 100, "shown": 1.2345},
    },
    "membership": {
        "in_users": 300, "out_users": 33, "confidence": 0.95,
        "attacks": [
            {"attack": "loss threshold", "auc": 0.5123, "low": 0.41, "high": 0.61, "rates": [RATE]},
            {"attack": "references, offline", "auc": 0.6789, "low": 0.61, "high": 0.74, "rates": [RATE]},
        ],
    },
}  # fmt: skip
OWNERS = ("0.432", "1.23", "0.679", "0.512", "not Pareto", "300 users in")  # figures of the owner's alone


def rows(audits: dict[str, Any], private: bool = True, weights: str = "", **more: Any):
    found = Audits.from_json(audit_files(audits), weights)
    return {row.audit: row for row in findings(make_statement(private=private), found, **more)}


def test_what_was_not_run_is_a_row_with_the_command_that_runs_it():
    found = rows({})
    assert list(found) == ["proved", "one_run", "rounds", "tails", "canaries", "membership"]
    assert found.pop("proved").result == "ε ≤ 4.63 at δ = 1e-6"
    assert {row.result for row in found.values()} == {NOT_RUN}
    assert all(re.match(r"sotto audit \w+ RUN", row.command) for row in found.values())
    assert rows({}, run="runs/a")["membership"].command == "sotto audit membership runs/a --references 8"


def test_what_was_found_is_told_with_what_it_is():
    found = rows(FOUND)
    assert [(row.kind, row.result) for row in found.values()] == [
        ("upper bound", "ε ≤ 4.63 at δ = 1e-6"),
        ("lower bound", "ε ≥ 1.23 at δ = 1e-6, 95% confidence"),
        (
            "lower bound",
            "ε ≥ 0.444 at δ = 0.001, 95% confidence; noise of at most 2.5 times the sensitivity, claimed: 1.5",
        ),
        ("estimate", "ε ≈ 0.432 at δ = 1e-5"),
        ("measured", "7.8 bits"),
        ("measured", "AUC 0.679 (0.610 to 0.740)"),
    ]
    assert "claimed: ε ≤ 1.36" in found["rounds"].about
    assert "the largest of 2 tails, 1 of them not Pareto's" in found["tails"].about
    assert "an estimate from sampled texts, not a guarantee" in found["tails"].about
    assert "the largest of 2: loss threshold 0.512" in found["membership"].about
    assert "300 users in and 33 out" in found["membership"].about


def test_of_a_run_without_a_guarantee_nothing_is_proved_or_claimed():
    found = rows({"tails": FOUND["tails"]}, private=False)
    assert found["proved"].result == "nothing: ε is infinite"
    assert found["rounds"].result == found["one_run"].result == "nothing is claimed"
    assert found["tails"].result == "ε ≈ 0.432 at δ = 1e-5"
    assert [lane.name for row in found.values() for lane in row.lanes] == ["Tails: an estimate"]


def test_an_audit_of_other_weights_is_out_of_date():
    old = {"membership": {**FOUND["membership"], "weights": "then"}}
    assert rows(old, weights="then")["membership"].result.startswith("AUC")
    row = rows(old, weights="now")["membership"]
    assert (row.result, row.found) == ("not run since training went on", None)


@pytest.mark.parametrize("name", AUDITS)
def test_an_audit_that_lacks_figures_is_damaged(name):
    with pytest.raises(DamagedRun, match=rf"audit/{name}\.json is damaged .*run `sotto audit {name}` again"):
        Audits.from_json({name: {"note": "no figures"}})


def test_attacks_on_people_stay_out_of_what_is_public():
    """A page that is not internal must not show them, nor that they were run, though it was handed them."""
    evidence = make_evidence(findings=tuple(findings(make_statement(), Audits.from_json(audit_files(FOUND)))))
    page = text_of(render(evidence))
    assert not [figure for figure in OWNERS if figure in page]
    assert [row.result for row in public(evidence.findings)].count(HIDDEN) == 3
    assert "ε ≥ 0.444" in page  # rounds of made-up users, with the model that is released
    assert "7.8 bits" in page  # canaries in that model
    untouched = make_evidence(
        findings=tuple(findings(make_statement(), Audits.from_json(audit_files({"rounds": FOUND["rounds"]}))))
    )
    hidden = [row for row in public(untouched.findings) if row.result == HIDDEN]
    assert hidden == [row for row in public(evidence.findings) if row.result == HIDDEN]
    internal = render(make_evidence(findings=evidence.findings, diagnostics=[]))
    assert not [figure for figure in OWNERS if figure not in text_of(internal)]
    assert re.search(r'<section id="audit" class="internal">\s*<h2>Internal: ', internal)


def test_what_a_copy_showed_is_the_owners():
    copy = {"canaries": {**FOUND["canaries"], "itself": False}}
    page = render(make_evidence(findings=tuple(findings(make_statement(), Audits.from_json(audit_files(copy))))))
    assert "7.8 bits" not in page
    assert page.count(f'<td class="quiet">{HIDDEN}</td>') == 4


def test_the_table_is_plain_json():
    told = [row.to_json() for row in findings(make_statement(), Audits.from_json(audit_files(FOUND)))]
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    attack = told[-1]["found"]["attacks"][1]
    assert (attack["attack"], attack["auc"], attack["rates"]) == ("references, offline", 0.6789, [RATE])
    one_run = told[1]["found"]
    assert (one_run["claimed"], one_run["shown"], one_run["canaries"]) == (4.7, 1.2345, 100)
    assert [one["owner_only"] for one in told] == [False, True, False, True, False, True]


def test_the_picture_has_a_lane_for_all_that_has_an_epsilon():
    lanes = lanes_of(findings(make_statement(), Audits.from_json(audit_files(FOUND))))
    assert lanes == [
        Lane("Proved: the run, any user in it", at_most=4.6231),
        Lane("One run, canary users", at_most=4.7, at_least=1.2345),
        Lane("One round, a user in it", at_most=1.357, at_least=0.4444),
        Lane("Tails: an estimate", estimate=0.4321),
    ]
    svg = draw_number_line(lanes)
    labels = {text.text for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")}
    assert {"≤ 4.63", "≥ 1.23", "≥ 0.444", "≈ 0.432", "ε", *(lane.name for lane in lanes)} <= labels
    assert "One round, a user in it: at most 1.36, at least 0.444." in svg
    assert draw_number_line(lanes) == svg
    assert draw_number_line([Lane("nothing")]) == ""
