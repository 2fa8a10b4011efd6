"""Attack a run's model: can anybody tell from it who was among the users it was trained on?"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce.audit import membership
from sottovoce.audit.bounds import CONFIDENCE, check_level
from sottovoce.audit.retrain import references as train_references
from sottovoce.build.assembly import assemble
from sottovoce.commands.audit_rounds import refuse_own_code
from sottovoce.commands.evaluate import load_run
from sottovoce.commands.initial_model import find_start
from sottovoce.commands.stores import open_users
from sottovoce.data.store import Store
from sottovoce.errors import SottoError
from sottovoce.evaluation.prediction import count_hits
from sottovoce.models.contract import LanguageModel
from sottovoce.privacy.rng import philox
from sottovoce.recipe import Recipe
from sottovoce.reporting.audit_figures import draw_roc
from sottovoce.runs.checkpoint import digest
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.payments import vocabulary_charges
from sottovoce.runs.secrets import Secrets

USERS = 2000  # on either side: enough to see false alarms of one in a thousand
NOTE = "what these attacks found among real users; a better attack may find more"

Progress = Callable[[int, int], None]  # so many steps of so many are done


def audit_membership(
    path: str | Path, *, references: int = 0, users: int = USERS, confidence: float = CONFIDENCE, seed: int = 0,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:  # fmt: skip
    """Tell users the run was trained on from users held out, and write how well that went, for the owner alone.

    By each user's loss under the run's model; with `references`, also by what as many models say that were trained by
    the recipe on all other users and a half of these. At most `users` of each kind, chosen by the seed.
    """
    run = RunFolder.open(path)
    membership.check_references(references)
    check_level(0.0, confidence)
    if users < membership.FEWEST:
        raise SottoError(f"users={users} must be at least {membership.FEWEST}; so many of each kind are told apart")
    recipe = Recipe.load(run.recipe_file)
    statement = run.read_statement()
    model, _ = load_run(run)
    store, held_out = open_users(recipe, run)
    if held_out is None:
        raise SottoError(
            f"{store.path} has no held-out users: an attack needs people whom the model has not seen; prepare the "
            f"store with --test-users 0.1"
        )
    secrets = Secrets.seeded(seed, "audit of membership")
    crowd = _Crowd.choose(store, held_out, users, secrets)
    membership.check_users(len(crowd.inside), len(crowd.outside))
    losses = crowd.losses(model)
    scores = {"loss threshold": -losses}
    if references:
        calibrated = _reference_scores(run, recipe, store, crowd, losses, references, seed, statement, progress)
        scores |= calibrated
    found = [membership.judge(name, *crowd.apart(values), confidence) for name, values in scores.items()]
    result = {
        "run": run.path.resolve().name,
        "weights": digest(run.load_weights()),
        "round": statement["rounds_done"],
        "in_users": len(crowd.inside),
        "out_users": len(crowd.outside),
        "rounds_a_user": statement["rounds_done"] * recipe.privacy.cohort / store.users,
        "references": references,
        "confidence": confidence,
        "attacks": [attack.to_json() for attack in found],
        "proved": {name: statement[name] for name in ("private", "epsilon", "delta")},
        "note": NOTE,
    }
    run.save_audit("membership", result, draw_roc(found))
    return result


@dataclass(frozen=True, eq=False)
class _Crowd:
    """Whom to tell apart: rows of the users to train on, and of those held out, who have any text."""

    store: Store
    held_out: Store
    inside: np.ndarray
    outside: np.ndarray

    @staticmethod
    def choose(store: Store, held_out: Store, most: int, secrets: Secrets) -> _Crowd:
        generator = philox(secrets.keys(1, "users").sampling)
        rows = []
        for people in (store, held_out):
            order = generator.permutation(people.users)
            with_text = order[people.lengths(order) > 1]  # BOS is no target
            rows.append(np.sort(with_text[:most]))
        return _Crowd(store, held_out, *rows)

    def losses(self, model: LanguageModel) -> np.ndarray:
        """Mean loss of everybody, in users first."""
        means = []
        for people, rows in ((self.store, self.inside), (self.held_out, self.outside)):
            counts = count_hits(model, people, rows.tolist())
            means.append(counts.loss / np.maximum(counts.targets, 1))
        return np.concatenate(means)

    def texts(self) -> list[np.ndarray]:
        return [
            people[int(row)]
            for people, rows in ((self.store, self.inside), (self.held_out, self.outside))
            for row in rows
        ]

    def apart(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return values[: len(self.inside)], values[len(self.inside) :]


def _reference_scores(
    run: RunFolder, recipe: Recipe, store: Store, crowd: _Crowd, losses: np.ndarray, count: int, seed: int,
    statement: dict[str, Any], progress: Progress,
) -> dict[str, np.ndarray]:  # fmt: skip
    assembly = assemble(recipe, store, before=vocabulary_charges(store))
    refuse_own_code(run, assembly)
    start = find_start(assembly.recipe, store, assembly.model)
    secrets = Secrets.seeded(seed, "halves of an audit")
    inside = membership.halves(len(losses), count, philox(secrets.keys(1, "halves").sampling))
    rounds = statement["rounds_done"]
    played = itertools.count(1)
    always = np.setdiff1d(np.arange(store.users), crowd.inside)
    models = train_references(
        assembly, start.model, store, always, crowd.texts(), inside, rounds,
        lambda number: Secrets.seeded(seed, f"reference {number} of an audit"),
        lambda: progress(next(played), count * rounds),
    )  # fmt: skip
    seen = np.array([crowd.losses(model) for model in models])
    return {
        "references, offline": membership.offline_scores(losses, seen, inside),
        "references, online": membership.online_scores(losses, seen, inside),
    }
