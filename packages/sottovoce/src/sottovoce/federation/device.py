"""What a device does with a task: check, draw, train, clip, add up, answer.

The code is what the device's owner installed; a task holds numbers and a recipe, never a program.
"""

from __future__ import annotations

import logging
import math
import secrets as os_entropy
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from sottovoce.build import rules
from sottovoce.build.assembly import Assembly, assemble
from sottovoce.data.store import Store
from sottovoce.federation import sizes
from sottovoce.federation.frozen import FrozenParts
from sottovoce.federation.limits import Limits, Participation
from sottovoce.federation.masking.context import context_of
from sottovoce.federation.masking.graph import Terms
from sottovoce.federation.masking.messages import Advert, Request, read_later
from sottovoce.federation.masking.participant import Participant, Place
from sottovoce.federation.masking.vector import largest_noise, layout_of
from sottovoce.federation.members import MEMBERS, Membership
from sottovoce.federation.messages import (
    Code,
    Contribution,
    FrozenPart,
    Later,
    Nothing,
    Refused,
    Task,
    Which,
    digest,
    read_request,
)
from sottovoce.federation.roster import Enrolment
from sottovoce.files import write_aside
from sottovoce.local.keys import local_key
from sottovoce.local.update import FedAvg
from sottovoce.privacy.fixed_point import FixedPoint
from sottovoce.privacy.mechanism import Mechanism
from sottovoce.privacy.noise import rounded_gaussian
from sottovoce.training.seats import check_seats
from sottovoce.training.types import Task as CohortTask
from sottovoce_evidence import accounting
from sottovoce_evidence.bounds import joint_norm
from sottovoce_evidence.errors import SottoError, count_of
from sottovoce_evidence.mechanism import LEAST_NORM
from sottovoce_evidence.recipe import Recipe

log = logging.getLogger("sottovoce.device")
VERSION = version("sottovoce")
SECRET = "coin.secret"
SERVER_DELTA = 1e-6  # of the ε that `limits.server_epsilon` bounds: a device does not let the server choose it


@dataclass(frozen=True)
class Masking:
    """The masked round that a device is in. It is in memory alone: after a crash the device is out of the round."""

    message: str  # the digest of its task
    which: Which  # the round of a run that the vector is of: it leaves once
    participant: Participant
    advert: Advert


class Device:
    """Answers tasks for the users of one store.

    Guarantee: the device's own secret, the run and the round decide who joins; where it is public who joins, its own
    record keeps the separation and the number of times. It does not matter who asks, or how often.
    Whether it answers does not depend on who is in the store, or has text: who adds nothing adds zeros. Nothing but a
    `Contribution` or a `Code` leaves; in a masked run, only what a `Participant` gives. Users train beside the frozen
    weights of the hash that their task names, and a run keeps the one that its first task had.
    """

    def __init__(
        self,
        enrolled: Enrolment,
        store: Store,
        secret: bytes,
        participation: Participation,
        limits: Limits,
        membership: Membership | None = None,
    ):
        check_registered(enrolled, store)
        self._enrolled, self._secret = enrolled, secret
        self._store = replace(store, first=enrolled.first)
        self._participation, self._limits, self._membership = participation, limits, membership
        self._masking: Masking | None = None  # the masked round that this device is in
        self._assemblies: dict[str, Assembly] = {}
        self._tried = ""  # the recipe for which this machine was tried with made-up users
        self._parts, self._wanted = FrozenParts(participation.path.parent / "frozen"), ""
        self._filled: dict[tuple[str, str], Assembly] = {}  # with the frozen part, by recipe and hash

    @property
    def description(self) -> str:
        users = self._store.users
        return f"{self._enrolled.name}: {count_of(users, 'user')}, registered for {self._enrolled.users}"

    def answer(self, message: bytes) -> bytes:
        """The answer to a message. It never raises: the owner of the device finds errors in the log."""
        try:
            request = read_request(message)
            if isinstance(request, FrozenPart):
                return self._keep(request).to_bytes()
            if isinstance(request, Later):
                return self._go_on(read_later(request))
            return self._contribute(request, message).to_bytes()
        except Refused as refused:
            log.warning("a message was refused: %s", refused)
            return Nothing(refused.code).to_bytes()
        except Exception:  # the text of an error stays here
            log.exception("a task failed")
            return Nothing(Code.FAILED).to_bytes()

    def _go_on(self, request: Request) -> bytes:
        """The answer to a later phase of a masked round."""
        if self._masking is None:
            raise Refused(Code.LOST, "a masked round goes on that this device is not in: it was started again")
        which, participant = self._masking.which, self._masking.participant
        return participant.answer(request, lambda digest: self._participation.note_masked(which, digest))

    def _contribute(self, task: Task, message: bytes) -> Contribution | Advert | Nothing:
        if task.version != VERSION:
            raise Refused(Code.VERSION)
        if task.federation != self._enrolled.federation or task.vocabulary != self._store.vocabulary.fingerprint:
            raise Refused(Code.STRANGER)
        assembly = self._assemble(task)
        params = self._check(task, assembly)
        self._check_seats(assembly)
        masked = assembly.recipe.federation.masked
        if masked:
            if self._masking is not None and self._masking.message == digest(message):
                return self._masking.advert  # the task once more
            self._masking = None
            self._check_masked(task, assembly.recipe)
        assembly = self._with_frozen(task, assembly)
        # Up to here nothing depends on the people of the store. From here on the sums do, and nothing else.
        mechanism = assembly.algorithm.mechanism
        most, seen = mechanism.joining(assembly.recipe.run.rounds), _seen_in_a_round(mechanism)
        rows = self._participation.join(task, message, self._draw(task, assembly), self._limits, most, seen)
        sums = self._sums(task, assembly, params, rows[rows < self._store.users], digest(message))
        return self._mask(task, assembly, sums) if masked else sums

    def _check_masked(self, task: Task, recipe: Recipe) -> None:
        """Refuse a masked round that this device cannot or may not join, before anybody is drawn."""
        if self._membership is None or self._enrolled.name not in self._membership.members:
            missing = f"copy {MEMBERS} of the federation into the folder of this device"
            raise Refused(Code.STRANGER, f"a masked sum needs the keys of the other devices; {missing}")
        declared, limits = recipe.federation, self._limits
        if declared.survivors < limits.survivors or declared.colluding < limits.colluding:
            own = f"survivors = {limits.survivors} and colluding = {limits.colluding}"
            raise Refused(Code.LIMITS, f"the run declares less than the limits of this device, {own}")
        self._participation.refuse_masked(task.which)

    def _mask(self, task: Task, assembly: Assembly, sums: Contribution) -> Advert:
        """Keep the sums, with this device's noise if it adds any, for the later phases; what leaves now are keys."""
        assert self._membership is not None
        federation, mechanism = assembly.recipe.federation, assembly.algorithm.mechanism
        place = Place(self._enrolled.name, self._membership, Terms(federation.survivors, federation.colluding))
        layout = layout_of(sums, federation)
        vector = with_own_noise(layout.flatten(sums), mechanism, task.clip_norms)
        largest = largest_noise(mechanism, task.clip_norms, layout)
        participant = Participant(place, context_of(task, sums.task), vector, largest)
        advert = participant.advert()
        self._masking = Masking(sums.task, task.which, participant, advert)
        return advert

    def _assemble(self, task: Task) -> Assembly:
        """The objects of a run: built once for all its rounds."""
        try:
            recipe = Recipe.from_dict(task.recipe)
            rules.check(rules.device_rules(recipe))
            recipe = for_this_machine(recipe)
            name = recipe.sha256()
            if name not in self._assemblies:
                sizes.check_recipe(recipe, self._store.vocabulary.size, self._limits)
                assembly = assemble(recipe, self._store)
                sizes.check_training(assembly)
                self._assemblies = {name: assembly}
            return self._assemblies[name]
        except (SottoError, TypeError, ValueError) as error:
            log.warning("a recipe was refused: %s", error)
            raise Refused(Code.LIMITS) from None

    def _check_seats(self, assembly: Assembly) -> None:
        """Refuse a run in which one user would change what others send, on this machine. It trains made-up users."""
        name = assembly.recipe.sha256()
        if name == self._tried or not assembly.is_private:
            return
        try:
            check_seats(assembly.sum_updates, assembly.algorithm, assembly.params, self._store)
        except SottoError as error:
            log.warning("a recipe was refused: %s", error)
            raise Refused(Code.LIMITS) from None
        self._tried = name

    def _with_frozen(self, task: Task, assembly: Assembly) -> Assembly:
        """The objects of a run with the frozen part that the task names, if this device has it."""
        if assembly.algorithm.frozen is None:
            return assembly
        name = assembly.recipe.sha256(), task.frozen
        if name not in self._filled:
            arrays = self._parts.load(task.frozen)
            if arrays is None:
                self._wanted = task.frozen
                raise Refused(Code.FROZEN)
            try:
                self._filled = {name: assembly.with_frozen(arrays)}
            except SottoError:
                raise Refused(Code.MALFORMED) from None  # of another model
        return self._filled[name]

    def _keep(self, part: FrozenPart) -> Nothing:
        """Keep the frozen part that a task asked for, and no other."""
        if part.federation != self._enrolled.federation or part.name != self._wanted:
            raise Refused(Code.STRANGER)
        self._parts.keep(part)
        return Nothing(Code.KEPT)

    def _check(self, task: Task, assembly: Assembly) -> Any:
        """The parameters that were sent. Refuse a task beyond what the owner allows, or of another shape."""
        limits, update, mechanism = self._limits, assembly.algorithm.user_update, assembly.algorithm.mechanism
        clip_norms = np.asarray(task.clip_norms)
        expected = np.asarray(mechanism.clip_norms(1, mechanism.start()))
        leaves, structure = jax.tree.flatten(assembly.params)
        sent = [(array.shape, array.dtype) for array in (clip_norms, *task.leaves)]
        known = [(array.shape, array.dtype) for array in (expected, *leaves)]
        frozen = assembly.algorithm.frozen
        if sent != known or task.key.shape != (2,) or task.round < 1 or bool(task.frozen) != (frozen is not None):
            raise Refused(Code.MALFORMED)
        steps = int(update.steps(self._store.tokens_per_user)) * (update.epochs if isinstance(update, FedAvg) else 1)
        private = assembly.is_private
        within = (
            (private or not limits.private_only)
            and (assembly.recipe.federation.masked or not limits.masked_only)
            # Without a clip there is no guarantee; `private_only` decides about such runs.
            and (joint_norm(clip_norms) <= limits.clip_norm or not private)
            and (_are_planned(mechanism, task.round, clip_norms) or not private)
            and mechanism.sampler.most_updates >= limits.silos
            and mechanism.sampler.user_rate <= limits.user_rate
            and steps <= limits.steps
        )
        if not within:
            raise Refused(Code.LIMITS)
        self._check_server_epsilon(task, mechanism)
        return structure.unflatten([jax.numpy.asarray(leaf) for leaf in task.leaves])

    def _check_server_epsilon(self, task: Task, mechanism: Mechanism) -> None:
        """Refuse a run that, with all that left this device in other runs, comes to more than the owner allows.

        Guarantee: in all runs together, whatever the server calls them, the vectors of any one user that left have an ε
        against the server of at most `server_epsilon`. A run is refused whole, for all users of the device alike.
        """
        limit, earlier = self._limits.server_epsilon, self._participation.seen_before(task.run)
        if limit and (found := _against_server(mechanism, earlier)) > limit:
            known = accounting.rounded_up(accounting.epsilon(earlier, SERVER_DELTA))
            both = f"{known} against the server for other runs, and with this run {accounting.rounded_up(found)}"
            raise Refused(Code.LIMITS, f"this device has spent an ε of {both}: server_epsilon = {limit:g}")

    def _draw(self, task: Task, assembly: Assembly) -> np.ndarray:
        """Flip the coin of every registered user. A round of a run has the same coins, whatever else its task says.

        Where the server decides who joins, there is no coin: it asks one user, and a silo has its users come at times
        that follow from their names.
        """
        sampler = assembly.algorithm.mechanism.sampler
        if sampler.independent:
            coin = blake2b(f"coin {task.run} {task.round}".encode(), key=self._secret, digest_size=32).digest()
            return sampler.sample(range(self._enrolled.users), coin)
        if self._enrolled.users == 1:
            return np.zeros(1, np.int64)
        return sampler.sample(self._store, b"", task.round)

    def training_key(self, which: Which, key: np.ndarray) -> PRNGKeyArray:
        """The key of the users' own randomness. It depends on the device's secret too: all devices know the task's key.

        One user more or less shifts the rows of the others. A reader of the release must not know what a row draws.
        """
        run, number = which
        words = f"training {run} {number} ".encode() + np.asarray(key).tobytes()
        return local_key(blake2b(words, key=self._secret, digest_size=8).digest())

    def _sums(self, task: Task, assembly: Assembly, params: Any, rows: np.ndarray, name: str) -> Contribution:
        """The sums over the users who join; zeros, where there are none or training fails. An answer always comes.

        Guarantee: that a device takes part, and in which form, follows from what is registered alone.
        """
        found = _nobody(task, name, assembly.algorithm.mechanism)
        if len(rows):
            try:
                found = self._train(task, assembly, params, rows, name)
            except Exception:  # also the text of this error stays here
                log.exception("training failed, and zeros go in the place of its sums")
        return found

    def _train(self, task: Task, assembly: Assembly, params: Any, rows: np.ndarray, name: str) -> Contribution:
        key = self.training_key(task.which, task.key)
        in_blocks, algorithm = assembly.sum_updates, assembly.algorithm
        cohort = CohortTask(params, rows, np.asarray(task.clip_norms), key)
        blocks = in_blocks.blocks(algorithm, self._store, rows)
        sums, _ = in_blocks.add_up(blocks, algorithm, cohort, self._store)
        total = _steps(sums.total) if isinstance(sums.total, FixedPoint) else sums.total
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(total)]
        return Contribution(name, len(rows), int(_steps(sums.weight)), _steps(sums.bits), leaves)


def for_this_machine(recipe: Recipe) -> Recipe:
    """A recipe that came with a task: this machine chooses how it lays out its users."""
    return recipe.replace(run={"block": 0, "devices": 0, "kernels": "auto"})


@lru_cache(maxsize=4)
def _against_server(mechanism: Mechanism, earlier: accounting.Spent = ()) -> float:
    """ε against the server, of what a user sends in a run and sent in `earlier` ones; infinite where it adds noise."""
    if mechanism.devices is None:
        return math.inf
    return accounting.epsilon([*earlier, *mechanism.devices.against_server], SERVER_DELTA)


def _are_planned(mechanism: Mechanism, round_number: int, clip_norms: np.ndarray) -> bool:
    """Are these the clip norms of a round? Where they adapt, no norm is so small that float32 loses what is below it.

    Noise is in units of the norm that is sent. Beneath the range of float32 nothing would be clipped.
    """
    if mechanism.tracking is not None:
        return bool(np.all(clip_norms >= LEAST_NORM))
    return np.array_equal(clip_norms, mechanism.clip_norms(round_number, None))


def _seen_in_a_round(mechanism: Mechanism) -> accounting.Event:
    """What the server sees of a user in a round that they join: it is without noise where the server adds that."""
    return accounting.NonPrivate() if mechanism.devices is None else mechanism.devices.against_server[0][0]


def with_own_noise(vector: np.ndarray, mechanism: Mechanism, clip_norms: np.ndarray) -> np.ndarray:
    """The sums with this device's share of the noise, where devices add it.

    Guarantee: the key is drawn here for this one vector, and forgotten: nobody else has it, and no other vector.
    """
    if mechanism.devices is None:
        return vector
    std = mechanism.devices.share * mechanism.steps(clip_norms)
    return vector + np.asarray(rounded_gaussian(os_entropy.token_bytes(32), vector.size, std))


def _nobody(task: Task, name: str, mechanism: Mechanism) -> Contribution:
    """The sums over no user."""
    kind = np.float32 if mechanism.grid(task.clip_norms) is None else np.int64
    leaves = [np.zeros(leaf.shape, kind) for leaf in task.leaves]
    return Contribution(name, 0, 0, np.zeros(len(task.clip_norms), np.int64), leaves)


def _steps(whole: FixedPoint) -> np.ndarray:
    """A sum as integers of 64 bits."""

    def join(high: jax.Array, low: jax.Array) -> np.ndarray:
        return np.asarray(high).astype(np.int64) * 2**16 + np.asarray(low)

    return jax.tree.map(join, whole.high, whole.low)


def check_registered(enrolled: Enrolment, store: Store) -> None:
    """Refuse a store of more users than the device is registered for."""
    if store.users > enrolled.users:
        raise SottoError(
            f"the store {store.path} has {count_of(store.users, 'user')}, and {enrolled.name} is registered for "
            f"{enrolled.users}; enrol a device for {count_of(store.users, 'user')}"
        )


def own_secret(folder: Path) -> bytes:
    """The secret of a device's coins. It is drawn on the device: the server never has it."""
    path = folder / SECRET
    if not path.exists():
        write_aside(path, os_entropy.token_bytes(32), private=True)
    secret = path.read_bytes()
    if len(secret) != 32:
        raise SottoError(f"{path} is damaged; restore it from a backup: a new secret flips past coins again")
    return secret
