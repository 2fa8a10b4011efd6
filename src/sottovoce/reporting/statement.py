"""The privacy statement of a run: what is proved, for whom, under which assumptions, and what is not covered."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from sottovoce.errors import SottoError
from sottovoce.privacy import accounting
from sottovoce.privacy.accounting import NonPrivate, Spent
from sottovoce.privacy.events import ADDED
from sottovoce.recipe import Privacy, Recipe
from sottovoce.reporting.wording import is_unfinished, of_other_relation
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
IN_TURN = "when a user's turn is: the order in which users join is public"
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
FLOATING_POINT = {
    "standard": "floating point: the noise is a float32 Gaussian, not an exact one, its grid could be studied, and its "
    "generator is not a cipher",
    "hardened": "floating point: the noise is a float64 Gaussian of a cipher, rounded once, and not an exact one",
}


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
        return "\n\n".join(_paragraphs(self))


def make_statement(
    *, recipe: Recipe, mechanism: Mechanism, accountant: str, planned_rounds: int, rounds_done: int,
    spent: Spent, repeated: Spent, vocabulary_spent: Spent, store_spent: Spent, run: str, vocabulary: str,
    vocabulary_source: Mapping[str, Any], start: Mapping[str, str] | None = None,
    canaries: Mapping[str, Any] | None = None, across_devices: bool = False, users_at_once: int = 1,
) -> Statement:  # fmt: skip
    """The statement of a run from its recipe, its mechanism and its ledger; `repeated` charges were paid again.

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

    epsilon_spent = cost([*vocabulary_spent, *spent]) if charges else 0.0
    training = [*mechanism.events(planned_rounds), *repeated]
    epsilon = cost([*vocabulary_spent, *training])
    replaced = _replaced([*vocabulary_spent, *training], epsilon, privacy, accountant)
    if private and privacy.epsilon is not None:
        epsilon = max(epsilon_spent, min(epsilon, privacy.epsilon))  # training stops before it passes its budget
    epsilon_training = cost(training) if vocabulary_spent else epsilon

    facts: dict[str, Any] = {
        "statement": 1,
        "run": run,
        "unit": mechanism.unit,
        "relation": "none" if isinstance(event, NonPrivate) else event.relation,
        **replaced,
        "epsilon_training": json_number(epsilon_training),
        "epsilon_spent": json_number(epsilon_spent),
        **store_total(store_spent, privacy.delta, accountant, private),
        "rounds_planned": planned_rounds,
        "rounds_done": rounds_done,
        "charges": charges,
        "charged_again": sum(count for _, count in repeated),
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
        "noise_generator": mechanism.noise.description,
        "sampling_generator": "ChaCha20" if mechanism.sampler.hardened else "Philox",
        "released": ["the model after every round", "record.jsonl", "this statement", "the report without --internal"],
        "not_covered": [*NOT_COVERED, FLOATING_POINT[privacy.randomness]],
        "vocabulary": {"fingerprint": vocabulary, "source": _source(vocabulary_source)},
        "software": {name: version(name) for name in ("sottovoce", "jax", "dp-accounting", "numpy")},
    }
    if start is not None:
        facts["start"] = dict(start)
        facts["not_covered"].append(STARTED_FROM)
    if canaries is not None:
        facts["canaries"] = dict(canaries)
        facts["released"].append("canaries.json: what canaries were planted, not which of them were in")
    if privacy.sampling == "in_turn":
        facts["not_covered"].append(IN_TURN)
        facts["turns"] = sum(count for _, count in mechanism.events(planned_rounds))
    if across_devices:
        facts["across_devices"] = True
        facts["not_covered"] += ACROSS_DEVICES
    if users_at_once > 1:
        facts["not_covered"].append(SIDE_BY_SIDE.format(users_at_once))
    if recipe.local.objective == "rehearsal":
        facts["not_covered"].append(REHEARSED)
    return Statement(private, epsilon, privacy.delta, facts)


def _replaced(spent: Spent, epsilon: float, privacy: Privacy, accountant: str) -> dict[str, float | str]:
    """ε when one user is replaced, beside one for adding or removing.

    Not of the moments accountant, which has none, nor where a budget ends training before all planned rounds.
    """
    ends_early = privacy.epsilon is not None and epsilon > privacy.epsilon
    if accounting.relation_of(event for event, _ in spent) != ADDED or accountant == "moments" or ends_early:
        return {}
    return {"epsilon_replaced": json_number(accounting.epsilon(spent, privacy.delta, accountant, replaced=True))}


def restate(told: Mapping[str, Any], **facts: Any) -> dict[str, Any]:
    """A statement that was written, with some facts changed or added, in its prose too."""
    kept = {name: value for name, value in told.items() if name not in ("private", "epsilon", "delta", "prose")}
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


def _paragraphs(statement: Statement) -> list[str]:
    facts = statement.facts
    if not statement.private:
        return [
            "This run gives no privacy guarantee: ε is infinite. Its model may depend on any one person's text as much "
            "as training made it. Do not release it outside the circle that may read the text itself.",
            *_start(facts),
            *_canaries(facts),
        ]
    mechanism = facts["mechanism"]
    epsilon, delta = (
        accounting.rounded_up(statement.epsilon),
        accounting.rounded_up(statement.delta, 2).replace("e-0", "e-"),
    )
    change = "is added or removed" if facts["relation"] == ADDED else "is replaced by any other"
    paragraphs = [
        f"This run satisfies ({epsilon}, {delta})-differential privacy for users{_projected(facts)}: whatever is "
        f"computed from the released model changes in probability by a factor of at most e^{epsilon} (and {delta} "
        f"beside it) when the whole text of any one person {change}.{_when_replaced(facts)}",
        f"{_joins(facts)}. A user's update{', times its weight,' if 'clip_weighted' in mechanism else ''} is clipped "
        f"to L2 norm {mechanism['clip_norm']:g} ({mechanism['clipping'].replace('_', ' ')}, "
        f"{mechanism['clip_when'].replace('_', ' ')}), averaged by the {mechanism['estimator'].replace('_', ' ')} "
        f"estimator, whose sensitivity is {mechanism['sensitivity']:.4g}, and Gaussian noise of standard deviation "
        f"{mechanism['noise_std']:.4g} (noise multiplier {mechanism['noise_multiplier']:.4g}) is added to every "
        f"coordinate.{_changes(mechanism)} {facts['rounds_done']} of {facts['rounds_planned']} planned rounds were "
        f"done; the figure is for all that are planned, by {facts['accountant']}.",
        _store_total(facts),
    ]
    if "own text" in facts["vocabulary"]["source"]:
        paragraphs.append(
            f"The vocabulary was {facts['vocabulary']['source']}: a model is released with its words. Training alone "
            f"has ε = {_shown(facts['epsilon_training'])} at the same δ."
        )
    if facts.get("across_devices"):
        paragraphs.append(
            "Users were trained on their own devices, each of which flips its users' coins and clips their updates; "
            "the server adds up, adds the noise and is trusted. Every registered user counts, connected or not: one "
            "who is away contributes nothing, and neither denominator nor noise changes."
        )
    paragraphs += _start(facts) + _canaries(facts)
    if facts["charged_again"]:
        paragraphs.append(
            f"{facts['charged_again']} rounds were begun, broken off and done again with fresh noise; they are "
            f"paid for twice, and the figure counts that."
        )
    if facts["secrets"] == "seeded":
        paragraphs.append(
            "The secrets of this run come from its seed: whoever knows the seed can undo the noise, and the guarantee "
            "holds only against those who do not. Take privacy.secrets = 'entropy' for a model to be released."
        )
    paragraphs += _audits(facts)
    paragraphs.append("Not covered: " + "; ".join(facts["not_covered"]) + ".")
    return paragraphs


def _when_replaced(facts: dict[str, Any]) -> str:
    if "epsilon_replaced" not in facts:
        return ""
    return f" When it is replaced by any other, the factor is at most e^{_shown(facts['epsilon_replaced'])}."


def _projected(facts: dict[str, Any]) -> str:
    """Of rounds that are not done, ε is what they will cost."""
    if not is_unfinished(facts):
        return ""
    done, planned = facts["rounds_done"], facts["rounds_planned"]
    return f" (projected: ε is that of all {planned} planned rounds, of which {done} are done)"


def _store_total(facts: dict[str, Any]) -> str:
    """Of the day it is told; where nobody can ask the store any more, of the day the run ended."""
    was, when = ("was", ", when this run ended") if facts.get("store_gone") else ("is", "")
    total = f"{_shown(facts['epsilon_store'])} at the same δ{of_other_relation(facts)}"
    return f"Over every private run on the same store, ε {was} {total}{when}."


def _joins(facts: dict[str, Any]) -> str:
    """How users come to a round."""
    declared = facts["declared"]
    if facts["sampling"] == "poisson":
        return (
            f"Every user joins a round independently with probability {declared['user_rate']:.4g} "
            f"({declared['cohort']:g} expected of {declared['users']:,} declared)"
        )
    if facts["sampling"] == "in_turn":
        return (
            f"Users join in a public order, {declared['cohort']:g} a round, and nobody again before all "
            f"{declared['users']:,} declared have: each joins at most {facts['turns']} of the planned rounds, and is "
            f"charged for as many, without amplification by sampling"
        )
    return f"Every round draws exactly {declared['cohort']:g} of {declared['users']:,} declared users"


def _start(facts: dict[str, Any]) -> list[str]:
    """Where the model came from, if not from the seed."""
    if "start" not in facts:
        return []
    start = facts["start"]
    if "run" not in start:
        return [f"The model began with {start['source']}."]
    return [f"The model did not begin untrained: {start['source']} (run {start['run']})."]


def _canaries(facts: dict[str, Any]) -> list[str]:
    """Who else the model was trained on."""
    if not (planted := facts.get("canaries")):
        return []
    kinds = []
    if planted["users"]:
        kinds.append(f"{planted['users']:,} canary users, each in or out by a secret coin")
    if planted["secrets"]:
        kinds.append(f"{planted['holders']:,} who hold {planted['secrets']:,} planted secrets")
    return [
        f"Made-up users were planted on top of the declared population: {' and '.join(kinds)} (registry "
        f"{planted['registry']}). They change nobody's chance to join, nor q and W. An audit by canaries is of this "
        f"model itself."
    ]


def _audits(facts: dict[str, Any]) -> list[str]:
    """Of a released model: the audits that it passed, and those that were not run."""
    passed = [f"by {one['audit']}" for one in facts.get("audits", ()) if one["result"] == "passed"]
    missing = [f"by {one['audit']}" for one in facts.get("audits", ()) if one["result"] == "not run"]
    told = []
    if passed:
        told.append(
            f"The model was audited {' and '.join(passed)} before its release, and the claim was not contradicted; "
            f"that proves nothing beyond the claim."
        )
    if missing:
        told.append(f"It was not audited {' or '.join(missing)}.")
    return [" ".join(told)] if told else []


def _changes(mechanism: dict[str, Any]) -> str:
    """What does not stay as it is in round 1."""
    said = []
    if _varies(mechanism.get("clip_schedule", [])):
        values = _values(mechanism["clip_schedule"], mechanism["nominal_clip_norm"], mechanism["clip_path"])
        said.append(f"The clip norm, and the noise with it, follow a schedule: {values}.")
    if adaptive := mechanism.get("adaptive"):
        said.append(
            f"The clip norm, and the noise with it, follow the {adaptive['quantile']:g} quantile of the norms of "
            f"users' updates, read from {adaptive['bits']} noised count(s) of clipped users (noise "
            f"{adaptive['bit_noise']:g}); update and counts together are charged the noise multiplier of their round."
        )
    if _varies(mechanism.get("noise_schedule", [])):
        values = _values(mechanism["noise_schedule"], mechanism["nominal_noise_multiplier"], "steps")
        said.append(f"The noise multiplier follows a schedule: {values}; every round is charged its own.")
    return "".join(f" {sentence}" for sentence in ["These are figures of round 1.", *said]) if said else ""


def _varies(schedule: list[list[float]]) -> bool:
    return len({factor for _, factor in schedule}) > 1


def _values(schedule: list[list[float]], nominal: float, path: str) -> str:
    """The values that a schedule of factors stands for, and how it gets from one to the next."""
    values = [(f"{nominal * factor:.4g}", f"round {number:g}") for number, factor in schedule]
    if path == "steps":
        return ", ".join(f"{value} from {when} on" for value, when in values)
    points = ", ".join(f"{value} in {when}" for value, when in values)
    return f"{points}, on a {path} path between them, and constant after that"


def _shown(epsilon: float | str) -> str:
    return accounting.rounded_up(epsilon) if isinstance(epsilon, float | int) else "not known to be finite"
