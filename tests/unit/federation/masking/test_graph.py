"""Who is whose neighbour, and how many open a secret."""

from __future__ import annotations

from collections import deque
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import hypergeom

from examples import examples
from sottovoce.federation.masking import graph
from sottovoce.federation.masking.graph import CHANCE, Graph, Terms, degree_of, graph_of, quorum, threshold

counts, colluders = st.integers(2, 160), st.integers(0, 40)


def made(count: int, terms: Terms, seed: int = 0) -> Graph:
    return graph_of([f"d{number}" for number in range(count)], sha256(str(seed).encode()).hexdigest(), terms)


def is_connected(near: dict[str, tuple[str, ...]], alive: set[str]) -> bool:
    start = min(alive)
    seen, queue = {start}, deque([start])
    while queue:
        for other in set(near[queue.popleft()]) & alive - seen:
            seen.add(other)
            queue.append(other)
    return seen == alive


@examples(40)
@given(count=st.integers(2, 70), colluding=colluders, survivors=st.integers(2, 70), seed=st.integers(0, 3))
def test_every_device_has_as_many_neighbours_and_is_theirs(count, colluding, survivors, seed):
    found = made(count, Terms(survivors, colluding), seed)
    degrees = {len(near) for near in found.neighbours.values()}
    assert degrees == {degree_of(count, Terms(survivors, colluding))}
    for name, near in found.neighbours.items():
        assert name not in near
        assert list(near) == sorted(set(near))
        assert all(name in found.neighbours[other] for other in near)
        assert [found.place(name, other) for other in near] == list(range(len(near)))
    assert is_connected(found.neighbours, set(found.neighbours))


@examples(60)
@given(count=counts, colluding=colluders, survivors=st.integers(2, 160))
def test_both_secrets_of_a_device_can_never_be_opened(count, colluding, survivors):
    """Honest neighbours give a share of one secret each, those that collude of both: that is too few for two."""
    degree = degree_of(count, Terms(survivors, colluding))
    needed, bad = threshold(degree, colluding), min(colluding, degree)
    for honest in range(degree - bad + 1):
        shares = honest + bad, degree - bad - honest + bad
        assert min(shares) < needed
    assert needed <= 1 or 2 * (needed - 1) <= degree + bad  # and not more than that needs


@examples(60)
@given(count=counts, colluding=colluders)
def test_two_different_sets_are_never_signed_by_enough(count, colluding):
    honest, bad = max(0, count - colluding), min(colluding, count)
    assert all(min(one + bad, honest - one + bad) < quorum(count, colluding) for one in range(honest + 1))


@examples(60)
@given(count=counts, colluding=colluders, survivors=st.integers(2, 160))
def test_a_sparse_graph_keeps_the_declared_survivors_together(count, colluding, survivors):
    """An honest device has τ - c honest neighbours in any sum with it: as many are in the sum, and itself."""
    degree = degree_of(count, Terms(survivors, colluding))
    if degree < count - 1:
        assert threshold(degree, colluding) - colluding + 1 >= survivors - colluding


def test_few_devices_are_all_neighbours_and_of_many_only_some():
    terms = Terms(3, 1)
    assert {len(near) for near in made(4, terms).neighbours.values()} == {3}
    assert [degree_of(count, terms) == count - 1 for count in (3, 4, 100, 400)] == [True, True, False, False]
    assert degree_of(100, Terms(80, 1)) == 99  # so many survivors are declared


def test_the_graph_follows_from_the_list_alone():
    terms, names = Terms(3, 0), [f"d{number}" for number in range(60)]
    found = graph_of(names, "a" * 64, terms)
    assert graph_of(names[::-1], "a" * 64, terms) == found
    assert graph_of(names, "b" * 64, terms).neighbours != found.neighbours


@pytest.mark.parametrize(("others", "lost", "degree"), [(49, 15, 20), (199, 60, 100), (399, 120, 120)])
def test_chances_are_those_of_the_hypergeometric_law(others, lost, degree):
    for allowed in range(0, degree, 7):
        expected = hypergeom(others, lost, degree).sf(allowed)
        assert float(graph._too_many(others, lost, degree, allowed)) == pytest.approx(expected, rel=1e-6, abs=1e-300)
    assert graph._too_many(others, lost, degree, -1) == 1


@pytest.mark.parametrize("count", [150, 300, 600])
def test_the_chance_to_fail_is_what_is_declared_and_two_neighbours_less_would_not_do(count):
    terms = Terms(3, count // 20)
    degree = degree_of(count, terms)
    assert degree < count - 1
    assert graph._goes_well(count, degree, terms)
    assert not graph._goes_well(count, degree - 2, terms)
    lost = int(graph.DROPPED * count)
    missed = count * graph._too_many(count - 1, lost, degree, degree - threshold(degree, terms.colluding))
    assert missed <= CHANCE


def test_survivors_stay_connected_when_others_are_lost_or_collude():
    terms, generator = Terms(3, 10), np.random.default_rng(0)
    found = made(200, terms)
    for _ in range(20):
        alive = set(generator.choice(list(found.neighbours), 130, replace=False).tolist())
        assert is_connected(found.neighbours, alive)
        assert all(len(set(found.neighbours[name]) & alive) >= found.threshold - terms.colluding for name in alive)
