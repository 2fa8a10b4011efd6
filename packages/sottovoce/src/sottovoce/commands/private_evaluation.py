"""Evaluate a model on held-out users with noise, so that its accuracy may be published. They are charged for it."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from sottovoce.build.assembly import weights_of
from sottovoce.commands.evaluate import open_users
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.commands.paid_answer import one_at_a_time, pay_and_keep
from sottovoce.data.store import Store
from sottovoce.evaluation.figures import coarse_count
from sottovoce.evaluation.private_prediction import accuracy_of, count_bounded
from sottovoce.models.contract import LanguageModel
from sottovoce.privacy.bounded_sums import MOST_TOKENS, BoundedSums
from sottovoce.runs.checkpoint import digest
from sottovoce.runs.ledger import EVALUATION, StoreLedger
from sottovoce.runs.payments import store_folder, store_ledger
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import SampledGaussian
from sottovoce_evidence.errors import DamagedRun, SettingError, SottoError, count_of, plain_number
from sottovoce_evidence.files import Facts, read_sealed
from sottovoce_evidence.private_accuracy import MOST_DELTA, MOST_EPSILON, PrivateAccuracy, Terms, loss_bound
from sottovoce_evidence.statement import EXACT, HeldOut

DELTA = 1e-6
FOLDER = "evaluations"  # of a store: what its held-out users paid for


@dataclass(frozen=True)
class PrivateEvaluation(Facts):
    """The accuracy, and what the held-out users of the store have paid in all."""

    accuracy: PrivateAccuracy
    epsilon_held_out: float  # of all private evaluations on the store, at the same δ
    evaluations: int  # how many they are
    kept: bool  # was it paid for before, and read back?
    held_out: HeldOut  # "exact": exact figures of the same users may be published, and undo what they paid for

    @property
    def is_undone(self) -> bool:
        """Are these users unprotected, whatever they paid?"""
        return self.held_out == EXACT


def evaluate_privately(
    path: str | Path,
    store: str | Path | None = None,
    *,
    epsilon: float,
    delta: float = DELTA,
    tokens_per_user: int | None = None,
    model: LanguageModel | None = None,
) -> PrivateEvaluation:
    """How well a model predicts the next tokens of a store's held-out users, with noise for ε at δ.

    Guarantee: the charge is in the store's ledger before the noise is drawn, and the answer has its room on disk before
    the charge. The answer is kept with the store: to ask
    again for the same model, users and terms gives the same answer and charges nothing. One that was lost is charged
    again.

    Args:
        path: the folder of a run, of a release or of a base, or the name of a base in the package.
        store: whose held-out users are measured; the run's own by default. A release and a base have none.
        epsilon: what each held-out user pays, on top of earlier evaluations.
        delta: the chance that this fails; well below 1 over the number of held-out users.
        tokens_per_user: the first tokens of each user that count; all that a store keeps of a user by default. Fewer
            need less noise.
        model: a model of your own, where the run has one.
    """
    if not 0 < epsilon <= MOST_EPSILON:
        text = f"{{epsilon:g}} must be above 0 and at most {MOST_EPSILON:g}, often 1"
        raise SettingError(text, epsilon=epsilon)
    if not 0 < delta <= MOST_DELTA:
        raise SettingError(f"{{delta:g}} must be above 0 and at most {MOST_DELTA:g}, often 1e-6", delta=delta)
    folder = ModelFolder.open(path, model=model)
    released, vocabulary = folder.model, folder.tokenizer
    users = open_users(path, store=store, split="test", privately=True)
    if users.vocabulary.fingerprint != vocabulary.fingerprint:
        raise SottoError(f"the store {users.path} has another vocabulary than the model; prepare it with the model's")
    if not users.people:
        raise SottoError(f"{users.path} was prepared from plain text, which needs no noise; evaluate it exactly")
    if 2 * delta * (about := coarse_count(users.users)) >= 1:  # twice: the number that is published has noise
        text = f"{{delta:g}} must be well below 1 over the number of held-out users, about {about:,}"
        raise SettingError(text, delta=delta)
    most = min(users.tokens_per_user, MOST_TOKENS)
    cap = most if tokens_per_user is None else tokens_per_user
    if not 1 <= cap <= most:
        text = f"{{tokens_per_user}} must be from 1 to {most}, which is what the store keeps of a user"
        raise SettingError(text, tokens_per_user=cap)
    z = accounting.calibrate([(SampledGaussian(1.0, "poisson", 1.0), 1)], epsilon, delta)
    terms = Terms(epsilon, delta, z, cap, loss_bound(vocabulary.size))
    ledger, weights = store_ledger(users), digest(weights_of(released))
    file = _file(users, weights, terms)
    with one_at_a_time(store_folder(users)):
        kept = file.exists()
        accuracy = _read(file, ledger) if kept else _measure(released, users, terms, ledger, file, weights)
    spent = ledger.spent_on_held_out()
    epsilon, evaluations = accounting.epsilon(spent, delta), sum(count for _, count in spent)
    return PrivateEvaluation(accuracy, epsilon, evaluations, kept, users.held_out)


def _measure(
    model: LanguageModel, users: Store, terms: Terms, ledger: StoreLedger, file: Path, weights: str
) -> PrivateAccuracy:
    """Count, then pay, draw and keep: what takes long, and may fail, comes before the charge."""
    mechanism = BoundedSums(terms.noise_multiplier, terms.tokens_per_user)
    rows = mechanism.bounded(*count_bounded(model, users, terms.tokens_per_user))
    return pay_and_keep(
        file,
        f"ε = {terms.epsilon:g} at δ = {plain_number(terms.delta)}",
        lambda: ledger.charge(EVALUATION, "private evaluation", mechanism.event(), 1),
        lambda: accuracy_of(mechanism.draw(rows), mechanism, terms),
        {"weights": weights},
    )


def private_accuracy(folder: Path, weights: str) -> PrivateAccuracy | None:
    """The private accuracy of a model on the held-out users of a store: of several, the one with the most ε."""
    ledger = StoreLedger(folder / "ledger.jsonl")
    files = [(_read(file, ledger), file) for file in _kept(folder / FOLDER)]
    found = [accuracy for accuracy, file in files if read_sealed(file)["weights"] == weights]
    return max(found, key=lambda one: one.terms.epsilon) if found else None


def _file(users: Store, weights: str, terms: Terms) -> Path:
    """Named by model, text and terms: another of any of them is another release."""
    asked = f"{weights} {users.fingerprint} {terms.to_json()}"
    return store_folder(users) / FOLDER / f"{blake2b(asked.encode(), digest_size=16).hexdigest()}.json"


def _kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))


def _read(file: Path, ledger: StoreLedger) -> PrivateAccuracy:
    """An answer that is kept. Each has a charge of its own: a ledger of before some of them does not show their cost.

    Raises:
        DamagedRun: it cannot be read, or fewer answers like it were charged than are kept.
    """
    accuracy = _accuracy_in(file)
    kept = sum(_accuracy_in(each).terms.event == accuracy.terms.event for each in _kept(file.parent))
    charged = dict(ledger.spent_on_held_out()).get(accuracy.terms.event, 0)
    if charged < kept:
        lacking = f"{ledger.path} has {count_of(charged, 'charge')} for the {count_of(kept, 'answer')} like {file.name}"
        raise DamagedRun(f"{lacking}; put the ledger back that belongs to this store")
    return accuracy


def _accuracy_in(file: Path) -> PrivateAccuracy:
    try:
        accuracy = PrivateAccuracy.from_json(read_sealed(file))
        accuracy.terms.event  # noqa: B018 -- it refuses terms that are none
    except (ValueError, KeyError, TypeError, SettingError) as error:
        raise DamagedRun(f"cannot read {file} ({error}); delete it: the next evaluation is charged again") from None
    return accuracy
