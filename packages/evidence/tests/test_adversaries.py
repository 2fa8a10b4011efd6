"""Who sees what of a run across devices, and which ε is said to hold against them."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from releases import evidences

from sottovoce_evidence.adversaries import adversaries
from sottovoce_evidence.recipe import Federation
from sottovoce_evidence.statement import Registered, Statement, state

NOISED = state(evidences()["masked"])  # of 8 survivors, 2 of which may collude
SUMMED = replace(NOISED, federation=replace(NOISED.federation, noise="server"), epsilon_server=None)
PLAIN = replace(SUMMED, federation=Federation())


def against(statement: Statement) -> dict[str, float | None]:
    return {one.who: one.epsilon for one in adversaries(statement)}


def test_under_a_plain_sum_nothing_holds_against_the_server():
    rows = against(PLAIN)
    assert rows["those who have the models"] == rows["other devices"] == PLAIN.epsilon
    assert rows["the server"] == math.inf
    assert rows["who watches the network"] is None  # it knows who takes part: another ε


def test_a_masked_sum_without_noise_is_no_differential_privacy():
    rows = {one.who: one for one in adversaries(SUMMED)}
    assert rows["the server"].sees == "one sum over 8 devices or more, before the noise"
    assert rows["the server with up to 2 devices"].sees == "one sum over 6 other devices or more, before the noise"
    assert rows["the server with more than 2 devices"].sees == "what each device sends, before the noise"
    assert {rows[who].epsilon for who in rows if who.startswith("the server")} == {math.inf}
    assert rows["other devices"].epsilon is None  # they learn who is in a round


def test_with_noise_of_devices_an_epsilon_holds_against_the_server_and_the_declared_devices_alone():
    rows = against(NOISED)
    assert rows["the server"] == rows["the server with up to 2 devices"] == NOISED.epsilon_server < math.inf
    assert rows["the server with more than 2 devices"] == math.inf
    assert rows["those who have the models"] == NOISED.epsilon
    # An ε that nobody computed is not one.
    assert against(replace(NOISED, epsilon_server=None))["the server"] == math.inf


@pytest.mark.parametrize(("made", "named"), [(0, False), (2, False), (3, True), (9, True)])
def test_keys_that_the_server_made_are_named_where_they_are_more_than_may_collude(made, named):
    evidence = evidences()["masked"]
    found = state(replace(evidence, facts=replace(evidence.facts, registered=Registered(9, made))))
    rows = [one for one in adversaries(found) if f"kept the {made} device keys" in one.who]
    assert [one.epsilon for one in rows] == [math.inf] * named
    assert "adversaries" in found.not_covered


def test_a_simulation_and_a_run_that_promises_nothing_have_no_adversaries():
    assert adversaries(state(evidences()["poisson"])) == ()
    assert adversaries(replace(NOISED, private=False)) == ()
