"""The rounds of a run over devices: ask every registered device, add up the answers, pay, add noise, step.

Each device draws its own users. A device that is away or wrong adds nothing; denominator and noise stay the same.
Where the server decides who joins, the model goes only to devices that are asked: as many as are needed of those free.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
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
from sottovoce.federation.late import Late, LateRound, Owed
from sottovoce.federation.late_masked import LateMaskedRound
from sottovoce.federation.messages import Code, Contribution, Refused, Task, digest
from sottovoce.federation.roster import Roster
from sottovoce.federation.silence import Silence
from sottovoce.federation.transport import Exchange, Transport
from sottovoce.local.keys import local_key
from sottovoce.privacy.mechanism import Mechanism
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
        late = Late(assembly.recipe.federation.staleness, assembly.recipe.run.rounds)
        silence = Silence(assembly.recipe.federation.silent_rounds)
        while state.round < assembly.recipe.run.rounds:
            silence.check()
            number = state.round + 1
            payment = payments.begin(number)
            clip_norms = algorithm.mechanism.clip_norms(number, state.clip_norms)
            task = replace(self._task(assembly, run, state, clip_norms, payment), frozen=name)
            if late.staleness:
                task = replace(task, due=number)
            due, admit = late.due(self.roster.registered, number), None
            joined = self._joined(assembly, run)
            if joined is not None:
                due = self._free(assembly.recipe, joined, due, payment)
                admit = partial(self._admit, joined, number)
            messages = self._ask(algorithm.mechanism, task, late, due) if late.staleness else {}
            counted = late.expected(number) if late.staleness else due
            asked = {device: here for device, here in self.roster.registered.items() if device in counted}
            users = sum(self.roster.registered.values())
            aggregator = self._aggregator(assembly, task, Asked(asked, self.roster.public_keys, users, admit), state)
            aggregation: Aggregation = WithFrozen(aggregator, part) if name else aggregator
            if late.staleness:
                aggregation = _with_late(aggregator, late, number, messages)
            summed = aggregate(aggregation, self.transport, f"round {number}", self.seconds)
            if late.expected(number):
                late.end(number, self.transport.here())
            if joined is not None:
                joined.note(number, aggregator.joined)
            silence.note(summed.answers)
            state, _ = release(algorithm, state, summed, clip_norms, payment)
            yield state, summed

    def _aggregator(self, assembly: Assembly, task: Task, asked: Asked, state: ServerState) -> TaskAggregation:
        """The aggregation that the recipe names."""
        mechanism, federation = assembly.algorithm.mechanism, assembly.recipe.federation
        if federation.aggregation == "masked":
            return MaskedAggregator(task, asked, federation, mechanism, state.params)
        return Aggregator(task.to_bytes(), asked.registered, mechanism, task.clip_norms, state.params, asked.admit)

    def _ask(self, mechanism: Mechanism, task: Task, late: Late, due: Mapping[str, int]) -> dict[str, bytes]:
        """The message to each device, for the round that its answer enters: with the clip norms of that round."""
        messages = {}
        for entered in set(due.values()):
            clip_norms = np.asarray(mechanism.clip_norms(entered, None))
            message = replace(task, due=entered, clip_norms=clip_norms).to_bytes()
            for device in [device for device, number in due.items() if number == entered]:
                messages[device] = message
                late.ask(device, Owed(task.round, entered, digest(message)))
        return messages

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

    def _free(self, recipe: Recipe, joined: Joined, due: Mapping[str, int], payment: Payment) -> dict[str, int]:
        """Whom a round asks, and for which round: every silo, and as many devices of one user as their share of the
        declared cohort.

        They are drawn among those that are connected and free in the round that their answers would enter.
        """
        here, users = set(self.transport.here()), self.roster.registered
        free = {name: number for name, number in due.items() if joined.is_free(name, number)}
        single = sorted(name for name in free if users[name] == 1 and name in here)
        registered = sum(users == 1 for users in self.roster.registered.values())
        expected = recipe.privacy.cohort * registered / recipe.privacy.users
        random = philox(payment.keys.sampling)
        wanted = min(int(expected + random.random()), len(single))
        drawn = set(random.choice(single, wanted, replace=False).tolist()) if wanted else set()
        return {name: number for name, number in free.items() if users[name] > 1 or name in drawn}

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


def _with_late(aggregator: TaskAggregation, late: Late, number: int, messages: Mapping[str, bytes]) -> Aggregation:
    """The round with devices that may be late."""
    if isinstance(aggregator, MaskedAggregator):
        return LateMaskedRound(aggregator, late, number, messages)
    assert isinstance(aggregator, Aggregator)
    return LateRound(aggregator, late, number, messages)


def for_devices(recipe: Recipe) -> Recipe:
    """The recipe that devices receive: without the paths of the server's machine, and without its seed.

    A device gets the weights and the key of its randomness with every task. The seed could reveal more.
    """
    return recipe.replace(data={"store": ""}, model={"initial": None}, local={"public": None}, run={"seed": 0})


def aggregate(aggregation: Aggregation, transport: Transport, name: str, seconds: float) -> DeviceSum:
    """Play the phases of an aggregation over a transport."""
    begins = True
    for phase in aggregation.phases():
        # Where answers may be late, a phase says of whom.
        later, earlier = getattr(phase, "later", {}), getattr(phase, "earlier", ())
        if not phase.messages and not earlier:  # nobody is free: there is nothing to wait for
            continue
        urgent = getattr(phase, "urgent", False)
        exchange = Exchange(name, phase.messages, seconds, phase.max_answer_bytes, later, earlier, begins, urgent)
        begins = False
        for device, answer in transport.exchange(exchange):
            code = phase.take(device, answer)
            if code not in (JOINED, Code.NOT_DRAWN, Code.LATE, Code.FROZEN, Code.KEPT):
                log.warning("%s contributes nothing: %s", device, code)
    return aggregation.total()
