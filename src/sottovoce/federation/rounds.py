"""The rounds of a run whose users are on devices: ask everybody who is registered, add up what comes, pay, noise, step.

Who is drawn is each device's own affair. Whoever is away, late or wrong adds nothing; denominator and noise stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import jax
import numpy as np

from sottovoce.build.assembly import Assembly
from sottovoce.federation.aggregation import Collected, DeviceSum
from sottovoce.federation.device import VERSION
from sottovoce.federation.device_rules import for_devices
from sottovoce.federation.messages import Task, digest
from sottovoce.federation.roster import Roster
from sottovoce.local.keys import local_key
from sottovoce.training.round import release
from sottovoce.training.server import ServerState
from sottovoce.training.types import Payment, Payments


class Fleet(Protocol):
    """Whatever carries messages between the server and the devices on the roster."""

    def ask(self, number: int, message: bytes, seconds: float, collected: Collected) -> None:
        """Send a round's task to every device that can be reached, and hand over answers until all came, or time is up.

        An answer is handed over under the name of the device that sent it: the transport vouches for that.
        """
        ...


@dataclass(frozen=True)
class Coordinator:
    roster: Roster
    fleet: Fleet
    seconds: float  # that a round waits for its devices

    def rounds(
        self, assembly: Assembly, run: str, state: ServerState, payments: Payments
    ) -> Iterator[tuple[ServerState, DeviceSum]]:
        """Play the rounds that are left."""
        algorithm = assembly.algorithm
        while state.round < assembly.recipe.run.rounds:
            number = state.round + 1
            payment = payments.begin(number)
            clip_norms = algorithm.mechanism.clip_norms(number, state.clip_norms)
            message = self._task(assembly, run, state, clip_norms, payment).to_bytes()
            registered = self.roster.registered
            collected = Collected(digest(message), registered, algorithm.mechanism, clip_norms, state.params)
            self.fleet.ask(number, message, self.seconds, collected)
            summed = collected.summed(len(message))
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
