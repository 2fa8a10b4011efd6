"""What a device does with a task: check, draw, train, clip, add up, answer.

The code is what the device's owner installed; a task holds numbers and a recipe, never a program.
"""

from __future__ import annotations

import logging
import secrets as os_entropy
from dataclasses import replace
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from sottovoce.build.assembly import Assembly, assemble
from sottovoce.data.store import Store
from sottovoce.errors import SottoError
from sottovoce.federation.device_rules import check_frozen, check_scope
from sottovoce.federation.limits import Limits, Participation
from sottovoce.federation.messages import Code, Contribution, Nothing, Refused, Task, digest, read_request, refuse
from sottovoce.federation.roster import Enrolment
from sottovoce.files import write_aside
from sottovoce.local.keys import local_key
from sottovoce.local.update import FedAvg
from sottovoce.models.contract import parameter_count
from sottovoce.privacy.clipping import joint_norm
from sottovoce.privacy.fixed_point import FixedPoint
from sottovoce.recipe import Recipe
from sottovoce.training.types import Task as CohortTask

log = logging.getLogger("sottovoce.device")
VERSION = version("sottovoce")
SECRET = "coin.secret"


class Device:
    """Answers tasks for the users of one store.

    Guarantee: the device's own secret and the release (run, round, attempt) decide who joins. It does not matter who
    asks, or how often. Nothing but a `Contribution` or a `Code` leaves.
    """

    def __init__(self, enrolled: Enrolment, store: Store, secret: bytes, participation: Participation, limits: Limits):
        if store.users > enrolled.users:
            raise SottoError(
                f"the store {store.path} has {store.users} users, and {enrolled.name} is registered for "
                f"{enrolled.users}: the others have no place in the population; enrol it for {store.users} users"
            )
        self._enrolled, self._secret = enrolled, secret
        self._store = replace(store, first=enrolled.first)
        self._participation, self._limits = participation, limits
        self._assemblies: dict[str, Assembly] = {}
        self._answers = {Task: self._contribute}  # by the kind of the message

    @property
    def description(self) -> str:
        return f"{self._enrolled.name}: {self._store.users} users, registered for {self._enrolled.users}"

    def answer(self, message: bytes) -> bytes:
        """The answer to a message, by its kind. It never raises: the owner of the device finds errors in the log."""
        try:
            request = read_request(message)
            return self._answers[type(request)](request, message).to_bytes()
        except Refused as refused:
            log.warning("a task was refused: %s", refused.code.value)
            return Nothing(refused.code).to_bytes()
        except Exception:  # the text of an error stays here
            log.exception("a task failed")
            return Nothing(Code.FAILED).to_bytes()

    def _contribute(self, task: Task, message: bytes) -> Contribution | Nothing:
        self._check_origin(task)
        assembly = self._assemble(task)
        params = self._check(task, assembly)
        drawn = self._draw(task, assembly)
        rows = self._participation.join(task, message, drawn, self._limits)
        rows = rows[rows < self._store.users]  # a registered user without text here
        if not len(rows):
            return Nothing(Code.NOT_DRAWN)
        return self._train(task, assembly, params, rows, digest(message))

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
            # This machine chooses how it lays out its users.
            recipe = recipe.replace(run={"block": 0, "devices": 0, "kernels": "auto"})
            name = recipe.sha256()
            if name not in self._assemblies:
                assembly = assemble(recipe, self._store)
                check_frozen(assembly.algorithm.frozen)
                self._assemblies = {name: assembly}
            return self._assemblies[name]
        except (SottoError, TypeError, ValueError) as error:
            log.warning("a recipe was refused: %s", error)
            refuse(Code.LIMITS)

    def _check(self, task: Task, assembly: Assembly) -> Any:
        """The parameters that were sent. Refuse a task beyond what the owner allows, or of another shape."""
        limits, update, mechanism = self._limits, assembly.algorithm.user_update, assembly.algorithm.mechanism
        assert mechanism.sampler.independent
        clip_norms = np.asarray(task.clip_norms)
        expected = np.asarray(mechanism.clip_norms(1, mechanism.start()))
        if clip_norms.shape != expected.shape or clip_norms.dtype != expected.dtype or task.round < 1:
            raise Refused(Code.MALFORMED)
        leaves, structure = jax.tree.flatten(assembly.params)
        sent = [(leaf.shape, leaf.dtype) for leaf in task.leaves]
        if sent != [(leaf.shape, leaf.dtype) for leaf in leaves] or task.key.shape != (2,):
            raise Refused(Code.MALFORMED)
        steps = int(update.steps(self._store.tokens_per_user)) * (update.epochs if isinstance(update, FedAvg) else 1)
        private = assembly.is_private
        within = (
            (private or not limits.private_only)
            # Without a clip there is no guarantee; `private_only` decides about such runs.
            and (joint_norm(clip_norms) <= limits.clip_norm or not private)
            and bool(np.all(clip_norms > 0))
            and mechanism.sampler.user_rate <= limits.user_rate
            and steps <= limits.steps
            and parameter_count(assembly.params) <= limits.parameters
        )
        if not within:
            raise Refused(Code.LIMITS)
        return structure.unflatten([jax.numpy.asarray(leaf) for leaf in task.leaves])

    def _draw(self, task: Task, assembly: Assembly) -> np.ndarray:
        """Flip the coin of every registered user. The same release gives the same coins."""
        coin = blake2b(f"coin {task.release}".encode(), key=self._secret, digest_size=32).digest()
        sampler = assembly.algorithm.mechanism.sampler
        assert sampler.independent
        return sampler.sample(range(self._enrolled.users), coin)

    def training_key(self, release: str, key: np.ndarray) -> PRNGKeyArray:
        """The key of the users' own randomness. It depends on the device's secret too: all devices know the task's key.

        One user more or less shifts the rows of the others. What those draw must stay as likely to anyone who sees the
        release.
        """
        words = f"training {release} ".encode() + np.asarray(key).tobytes()
        return local_key(blake2b(words, key=self._secret, digest_size=8).digest())

    def _train(self, task: Task, assembly: Assembly, params: Any, rows: np.ndarray, name: str) -> Contribution:
        key = self.training_key(task.release, task.key)
        in_blocks, algorithm = assembly.sum_updates, assembly.algorithm
        blocks = in_blocks.blocks(algorithm, self._store, rows)
        sums, _ = in_blocks.add_up(
            blocks, algorithm, CohortTask(params, rows, np.asarray(task.clip_norms), key), self._store
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
    """The secret of a device's coins. It is drawn on the device: the server never has it."""
    path = folder / SECRET
    if not path.exists():
        write_aside(path, os_entropy.token_bytes(32), private=True)
    secret = path.read_bytes()
    if len(secret) != 32:
        raise SottoError(
            f"{path} is damaged; restore it from a backup (a new secret would flip the coins of past rounds again)"
        )
    return secret
