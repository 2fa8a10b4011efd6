"""The rounds of a run over devices: ask every registered device, add up the answers, pay, add noise, step.

Each device draws its own users. A device that is away or wrong adds nothing; denominator and noise stay the same.
Where the server decides who joins, the model goes only to devices that are asked: as many as are needed of those free.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import jax
import numpy as np

from sottovoce.build.assembly import Assembly
from sottovoce.federation import keys
from sottovoce.federation.aggregation.masked import Asked, MaskedAggregator
from sottovoce.federation.aggregation.phases import JOINED, Aggregation, DeviceSum, TaskAggregation
from sottovoce.federation.aggregation.plain import Aggregator
from sottovoce.federation.device import VERSION
from sottovoce.federation.frozen import WithFrozen, frozen_part
from sottovoce.federation.joined import Joined
from sottovoce.federation.messages import Code, Contribution, Refused, Task
from sottovoce.federation.roster import Roster
from sottovoce.federation.transport import Exchange, Transport
from sottovoce.local.keys import local_key
from sottovoce.privacy.rng import philox
from sottovoce.recipe import Recipe
from sottovoce.training.round import release
from sottovoce.training.server import ServerState
from sottovoce.training.types import Payment, Payments

log = logging.getLogger("sottovoce.rounds")


@dataclass(frozen=True)
class Coordinator:
    roster: Roster
    transport: Transport
    seconds: float  # that each phase of a round waits for its devices

    def rounds(
        self, assembly: Assembly, run: str, state: ServerState, payments: Payments
    ) -> Iterator[tuple[ServerState, DeviceSum]]:
        """Play the rounds that are left."""
        name, part = "", b""
        mechanism = assembly.algorithm.mechanism.across_devices()
        algorithm = replace(assembly.algorithm, mechanism=mechanism)
        if algorithm.frozen is not None:
            frozen = frozen_part(self.roster.federation, assembly.frozen_arrays)
            name, part = frozen.name, frozen.to_bytes()
        while state.round < assembly.recipe.run.rounds:
            number = state.round + 1
            payment = payments.begin(number)
            clip_norms = algorithm.mechanism.clip_norms(number, state.clip_norms)
            task = replace(self._task(assembly, run, state, clip_norms, payment), frozen=name)
            asked, admit = self.roster.registered, None
            joined = self._joined(assembly, run)
            if joined is not None:
                asked = self._free(assembly.recipe, joined, payment, number)
                admit = partial(self._admit, joined, number)
            users = sum(self.roster.registered.values())
            aggregator = self._aggregator(assembly, task, Asked(asked, self.roster.public_keys, users, admit), state)
            aggregation: Aggregation = WithFrozen(aggregator, part) if name else aggregator
            summed = aggregate(aggregation, self.transport, f"round {number}", self.seconds)
            if joined is not None:
                joined.note(number, aggregator.joined)
            state, _ = release(algorithm, state, summed, clip_norms, payment)
            yield state, summed

    def _aggregator(self, assembly: Assembly, task: Task, asked: Asked, state: ServerState) -> TaskAggregation:
        """The aggregation that the recipe names."""
        mechanism, federation = assembly.algorithm.mechanism, assembly.recipe.federation
        if federation.aggregation == "masked":
            return MaskedAggregator(task, asked, federation, mechanism, state.params)
        return Aggregator(task.to_bytes(), asked.registered, mechanism, task.clip_norms, state.params, asked.admit)

    def patterns(self, assembly: Assembly, run: str) -> list[tuple[int, ...]] | None:
        """The different sets of rounds that users joined; None where that is not known."""
        joined = self._joined(assembly, run)
        return None if joined is None else joined.patterns()

    def _joined(self, assembly: Assembly, run: str) -> Joined | None:
        """Who joined so far; None where nothing bounds how often a user joins."""
        allowed = assembly.algorithm.mechanism.sampler.participation(assembly.recipe.run.rounds)
        path = self.roster.path / "joined" / f"{run}.jsonl"
        return None if allowed is None else Joined(path, allowed, self.roster.registered)

    def _admit(self, joined: Joined, number: int, device: str, answer: Contribution) -> None:
        """Refuse an answer whose claim the device did not sign, or that `joined` does not take."""
        key = self.roster.public_keys[device]
        if key and not keys.is_signed_by(keys.public_key_pem(key), answer.signature, answer.claim):
            raise Refused(Code.STRANGER)
        joined.check(device, answer, number)

    def _free(self, recipe: Recipe, joined: Joined, payment: Payment, number: int) -> dict[str, int]:
        """Whom a round asks: every silo, and as many devices of one user as their share of the declared cohort.

        They are drawn among those that are connected and free.
        """
        here, users = set(self.transport.here()), self.roster.registered
        free = [name for name in users if joined.is_free(name, number)]
        single = sorted(name for name in free if users[name] == 1 and name in here)
        registered = sum(users == 1 for users in self.roster.registered.values())
        expected = recipe.privacy.cohort * registered / recipe.privacy.users
        random = philox(payment.keys.sampling)
        wanted = min(int(expected + random.random()), len(single))
        drawn = set(random.choice(single, wanted, replace=False).tolist()) if wanted else set()
        return {name: users[name] for name in free if users[name] > 1 or name in drawn}

    def _task(self, assembly: Assembly, run: str, state: ServerState, clip_norms: np.ndarray, payment: Payment) -> Task:
        return Task(
            version=VERSION,
            federation=self.roster.federation,
            vocabulary=self.roster.vocabulary.fingerprint,
            run=run,
            round=state.round + 1,
            attempt=payment.name,
            recipe=for_devices(assembly.recipe).to_dict(),
            clip_norms=np.asarray(clip_norms),
            key=np.asarray(jax.random.key_data(local_key(payment.keys.local))),
            leaves=[np.asarray(leaf) for leaf in jax.tree.leaves(state.params)],
        )


def for_devices(recipe: Recipe) -> Recipe:
    """The recipe that devices receive: without the paths of the server's machine, and without its seed.

    A device gets the weights and the key of its randomness with every task. The seed could reveal more.
    """
    return recipe.replace(data={"store": ""}, model={"initial": None}, local={"public": None}, run={"seed": 0})


def aggregate(aggregation: Aggregation, transport: Transport, name: str, seconds: float) -> DeviceSum:
    """Play the phases of an aggregation over a transport."""
    begins = True
    for phase in aggregation.phases():
        if not phase.messages:  # nobody is free: there is nothing to wait for
            continue
        urgent = getattr(phase, "urgent", False)
        exchange = Exchange(name, phase.messages, seconds, phase.max_answer_bytes, begins, urgent)
        begins = False
        for device, answer in transport.exchange(exchange):
            code = phase.take(device, answer)
            if code not in (JOINED, Code.NOT_DRAWN, Code.FROZEN, Code.KEPT):
                log.warning("%s contributes nothing: %s", device, code)
    return aggregation.total()
