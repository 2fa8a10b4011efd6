"""What a device does when it is asked for a round: check, draw, train, clip, add up, answer. Nothing here knows Flower.

The code is what the device's owner installed; a task holds numbers and a recipe, never a program.
"""

from __future__ import annotations

import logging
import secrets as os_entropy
from dataclasses import dataclass, replace
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from sottovoce.build.assembly import Assembly, assemble
from sottovoce.data.store import Store
from sottovoce.errors import SottoError
from sottovoce.federation.device_rules import check_scope
from sottovoce.federation.limits import Limits, Participation
from sottovoce.federation.messages import Code, Contribution, Nothing, Refused, Task, digest, refuse
from sottovoce.files import write_aside
from sottovoce.local.keys import local_key
from sottovoce.local.update import FedAvg
from sottovoce.models.contract import LanguageModel, parameter_count
from sottovoce.privacy.clipping import joint_norm
from sottovoce.privacy.fixed_point import FixedPoint
from sottovoce.recipe import Recipe
from sottovoce.training.types import Task as CohortTask

log = logging.getLogger("sottovoce.device")
VERSION = version("sottovoce")
SECRET = "coin.secret"


@dataclass(frozen=True)
class Enrolment:
    """How a device stands in the roster: its users are rows `first` to `first + users` of the population."""

    federation: str
    name: str
    first: int
    users: int


class Device:
    """Answers tasks for the users of one store.

    Guarantee: who joins a release follows from the device's own secret and the release (run, round, attempt), whoever
    asks and how often; and nothing but a `Contribution` or a `Code` leaves.
    """

    def __init__(self, enrolled: Enrolment, store: Store, secret: bytes, participation: Participation, limits: Limits):
        if store.users > enrolled.users:
            raise SottoError(
                f"the store {store.path} has {store.users} users, and {enrolled.name} is registered for "
                f"{enrolled.users}: the others would have no place in the population; enrol as many"
            )
        self._enrolled, self._secret = enrolled, secret
        self._store = replace(store, first=enrolled.first)
        self._participation, self._limits = participation, limits
        self._assemblies: dict[str, Assembly] = {}

    @property
    def description(self) -> str:
        return f"{self._enrolled.name}: {self._store.users} users, registered for {self._enrolled.users}"

    def answer(self, message: bytes) -> bytes:
        """What is sent back. It never raises: what went wrong is told to the device's owner, in the log."""
        try:
            return self._contribute(Task.from_bytes(message), message).to_bytes()
        except Refused as refused:
            log.warning("a task was refused: %s", refused.code.value)
            return Nothing(refused.code).to_bytes()
        except Exception:  # whatever it is, its text stays here
            log.exception("a task failed")
            return Nothing(Code.FAILED).to_bytes()

    def _contribute(self, task: Task, message: bytes) -> Contribution | Nothing:
        self._check_origin(task)
        assembly = self._assemble(task)
        model = self._check(task, assembly)
        drawn = self._draw(task, assembly)
        rows = self._participation.join(task, message, drawn, self._limits)
        rows = rows[rows < self._store.users]  # a registered user without text here
        if not len(rows):
            return Nothing(Code.NOBODY)
        return self._train(task, assembly, model, rows, digest(message))

    def _check_origin(self, task: Task) -> None:
        if task.version != VERSION:
            raise Refused(Code.VERSION)
        if task.federation != self._enrolled.federation or task.vocabulary != self._store.vocabulary.fingerprint:
            raise Refused(Code.STRANGER)

    def _assemble(self, task: Task) -> Assembly:
        """The objects of a run: built once for all its rounds."""
        try:
            recipe = Recipe.from_dict(task.recipe)
            check_scope(recipe)
            # How users are laid out on this machine is this machine's affair.
            recipe = recipe.replace(run={"block": 0, "devices": 0, "kernels": "auto"})
            name = recipe.sha256()
            if name not in self._assemblies:
                self._assemblies = {name: assemble(recipe, self._store)}
            return self._assemblies[name]
        except (SottoError, TypeError, ValueError) as error:
            log.warning("a recipe was refused: %s", error)
            refuse(Code.LIMITS)

    def _check(self, task: Task, assembly: Assembly) -> LanguageModel:
        """Refuse more than the owner allows; the model that was sent, if it is one."""
        limits, update, mechanism = self._limits, assembly.algorithm.user_update, assembly.algorithm.mechanism
        assert mechanism.sampler.independent
        clip_norms = np.asarray(task.clip_norms)
        expected = np.asarray(mechanism.clip_norms(1, mechanism.start()))
        if clip_norms.shape != expected.shape or clip_norms.dtype != expected.dtype or task.round < 1:
            raise Refused(Code.MALFORMED)
        leaves, structure = jax.tree.flatten(assembly.model)
        sent = [(leaf.shape, leaf.dtype) for leaf in task.leaves]
        if sent != [(leaf.shape, leaf.dtype) for leaf in leaves] or task.key.shape != (2,):
            raise Refused(Code.MALFORMED)
        steps = int(update.steps(self._store.tokens_per_user)) * (update.epochs if isinstance(update, FedAvg) else 1)
        private = assembly.is_private
        within = (
            (private or not limits.private_only)
            # Without a clip there is no promise, and only an owner who allows that gets here.
            and (joint_norm(clip_norms) <= limits.clip_norm or not private)
            and bool(np.all(clip_norms > 0))
            and mechanism.sampler.user_rate <= limits.user_rate
            and steps <= limits.steps
            and parameter_count(assembly.model) <= limits.parameters
        )
        if not within:
            raise Refused(Code.LIMITS)
        return structure.unflatten([jax.numpy.asarray(leaf) for leaf in task.leaves])

    def _draw(self, task: Task, assembly: Assembly) -> np.ndarray:
        """The coin of every registered user. Asked again, it falls as it fell."""
        coin = blake2b(f"coin {task.release}".encode(), key=self._secret, digest_size=32).digest()
        sampler = assembly.algorithm.mechanism.sampler
        assert sampler.independent
        return sampler.sample(range(self._enrolled.users), coin)

    def training_key(self, release: str, key: np.ndarray) -> PRNGKeyArray:
        """Of what users draw for themselves: not the key of the task alone, which all devices know.

        A user more or less moves the rows of others here, and what these draw must then be as likely as before to
        whoever sees the release.
        """
        words = f"training {release} ".encode() + np.asarray(key).tobytes()
        return local_key(blake2b(words, key=self._secret, digest_size=8).digest())

    def _train(self, task: Task, assembly: Assembly, model: LanguageModel, rows: np.ndarray, name: str) -> Contribution:
        key = self.training_key(task.release, task.key)
        in_blocks, algorithm = assembly.sum_updates, assembly.algorithm
        blocks = in_blocks.blocks(algorithm, self._store, rows)
        sums, _ = in_blocks.add_up(
            blocks, algorithm, CohortTask(model, rows, np.asarray(task.clip_norms), key), self._store
        )
        exact = isinstance(sums.total, FixedPoint)
        leaves = jax.tree.leaves(_steps(sums.total) if exact else sums.total)
        return Contribution(
            name, len(rows), int(_steps(sums.weight)), _steps(sums.bits), [np.asarray(leaf) for leaf in leaves]
        )


def _steps(whole: FixedPoint) -> np.ndarray:
    """A sum as whole numbers of 64 bits."""
    return jax.tree.map(
        lambda high, low: np.asarray(high).astype(np.int64) * 2**16 + np.asarray(low), whole.high, whole.low
    )


def own_secret(folder: Path) -> bytes:
    """The secret of a device's coins, drawn where it is used: the server never had it."""
    path = folder / SECRET
    if not path.exists():
        write_aside(path, os_entropy.token_bytes(32), private=True)
    secret = path.read_bytes()
    if len(secret) != 32:
        raise SottoError(f"{path} is damaged; put it back (a new one would draw the coins of past rounds again)")
    return secret
