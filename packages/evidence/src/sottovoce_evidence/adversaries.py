"""Who could attack a run across devices, what they see of it, and which ε holds against them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from sottovoce_evidence.errors import count_of
from sottovoce_evidence.statement import FederationFacts, Statement

WATCHED = "who takes part and when; the models too, if they have them"


@dataclass(frozen=True)
class Adversary:
    """One row: `epsilon` is infinite where nothing is proved, and None where it is another than the statement's."""

    who: str
    sees: str
    epsilon: float | None


def adversaries(statement: Statement) -> tuple[Adversary, ...]:
    """All rows of a private run across devices."""
    found, epsilon = statement.federation, statement.epsilon
    if found is None or not statement.private:
        return ()
    return (
        Adversary("those who have the models", "the model after every round", epsilon),
        Adversary("who watches the network", WATCHED, None),
        Adversary("other devices", "the models, and under masked sums which devices are in a round", None)
        if found.is_masked
        else Adversary("other devices", "the model after every round", epsilon),
        *(_server_of_masked(found, statement.epsilon_server) if found.is_masked else _server_of_plain()),
    )


def _server_of_plain() -> Iterator[Adversary]:
    yield Adversary("the server", "what each device sends, before the noise", math.inf)


def _server_of_masked(found: FederationFacts, against_server: float | None) -> Iterator[Adversary]:
    by_devices = found.noise == "devices"
    when = "with the noise of the devices" if by_devices else "before the noise"
    epsilon = math.inf if against_server is None else against_server
    each, honest = f"what each device sends, {when}", found.survivors - found.colluding
    colluding = count_of(found.colluding, "device")
    yield Adversary("the server", f"one sum over {found.survivors} devices or more, {when}", epsilon)
    if found.colluding:
        sees = f"one sum over {count_of(honest, 'other device')} or more, {when}"
        yield Adversary(f"the server with up to {colluding}", sees, epsilon)
    if found.stand_ins:
        who = f"the server, if it kept the {count_of(found.stand_ins, 'device key')} that it made"
        yield Adversary(who, each, math.inf)
    yield Adversary(f"the server with more than {colluding}", each, math.inf)
