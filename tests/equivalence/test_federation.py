"""Users on devices against users in one store: the same cohort, seeds and text give the same estimate."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from fleets import FEDERATION, InProcess, Seat, make_device, make_roster, seated_device, some_of, tiny_recipe
from free import AllFree, Free
from masked_fleets import node_key, same
from sottovoce.build.assembly import assemble
from sottovoce.federation.limits import Limits
from sottovoce.federation.members import BY_DEVICE, KnownMember, Membership
from sottovoce.federation.roster import Enrolment
from sottovoce.federation.rounds import Coordinator
from sottovoce.local.keys import local_key
from sottovoce.runs.secrets import Secrets
from sottovoce.training.round import release, sum_one_by_one
from sottovoce.training.types import Task

SHARES = {"phone": 1, "silo": 7, "clinic": 5}  # the thirteen users of the store, in its order
SECRETS = Secrets.seeded(3)


def keys_of(number: int):
    return SECRETS.keys(number)


def devices_of(folder, store):
    firsts = dict(zip(SHARES, np.cumsum([0, *SHARES.values()]).tolist(), strict=False))
    return {name: make_device(folder, store, name, firsts[name], users) for name, users in SHARES.items()}


# What draws for a user (the tokens of FedSGD), weights, bits and a clip of every layer: all that a device adds up.
EVERYTHING = {
    "run": {"algorithm": "fedsgd"},
    "local": {"tokens": 9},
    "privacy": {
        "clipping": "per_layer", "adaptive_quantile": 0.5, "adaptive_bit_noise": 6.0, "weight_cap": 30.0,
        "total_weight": 10.0,
    },
}  # fmt: skip


# Users who come at irregular times, and noise that is correlated over rounds.
SEPARATED = {
    "privacy": {
        "sampling": "min_separation",
        "min_separation": 2,
        "cohort": 5,
        "participations": 2,
        "noise": "banded",
        "noise_coefficients": (1.0, 0.5),
    },
}


# Adapters beside frozen weights, which devices get from the server: theirs, of another seed, would be others.
ADAPTED = {"model": {"adapter_rank": 2}, "privacy": {"clipping": "per_layer"}, "run": {"seed": 5}}


PLAIN = {"privacy": {"cohort": 12, "users": 13}}
OFTEN = {"privacy": {"sampling": "min_separation", "min_separation": 1, "cohort": 12}}


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [EVERYTHING, PLAIN, OFTEN, ADAPTED],
    ids=["fedsgd, layers, adaptive", "fedavg", "min_separation", "adapters"],
)
def test_a_masked_sum_is_the_plain_sum_to_the_bit(store, vocabulary, tmp_path, settings):
    """And so is every model that follows: two runs over the same devices, one of them masked."""
    public = {name: node_key(number)[1] for number, name in enumerate(SHARES)}
    members = {name: KnownMember(users, public[name], BY_DEVICE) for name, users in SHARES.items()}
    store = some_of(store, 0, sum(SHARES.values()))
    firsts = dict(zip(SHARES, np.cumsum([0, *SHARES.values()]).tolist(), strict=False))
    released = {}
    for aggregation in ({}, {"survivors": 2}):
        folder = tmp_path / str(len(aggregation))
        roster = make_roster(folder / "federation", vocabulary, store.tokens_per_user, SHARES, public)
        assembly = assemble(tiny_recipe(folder, **settings, federation=aggregation), store)
        devices = {
            name: seated_device(
                folder, store, Enrolment(FEDERATION, name, firsts[name], users),
                Seat(membership=Membership(node_key(number)[0], members)),
            )
            for number, (name, users) in enumerate(SHARES.items())
        }  # fmt: skip
        played = Coordinator(roster, InProcess(devices), 1.0).rounds(
            assembly, "spring", assembly.start(assembly.model), AllFree(keys_of)
        )
        released[len(aggregation)] = [
            (state, summed, {name: _joined(device, state.round).tolist() for name, device in devices.items()})
            for state, summed in played
        ]
    for (plain, ours, rows), (masked, theirs, also) in zip(*released.values(), strict=True):
        assert rows == also
        assert same(ours, theirs)
        assert theirs.users > 1
        for one, other in zip(jax.tree.leaves(plain.params), jax.tree.leaves(masked.params), strict=True):
            assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(EVERYTHING, id="coins"),
        pytest.param(SEPARATED, id="min_separation", marks=pytest.mark.slow),
        pytest.param(ADAPTED, id="adapters", marks=pytest.mark.slow),
    ],
)
def test_rounds_over_devices_are_the_simulated_rounds_on_the_same_cohorts(store, vocabulary, tmp_path, settings):
    """To rounding: over the wire and back, for three rounds that follow one another."""
    roster = make_roster(tmp_path / "federation", vocabulary, store.tokens_per_user, SHARES)
    store = some_of(store, 0, sum(SHARES.values()))  # with names
    assembly = assemble(tiny_recipe(tmp_path / "federation", **settings), store)
    devices = devices_of(tmp_path, store)
    start = assembly.start(assembly.model)
    played = Coordinator(roster, InProcess(devices), 1.0).rounds(assembly, "spring", start, AllFree(keys_of))
    simulated, cohorts, answers = start, [], []
    for state, summed in played:
        number = state.round
        cohort = np.sort(np.concatenate([_joined(device, number) for device in devices.values()]))
        if settings is SEPARATED:  # a silo's users come as they would in a simulation
            expected = assembly.algorithm.mechanism.sampler.sample(store, b"", number)
            assert cohort[cohort > 0].tolist() == expected[expected > 0].tolist()
        clip_norms = assembly.algorithm.mechanism.clip_norms(number, simulated.clip_norms)
        # One user after another, as each device has them: nothing is left to rounding but the order of the sum.
        sent = np.asarray(jax.random.key_data(local_key(keys_of(number).local)))
        key = devices["phone"].training_key(("spring", number), sent)  # all have one secret here
        alone = sum_one_by_one(assembly.algorithm, Task(simulated.params, cohort, clip_norms, key), store)
        for ours, theirs in zip(jax.tree.leaves(summed.total), jax.tree.leaves(alone.total), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-6 * float(np.max(clip_norms)))
        assert summed.weight == pytest.approx(float(alone.weight), abs=1e-6)
        assert summed.users == len(cohort)
        assert summed.bits.tolist() == np.asarray(alone.bits).tolist()
        simulated, _ = release(
            assembly.algorithm, simulated, alone, clip_norms, Free(keys_of(number), round_number=number)
        )
        cohorts.append(cohort)
        answers += summed.answers
        for ours, theirs in zip(jax.tree.leaves(state.params), jax.tree.leaves(simulated.params), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    assert len(cohorts) == 3
    assert len({tuple(cohort) for cohort in cohorts}) == 3
    assert 6 < sum(map(len, cohorts)) < 33
    # A device whose users' coins all fell the other way is in the sum with zeros.
    assert set(answers) - ({"away"} if settings is SEPARATED else set()) == {"joined"}  # a phone may wait for its turn


def _joined(device, number: int) -> np.ndarray:
    rows = device._participation._joined.get(("spring", number), [])
    return np.array(rows, int) + device._enrolled.first


def test_whoever_is_away_is_a_zero_and_the_denominator_stays(store, vocabulary, tmp_path):
    """With nobody there a round is noise alone, of the usual size, and paid for."""
    roster = make_roster(tmp_path / "federation", vocabulary, store.tokens_per_user, SHARES)
    quiet = {"privacy": {"mode": "none", "noise_multiplier": None}}
    assembly = assemble(tiny_recipe(tmp_path / "federation", **quiet), store)
    allowing = Limits(private_only=False)
    silo = make_device(tmp_path, store, "silo", 1, 7, limits=allowing)
    spent = []

    class Counting(AllFree):
        def begin(self, round_number):
            spent.append(round_number)
            return super().begin(round_number)

    def first_round(devices):
        coordinator = Coordinator(roster, InProcess(devices), 1.0)
        start = assembly.start(assembly.model)
        return next(coordinator.rounds(assembly, "spring", start, Counting(keys_of)))

    state, summed = first_round({"silo": silo})
    moved = jax.tree.map(lambda new, old: np.asarray(new) - np.asarray(old), state.params, assembly.model)
    expected = assembly.recipe.privacy.cohort  # q·W, whoever came
    for change, total in zip(jax.tree.leaves(moved), jax.tree.leaves(summed.total), strict=True):
        np.testing.assert_allclose(change, total / expected, atol=1e-6)
    assert summed.users > 0
    nobody, empty = first_round({})
    assert (empty.users, empty.answers) == (0, {"away": 3})
    for leaf, before in zip(jax.tree.leaves(nobody.params), jax.tree.leaves(assembly.model), strict=True):
        assert (np.asarray(leaf) == np.asarray(before)).all()
    assert spent == [1, 1]
