"""The privacy statement of a run: what is proved, for whom, under which assumptions, and what is not covered."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from sottovoce import accounting
from sottovoce.accounting import Event, NonPrivate, Spent
from sottovoce.accounting.events import ADDED
from sottovoce.errors import SottoError
from sottovoce.recipe import Privacy, Recipe
from sottovoce.reporting.statement_text import paragraphs
from sottovoce.runs.record import json_number

if TYPE_CHECKING:  # a reviewer's machine needs no jax to read evidence
    from sottovoce.privacy.mechanism import Mechanism

NOT_COVERED = (
    "held-out users: accuracy is measured on them exactly, and they are not protected",
    "choosing hyper-parameters by looking at results on the private text, other than through runs charged to the store",
    "the store's total, where later runs were chosen by the results of earlier ones",
    "diagnostics.jsonl, preparation.json, audits, the secrets, the checkpoints and timing: they are for the owner only",
    "models of non-private or experimental runs on the same store: releasing one voids this statement",
    "a person who holds two user ids, or text about one person written by another",
)
STARTED_FROM = "the people whose text the model was trained on before this run began"
PROTECTS = "users whose text the model was trained on; not those held out, on whom it is measured"
ACROSS_DEVICES = (
    "whoever watches the network, and the server: they see which devices take part in a round, and against them "
    "sampling amplifies nothing",
    "the server: it adds up what devices send before the noise is in, and is trusted to keep none of it",
    "silos: a device that holds several users is trusted to draw, to clip and to add up each of them apart",
)
SIDE_BY_SIDE = (
    "rounding: {} users are trained at once, and who else joins may change an update in its last bits (more on a GPU); "
    "run.block = 1 trains each alone"
)
REHEARSED = "whoever wrote the text that devices rehearse: the owner declares it public"
NOISE_GENERATOR = "exactly rounded Gaussians, from ChaCha20 with a 256-bit key"
NO_CIPHER = "whoever can tell the output of Philox from chance: it draws who joins a round, and is not a cipher"


@dataclass(frozen=True)
class Statement:
    """`epsilon` is for the planned rounds: stopping early because of what was seen does not make it smaller."""

    private: bool
    epsilon: float
    delta: float
    facts: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        head = {"private": self.private, "epsilon": json_number(self.epsilon), "delta": self.delta}
        return {**head, **self.facts, "prose": self.prose()}

    def prose(self) -> str:
        return "\n\n".join(paragraphs(self.private, self.epsilon, self.delta, self.facts))


def make_statement(
    *, recipe: Recipe, mechanism: Mechanism, accountant: str, planned_rounds: int, rounds_done: int,
    spent: Spent, charged: Spent, repeated: Spent, vocabulary_spent: Spent, store_spent: Spent, run: str,
    vocabulary: str, vocabulary_source: Mapping[str, Any], start: Mapping[str, str] | None = None,
    canaries: Mapping[str, Any] | None = None, across_devices: bool = False, users_at_once: int = 1,
    beside: Spent = (), to_store: int = 0,
) -> Statement:  # fmt: skip
    """The statement of a run from its recipe, its mechanism and its ledger.

    ε is that of all that was `charged` for the run, planned rounds and `repeated` ones that were paid again, and
    `beside` it for copies of its folder that went on. The statement lists these charges, and a release has no others.
    The store had so many charges for the run (`to_store`): if there are more one day, the statement is out of date.
    A model is released with its words, so what they cost (`vocabulary_spent`) is part of ε. `start` is the model of
    another run that this one began with; `canaries` is what the ledger says was planted. `across_devices`: users were
    trained where their text is; otherwise so many `users_at_once`, in one program.
    """
    privacy = recipe.privacy
    event = mechanism.event(1)
    private = not isinstance(event, NonPrivate)
    charges = sum(count for _, count in spent)

    def cost(of: Spent) -> float:
        return accounting.epsilon(of, privacy.delta, accountant) if private else math.inf

    epsilon_spent = cost([*vocabulary_spent, *beside, *spent]) if charges else 0.0
    training = [*beside, *charged]
    listed = _together([*vocabulary_spent, *training])
    epsilon = cost(listed)
    replaced = _replaced(listed, privacy, accountant)
    epsilon_training = cost(training) if vocabulary_spent else epsilon

    facts: dict[str, Any] = {
        "statement": 1,
        "run": run,
        "unit": mechanism.unit,
        **({"protects": PROTECTS} if private else {}),
        "relation": "none" if isinstance(event, NonPrivate) else event.relation,
        **replaced,
        "epsilon_training": json_number(epsilon_training),
        "epsilon_spent": json_number(epsilon_spent),
        **store_total(store_spent, privacy.delta, accountant, private),
        "rounds_planned": planned_rounds,
        "rounds_done": rounds_done,
        "charges": charges,
        "charged_again": sum(count for _, count in repeated),
        "charged_beside": sum(count for _, count in beside),
        "charged_to_store": to_store,
        "charged": [{"event": event.to_json(), "count": count} for event, count in listed],
        "accountant": accounting.accountant_name(accountant),
        "sampling": "none: everybody in turn" if recipe.run.algorithm == "central" else privacy.sampling,
        "declared": {
            "users": privacy.users,
            "cohort": privacy.cohort,
            "user_rate": privacy.cohort / privacy.users,
            "total_weight": privacy.total_weight or privacy.users,
            "weight_cap": privacy.weight_cap,
            **(
                {"min_weight": privacy.min_weight or privacy.total_weight or privacy.users}
                if privacy.estimator == "clipped_denominator"
                else {}
            ),
        },
        "mechanism": _mechanism_facts(recipe, mechanism),
        "secrets": privacy.secrets,
        "noise_generator": NOISE_GENERATOR,
        "sampling_generator": mechanism.sampler.generator,
        "released": ["the model after every round", "record.jsonl", "this statement", "the report without --internal"],
        "not_covered": [*NOT_COVERED, *([NO_CIPHER] if mechanism.sampler.generator == "Philox" else [])],
        "vocabulary": {"fingerprint": vocabulary, "source": _source(vocabulary_source)},
        "software": {name: version(name) for name in ("sottovoce", "jax", "dp-accounting", "numpy")},
    }
    if start is not None:
        facts["start"] = dict(start)
        facts["not_covered"].append(STARTED_FROM)
    if canaries is not None:
        facts["canaries"] = dict(canaries)
        facts["released"].append("canaries.json: what canaries were planted, not which of them were in")
    facts["not_covered"] += mechanism.sampler.not_covered
    if not mechanism.sampler.amplifies:
        facts["turns"] = mechanism.sampler.participations(planned_rounds)
    if across_devices:
        facts["across_devices"] = True
        facts["not_covered"] += ACROSS_DEVICES
    if users_at_once > 1:
        facts["not_covered"].append(SIDE_BY_SIDE.format(users_at_once))
    if recipe.local.objective == "rehearsal":
        facts["not_covered"].append(REHEARSED)
    return Statement(private, epsilon, privacy.delta, facts)


def _together(spent: Spent) -> Spent:
    """Every event once, with the number of times that it was charged."""
    total: Counter[Event] = Counter()
    for event, count in spent:
        total[event] += count
    return list(total.items())


def _replaced(spent: Spent, privacy: Privacy, accountant: str) -> dict[str, float | str]:
    """ε when one user is replaced, beside one for adding or removing. The moments accountant has none."""
    if accounting.relation_of(event for event, _ in spent) != ADDED or accountant == "moments":
        return {}
    return {"epsilon_replaced": json_number(accounting.epsilon(spent, privacy.delta, accountant, replaced=True))}


def restate(told: Mapping[str, Any], **facts: Any) -> dict[str, Any]:
    """A statement that was written, with some facts changed or added, in its prose too."""
    # What is written anew gets a checksum of its own.
    renewed = ("private", "epsilon", "delta", "prose", "checksum")
    kept = {name: value for name, value in told.items() if name not in renewed}
    epsilon = math.inf if isinstance(told["epsilon"], str) else told["epsilon"]
    return Statement(told["private"], epsilon, told["delta"], {**kept, **facts}).to_json()


def _mechanism_facts(recipe: Recipe, mechanism: Mechanism) -> dict[str, Any]:
    """How a round is made private: clip norm, sensitivity and noise are those of round 1 where they change.

    A schedule is in factors, so what they multiply is given beside it.
    """
    privacy = recipe.privacy
    clip_norms = mechanism.clip_norms(1, mechanism.start())
    sensitivity = mechanism.sensitivity(clip_norms)
    noise_std, bit_noise = mechanism.noise_std(1, clip_norms)
    facts: dict[str, Any] = {
        "mode": privacy.mode,
        "algorithm": recipe.run.algorithm,
        "clipping": privacy.clipping,
        "clip_when": privacy.clip_when,
        "clip_norm": _joint(clip_norms) if privacy.clipping != "none" else None,
        "estimator": privacy.estimator,
        "sensitivity": sensitivity if math.isfinite(sensitivity) else None,
        "noise_multiplier": mechanism.noise_multiplier * mechanism.noise_schedule(1),
        "noise_std": noise_std,
    }
    if recipe.server.update != "average":
        facts["server_update"] = recipe.server.update
    if privacy.clip_weighted:
        facts["clip_weighted"] = True
    if privacy.layer_clip_norms:
        facts["layer_clip_norms"] = list(privacy.layer_clip_norms)
    if privacy.clip_schedule:
        facts["nominal_clip_norm"] = privacy.clip_norm
        facts["clip_schedule"] = [list(point) for point in privacy.clip_schedule]
        facts["clip_path"] = privacy.clip_path
    if privacy.noise_schedule:
        facts["nominal_noise_multiplier"] = mechanism.noise_multiplier
        facts["noise_schedule"] = [list(point) for point in privacy.noise_schedule]
    if mechanism.tracking is not None:
        facts["adaptive"] = {
            "quantile": mechanism.tracking.quantile,
            "learning_rate": mechanism.tracking.learning_rate,
            "bit_noise": bit_noise,
            "bits": len(clip_norms),
        }
    return facts


def _joint(clip_norms: Iterable[float]) -> float:
    """How long a whole update can be, to the digits that the float32 of its parts holds: 0.3, not 0.30000001."""
    return float(f"{math.hypot(*map(float, clip_norms)):.7g}")


def _source(facts: Mapping[str, Any]) -> str:
    if facts["source"] == "private":
        return (
            f"found in the users' own text with ε = {accounting.rounded_up(facts['epsilon'], 6)} at "
            f"δ = {facts['delta']:g}, which is part of this run's ε"
        )
    if facts["source"] == "public":
        return "public: the list of wordfreq"
    return "declared public by whoever prepared the store"


def store_total(spent: Spent, delta: float, accountant: str, private: bool = True) -> dict[str, Any]:
    """ε over every run on a store, and what may change between two populations: the facts of a statement."""
    relation = accounting.relation_of(event for event, _ in spent) if private else None
    try:
        epsilon = accounting.epsilon(spent, delta, accountant) if private else math.inf
    except SottoError:  # a run that this accountant has no answer for
        epsilon = math.inf
    return {"epsilon_store": json_number(epsilon), "relation_store": relation or "none"}
