"""The ε of the rounds that users joined: it is for the owner, and no part of a statement."""

from __future__ import annotations

import json

from sottovoce.commands.realised import realised_epsilon
from sottovoce_evidence.mechanism import mechanism_of
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.statement import Evidence, RunFacts, Statement, VocabularyFacts, state

CORRELATED = {
    "users": 1_000,
    "cohort": 50.0,
    "sampling": "min_separation",
    "min_separation": 5,
    "participations": 3,
    "noise": "banded",
    "noise_coefficients": (1.0, 0.5),
    "delta": 1e-6,
}


def stated(noise_multiplier: float = 1.0, **privacy: object) -> Statement:
    recipe = Recipe().replace(
        privacy={**CORRELATED, "noise_multiplier": noise_multiplier, **privacy}, run={"rounds": 20}
    )
    facts = RunFacts(run="b1946ac9", rounds_planned=20, rounds_done=20, vocabulary=VocabularyFacts("9f", "public"))
    return state(Evidence(recipe, mechanism_of(recipe).events(20), facts))


def test_the_epsilon_of_the_realised_participation_is_no_part_of_a_statement():
    planned = stated()
    over_the_run = planned.mechanism.run_sensitivity
    # Half the sensitivity is twice the noise multiplier.
    assert realised_epsilon(planned, over_the_run / 2) == stated(2.0).epsilon < planned.epsilon
    # More than planned cannot be; the planned ε is then shown, and never a smaller one.
    assert realised_epsilon(planned, 2 * over_the_run) == planned.epsilon
    assert realised_epsilon(planned, None) is None
    independent = stated(
        sampling="poisson", noise="independent", noise_coefficients=(), min_separation=0, participations=0
    )
    assert realised_epsilon(independent, 1.0) is None
    assert "ealised" not in json.dumps(planned.to_json())
