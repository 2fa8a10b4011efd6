"""From a recipe to its mechanism: what is filled in, and which blocks are built."""

from __future__ import annotations

import pytest

from sottovoce.build.mechanism import build_mechanism, resolve
from sottovoce.privacy.clipping import FlatClip, NoClip, PerLayerClip
from sottovoce.privacy.estimators import ClippedDenominator, FixedDenominator, TrueAverage
from sottovoce.privacy.sampling import FixedSize, InTurn, Poisson
from sottovoce_evidence import accounting
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe

GOOD = Recipe().replace(
    privacy={"users": 1000, "cohort": 50, "noise_multiplier": 1.0, "delta": 1e-5, "accountant": "rdp"},
    run={"rounds": 20},
)


def test_the_noise_for_an_epsilon_is_found_for_all_rounds():
    recipe = resolve(GOOD.replace(privacy={"noise_multiplier": None, "epsilon": 2.0}))
    events = build_mechanism(recipe, ["one"]).events(20)
    assert 1.9 < accounting.epsilon(events, 1e-5, "rdp") <= 2.0


@pytest.mark.slow
def test_what_was_spent_before_leaves_less_for_the_rounds():
    asked = GOOD.replace(privacy={"noise_multiplier": None, "epsilon": 2.0})
    before = ((accounting.SampledGaussian(5.0, "poisson", 1.0), 1),)
    alone, after = (resolve(asked, spent).privacy.noise_multiplier for spent in ((), before))
    assert alone is not None
    assert after is not None
    assert after > alone


def test_the_accountant_that_is_used_is_kept():
    assert resolve(GOOD.replace(privacy={"accountant": "auto"})).privacy.accountant == "pld"


def test_an_accountant_without_an_answer_for_the_sampling_is_refused():
    with pytest.raises(SottoError, match="no valid accounting"):
        resolve(GOOD.replace(privacy={"sampling": "fixed", "accountant": "moments"}))


def test_central_training_does_not_clip():
    central = GOOD.replace(run={"algorithm": "central"}, privacy={"mode": "none"})
    assert resolve(central).privacy.clipping == "none"


@pytest.mark.parametrize(
    ("sampling", "built"),
    [("poisson", Poisson(0.05)), ("fixed", FixedSize(50, 1000)), ("in_turn", InTurn(50, 1000, 7))],
)
def test_samplers_are_of_the_declared_population(sampling, built):
    recipe = GOOD.replace(privacy={"sampling": sampling}, run={"seed": 7})
    assert build_mechanism(recipe, ["one"]).sampler == built


@pytest.mark.parametrize(
    ("settings", "clip", "estimator"),
    [
        ({}, FlatClip(15.0), FixedDenominator(50.0)),
        ({"clipping": "per_layer", "clip_norm": 2.0}, PerLayerClip.even(2.0, 4), FixedDenominator(50.0)),
        ({"estimator": "clipped_denominator", "total_weight": 400.0}, FlatClip(15.0), ClippedDenominator(20.0)),
        ({"mode": "none", "clipping": "none", "estimator": "true_average"}, NoClip(), TrueAverage()),
    ],
    ids=str,
)
def test_clips_and_estimators_are_those_of_the_recipe(settings, clip, estimator):
    mechanism = build_mechanism(resolve(GOOD.replace(privacy=settings)), ["a", "b", "c", "d"])
    assert (mechanism.clipping, mechanism.estimator) == (clip, estimator)
