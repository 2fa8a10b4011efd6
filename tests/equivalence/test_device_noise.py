"""Rounds over devices that add noise: what the server opens is the sum of what they noised, and no more."""

from __future__ import annotations

import math
from collections import Counter
from itertools import count

import jax
import numpy as np
import pytest
from scipy import stats

from fleets import FEDERATION, InProcess, Seat, make_roster, seated_device, some_of, tiny_recipe
from free import AllFree
from masked_fleets import node_key
from sottovoce.build.assembly import assemble
from sottovoce.build.mechanism import build_mechanism
from sottovoce.federation import device as devices_module
from sottovoce.federation.device import SERVER_DELTA, with_own_noise
from sottovoce.federation.limits import Limits
from sottovoce.federation.members import BY_DEVICE, KnownMember, Membership
from sottovoce.federation.messages import Code, read_answer
from sottovoce.federation.roster import Enrolment
from sottovoce.federation.rounds import Coordinator
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.noise import Scale
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence.accounting import SampledGaussian, epsilon

SHARES = {"phone": 1, "silo": 7, "clinic": 5}
NOISED = {
    "survivors": 2,
    "noise": "devices",
    "server_noise_multiplier": 0.8,
    "participations": 2,
}
SECRETS = Secrets.seeded(3)


def fleet(folder, store, limits=None):
    public = {name: node_key(number)[1] for number, name in enumerate(SHARES)}
    members = {name: KnownMember(users, public[name], BY_DEVICE) for name, users in SHARES.items()}
    firsts = dict(zip(SHARES, np.cumsum([0, *SHARES.values()]).tolist(), strict=False))
    devices = {
        name: seated_device(
            folder,
            store,
            Enrolment(FEDERATION, name, firsts[name], users),
            Seat(membership=Membership(node_key(number)[0], members)),
            limits,
        )
        for number, (name, users) in enumerate(SHARES.items())
    }
    return devices, public


@pytest.fixture
def played(store, vocabulary, tmp_path, monkeypatch):
    """Three rounds: the sums that were opened, the vectors before and after the noise of each device, the devices."""
    vectors, real = [], devices_module.with_own_noise

    def watched(vector, mechanism, clip_norms):
        noised = real(vector, mechanism, clip_norms)
        vectors[-1].append((vector, noised))
        return noised

    monkeypatch.setattr(devices_module, "with_own_noise", watched)
    store = some_of(store, 0, sum(SHARES.values()))
    devices, public = fleet(tmp_path, store)
    roster = make_roster(tmp_path / "federation", vocabulary, store.tokens_per_user, SHARES, public)
    recipe = tiny_recipe(tmp_path, privacy={"cohort": 12}, federation=NOISED)
    assembly = assemble(recipe, store)
    transport = InProcess(devices)
    rounds = Coordinator(roster, transport, 1.0).rounds(
        assembly, "spring", assembly.start(assembly.model), AllFree(lambda number: SECRETS.keys(number))
    )
    moduli, add_noise = [], Mechanism.add_noise

    def noticed(self, *of):
        moduli.append(self.modulus)
        return add_noise(self, *of)

    monkeypatch.setattr(Mechanism, "add_noise", noticed)
    sums = []
    for _ in range(3):
        vectors.append([])
        sums.append(next(rounds)[1])
    # The server's noise is added modulo what the sum was opened modulo.
    assert set(moduli) == {summed.modulus for summed in sums} == {2**40}
    return assembly.algorithm.mechanism, sums, vectors, devices


@pytest.mark.slow
def test_the_server_opens_the_sum_of_what_devices_noised(played):
    mechanism, sums, vectors, devices = played
    clip_norms = mechanism.clip_norms(1, None)
    share = Scale.at_least(mechanism.devices.share * mechanism.steps(clip_norms))
    noise = []
    for summed, came in zip(sums[:2], vectors[:2], strict=True):
        opened = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(summed.total)]) / mechanism.grid(clip_norms)
        np.testing.assert_array_equal(opened, np.sum([noised for _, noised in came], axis=0))
        assert len(came) >= 2
        # Exact counts would be seen beside the noise: none are sent.
        assert (summed.weight, summed.users, summed.bits.any()) == (0, 0, False)
        noise += [noised - vector for vector, noised in came]
        assert all(len(vector) == opened.size for vector, _ in came)
    # Every device and round has noise of its own, and each the declared share.
    assert len({each.tobytes() for each in noise}) == len(noise)
    for each in noise:
        squares = np.sum((each / (share.mantissa * 2.0**share.exponent)) ** 2)
        assert 1e-4 < stats.chi2(each.size).cdf(squares) < 1 - 1e-4
    # In three rounds nearly all coins fall for everybody, and two rounds are what each user may join.
    joined = Counter(
        (name, row)
        for name, device in devices.items()
        for rows in device._participation._joined.values()
        for row in rows
    )
    assert max(joined.values()) == 2


@pytest.mark.parametrize("from_devices", [1.2, pytest.param(0.8, marks=pytest.mark.slow)])  # of 1.2: all, or a part
def test_a_round_whose_sum_is_not_opened_has_all_of_the_noise(store, vocabulary, tmp_path, from_devices):
    """Nobody answers. What is released may not show it, nor cost more than any round."""
    store = some_of(store, 0, sum(SHARES.values()))
    public = {name: node_key(number)[1] for number, name in enumerate(SHARES)}
    roster = make_roster(tmp_path / "federation", vocabulary, store.tokens_per_user, SHARES, public)
    federation = {**NOISED, "server_noise_multiplier": from_devices}
    recipe = tiny_recipe(tmp_path, privacy={"noise_multiplier": 1.2}, federation=federation)
    assembly = assemble(recipe, store)
    start = assembly.start(assembly.model)
    payments = AllFree(lambda number: SECRETS.keys(number))
    after, summed = next(Coordinator(roster, InProcess({}), 1.0).rounds(assembly, "spring", start, payments))
    assert (summed.answers, summed.modulus) == ({"away": 3}, None)
    steps = [
        np.ravel(b) - np.ravel(a) for a, b in zip(*map(jax.tree.leaves, (start.params, after.params)), strict=True)
    ]
    step, mechanism = np.concatenate(steps), assembly.algorithm.mechanism
    std = 1.2 * mechanism.sensitivity(mechanism.clip_norms(1, None))
    assert 1e-4 < stats.chi2(step.size).cdf(np.sum(np.square(step / std))) < 1 - 1e-4


def test_a_device_draws_new_noise_for_every_vector_and_none_where_the_server_does():
    recipe = tiny_recipe("none", federation=NOISED)
    mechanism = build_mechanism(recipe, ["a"])
    clip_norms = mechanism.clip_norms(1, None)
    one, other = (with_own_noise(np.zeros(40, np.int64), mechanism, clip_norms) for _ in range(2))
    assert not np.any(one == other)
    plain = build_mechanism(recipe.replace(federation={"noise": "server"}), ["a"])
    assert not np.any(with_own_noise(np.zeros(40, np.int64), plain, clip_norms))


REPLAYS = 400


@pytest.fixture(scope="module")
def opened():
    """What a server opens in rounds with and without one person, again and again, and what it is charged for one.

    The person sends as much as the clip allows; of the devices only as many add noise as are honest at the least.
    """
    mechanism = build_mechanism(tiny_recipe("none", federation={**NOISED, "survivors": 3, "colluding": 1}), ["a"])
    clip_norms, size = mechanism.clip_norms(1, None), 6
    steps = mechanism.steps(clip_norms)
    person = np.trunc(steps * np.array([0.8, -0.48, 0.3, -0.15, 0.1, 0.05])).astype(np.int64)
    assert 0.99 * steps < np.linalg.norm(person) <= steps
    seen = {}
    keys = (bytes([number]) * 32 for number in count(1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices_module.os_entropy, "token_bytes", lambda size: next(keys))
        for joins in (True, False):
            # Coordinates are independent, so that one draw of many is many rounds.
            sent = np.tile(joins * person, REPLAYS)
            shares = [with_own_noise(part, mechanism, clip_norms) for part in (sent, np.zeros_like(sent))]
            seen[joins] = np.sum(shares, axis=0).reshape(REPLAYS, size)
    ((event, _),) = mechanism.devices.against_server
    return person, seen, event.noise_multiplier * steps


def test_the_noise_of_a_round_has_the_moments_that_are_charged(opened):
    person, seen, std = opened
    for joins, sums in seen.items():
        noise = (sums - joins * person) / std
        size = noise.size
        assert abs(noise.mean()) < 4 / math.sqrt(size)
        assert 1e-4 < stats.chi2(size).cdf(np.sum(noise**2)) < 1 - 1e-4
        assert abs(np.mean(noise**3)) < 4 * math.sqrt(15 / size)
        assert abs(np.mean(noise**4) - 3) < 4 * math.sqrt(96 / size)


@pytest.mark.parametrize("level", [0.2, 0.5, 1.0, 2.0])
def test_the_server_tells_a_person_no_better_than_is_charged(opened, level):
    """By the likelihood ratio, the best test there is: P[it says "there"] is within e^ε times the other, and δ."""
    person, seen, std = opened
    charged = SampledGaussian(std / np.linalg.norm(person), "poisson", 1.0)
    delta = next(d for d in np.geomspace(1e-4, 1, 400) if epsilon([(charged, 1)], min(d, 0.999)) <= level)
    ratio = {joins: (sums @ person - person @ person / 2) / std**2 for joins, sums in seen.items()}
    says = {joins: int(np.sum(found > level)) for joins, found in ratio.items()}
    there, absent = (_chance(says[joins]) for joins in (True, False))
    assert there[0] - math.exp(level) * absent[1] <= delta, "a person is told more easily than is charged"
    assert there[1] - math.exp(level) * absent[0] >= delta / 2, "the test would not notice much less noise"


def _chance(said: int) -> tuple[float, float]:
    """The chance of something that happened in so many of the replays: Clopper and Pearson, 0.1 % on either side."""
    beyond = REPLAYS - said
    return stats.beta.ppf(1e-3, said, beyond + 1) if said else 0.0, stats.beta.ppf(1 - 1e-3, said + 1, beyond)


def test_a_device_works_out_itself_what_holds_against_the_server():
    recipe = tiny_recipe("none", federation=NOISED)
    mechanism = build_mechanism(recipe, ["a"])
    found = devices_module._against_server(mechanism)
    assert found == epsilon(mechanism.devices.against_server, SERVER_DELTA) > 1
    plain = build_mechanism(recipe.replace(federation={"noise": "server"}), ["a"])
    assert devices_module._against_server(plain) == math.inf


@pytest.mark.slow
def test_a_device_refuses_a_run_whose_epsilon_against_the_server_is_above_its_limit(store, vocabulary, tmp_path):
    """The server chooses noise and rounds, and the owner of a device what they must come to at least."""
    store = some_of(store, 0, sum(SHARES.values()))
    answers = {}
    recipe = tiny_recipe(tmp_path, privacy={"cohort": 12}, federation=NOISED)
    for name, limit in (("below", 1.0), ("above", 100.0)):
        devices, public = fleet(tmp_path / name, store, Limits(server_epsilon=limit))
        roster = make_roster(tmp_path / name / "federation", vocabulary, store.tokens_per_user, SHARES, public)
        for federation in (NOISED, {**NOISED, "noise": "server", "server_noise_multiplier": None, "participations": 0}):
            assembly = assemble(recipe.replace(federation=federation), store)
            transport = InProcess({})
            rounds = Coordinator(roster, transport, 1.0)
            next(rounds.rounds(assembly, federation["noise"], assembly.start(assembly.model), AllFree(keys_of)))
            answers[name, federation["noise"]] = devices["silo"].answer(transport.tasks[0])
    codes = {case: getattr(read_answer(answer), "code", None) for case, answer in answers.items() if len(answer) < 200}
    assert codes == {case: Code.LIMITS for case in answers if case != ("above", "devices")}
    assert SERVER_DELTA == 1e-6


def keys_of(number: int):
    return SECRETS.keys(number)
