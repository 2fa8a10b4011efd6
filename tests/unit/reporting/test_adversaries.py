"""Who sees what of a run across devices, and which ε is said to hold against them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from builders import make_evidence, make_statement, text_of

from sottovoce.reporting.report import render
from sottovoce_evidence.adversaries import FederationFacts, adversaries, not_covered_of

PLAIN = FederationFacts(9, keys_made_by_server=9)
MASKED = FederationFacts(9, "masked", survivors=6, colluding=2)
NOISED = replace(MASKED, noise="devices", epsilon_server=7.5)


def against(found: FederationFacts) -> dict[str, float | None]:
    return {one.who: one.epsilon for one in adversaries(1.5, found)}


def test_under_a_plain_sum_nothing_holds_against_the_server():
    rows = against(PLAIN)
    assert rows["those who have the models"] == rows["other devices"] == 1.5
    assert rows["the server"] == math.inf
    assert rows["who watches the network"] is None  # it knows who takes part: another ε
    assert any("is trusted to keep none of it" in text for text in not_covered_of(PLAIN))


def test_a_masked_sum_without_noise_is_no_differential_privacy():
    rows = {one.who: one for one in adversaries(1.5, MASKED)}
    assert rows["the server"].sees == "one sum over 6 devices or more, before the noise"
    assert rows["the server with up to 2 devices"].sees == "one sum over 4 other devices or more, before the noise"
    assert rows["the server with more than 2 devices"].sees == "what each device sends, before the noise"
    assert {rows[who].epsilon for who in rows if who.startswith("the server")} == {math.inf}
    assert rows["other devices"].epsilon is None  # they learn who is in a round


def test_with_noise_of_devices_an_epsilon_holds_against_the_server_and_the_declared_devices_alone():
    rows = against(NOISED)
    assert rows["the server"] == rows["the server with up to 2 devices"] == 7.5
    assert rows["the server with more than 2 devices"] == math.inf
    assert rows["those who have the models"] == 1.5
    # An ε that nobody computed is not one.
    assert against(replace(NOISED, epsilon_server=None))["the server"] == math.inf


@pytest.mark.parametrize(("made", "named"), [(0, False), (2, False), (3, True), (9, True)])
def test_keys_that_the_server_made_are_named_where_they_are_more_than_may_collude(made, named):
    found = replace(NOISED, keys_made_by_server=made)
    rows = [one for one in adversaries(1.5, found) if f"kept the {made} device keys" in one.who]
    assert [one.epsilon for one in rows] == [math.inf] * named
    assert any(f"kept the keys of {made} devices" in text for text in not_covered_of(found)) is named


def test_what_is_given_up_is_said_of_masked_sums_alone():
    spoils = "it can spoil a round"
    assert any(spoils in text for text in not_covered_of(MASKED))
    assert not any(spoils in text for text in not_covered_of(PLAIN))
    for found in (PLAIN, MASKED, NOISED):
        said = list(not_covered_of(found))
        assert [one.partition(":")[0] for one in said[-2:]] == ["time and failures", "silos"]


@pytest.mark.slow
def test_a_report_has_the_table():
    rows = adversaries(1.5, MASKED)
    page = text_of(render(replace(make_evidence(), statement=make_statement(across_devices=True, adversaries=rows))))
    assert all(one.who in page and one.sees in page for one in rows)
    assert "ε against them" in page
    assert "ε against them" not in text_of(render(make_evidence()))
