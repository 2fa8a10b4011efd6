"""Which devices mask with one another, and how many of them open a secret (Bell et al. 2020).

With few devices each is a neighbour of all others. With many, the graph is k-regular: devices lie on a circle in an
order that follows from the hash of all their keys, and each has the k/2 next ones on either side as neighbours. So no
one chooses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from hashlib import sha256
from math import comb

from sottovoce.federation.masking.context import bind

DROPPED = Fraction(3, 10)  # the share of devices that may drop out after the keys are known
SMALL = 32  # devices: up to this number all are neighbours, and any may drop out as long as a quorum stays
CHANCE = Fraction(1, 2**40)  # that a sparse graph fails then


@dataclass(frozen=True)
class Terms:
    """What is declared of a masked sum."""

    survivors: int  # devices in it, at least
    colluding: int  # t: devices that may collude with the server, at most


@dataclass(frozen=True)
class Graph:
    """The neighbours of each device, by name and in the order of names."""

    neighbours: dict[str, tuple[str, ...]]
    threshold: int  # τ: the shares that open a secret

    def place(self, of: str, holder: str) -> int:
        """Which share of a device's secrets a neighbour holds."""
        return self.neighbours[of].index(holder)


def graph_of(names: Sequence[str], list_digest: str, terms: Terms) -> Graph:
    """The graph of a list of devices: the same for everybody who has the list."""
    count, order = len(names), sorted(names)
    degree = degree_of(count, terms)
    if degree == count - 1:
        near = {name: tuple(other for other in order if other != name) for name in order}
        return Graph(near, threshold(degree, terms.colluding))
    circle = sorted(order, key=lambda name: sha256(bind("place", list_digest, name)).digest())
    near = {}
    for place, name in enumerate(circle):
        steps = range(1, degree // 2 + 1)
        near[name] = tuple(sorted(circle[(place + sign * step) % count] for step in steps for sign in (1, -1)))
    return Graph(near, threshold(degree, terms.colluding))


def threshold(degree: int, colluding: int) -> int:
    """τ: the shares that open one secret of a device with `degree` neighbours.

    Guarantee: 2τ > k + c. An honest neighbour gives a share of one of a device's two secrets, and the c that collude
    may give both. So both secrets of one device can never be opened.
    """
    return (degree + min(colluding, degree)) // 2 + 1


def quorum(count: int, colluding: int) -> int:
    """The devices that must sign one set of survivors.

    Guarantee: two different sets never have as many, since an honest device signs one: 2 · quorum > n + t.
    """
    return (count + min(colluding, count)) // 2 + 1


@lru_cache(maxsize=64)
def degree_of(count: int, terms: Terms) -> int:
    """k: the fewest neighbours with which all goes well, but for a chance of 2^-40; all others where that is too few.

    It goes well if every device keeps τ neighbours, and the honest ones that stay are connected, when 30 % drop out.
    A server that tells devices different things can open a sum over τ - c + 1 honest ones at the least. In a sparse
    graph τ is such that the declared survivors are in it, less those that collude; else a device asks for them itself,
    when it signs who survived.
    """
    if count <= SMALL:
        return max(0, count - 1)
    low, high = 1, count // 2  # half the degree: bad, and good or complete
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _goes_well(count, 2 * middle, terms) else (middle, high)
    return 2 * high if 2 * high < count - 1 and _goes_well(count, 2 * high, terms) else count - 1


def _goes_well(count: int, degree: int, terms: Terms) -> bool:
    dropped, needed = int(DROPPED * count), threshold(degree, terms.colluding)
    if needed + 1 < terms.survivors:
        return False
    # Neighbours on a circle are cut off only behind a run of k/2 that dropped out or collude.
    run, away = degree // 2, min(count, dropped + terms.colluding)
    cut_off = Fraction(comb(away, run), comb(count, run))
    return (
        count * cut_off <= CHANCE / 2 and count * _too_many(count - 1, dropped, degree, degree - needed) <= CHANCE / 2
    )


def _too_many(others: int, dropped: int, degree: int, allowed: int) -> Fraction:
    """The chance that more than `allowed` of `degree` neighbours, drawn from the others, dropped out."""
    if allowed < 0:
        return Fraction(1)
    ways = sum(comb(dropped, some) * comb(others - dropped, degree - some) for some in range(allowed + 1, degree + 1))
    return Fraction(ways, comb(others, degree))
