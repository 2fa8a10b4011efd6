from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples import first_of
from family import cut, of_family, send
from sottovoce.data.words import BOS, EOS
from sottovoce.local.objective import Batch, Penalised, plain
from sottovoce.local.update import FedAvg, FedSGD, User, rehearsed
from sottovoce.privacy.clipping import FlatClip, NoClip, PerLayerClip

LOCAL = {"batch": 2, "unroll": 3, "learning_rate": 1.5}
KEY = jax.random.key(0)


def user(tokens, capacity=24) -> User:
    padded = np.zeros(capacity, np.int32)
    padded[: len(tokens)] = tokens
    return User(jnp.asarray(padded), jnp.asarray(len(tokens)))


def length(update) -> float:
    return float(np.sqrt(sum(np.sum(np.square(np.asarray(leaf, np.float64))) for leaf in jax.tree.leaves(update))))


def test_the_papers_user_makes_twenty_steps_of_eight_by_ten():
    steps = cut(User(np.arange(3, 1603), np.asarray(1600)), lanes=8, unroll=10, bos=BOS)
    assert steps.inputs.shape == (20, 8, 10)
    assert np.sum(steps.mask) == 1600
    # Step 1 of lane 2 is tokens 410 to 419 of the stream; what is read is one token earlier.
    np.testing.assert_array_equal(np.asarray(steps.targets)[1, 2], np.arange(410, 420) + 3)
    np.testing.assert_array_equal(np.asarray(steps.inputs)[1, 2], np.arange(409, 419) + 3)


def test_the_first_input_is_bos_and_bos_is_never_a_target():
    stream = [BOS, 5, 6, EOS, BOS, 7, EOS]
    steps = cut(user(stream), lanes=2, unroll=3, bos=BOS)
    inputs, targets, mask = (np.asarray(part).swapaxes(0, 1).reshape(2, -1) for part in steps)
    # Lanes of ceil(7 / 2) = 4 tokens.
    assert targets[0, :4].tolist() == [BOS, 5, 6, EOS]
    assert inputs[0, :4].tolist() == [BOS, BOS, 5, 6]
    assert mask[0, :4].tolist() == [0, 1, 1, 1]
    assert targets[1, :3].tolist() == [BOS, 7, EOS]
    assert inputs[1, :3].tolist() == [EOS, BOS, 7]  # the stream goes on from the end of the lane before
    assert mask[1].tolist() == [0, 1, 1] + [0] * (mask.shape[1] - 3)
    assert mask.sum() == 5


def test_what_begins_a_text_is_read_and_never_a_target():
    stream, context = [20, 5, EOS, BOS, 6, EOS, 21, 7, EOS], (BOS, 20, 21)
    steps = cut(user(stream), lanes=1, unroll=9, bos=context)
    inputs, targets, mask = (np.asarray(part).reshape(-1)[:9] for part in steps)
    assert inputs.tolist() == [BOS, *stream[:-1]]
    assert targets[mask > 0].tolist() == [5, EOS, 6, EOS, 7, EOS]


def sent(update, model, user):
    return send(update, model, user, KEY, jnp.asarray(update.clipping.clip_norms), update.steps(int(user.length)))


@pytest.mark.parametrize("count", range(25))
def test_every_token_is_a_target_once_whatever_the_length(count):
    steps = cut(user(range(3, 3 + count)), lanes=4, unroll=3, bos=BOS)
    seen = np.asarray(steps.targets)[np.asarray(steps.mask) > 0]
    assert sorted(seen) == list(range(3, 3 + count))


@pytest.mark.slow
@pytest.mark.parametrize("make", first_of([partial(FedAvg, clip_every_step=True), FedSGD]), ids=["fedavg", "fedsgd"])
def test_padding_does_not_change_an_update(model, make):
    update = make(FlatClip(0.5), **LOCAL)
    tokens = [BOS, 5, 9, 12, EOS, BOS, 30, 31, 5]
    short, long = (sent(update, model, user(tokens, capacity)).update for capacity in (9, 24))
    for a, b in zip(jax.tree.leaves(short), jax.tree.leaves(long), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-7)


def test_a_user_who_ran_away_sends_the_same_beside_a_longer_one():
    """A block takes the steps of its longest user. Would they turn a clipped update into zeros for the others, then one
    user who joins would move the sum by the clip norm, and once more for everybody in the block who ran away."""
    model = of_family("gated_cnn")
    update = FedAvg(FlatClip(1.0), clip_every_step=False, batch=2, unroll=6, learning_rate=1e19)
    tokens = user([BOS, 5, 9, 12, EOS, BOS, 30, 31, 5, 8, 14, EOS], capacity=48)
    alone, beside = (send(update, model, tokens, KEY, jnp.ones(1), steps) for steps in (1, 4))
    assert float(alone.sound) == 1
    assert length(alone.update) > 0.99
    jax.tree.map(np.testing.assert_array_equal, (alone.update, alone.clipped), (beside.update, beside.clipped))
    assert float(beside.sound) == 1


@pytest.mark.parametrize("clip", [FlatClip(0.05), PerLayerClip.even(0.05, 11)], ids=["flat", "per layer"])
def test_steps_of_others_do_not_clip_an_update_once_more(model, clip):
    """A clipped update is as long as the clip allows, or a last bit longer: a second clip would change it."""
    update, norms = FedAvg(clip, True, batch=2, unroll=3, learning_rate=50.0), jnp.asarray(clip.clip_norms)
    for seed in range(12):
        given = user(np.random.default_rng(seed).integers(3, 27, 6).tolist(), capacity=48)
        alone, beside = (send(update, model, given, KEY, norms, steps) for steps in (1, 8))
        jax.tree.map(np.testing.assert_array_equal, alone, beside)


def test_public_text_of_a_user_of_any_length_is_counted_alike_on_host_and_device():
    """Of 1.2 million tokens at λ = 0.1, length times parts is beyond 32 bits."""
    for length in (0, 1, 191, 192, 1_242_757, 2**24):
        for share in (0.1, 0.3, 0.75, 1.0):
            exact = length * round(192 * (1 / share - 1)) // 192
            assert int(jax.jit(partial(rehearsed, user_share=share))(jnp.int32(length))) == exact
            assert rehearsed(length, share) == exact


@pytest.mark.parametrize("make", [partial(FedAvg, clip_every_step=True), FedSGD], ids=["fedavg", "fedsgd"])
@pytest.mark.parametrize("tokens", [[], [BOS], [BOS, BOS]], ids=["no tokens", "BOS alone", "BOS twice"])
def test_a_user_without_a_target_contributes_zero(model, make, tokens):
    result = sent(make(FlatClip(0.5), **LOCAL), model, user(tokens))
    assert length(result.update) == 0
    assert not bool(result.clipped.any())


@pytest.mark.parametrize(
    ("every_step", "clip"),
    [
        pytest.param(True, FlatClip(0.05), id="every step, flat"),
        pytest.param(True, PerLayerClip.even(0.05, 11), id="every step, per layer", marks=pytest.mark.slow),
        pytest.param(False, FlatClip(0.05), id="at the end, flat", marks=pytest.mark.slow),
        pytest.param(False, PerLayerClip.even(0.05, 11), id="at the end, per layer"),
    ],
)
def test_no_update_is_longer_than_the_clip_norm(model, clip, every_step):
    update = FedAvg(clip, every_step, batch=2, unroll=3, learning_rate=50.0)
    result = sent(update, model, user(range(3, 27)))
    assert bool(result.clipped.any())
    assert 0 < length(result.update) <= 0.05
    assert float(result.norm) > 0.05


@pytest.mark.slow
def test_clipping_after_every_step_differs_from_clipping_at_the_end(model):
    ends = [sent(FedAvg(FlatClip(0.1), every, **LOCAL), model, user(range(3, 27))).update for every in (True, False)]
    assert any(not np.allclose(a, b, atol=1e-4) for a, b in zip(*map(jax.tree.leaves, ends), strict=True))


@pytest.mark.parametrize("make", first_of([partial(FedAvg, clip_every_step=True), FedSGD]), ids=["fedavg", "fedsgd"])
def test_a_user_whose_update_is_not_finite_contributes_zero_and_no_weight(model, make):
    def explosive(model, received, batch, state, key):
        losses, state = plain(model, received, batch, state, key)
        return losses / 0.0, state

    result = sent(make(FlatClip(0.5), objective=explosive, **LOCAL), model, user(range(3, 20)))
    assert length(result.update) == 0
    assert float(result.sound) == 0


def test_fedsgd_is_one_gradient_of_the_mean_loss_over_all_tokens(model):
    tokens = [BOS, 5, 9, 12, EOS, BOS, 30, 31, 5, EOS]
    result = sent(FedSGD(NoClip(), batch=1, unroll=40, learning_rate=2.0), model, user(tokens))

    @jax.jit
    def mean_loss(model):
        outputs, _ = model.read(jnp.asarray([BOS, *tokens[:-1]]), model.initial_state())
        chances = jax.nn.log_softmax(model.logits(outputs))
        return -sum(chances[place, token] for place, token in enumerate(tokens) if token != BOS) / 8

    for update, slope in zip(jax.tree.leaves(result.update), jax.tree.leaves(jax.grad(mean_loss)(model)), strict=True):
        np.testing.assert_allclose(update, -2.0 * slope, atol=1e-6)
    assert float(result.loss) == pytest.approx(float(mean_loss(model)), rel=1e-5)


@pytest.mark.slow
def test_fedsgd_weighs_steps_by_their_targets(model):
    # 7 tokens in one lane: steps of 3, 3 and 1 targets. The mean of step means would weigh the last one too much.
    tokens = list(range(3, 10))
    result = sent(FedSGD(NoClip(), batch=1, unroll=3, learning_rate=1.0), model, user(tokens))
    whole = sent(FedAvg(NoClip(), False, batch=1, unroll=3, learning_rate=1e-6), model, user(tokens))
    assert float(result.loss) == pytest.approx(float(whole.loss), rel=1e-4)


def test_fedsgd_can_take_a_random_run_of_the_users_tokens(model):
    update = FedSGD(NoClip(), tokens=4, **LOCAL)
    stream = list(range(3, 27))
    select = jax.jit(update.select)
    windows = {tuple(np.asarray(select(user(stream), jax.random.key(i)).tokens)) for i in range(60)}
    assert all(len(window) == 4 and list(window) == list(range(window[0], window[0] + 4)) for window in windows)
    assert {window[0] for window in windows} > {3, 23}  # both ends are reached
    short = select(user([5, 6]), jax.random.key(1))
    assert int(short.length) == 2


@pytest.mark.slow
def test_a_second_epoch_goes_on_from_the_first(model):
    tokens = user(range(3, 27))
    once, twice = (sent(FedAvg(NoClip(), True, epochs=e, **LOCAL), model, tokens) for e in (1, 2))
    assert length(twice.update) > length(once.update) * 1.2
    assert float(twice.loss) < float(once.loss)


@pytest.mark.parametrize(
    ("update", "batches"), first_of([(FedAvg(NoClip(), True, epochs=2, **LOCAL), 8), (FedSGD(NoClip(), **LOCAL), 4)])
)
def test_every_user_pass_and_step_trains_with_a_key_of_its_own(model, update, batches):
    """A model that needs no key gets the same update from any; the keys follow from the user's alone."""
    seen = []

    def note(model, received, batch, state, key):
        jax.debug.callback(lambda data: seen.append(tuple(data.tolist())), jax.random.key_data(key))
        return plain(model, received, batch, state, key)

    def keys_of(seed):
        seen.clear()
        norms = jnp.asarray(update.clipping.clip_norms)
        send(replace(update, objective=note), model, user(range(3, 27)), jax.random.key(seed), norms, 4)
        jax.effects_barrier()
        return sorted(seen)

    first, second, again = map(keys_of, (1, 2, 1))
    assert [len(first), len(second)] == [batches, batches]
    assert len({*first, *second}) == 2 * batches
    assert first == again


def test_every_lane_trains_with_a_key_of_its_own(model):
    class Dice:
        def read(self, tokens, state, key=None):
            return jax.random.uniform(key, tokens.shape), state

        def logits(self, outputs):
            return jnp.stack([outputs, jnp.zeros_like(outputs)], axis=-1)

    batch = Batch(*(jnp.zeros((3, 4), kind) for kind in (int, int, jnp.float32)))
    losses, _ = jax.jit(partial(plain, Dice(), Dice()))(batch, jnp.zeros((3, 1)), KEY)  # pyrefly: ignore
    assert len(set(np.asarray(losses).ravel().tolist())) == 12


@pytest.mark.slow
def test_a_penalty_pulls_every_step_back_towards_the_model_as_received(model):
    """Its gradient is 2λΔ: one step is as without it, the second takes 2ηλ of the first back."""
    weight, rate, batch = 0.1, 0.05, Batch(*(jnp.ones((2, 3), kind) for kind in (int, int, jnp.float32)))
    moved = jax.tree.map(lambda leaf: leaf + 0.3, model)
    state = jax.tree.map(lambda leaf: jnp.zeros((2, *leaf.shape)), model.initial_state())

    def slope(objective):
        return jax.jit(jax.grad(lambda now: jnp.mean(objective(now, model, batch, state, KEY)[0])))(moved)

    for plainly, pulled in zip(*map(jax.tree.leaves, map(slope, (plain, Penalised(plain, weight)))), strict=True):
        np.testing.assert_allclose(pulled, plainly + 2 * weight * 0.3, rtol=1e-4, atol=1e-5)
    tokens = user(range(3, 27))
    free, held = (
        sent(FedAvg(NoClip(), True, batch=2, unroll=3, learning_rate=rate, objective=objective), model, tokens).update
        for objective in (plain, Penalised(plain, 5.0))
    )
    assert length(held) < length(free)


@pytest.mark.slow
def test_every_gradient_is_clipped_before_its_step_and_the_update_after_it(model):
    """Of one step the direction stays; eight steps of 0.01 are no longer than 0.08, and S is on what they make."""

    def update(clipping=None, **settings):
        return sent(FedAvg(clipping or NoClip(), True, **LOCAL, **settings), model, tokens).update

    tokens = user(range(3, 9))  # one step
    free, held, far = update(), update(gradient_clip=0.01), update(gradient_clip=100.0)
    assert length(free) > 10 * LOCAL["learning_rate"] * 0.01
    assert length(held) == pytest.approx(LOCAL["learning_rate"] * 0.01, rel=1e-3)
    for one, other, same in zip(*map(jax.tree.leaves, (free, held, far)), strict=True):
        np.testing.assert_allclose(one / length(free), other / length(held), rtol=1e-3, atol=1e-6)
        np.testing.assert_array_equal(one, same)
    tokens = user(range(3, 27))
    assert 2 * 0.015 < length(update(gradient_clip=0.01, epochs=2)) <= 8 * 0.015
    assert length(update(FlatClip(0.02), gradient_clip=0.01, epochs=2)) <= 0.02


@pytest.mark.slow
def test_an_objective_of_your_own_sees_the_model_as_received(model):
    def towards_received(model, received, batch, state, key):
        losses, state = plain(model, received, batch, state, key)
        pull = sum(
            jnp.sum((a - b) ** 2) for a, b in zip(jax.tree.leaves(model), jax.tree.leaves(received), strict=True)
        )
        return losses + 5.0 * pull, state

    tokens = user(range(3, 27))
    free, held = (
        sent(FedAvg(NoClip(), True, batch=2, unroll=3, learning_rate=0.05, objective=objective), model, tokens).update
        for objective in (plain, towards_received)
    )
    assert length(held) < length(free)
