"""Who could attack a run across devices, what they see of it, and which ε holds against them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from sottovoce_evidence.errors import count_of
from sottovoce_evidence.recipe import Federation
from sottovoce_evidence.statement import Statement

WATCHED = "who takes part and when; the models too, if they have them"


@dataclass(frozen=True)
class Adversary:
    """One row: `epsilon` is infinite where nothing is proved, and None where it is another than the statement's."""

    who: str
    sees: str
    epsilon: float | None


def adversaries(statement: Statement) -> tuple[Adversary, ...]:
    """All rows of a private run across devices."""
    if statement.federation is None or not statement.private:
        return ()
    masked = statement.is_masked
    return (
        Adversary("those who have the models", "the model after every round", statement.epsilon),
        Adversary("who watches the network", WATCHED, None),
        Adversary("other devices", "the models, and under masked sums which devices are in a round", None)
        if masked
        else Adversary("other devices", "the model after every round", statement.epsilon),
        *_server(statement, statement.federation),
    )


def _server(statement: Statement, declared: Federation) -> Iterator[Adversary]:
    if not declared.masked:
        yield Adversary("the server", "what each device sends, before the noise", math.inf)
        return
    when = "with the noise of the devices" if declared.noise == "devices" else "before the noise"
    epsilon = math.inf if statement.epsilon_server is None else statement.epsilon_server
    each, honest = f"what each device sends, {when}", declared.survivors - declared.colluding
    colluding = count_of(declared.colluding, "device")
    yield Adversary("the server", f"one sum over {declared.survivors} devices or more, {when}", epsilon)
    if declared.colluding:
        sees = f"one sum over {count_of(honest, 'other device')} or more, {when}"
        yield Adversary(f"the server with up to {colluding}", sees, epsilon)
    made = 0 if statement.registered is None else statement.registered.keys_made_by_server
    if made > declared.colluding:  # it could stand in for these devices
        yield Adversary(f"the server, if it kept the {count_of(made, 'device key')} that it made", each, math.inf)
    yield Adversary(f"the server with more than {colluding}", each, math.inf)
