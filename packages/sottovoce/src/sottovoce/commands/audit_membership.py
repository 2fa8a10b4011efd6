"""Attack a run's model: can its training users be told from users held out?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sottovoce.audit import membership
from sottovoce.audit.bounds import CONFIDENCE, check_level
from sottovoce.audit.results import MembershipResult, Proved
from sottovoce.audit.retrain import Retraining, train_shadow_models
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.commands.retrain import Progress, no_progress, open_for_retraining
from sottovoce.commands.stores import open_users
from sottovoce.data.store import Store
from sottovoce.evaluation.prediction import count_hits
from sottovoce.models.contract import LanguageModel
from sottovoce.privacy.rng import philox
from sottovoce.reporting.draw.audits import draw_roc
from sottovoce.reporting.statement import read_statement
from sottovoce.runs.checkpoint import digest
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence.errors import SettingError, SottoError
from sottovoce_evidence.recipe import Recipe

USERS = 2000  # on either side: enough to see false alarms of one in a thousand
NOTE = "what these attacks found among real users; a better attack may find more"


def audit_membership(
    path: str | Path,
    *,
    references: int = 0,
    users: int = USERS,
    confidence: float = CONFIDENCE,
    seed: int = 0,
    progress: Progress = no_progress,
) -> MembershipResult:
    """Tell users the run was trained on from users held out, and write how well that went, for the owner alone.

    Args:
        path: the run's folder.
        references: shadow models to train by the recipe, each on all other users and a half of these. With 0, only the
            loss under the run's model is used.
        users: at most this many of each kind, chosen by the seed.
        confidence: of the intervals.
        seed: chooses users, and the randomness of shadow models.
        progress: is called after every round.
    """
    run = RunFolder.open(path)
    membership.check_references(references)
    check_level(0.0, confidence)
    if users < membership.FEWEST:
        raise SettingError(f"{{users}} must be at least {membership.FEWEST}, of each kind", users=users)
    recipe = Recipe.of(run)
    statement = read_statement(run)
    model = ModelFolder.open(run.path).model
    store, held_out = open_users(recipe, run)
    if held_out is None:
        lacks = "has no held-out users to compare with, or they were declared private"
        raise SottoError(f"{store.path} {lacks}; prepare it with --test-users 0.1")
    audited = _Audited.choose(store, held_out, users, Secrets.seeded(seed, "audit of membership"))
    membership.check_users(len(audited.inside), len(audited.outside))
    losses = audited.losses(model)
    scores = {"loss threshold": -losses}
    if references:
        training = open_for_retraining(run, recipe, models=references, store=store, progress=progress)
        scores |= _shadow_scores(training, audited, losses, references, seed)
    found = [membership.evaluate_attack(name, *audited.apart(values), confidence) for name, values in scores.items()]
    result = MembershipResult(
        run=run.path.resolve().name,
        weights=digest(run.load_weights()),
        round=statement.rounds_done,
        in_users=len(audited.inside),
        out_users=len(audited.outside),
        rounds_a_user=statement.rounds_done * recipe.privacy.cohort / store.users,
        references=references,
        confidence=confidence,
        attacks=tuple(map(membership.with_few_points, found)),
        proved=Proved(statement.private, statement.epsilon, statement.delta),
        note=NOTE,
    )
    run.save_audit("membership", result.to_json(), draw_roc(found))
    return result


@dataclass(frozen=True, eq=False)
class _Audited:
    """The users to tell apart: rows of those to train on, and of those held out, who have any text."""

    store: Store
    held_out: Store
    inside: np.ndarray
    outside: np.ndarray

    @staticmethod
    def choose(store: Store, held_out: Store, most: int, secrets: Secrets) -> _Audited:
        generator = philox(secrets.lasting_key("users"))
        rows = []
        for people in (store, held_out):
            order = generator.permutation(people.users)
            with_text = order[people.lengths(order) > 1]  # BOS is no target
            rows.append(np.sort(with_text[:most]))
        return _Audited(store, held_out, *rows)

    @property
    def sides(self) -> tuple[tuple[Store, np.ndarray], ...]:
        return (self.store, self.inside), (self.held_out, self.outside)

    def losses(self, model: LanguageModel) -> np.ndarray:
        """Mean loss of each user, in users first."""
        counts = [count_hits(model, people, rows.tolist()) for people, rows in self.sides]
        return np.concatenate([count.loss / np.maximum(count.targets, 1) for count in counts])

    def texts(self) -> list[np.ndarray]:
        return [people[int(row)] for people, rows in self.sides for row in rows]

    def apart(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return values[: len(self.inside)], values[len(self.inside) :]


def _shadow_scores(
    training: Retraining, audited: _Audited, losses: np.ndarray, count: int, seed: int
) -> dict[str, np.ndarray]:
    """Scores by shadow models."""
    secrets = Secrets.seeded(seed, "halves of an audit")
    inside = membership.draw_halves(len(losses), count, philox(secrets.lasting_key("halves")))
    always = np.setdiff1d(np.arange(training.store.users), audited.inside)

    def secrets_of(number: int) -> Secrets:
        return Secrets.seeded(seed, f"reference {number} of an audit")

    models = train_shadow_models(training, always, audited.texts(), inside, secrets_of)
    shadow_losses = np.array([audited.losses(model) for model in models])
    return {
        "references, offline": membership.offline_scores(losses, shadow_losses, inside),
        "references, online": membership.online_scores(losses, shadow_losses, inside),
    }
