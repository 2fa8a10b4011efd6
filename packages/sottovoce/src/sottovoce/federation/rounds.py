"""The rounds of a run over devices: ask every registered device, add up the answers, pay, add noise, step.

Each device draws its own users. A device that is away or wrong adds nothing; denominator and noise stay the same.
Where the server decides who joins, the model goes only to devices that are asked: as many as are needed of those free.

Every round is a checkpoint, and nothing of it is shown before. A round whose checkpoint a crash took away is asked
again, with the same task to the byte. A masked one is not: it is closed as a round of nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import jax
import numpy as np

from sottovoce.build.assembly import Assembly
from sottovoce.federation.aggregation.masked import Asked, MaskedAggregator
from sottovoce.federation.aggregation.phases import JOINED, Aggregation, DeviceSum, TaskAggregation
from sottovoce.federation.aggregation.plain import Aggregator
from sottovoce.federation.device import VERSION
from sottovoce.federation.frozen import WithFrozen, frozen_part
from sottovoce.federation.joined import Joined
from sottovoce.federation.messages import Code, Task
from sottovoce.federation.roster import Roster
from sottovoce.federation.silence import Silence
from sottovoce.federation.transport import Exchange, Say, Transport, log
from sottovoce.local.keys import local_key
from sottovoce.privacy.rng import philox
from sottovoce.training.round import release
from sottovoce.training.server import ServerState
from sottovoce.training.types import Payment, Payments
from sottovoce_evidence.recipe import Recipe


@dataclass(frozen=True)
class Coordinator:
    roster: Roster
    transport: Transport
    seconds: float  # that each phase of a round waits for its devices

    def rounds(
        self, assembly: Assembly, run: str, state: ServerState, payments: Payments
    ) -> Iterator[tuple[ServerState, DeviceSum]]:
        """Play the rounds that are left.

        Guarantee: a vector of a device is in one opened sum at most, whenever the server is killed. That devices of a
        masked round are asked is on disk before; after a restart such a round is only noise, paid for like any other.
        """
        name, part = "", b""
        algorithm = assembly.algorithm
        if algorithm.frozen is not None:
            frozen = frozen_part(self.roster.federation, assembly.frozen_arrays)
            name, part = frozen.name, frozen.to_bytes()
        silence = Silence()
        while state.round < assembly.recipe.run.rounds:
            silence.check()
            number = state.round + 1
            payment = payments.begin(number)
            clip_norms = algorithm.mechanism.clip_norms(number, state.clip_norms)
            task = replace(self._task(assembly, run, state, clip_norms, payment), frozen=name)
            asked, wanted = self._asked(assembly, run, number, payment)
            users = sum(self.roster.registered.values())
            said: list[str] = []  # for the log, once the round is committed
            aggregator = self._aggregator(
                assembly, task, Asked(asked, self.roster.public_keys, users), state, said.append
            )
            aggregation: Aggregation = WithFrozen(aggregator, part) if name else aggregator
            if self._may_ask(assembly, payment):
                summed = aggregate(aggregation, self.transport, f"round {number}", self.seconds, said.append)
            else:
                summed, wanted = aggregation.total(), False
                said.append(f"round {number} was interrupted, and may not be asked again: it is only noise")
            silence.note(summed.answers, wanted)
            # No sum, no noise of devices: the server draws theirs too, as a simulation does.
            noising = algorithm.mechanism.across_devices(summed.modulus)
            state, _ = release(replace(algorithm, mechanism=noising), state, summed, clip_norms, payment)
            payment.once_committed(partial(show, said))
            yield state, summed

    def _aggregator(
        self, assembly: Assembly, task: Task, asked: Asked, state: ServerState, say: Say
    ) -> TaskAggregation:
        """The aggregation that the recipe asks for."""
        mechanism, federation = assembly.algorithm.mechanism, assembly.recipe.federation
        if federation.masked:
            return MaskedAggregator(task, asked, federation, mechanism, state.params, say)
        return Aggregator(task.to_bytes(), asked.registered, mechanism, task.clip_norms, state.params, say)

    def _may_ask(self, assembly: Assembly, payment: Payment) -> bool:
        """May devices be asked? For a masked round they are asked by one process: their vectors may have left."""
        if not assembly.recipe.federation.masked:
            return True
        self.transport.here()  # it waits for devices: a server that is stopped before any is there has asked none
        return payment.ask()

    def patterns(self, assembly: Assembly, run: str) -> list[tuple[int, ...]] | None:
        """The different sets of rounds that users were asked for; None where that is not known, as in a silo."""
        joined = self._joined(assembly, run)
        if joined is None or any(users > 1 for users in self.roster.registered.values()):
            return None
        return joined.patterns()

    def _joined(self, assembly: Assembly, run: str) -> Joined | None:
        """Who was asked so far; None where nothing bounds how often a user joins."""
        allowed = assembly.algorithm.mechanism.sampler.participation(assembly.recipe.run.rounds)
        return None if allowed is None else Joined(self.roster.path / "joined" / f"{run}.jsonl", allowed)

    def _asked(self, assembly: Assembly, run: str, number: int, payment: Payment) -> tuple[dict[str, int], bool]:
        """Whom a round asks, with their registered users, and whether it was to ask anybody.

        Where users draw for themselves that is everybody. Else it is every silo, and as many devices of one user as
        their share of the declared cohort, drawn among those that are connected and free. One that was asked counts as
        one that joined, whatever it answers: nobody is asked in its place.
        """
        registered, joined = self.roster.registered, self._joined(assembly, run)
        if joined is None:
            return registered, True
        asked = joined.asked(number)
        wanted = 0
        if asked is None:
            here, privacy = set(self.transport.here()), assembly.recipe.privacy
            single = sorted(name for name, users in registered.items() if users == 1)
            free = [name for name in single if name in here and joined.is_free(name, number)]
            random = philox(payment.keys.sampling)
            wanted = int(privacy.cohort * len(single) / privacy.users + random.random())
            drawn = min(wanted, len(free))
            asked = sorted(random.choice(free, drawn, replace=False).tolist()) if drawn else []
            joined.note(number, asked)
        found = {name: users for name, users in registered.items() if users > 1 or name in asked}
        return found, bool(found or wanted)

    def _task(self, assembly: Assembly, run: str, state: ServerState, clip_norms: np.ndarray, payment: Payment) -> Task:
        return Task(
            version=VERSION,
            federation=self.roster.federation,
            vocabulary=self.roster.vocabulary.fingerprint,
            run=run,
            round=state.round + 1,
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


def show(said: Iterable[str]) -> None:
    """Log what is said of the devices of a round."""
    for line in said:
        log.warning("%s", line)


def aggregate(
    aggregation: Aggregation, transport: Transport, name: str, seconds: float, say: Say = log.warning
) -> DeviceSum:
    """Play the phases of an aggregation over a transport."""
    begins = True
    for phase in aggregation.phases():
        if not phase.messages:  # nobody is free: there is nothing to wait for
            continue
        urgent = getattr(phase, "urgent", False)
        exchange = Exchange(name, phase.messages, seconds, phase.max_answer_bytes, begins, urgent, say)
        begins = False
        for device, answer in transport.exchange(exchange):
            code = phase.take(device, answer)
            if code not in (JOINED, Code.FROZEN, Code.KEPT):
                say(f"{device} contributes nothing: {code}")
    return aggregation.total()
