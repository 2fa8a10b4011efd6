from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from sottovoce.build import assembly
from sottovoce.build.assembly import assemble
from sottovoce.data.store import PublicText
from sottovoce.kernels import lstm_users
from sottovoce.kernels.cpu import ONE_USER
from sottovoce.local.objective import plain
from sottovoce.privacy.sampling import Poisson
from sottovoce.training import cohort_sum
from sottovoce.training.types import Task
from sottovoce_evidence.accounting import SampledGaussian
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe

SMALL = Recipe().replace(
    model={"embedding": 4, "hidden": 5}, local={"batch": 2, "unroll": 4, "learning_rate": 0.5},
    privacy={"users": 13, "cohort": 4, "noise_multiplier": 1.0, "delta": 1e-3},
)  # fmt: skip


def test_kernels_are_used_where_they_are_found(store, monkeypatch):
    recipe = SMALL.replace(run={"block": 1})
    with_kernels = assemble(recipe, store)
    assert with_kernels.sum_updates.products is ONE_USER
    with monkeypatch.context() as lost:
        lost.setattr(lstm_users, "fits", lambda update, model: False)
        general = assemble(recipe, store)
    assert general.sum_updates.products is None
    assert with_kernels.layout != general.layout
    off = assemble(SMALL.replace(run={"kernels": "off"}), store)
    assert off.sum_updates.products is None


@pytest.mark.slow
@pytest.mark.parametrize("clipping", ["flat", pytest.param("per_layer", marks=pytest.mark.slow)])
def test_runs_that_differ_in_numbers_share_a_program(store, clipping):
    """Clip norms, noise and seeds: a sweep over them compiles once."""
    before = cohort_sum._add_block._cache_size()
    for clip_norm, noise, seed in ((1.0, 1.0, 0), (0.5, 2.0, 1)):
        made = assemble(
            SMALL.replace(privacy={"clipping": clipping, "clip_norm": clip_norm, "noise_multiplier": noise},
                          run={"seed": seed}), store,
        )  # fmt: skip
        norms = made.algorithm.mechanism.clip_norms(1, None)
        summed = made.sum_updates(made.algorithm, Task(made.model, np.arange(4), norms, jax.random.key(0)), store)
        assert np.sqrt(np.sum([np.sum(np.square(leaf)) for leaf in jax.tree.leaves(summed.total)])) <= 4 * clip_norm
    assert cohort_sum._add_block._cache_size() - before == 1


def test_a_penalty_is_part_of_what_users_minimise_and_needs_more_than_one_step(store):
    made = assemble(SMALL.replace(local={"penalty": 0.25}), store)
    assert made.algorithm.user_update.objective.weight == 0.25  # pyrefly: ignore
    assert made.code == assemble(SMALL, store).code
    with pytest.raises(SottoError, match="fedsgd"):
        assemble(SMALL.replace(local={"penalty": 0.25}, run={"algorithm": "fedsgd"}), store)
    with pytest.raises(SottoError, match="below 1, half"):
        assemble(SMALL.replace(local={"penalty": 1.0}), store)


def test_a_clip_of_gradients_is_for_devices_and_leaves_other_recipes_their_name(store):
    made = assemble(SMALL.replace(local={"gradient_clip": 0.25}), store)
    assert made.algorithm.user_update.gradient_clip == 0.25  # pyrefly: ignore
    assert made.algorithm.mechanism == assemble(SMALL, store).algorithm.mechanism
    assert "gradient_clip" not in SMALL.to_dict()["local"]
    with pytest.raises(SottoError, match="not for fedsgd"):
        assemble(SMALL.replace(local={"gradient_clip": 0.25}, run={"algorithm": "fedsgd"}), store)


def test_rehearsal_needs_as_much_public_text_as_one_user_reads_of_it(store):
    """With a share of 1/4 of their own, three times as much."""
    recipe = SMALL.replace(local={"objective": "rehearsal", "user_share": 0.25}, privacy={"mode": "none"})
    text, words = np.zeros(3 * store.tokens_per_user, np.int32), store.vocabulary.fingerprint
    enough, less = (replace(store, public=PublicText(some, words, "")) for some in (text, text[1:]))
    assert assemble(recipe, enough).algorithm.user_update.objective is plain  # pyrefly: ignore
    with pytest.raises(SottoError, match=f"fewer than the {len(text):,} that one user may rehearse"):
        assemble(recipe, less)


def test_the_kind_of_device_is_in_the_layout_that_processes_compare(store, monkeypatch):
    """Another kind may cut a cohort into other blocks: two processes with two plans would add users up twice."""
    here = assemble(SMALL, store).layout
    assert jax.local_devices()[0].device_kind in here
    other = [SimpleNamespace(device_kind="another kind")] * len(jax.local_devices())
    monkeypatch.setattr(assembly.jax, "local_devices", lambda: other)
    assert assemble(SMALL, store).layout != here


@pytest.mark.parametrize("declared", [8, 40])  # the store has thirteen users
@pytest.mark.parametrize(
    ("settings", "weight"),
    [
        ({}, None),
        ({"total_weight": 30.0}, 30.0),
        ({"estimator": "clipped_denominator"}, None),
        ({"estimator": "clipped_denominator", "total_weight": 20.0}, 20.0),
    ],
    ids=str,
)
def test_sampling_denominator_and_noise_are_those_of_the_declared_population(store, declared, settings, weight):
    """The number of users in a store is private: whoever is missing or more changes neither q, nor W, nor the noise."""
    assert declared != store.users
    recipe = SMALL.replace(privacy={"users": declared, "clip_norm": 0.3, **settings})
    mechanism = assemble(recipe, store).algorithm.mechanism
    rate = 4 / declared
    expected = rate * (weight or declared)  # qW, or qW_min
    assert mechanism.sampler == Poisson(rate)
    assert mechanism.event(1) == SampledGaussian(1.0, "poisson", rate)
    clip_norms = mechanism.clip_norms(1, mechanism.start())
    sensitivity = 0.6 / (1 + expected) if "estimator" in settings else 0.3 / expected
    assert mechanism.sensitivity(clip_norms) == pytest.approx(sensitivity)
    assert mechanism.noise_std(1, clip_norms)[0] == pytest.approx(sensitivity)
    estimate = mechanism.estimate({"leaf": np.full(2, 3.0)}, np.float64(0.25), np.zeros(1)).update["leaf"]
    np.testing.assert_allclose(estimate, 3.0 / expected)


def test_cohorts_of_fixed_size_are_charged_for_the_declared_population(store):
    mechanism = assemble(SMALL.replace(privacy={"users": 8, "sampling": "fixed"}), store).algorithm.mechanism
    assert mechanism.event(1) == SampledGaussian(1.0, "fixed", 0.5, cohort=4, users=8)
