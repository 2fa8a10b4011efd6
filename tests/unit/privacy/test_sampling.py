"""What each sampler says of itself, and users in turn: how often one can join, and what that is charged."""

from __future__ import annotations

import itertools

import dp_accounting
import numpy as np
import pytest
from scipy import stats

from sottovoce.privacy.clipping import FlatClip
from sottovoce.privacy.estimators import FixedDenominator
from sottovoce.privacy.kinds import KINDS
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.sampling import SAMPLERS, Examples, FixedSize, InTurn, MinSeparation, Poisson
from sottovoce_evidence.accounting import (
    Covered,
    Event,
    NonPrivate,
    SampledExamples,
    SampledGaussian,
    epsilon,
)
from sottovoce_evidence.accounting.events import ADDED
from sottovoce_evidence.accounting.matrices import Banded, Identity, Participation
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.mechanism import sampler_of
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.schedule import Schedule

SIZES = [(1, 1), (1, 5), (3, 7), (4, 10), (5, 10), (7, 7), (6, 11)]
ONE = SampledGaussian(1.5, "fixed", 1.0, cohort=1, users=1)


def make_mechanism(cohort: int, users: int, **more) -> Mechanism:
    return Mechanism(InTurn(cohort, users, seed=3), FlatClip(1.0), FixedDenominator(4.0), 1.5, **more)


class People:
    """Names are hashes, as a store has them."""

    def __init__(self, users: int):
        self.names = np.random.default_rng(1).integers(0, 2**64, users, np.uint64)

    def __len__(self):
        return len(self.names)


@pytest.mark.parametrize(("cohort", "users"), SIZES)
@pytest.mark.parametrize("there", [1, 4, 60])
def test_nobody_joins_more_often_than_is_charged(cohort, users, there):
    """In any run of rounds, whoever redoes it, and however many people the store has."""
    sampler, people = InTurn(cohort, users, seed=3), People(there)
    joined = np.zeros((12, there), int)
    for number in range(1, 13):
        rows = sampler.sample(people, b"", number)
        assert np.all(np.diff(rows) > 0)
        joined[number - 1, rows] += 1
    assert sampler.groups == users // cohort
    for first, last in itertools.combinations(range(13), 2):
        most = joined[first:last].sum(axis=0).max()
        assert most <= sampler.participations(last - first)
        if first == 0 and there == 60:
            assert most == sampler.participations(last)  # and not less: nobody pays for nothing
    if sampler.groups <= 12:
        assert joined[: sampler.groups].sum(axis=0).tolist() == [1] * there  # everybody has a turn


def test_a_turn_follows_from_the_name_and_public_constants_alone():
    sampler, people = InTurn(4, 40, seed=3), People(200)
    groups = sampler.group_of(people.names)
    for some in (people.names[::-1], people.names[7:], np.sort(people.names)):
        found = dict(zip(some.tolist(), sampler.group_of(some).tolist(), strict=True))
        assert all(
            found[name] == group for name, group in zip(people.names.tolist(), groups, strict=True) if name in found
        )
    assert sampler.sample(people, b"a secret", 3).tolist() == sampler.sample(people, b"another", 3).tolist()
    assert not np.array_equal(InTurn(4, 40, seed=4).group_of(people.names), groups)


def test_groups_are_about_as_large_as_the_declared_cohort():
    sizes = np.bincount(InTurn(100, 10_000, seed=3).group_of(People(10_000).names).astype(int), minlength=100)
    chi = np.sum((sizes - 100) ** 2 / 100)
    assert 1e-3 < stats.chi2.sf(chi, 99) < 1 - 1e-3
    # Names that are nothing but numbers of rows do as well.
    plain = np.bincount(InTurn(100, 10_000, seed=3).group_of(np.arange(10_000)).astype(int), minlength=100)
    assert stats.chi2.sf(np.sum((plain - 100) ** 2 / 100), 99) > 1e-3


@pytest.mark.parametrize("sampler", [*(InTurn(*size, seed=3) for size in SIZES), MinSeparation(3, 12, 3, 3, 3)])
def test_the_rounds_of_a_ledger_add_up_to_the_most_turns_of_anybody(sampler):
    mechanism = Mechanism(sampler, FlatClip(1.0), FixedDenominator(4.0), 1.5)
    for rounds in range(1, 13):
        charged = [mechanism.event(number) for number in range(1, rounds + 1)]
        assert charged.count(ONE) == mechanism.sampler.participations(rounds)
        assert charged.count(Covered(1.5)) == rounds - charged.count(ONE)
        assert mechanism.events(rounds) == [(ONE, charged.count(ONE))]
        assert epsilon([(event, 1) for event in charged], 1e-5, "rdp") == epsilon(mechanism.events(rounds), 1e-5, "rdp")


# cohort, users, b, k
SEPARATED = [(1, 5, 1, 3), (2, 14, 7, 4), (3, 10, 2, 5), (4, 40, 9, 1), (5, 5, 1, 6), (3, 29, 5, 7)]


def joined_by(sampler: MinSeparation, people: People, rounds: int) -> np.ndarray:
    """Which user joins which round, as rounds ask for it."""
    joined = np.zeros((rounds + 1, len(people)), bool)
    for number in range(1, rounds + 1):
        rows = sampler.sample(people, b"", number)
        assert np.all(np.diff(rows) > 0)
        joined[number, rows] = True
    return joined


@pytest.mark.parametrize(("cohort", "users", "b", "k"), SEPARATED)
def test_nobody_joins_within_the_separation_or_more_often_than_allowed(cohort, users, b, k):
    """For all of 3,000 users, in more rounds than there are to join; and both limits are reached."""
    sampler, people = MinSeparation(cohort, users, 3, b, k), People(3000)
    joined = joined_by(sampler, people, sampler.span + 2 * b + 3)
    gaps = [np.diff(np.flatnonzero(rounds)) for rounds in joined.T]
    assert joined.sum(axis=0).tolist() == [k] * len(people)
    assert k == 1 or min(gap.min() for gap in gaps) == b
    assert not joined[sampler.span + 1 :].any()
    for rounds in range(1, sampler.span + 1):
        assert joined[: rounds + 1].sum(axis=0).max() <= sampler.participations(rounds)
    assert sampler.participation(sampler.span) == Participation(sampler.span, b, sampler.participations(sampler.span))


def test_the_rounds_of_a_user_are_those_that_ask_for_them():
    people = People(500)
    for sampler in (MinSeparation(3, 29, 3, 5, 7), InTurn(3, 29, seed=3)):
        rounds = sampler.rounds_of(people.names, 60)
        for row, found in enumerate(joined_by(sampler, people, 60).T):
            assert rounds[row][rounds[row] > 0].tolist() == np.flatnonzero(found).tolist()
            assert rounds[row].tolist() == sampler.rounds_of(people.names[row : row + 1], 60)[0].tolist()
    assert np.array_equal(np.concatenate([joined for _, joined in sampler.in_chunks(people.names, 60)]), rounds)


def test_every_round_expects_the_declared_cohort():
    """The sizes of cohorts are those of independent users with the same chance, in every round up to the last."""
    sampler, people = MinSeparation(100, 2700, 3, 20, 19), People(2700)
    sizes = joined_by(sampler, people, sampler.span)[1:].sum(axis=1)
    assert (sampler.span, sizes.mean(), sampler.user_rate) == (513, 100, 1 / 27)
    spread = np.sum((sizes - 100.0) ** 2) / (100 * 26 / 27)
    assert 1e-4 < stats.chi2.sf(spread, sampler.span - 1) < 1 - 1e-4
    for part in np.array_split(sizes, 9):  # no round is favoured, not the first nor the last ones
        assert abs(part.mean() - 100) < 5 * 10 / np.sqrt(len(part))


def test_gaps_are_irregular():
    """About the separation and a geometric number, whose mean makes users / cohort of both."""
    sampler, people = MinSeparation(10, 200, 3, 10, 200), People(400)
    gaps = np.concatenate([np.diff(row) for row in sampler.rounds_of(people.names, sampler.span)])
    assert gaps.mean() == pytest.approx(20, rel=0.01)
    shares = [np.mean(gaps - 10 >= more) for more in (5, 10, 20, 40)]
    assert shares == pytest.approx([(10 / 11) ** more for more in (5, 10, 20, 40)], abs=0.02)


def test_the_rounds_of_a_user_follow_from_the_name_and_public_constants_alone():
    sampler, people = MinSeparation(4, 40, 3, 6, 5), People(200)
    rounds = dict(zip(people.names.tolist(), sampler.rounds_of(people.names, 50).tolist(), strict=True))
    for some in (people.names[::-1], people.names[7:], np.sort(people.names)):
        fewer = People(len(some))
        fewer.names = some
        joined = joined_by(sampler, fewer, 50)
        for row, name in enumerate(some.tolist()):
            assert np.flatnonzero(joined[:, row]).tolist() == [number for number in rounds[name] if number]
    assert sampler.sample(people, b"a secret", 3).tolist() == sampler.sample(people, b"another", 3).tolist()
    assert not np.array_equal(MinSeparation(4, 40, 4, 6, 5).rounds_of(people.names, 50), list(rounds.values()))
    # Fixed for good: a run that goes on after an update of the code has the same rounds.
    assert sampler.rounds_of(np.array([1, 2], np.uint64), 50).tolist() == [[5, 12, 22, 34, 42], [6, 13, 27, 33, 49]]


@pytest.mark.parametrize(("b", "k", "match"), [(0, 2, "from 1 to 10"), (11, 2, "from 1 to 10"), (5, 0, "1 or more")])
def test_a_separation_that_too_few_users_can_keep_is_refused(b, k, match):
    with pytest.raises(SottoError, match=match):
        MinSeparation(4, 40, 3, b, k)
    with pytest.raises(SottoError, match="min_separation=0 must be from 1"):
        built_sampler("min_separation")


def built_sampler(name, run=None, silos=1, **privacy):
    """The sampler of a recipe of 10 rounds, which asks 4 of 40 users a round."""
    settings = {"sampling": name, "cohort": 4, "users": 40, **privacy}
    changes = {"privacy": settings, "run": {"rounds": 10, **(run or {})}, "federation": {"max_silos": silos}}
    return sampler_of(Recipe().replace(**changes), KINDS)


def test_one_turn_is_one_gaussian_mechanism_without_amplification():
    """Replacing a user moves the sum twice as far as adding one: dp-accounting's Gaussian of half the noise."""
    mechanism = make_mechanism(4, 40)
    for rounds, turns in ((10, 1), (11, 2)):
        event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(1.5 / 2), turns)
        theirs = dp_accounting.pld.PLDAccountant().compose(event).get_epsilon(1e-5)
        assert epsilon(mechanism.events(rounds), 1e-5) == pytest.approx(theirs, rel=1e-3)


def test_a_turn_of_hardly_any_noise_is_charged_what_it_costs():
    """A loss of hundreds: nothing on the way leaves the range of a float, which would be told with a warning."""
    loud = SampledGaussian(0.05, "fixed", 1.0, cohort=1, users=1)
    assert epsilon([(loud, 1)], 1e-5) == pytest.approx(969.646, rel=2e-3)  # of a Gaussian whose mean is 40 away


def test_what_is_covered_costs_nothing_and_is_read_back():
    assert epsilon([(ONE, 1), (Covered(1.5), 9)], 1e-5, "rdp") == epsilon([(ONE, 1)], 1e-5, "rdp")
    assert Event.from_json(Covered(1.5).to_json()) == Covered(1.5)
    assert Covered(1.5).relation == ONE.relation


def test_without_noise_no_round_is_covered():
    mechanism = Mechanism(InTurn(4, 40, seed=3), FlatClip(1.0), FixedDenominator(4.0), 0.0)
    assert {mechanism.event(number) for number in range(1, 13)} == {NonPrivate()}


def test_noise_that_changes_from_turn_to_turn_is_refused_and_a_factor_for_all_is_counted():
    with pytest.raises(SottoError, match="remove the noise schedule"):
        make_mechanism(4, 40, noise_schedule=Schedule(((1, 1.0), (5, 0.5))))
    mechanism = make_mechanism(4, 40, noise_schedule=Schedule(((1, 0.5),)))
    assert mechanism.event(1).noise_multiplier == 0.75
    assert mechanism.events(3) == [(mechanism.event(1), 1)]


def test_a_cohort_of_more_than_everybody_is_refused():
    with pytest.raises(SottoError, match="from 1 to the declared"):
        InTurn(41, 40, seed=3)


@pytest.mark.parametrize(
    ("name", "built", "relation"),
    [
        ("poisson", Poisson(0.1), "add-or-remove-one-user"),
        ("fixed", FixedSize(4, 40), "replace-one-user"),
        ("in_turn", InTurn(4, 40, seed=3), "replace-one-user"),
        ("min_separation", MinSeparation(4, 40, 3, 2, 5), "replace-one-user"),
    ],
)
def test_a_sampler_gets_the_constants_that_its_constructor_takes(name, built, relation):
    apart = {"min_separation": 2, "participations": 9}
    sampler = built_sampler(name, {"seed": 3}, **apart)
    assert sampler == built
    assert sampler.relation == relation
    assert sampler.user_rate == pytest.approx(0.1)
    assert sampler.expected(40) == pytest.approx(4)
    apart["participations"] = 17  # as many rounds of other cohorts
    other = built_sampler(name, {"seed": 3, "rounds": 50}, cohort=3, users=9, **apart)
    assert sampler.of_population(3, 9) == other


def test_what_a_run_costs_is_what_its_rounds_cost():
    noise = [(2.0, 3), (1.0, 4)]
    for sampler in (Poisson(0.1), FixedSize(4, 40)):
        each = [sampler.event_of_round(2.0 if number <= 3 else 1.0, number) for number in range(1, 8)]
        assert [event for event, count in sampler.events(noise) for _ in range(count)] == each
        assert sampler.participations(7) == 7
        assert sampler.round_of_charge(5) == 5
    assert InTurn(4, 40, seed=3).events([]) == []


def test_only_users_who_flip_their_own_coins_are_independent_and_only_turns_are_public():
    facts = {name: (kind.independent, kind.amplifies) for name, kind in SAMPLERS.items()}
    coins, public = (True, True), (False, False)
    turns = {"in_turn": public, "min_separation": public}
    assert facts == {"poisson": coins, "fixed": (False, True), **turns, "examples": coins}


def test_a_cohort_that_is_no_whole_number_and_an_unknown_name_are_refused():
    assert built_sampler("poisson", cohort=2.5).user_rate == 2.5 / 40
    with pytest.raises(SottoError, match="whole number"):
        built_sampler("fixed", cohort=2.5)
    with pytest.raises(SottoError, match="did you mean 'poisson'"):
        SAMPLERS["poison"]


def test_examples_join_by_coins_of_their_own_and_are_charged_for_all_of_a_user():
    sampler = Examples(0.25, 4)
    assert sampler.event(1.5) == SampledExamples(1.5, 0.25, 4)
    assert sampler.relation == ADDED
    assert sampler.user_rate == pytest.approx(1 - 0.75**4)
    places = range(40)
    assert np.array_equal(sampler.sample(places, bytes(32)), Poisson(0.25).sample(places, bytes(32)))
    assert sampler.expected(100) == 25  # in users: as many places as 25 users have
    assert sampler.of_population(25, 50) == Examples(0.5, 4)


def test_examples_are_drawn_from_as_many_places_for_every_user():
    with pytest.raises(SottoError, match="not 4 places for each user"):
        Examples(0.25, 4).sample(range(41), bytes(32))
    with pytest.raises(SottoError, match="example_rate"):
        Examples(0.0, 4)


def test_a_person_in_several_silos_is_charged_for_the_coins_of_all():
    sampler = built_sampler("poisson", silos=3)
    assert sampler.event(1.5) == SampledExamples(3 * 1.5, 0.1, 3)
    assert (sampler.most_updates, Poisson(0.1).most_updates) == (3, 1)
    assert np.array_equal(sampler.sample(range(40), bytes(32)), Poisson(0.1).sample(range(40), bytes(32)))
    assert sampler.of_population(5, 10).event(1.5) == SampledExamples(3 * 1.5, 0.5, 3)
    with pytest.raises(SottoError, match="no accounting for one person in 2 silos"):
        built_sampler("fixed", silos=2)
    with pytest.raises(SottoError, match="silos=0"):
        Poisson(0.1, silos=0)


@pytest.mark.parametrize("matrix", [Identity(), Banded((1.0, 0.5, 0.3, 0.2))], ids=["independent", "correlated"])
def test_silos_that_keep_the_separation_apart_move_a_run_no_further_than_one(matrix):
    """Whichever rounds each of two silos has a person in, the same or others: half of each adds up to one at most."""
    declared = {"cohort": 2, "users": 12, "min_separation": 3, "participations": 2}
    sampler = built_sampler("min_separation", {"rounds": 7}, silos=2, **declared)
    assert sampler.event(1.5) == ONE
    sensitivity = matrix.sensitivity(sampler.participation(7))
    patterns = [p for n in (1, 2) for p in itertools.combinations(range(1, 8), n) if n == 1 or p[1] - p[0] >= 3]

    def moved(first: tuple[int, ...], second: tuple[int, ...]) -> float:
        """‖C(u + v)‖ / 2, of the square: C'C gives what two rounds have in common."""
        rounds = [*first, *second]
        pairs = [matrix.norm([a], 7) ** 2 if a == b else _common(matrix, a, b) for a in rounds for b in rounds]
        return np.sqrt(sum(pairs)) / 2

    worst = max(moved(first, second) for first, second in itertools.product(patterns, patterns))
    assert worst == pytest.approx(sensitivity)


def _common(matrix, a: int, b: int) -> float:
    """The product of the columns of C for two rounds, from the norms of each and of their sum."""
    return (matrix.norm([a, b], 7) ** 2 - matrix.norm([a], 7) ** 2 - matrix.norm([b], 7) ** 2) / 2
