"""The rounds of a run over devices: ask every registered device, add up the answers, pay, add noise, step.

Each device draws its own users. A device that is away, late or wrong adds nothing; denominator and noise stay the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import jax
import numpy as np

from sottovoce.build.assembly import Assembly
from sottovoce.federation.aggregation import JOINED, Aggregation, Aggregator, DeviceSum
from sottovoce.federation.device import VERSION
from sottovoce.federation.messages import Code, Task
from sottovoce.federation.roster import Roster
from sottovoce.federation.transport import Exchange, Transport
from sottovoce.local.keys import local_key
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
        algorithm = assembly.algorithm
        while state.round < assembly.recipe.run.rounds:
            number = state.round + 1
            payment = payments.begin(number)
            clip_norms = algorithm.mechanism.clip_norms(number, state.clip_norms)
            task = self._task(assembly, run, state, clip_norms, payment).to_bytes()
            aggregator = Aggregator(task, self.roster.registered, algorithm.mechanism, clip_norms, state.params)
            summed = aggregate(aggregator, self.transport, f"round {number}", self.seconds)
            state, _ = release(algorithm, state, summed, clip_norms, payment)
            yield state, summed

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
    for phase in aggregation.phases():
        exchange = Exchange(name, phase.messages, seconds, phase.max_answer_bytes)
        for device, answer in transport.exchange(exchange):
            code = phase.take(device, answer)
            if code not in (JOINED, Code.NOT_DRAWN):
                log.warning("%s contributes nothing: %s", device, code)
    return aggregation.total()
