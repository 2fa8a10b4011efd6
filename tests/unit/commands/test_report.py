"""The page of a run before its first round: what it is written from, and what it must not show."""

from __future__ import annotations

import stat
from dataclasses import replace
from pathlib import Path

from sottovoce.commands import report
from sottovoce.commands.report import read_card, read_findings, report_run
from sottovoce.reporting.statement import read_statement
from sottovoce_evidence.accounting import SampledGaussian
from sottovoce_evidence.private_accuracy import PrivateAccuracy, Terms

EVENT = SampledGaussian(1.2, "poisson", 0.25)


def test_a_public_page_shows_no_path_of_this_machine(run, tmp_path):
    page = report_run(run.path)
    assert page == run.path / "report.html"
    text = page.read_text()
    assert str(tmp_path) not in text
    assert '<th scope="row" class="prompt">red …' in text  # no sentence is of these words


def test_an_internal_page_is_for_the_owner_alone(run):
    page = report_run(run.path, internal=True)
    assert page == run.path / "report-internal.html"
    assert stat.S_IMODE(page.stat().st_mode) == 0o600
    assert not run.report_file.exists()


def test_the_page_of_a_release_says_its_private_accuracy(run):
    accuracy = PrivateAccuracy(terms=Terms(2.0, 1e-6, 2.2, 100, 18.4), users=310, targets=9, top1=0.1, top1_within=0.1)
    private = replace(read_statement(run), held_out="private", private_accuracy=accuracy, epsilon_held_out=2.0)
    text = report_run(run.path, statement=private).read_text()
    assert "top-1 10.00% ± 10.00 points" in text
    assert "Held-out users were declared private: no exact figure of them is computed." in text


def test_the_total_of_a_store_is_the_one_of_today(run, begun, store):
    before = report._statement_of_today(run).epsilon_store
    begun("another")
    assert report._statement_of_today(run).epsilon_store > before
    (store / "ledger.jsonl").rename(store / "lost")
    assert report._statement_of_today(run).store_gone


def test_findings_name_the_audits_that_were_not_run(run):
    rows = read_findings(run, "RUN")
    assert any(row.command.startswith("sotto audit") and not row.was_run for row in rows if row.command)
    assert read_card(run).own_model is False


def test_a_recipe_on_a_page_has_names_in_place_of_paths(begun, store):
    run = begun("private")
    shown = report.public_recipe(run, read_card(run))
    assert shown["data"]["store"] == Path(store).name
