"""Who could attack a run across devices, what they see of it, and which ε holds against them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from sottovoce_evidence.errors import count_of, plural
from sottovoce_evidence.files import Facts

WATCHED = "who takes part and when; the models too, if they have them"


@dataclass(frozen=True)
class FederationFacts(Facts, sparse=True):
    """How the answers of devices were added up, and who made the keys that devices sign with."""

    devices: int  # that are registered
    aggregation: str = "plain"
    survivors: int = 0  # of a masked sum, at least
    colluding: int = 0  # t: devices that may collude with the server
    noise: str = "server"
    keys_made_by_server: int = 0
    epsilon_server: float | None = None  # where devices add noise: against the server with t devices

    @property
    def is_masked(self) -> bool:
        return self.aggregation == "masked"

    @property
    def stand_ins(self) -> int:
        """Keys that the server made, where it could stand in for more devices than are declared to collude."""
        return self.keys_made_by_server if self.is_masked and self.keys_made_by_server > self.colluding else 0


@dataclass(frozen=True)
class Adversary(Facts):
    """One row: `epsilon` is infinite where nothing is proved, and None where it is another than the statement's."""

    who: str
    sees: str
    epsilon: float | None


def adversaries(epsilon: float, found: FederationFacts) -> tuple[Adversary, ...]:
    """All rows of a run across devices whose released models have this ε."""
    return (
        Adversary("those who have the models", "the model after every round", epsilon),
        Adversary("who watches the network", WATCHED, None),
        Adversary("other devices", "the models, and under masked sums which devices are in a round", None)
        if found.is_masked
        else Adversary("other devices", "the model after every round", epsilon),
        *(_server_of_masked(found) if found.is_masked else _server_of_plain()),
    )


def _server_of_plain() -> Iterator[Adversary]:
    yield Adversary("the server", "what each device sends, before the noise", math.inf)


def _server_of_masked(found: FederationFacts) -> Iterator[Adversary]:
    by_devices = found.noise == "devices"
    when = "with the noise of the devices" if by_devices else "before the noise"
    epsilon = found.epsilon_server if by_devices and found.epsilon_server is not None else math.inf
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


def not_covered_of(found: FederationFacts) -> Iterator[str]:
    """What the guarantee of a run across devices does not cover."""
    if found.is_masked:
        yield (
            "anyone who watches the network, the server, and the devices of a round: they know who takes part, so "
            "sampling amplifies nothing"
        )
        colluding = count_of(found.colluding, "device")
        if found.noise == "server":
            yield (
                f"the server: it opens one sum over {found.survivors} devices or more before the noise is in, and no "
                f"device's own, unless more than {colluding} collude with it"
            )
        else:
            yield f"the server with more than {colluding} that collude with it"
        if found.stand_ins:
            kept = f"{count_of(found.stand_ins, 'device')}, which it made"
            stands_in = f"it could stand in for {plural(found.stand_ins, 'it', 'them')}, and see what the others send"
            yield f"the server, if it kept the keys of {kept}: {stands_in}"
        yield (
            "a device that breaks the rules: nobody can clip what it sends, so it can spoil a round; what others send "
            "stays hidden"
        )
    else:
        yield "anyone who watches the network, and the server: they see who takes part, so sampling amplifies nothing"
        yield "the server: it adds up what devices send before the noise is in, and is trusted to keep none of it"
    yield (
        "time and failures: a silo that is late because of one of its users is missing from a round with all of them, "
        "and one whose training fails sends zeros for all of them"
    )
    yield "silos: a device that holds several users is trusted to draw, to clip and to add up each of them apart"
