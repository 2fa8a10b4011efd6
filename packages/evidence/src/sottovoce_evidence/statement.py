"""The privacy statement of a run: what is proved, for whom, under which assumptions, and what is not covered.

A statement is a function of three things: the recipe, what the ledger was charged, and the facts that follow from
neither. `state` is that function. It writes privacy.json, and `verify` calls it again and compares. privacy.json holds
facts alone: `statement_text` puts them into sentences.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import (
    BestOfRuns,
    Event,
    NonPrivate,
    Spent,
    total_of,
)
from sottovoce_evidence.accounting.events import ADDED, CorrelatedGaussian
from sottovoce_evidence.bases import NO_BASE
from sottovoce_evidence.bounds import Sensitivity
from sottovoce_evidence.device_noise import DeviceNoise
from sottovoce_evidence.errors import SottoError, plain_number
from sottovoce_evidence.files import Facts, Json
from sottovoce_evidence.mechanism import NUMBERS, Kinds, Mechanism, accountant_of, mechanism_of
from sottovoce_evidence.private_accuracy import PrivateAccuracy
from sottovoce_evidence.recipe import Federation, Privacy, Recipe

SOFTWARE = ("sottovoce-evidence", "sottovoce", "jax", "dp-accounting", "numpy")  # whose versions a statement has
FORM = 1  # of a statement: its keys and what they mean
DIGITS = 4  # of an ε in privacy.json, rounded up
PRIVATE, UNKNOWN = "private", "unknown"  # what a start was trained on, if not on public text
# What `sotto prepare` declares of the people that a store holds out. "exact": how well models predict them is measured
# exactly and may be published; they are not protected. "private": no exact figure of them is computed.
HeldOut = Literal["exact", "private"]
EXACT = "exact"  # or PRIVATE
ROUNDING = 1e-6  # norms are rounded to float32
Relation = Literal["add-or-remove-one-user", "replace-one-user", "none"]  # what an ε makes indistinguishable
AuditResult = Literal["passed", "failed", "not run"]

# What a guarantee may not cover: in a statement as codes.
NOT_COVERED = {
    "held_out": "held-out users: accuracy is measured on them exactly, and they are not protected",
    "settings": "choosing hyper-parameters by looking at results on the private text, other than through runs charged "
    "to the store",
    "later_runs": "the store's total, where later runs were chosen by the results of earlier ones",
    "owners_files": "diagnostics.jsonl, participation.json, preparation.json, audits, the secrets, the checkpoints and "
    "timing: they are for the owner only",
    "other_models": "models of non-private or experimental runs on the same store: releasing one voids this statement",
    "second_ids": "a person who holds two user ids, or text about one person written by another",
    "shared_records": "what up to {0.owners_per_record} people own together: it is in the text of each of them",
    "records_as_users": "a person with several records: every record counts as one user",
    "start": "the people whose text the model was trained on before this run began",
    "turns": "when a user's turn would be: it follows from their id by a public rule",
    "separated_rounds": "in which rounds a user joins, if they are known to take part: no secret chance decides it",
    "adversaries": "whoever has no ε under “who sees what”: the server is trusted with what it sees, and against those "
    "who know who takes part, sampling amplifies nothing",
    "spoiled_rounds": "a device that breaks the rules: nobody can clip what it sends, so it can spoil a round; what "
    "others send stays hidden",
    "silos": "silos: one that holds several users is trusted to draw, to clip and to add up each of them apart. One "
    "that is late because of one of its users is missing with all of them, and one that fails sends zeros for all",
    "rehearsed": "the authors of the text that devices rehearse: the owner declares it public",
}


# --- facts: what follows from neither recipe nor ledger ---------------------------------------------------------------


@dataclass(frozen=True)
class VocabularyFacts(Facts, sparse=True):
    """Where the tokens come from.

    Attributes:
        fingerprint: of all tokens, in order.
        source: from a public list; declared public by the owner of the store; or found in the users' own text, which is
            part of the run's ε.
        kind: of tokens, such as "words".
        public_list: where there is one: "bytes", "characters", "own words" or that of wordfreq.
        language: of that list.
        contexts: beginnings that tell who writes, declared public by the owner of the store.
        epsilon: what finding the words cost, at `delta`.
    """

    fingerprint: str
    source: Literal["public", "declared", "private"]
    kind: str = "words"
    public_list: str | None = None
    language: str | None = None
    contexts: tuple[str, ...] = ()
    epsilon: float | None = None
    delta: float | None = None

    @property
    def private(self) -> bool:
        return self.source == "private"

    @staticmethod
    def of(
        fingerprint: str, origin: Mapping[str, Any], kind: str = "words", contexts: Sequence[str] = ()
    ) -> VocabularyFacts:
        """From what the store says of its vocabulary, whose tokens are of a kind, some for `contexts` of writers."""
        source = origin["source"] if origin["source"] in ("public", "private") else "declared"
        public = origin if source == "public" else {}
        cost = (float(origin["epsilon"]), float(origin["delta"])) if source == "private" else (None, None)
        listed = public.get("list"), public.get("language")
        return VocabularyFacts(fingerprint, source, kind, *listed, tuple(contexts), *cost)


@dataclass(frozen=True)
class EarlierRun(Facts):
    """A private run that a start comes from: the name it was charged under, and its guarantee for its own people."""

    run: str
    epsilon: float
    delta: float


@dataclass(frozen=True)
class StartFacts(Facts, sparse=True):
    """The model that a run began with, if not one initialised from the seed.

    Attributes:
        weights: a hash of them.
        trained_on: "public" text; "private": of runs that have a guarantee; or "unknown", never of a private run.
        declared: is it the owner's word that it is public, or that what its runs began with was?
        name: of a base: "base english".
        signer: the fingerprint of the key that signed its folder.
        runs: the private runs that it comes from: its own, the one that this began with, and so on.
        charged: what these were charged, where it was to the people of this run: it is part of the run's ε.
        text: what a base was trained on, in a sentence.
        licence: of that text.
    """

    weights: str
    trained_on: Literal["public", "private", "unknown"]
    declared: bool = False
    name: str | None = None
    signer: str | None = None
    runs: tuple[EarlierRun, ...] = ()
    charged: tuple[tuple[Event, int], ...] = ()
    text: str | None = None
    licence: str | None = None


@dataclass(frozen=True)
class Registered(Facts):
    """The devices of a run across devices, and for how many of them the server made the key."""

    devices: int
    keys_made_by_server: int = 0


@dataclass(frozen=True)
class CanarySummary(Facts):
    """Made-up users among the trained ones, as a statement describes them."""

    users: int
    secrets: int
    holders: int
    registry: str  # a hash


@dataclass(frozen=True)
class ExposurePoint(Facts):
    """Of a curve of exposure against repetitions: the secrets that `holders` users held."""

    holders: int
    secrets: int
    least: float
    median: float
    largest: float
    extracted: int


@dataclass(frozen=True)
class AuditOutcome(Facts, sparse=True):
    """What a released statement says of one audit: figures of made-up users and of the released model alone."""

    audit: str
    result: AuditResult
    claimed: float | None = None
    shown: float | None = None
    delta: float | None = None
    confidence: float | None = None
    rounds: int | None = None
    claimed_multiplier: float | None = None
    shown_multiplier: float | None = None
    would_notice: float | None = None
    of: str | None = None
    one_run: bool | None = None
    curve: tuple[ExposurePoint, ...] | None = None

    @property
    def contradicted(self) -> bool:
        """Does it show more than is claimed, or less noise?"""
        noise, claimed = self.shown_multiplier, self.claimed_multiplier
        more = self.shown is not None and self.claimed is not None and self.shown > self.claimed
        return more or (noise is not None and claimed is not None and noise < claimed)


@dataclass(frozen=True)
class ChosenFacts(Facts):
    """How a released model was chosen among several private runs. How many there were is a secret."""

    settings: int  # that were tried: each run had one of them, drawn at random
    score: str
    run: str  # the name under which the store was charged for all of them


@dataclass(frozen=True)
class Published(Facts, sparse=True):
    """What an owner says of a release."""

    name: str
    license: str
    language: str | None = None
    prompt: str = ""  # the beginning of a sentence


@dataclass(frozen=True, kw_only=True)
class RunFacts(Facts, sparse=True):
    """What a statement says of a run apart from its recipe and its charges: facts.json of a release.

    Attributes:
        starts: how often a process began to train. What a crash took away was never shown, and costs nothing.
        clipped_parts: parts of an update that are clipped apart.
        own_sensitivity: of an estimator of the owner's own code.
        owners_per_record: people who may own one record together, at most.
        epsilon_store: of every run on the store; `store_gone`: as of the day the run ended.
        files: hashes of all files that follow from nothing else here.
        epsilon_held_out: of all private evaluations on held-out users, at the δ of `private_accuracy`.
    """

    run: str
    rounds_planned: int
    rounds_done: int
    starts: int = 1
    clipped_parts: int = 1
    own_sensitivity: float | None = None
    vocabulary: VocabularyFacts
    start: StartFacts | None = None
    canaries: CanarySummary | None = None
    registered: Registered | None = None  # None in a simulation
    practice: bool = False  # the people are synthetic
    owners_per_record: int = 1
    every_record_is_a_user: bool = False
    held_out: HeldOut = EXACT
    epsilon_store: float = math.inf
    relation_store: Relation | None = None
    store_gone: bool = False
    files: dict[str, str] = field(default_factory=dict)
    software: dict[str, str] = field(default_factory=dict)  # with their versions
    audits: tuple[AuditOutcome, ...] = ()  # of a released model
    private_accuracy: PrivateAccuracy | None = None  # of a released model, on held-out users
    epsilon_held_out: float | None = None
    chosen: ChosenFacts | None = None
    published: Published | None = None

    def to_json(self) -> Json:
        """With every ε rounded up."""
        return {name: _rounded(name, value) for name, value in self.exactly().items()}

    def exactly(self) -> Json:
        """All digits."""
        return super().to_json()

    @property
    def across_devices(self) -> bool:
        return self.registered is not None

    @property
    def is_unfinished(self) -> bool:
        return self.rounds_done < self.rounds_planned


def _rounded(name: str, value: Any) -> Any:
    if not is_epsilon(name) or not isinstance(value, float):
        return value
    return float(accounting.rounded_up(value, DIGITS).replace(",", ""))  # 1,805 for people


def is_epsilon(name: str) -> bool:
    return name.startswith("epsilon")


# --- what follows -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MechanismFacts(Facts, sparse=True):
    """What follows from the recipe, as figures of round 1: the clip norm and the noise may change later.

    Attributes:
        user_rate: the chance that a user joins a round.
        clip_norm: None where updates are not clipped.
        sensitivity: of the estimate to one user, or to one example where examples are sampled; infinite without a clip.
        bit_noise: on each count of clipped users, where the clip norm follows a quantile.
        run_sensitivity: of correlated noise: how far one user moves the run, over how far they move one round. The
            noise over the sensitivity of one round, which Gboard's papers call z, is `noise_multiplier` times this.
        buffers: vectors of the model's size that correlated noise keeps.
    """

    user_rate: float
    clip_norm: float | None
    sensitivity: float
    noise_multiplier: float
    noise_std: float
    bit_noise: float | None = None
    run_sensitivity: float | None = None
    buffers: int | None = None
    devices: DeviceNoise | None = None  # None where the server adds all noise

    @staticmethod
    def of(mechanism: Mechanism) -> MechanismFacts:
        clip_norms, event = mechanism.clip_norms(1, mechanism.start()), mechanism.event(1)
        noise_std, bit_noise = mechanism.noise_std(1, clip_norms)
        correlated = isinstance(event, CorrelatedGaussian)
        # To the digits that the float32 of its parts holds: 0.3, not 0.30000001.
        clip_norm = float(f"{math.hypot(*map(float, clip_norms)):.7g}")
        return MechanismFacts(
            user_rate=mechanism.sampler.user_rate,
            clip_norm=clip_norm if mechanism.clipping.bounded else None,
            sensitivity=mechanism.sensitivity(clip_norms),
            noise_multiplier=mechanism.noise_multiplier * mechanism.noise_schedule(1),
            noise_std=noise_std,
            bit_noise=bit_noise,
            run_sensitivity=event.sensitivity if correlated else None,
            buffers=event.matrix.buffers(event.participation.rounds) if correlated else None,
            devices=mechanism.devices,
        )


@dataclass(frozen=True, kw_only=True)
class Statement(RunFacts, sparse=True):
    """`epsilon` is for the planned rounds: stopping early because of what was seen does not make it smaller.

    Attributes:
        epsilon: of all that was charged: the planned rounds, repeated ones, those of copies of the run, the vocabulary,
            and the runs that it starts from where these were of the same people.
        relation: which two populations it makes indistinguishable.
        epsilon_replaced: when one user is replaced by another.
        epsilon_training: without the vocabulary and earlier runs.
        epsilon_server: against the server, where devices add noise.
        epsilon_spent: of the rounds that are done.
        turns: where it is public when users join: how often one does at most.
        min_separation: the same: the fewest rounds from one that a user joins to the next.
        charged: what the ε is of.
    """

    statement: int = FORM
    private: bool
    epsilon: float
    delta: float
    relation: str
    epsilon_replaced: float | None = None
    epsilon_training: float | None = None
    epsilon_server: float | None = None
    epsilon_spent: float
    accountant: str
    algorithm: str
    privacy: Privacy  # the section of the recipe
    federation: Federation | None = None  # the same, of a run across devices
    example_tokens: int | None = None  # where examples are sampled
    mechanism: MechanismFacts
    turns: int | None = None
    min_separation: int | None = None
    not_covered: tuple[str, ...] = ()  # codes of `NOT_COVERED`
    charged: tuple[tuple[Event, int], ...]

    def __repr__(self) -> str:
        return f"<Statement: {self.short}>"

    @property
    def short(self) -> str:
        """The guarantee in a few words."""
        if not self.has_guarantee:
            return "ε = ∞, no guarantee"
        return f"ε = {accounting.rounded_up(self.epsilon)} at δ = {plain_number(self.delta)}"

    @property
    def has_guarantee(self) -> bool:
        return self.private and math.isfinite(self.epsilon)

    @property
    def is_seeded(self) -> bool:
        """Do its secrets follow from the seed, so that whoever knows it can undo the noise?"""
        return self.privacy.secrets == "seeded"

    @property
    def clip_norm_changes(self) -> bool:
        return bool(self.privacy.clip_schedule) or self.privacy.adaptive_quantile is not None

    @property
    def is_masked(self) -> bool:
        """Is what devices send hidden in a sum over many of them?"""
        return self.federation is not None and self.federation.masked

    @property
    def facts(self) -> RunFacts:
        """What it says apart from its recipe and its charges."""
        return RunFacts(**{each.name: getattr(self, each.name) for each in fields(RunFacts)})

    @classmethod
    def from_json(cls, values: Json) -> Statement:
        """Read privacy.json."""
        statement = super().from_json(values)
        if math.isnan(statement.epsilon) or not set(statement.not_covered) <= NOT_COVERED.keys():
            raise ValueError("epsilon is no number, or what is not covered has an unknown code")
        return statement


# --- the function -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """What a statement follows from: the recipe, all that a ledger was charged, and the facts beside them."""

    recipe: Recipe
    charged: Spent
    facts: RunFacts
    kinds: Kinds = NUMBERS

    @property
    def accountant(self) -> str:
        return "rdp" if self.facts.chosen else accountant_of(self.recipe.privacy)

    @property
    def before(self) -> list[tuple[Event, int]]:
        """What the same people were charged before the first round: for the vocabulary, and the runs it starts from."""
        words = [(event, count) for event, count in self.charged if event.giveaway > 0]
        return [*words, *(self.facts.start.charged if self.facts.start else ())]

    @property
    def rounds(self) -> Counter[Event]:
        """What the rounds were charged."""
        return total_of(self.charged) - total_of(self.before)

    def mechanism(self) -> Mechanism:
        """As the recipe describes it. Of a clip that is not known here, the promise is taken: S bounds an update."""
        recipe, kinds, privacy = self.recipe, self.kinds, self.recipe.privacy
        if privacy.clipping not in kinds.clips:
            recipe = recipe.replace(privacy={"clipping": "per_layer"})
        parts = [f"part {number}" for number in range(self.facts.clipped_parts)]
        if privacy.estimator in kinds.estimators:
            return mechanism_of(recipe, parts, kinds)
        made = mechanism_of(recipe.replace(privacy={"estimator": "fixed_denominator"}), parts, kinds)
        own = self.facts.own_sensitivity
        return replace(made, estimator=Promised(math.inf if own is None else own))

    def own_code(self) -> Iterator[str]:
        """What follows from code of the owner's own: a release of it never looks as if all of it had been checked."""
        privacy = self.recipe.privacy
        if privacy.clipping not in NUMBERS.clips:
            yield f"privacy.clipping={privacy.clipping!r}: that it keeps every update within the clip norm"
        if privacy.estimator not in NUMBERS.estimators:
            yield f"privacy.estimator={privacy.estimator!r}: that one user moves it by no more than the sensitivity"
        if privacy.sampling not in NUMBERS.samplers:
            yield f"privacy.sampling={privacy.sampling!r}: that a round costs what it is charged"


@dataclass(frozen=True)
class Promised(Sensitivity):
    """An estimator that is not known here: its sensitivity is the owner's word."""

    stated: float

    def sensitivity(self, norm_bound: float) -> float:
        return self.stated


def state(evidence: Evidence) -> Statement:
    """The statement that follows from recipe, ledger and facts. It writes privacy.json, and checks it."""
    recipe, facts, privacy = evidence.recipe, evidence.facts, evidence.recipe.privacy
    mechanism, accountant = evidence.mechanism(), evidence.accountant
    event, sampler, charged = mechanism.event(1), mechanism.sampler, merged(evidence.charged)
    private = not isinstance(event, NonPrivate)

    def cost(of: Spent, *, replaced: bool = False) -> float:
        return accounting.epsilon(of, privacy.delta, accountant, replaced=replaced) if private else math.inf

    epsilon = cost(charged)
    replaceable = private and accounting.relation_of(one for one, _ in charged) == ADDED and accountant != "moments"
    participation, against_server = sampler.participation(facts.rounds_planned), mechanism.against_server
    return Statement(
        **{each.name: getattr(facts, each.name) for each in fields(RunFacts)},
        private=private,
        epsilon=epsilon,
        delta=privacy.delta,
        relation="none" if isinstance(event, NonPrivate) else event.relation,
        epsilon_replaced=cost(charged, replaced=True) if replaceable else None,
        epsilon_training=cost(list(evidence.rounds.items())) if evidence.before else epsilon,
        epsilon_server=cost([*evidence.before, *against_server]) if against_server else None,
        epsilon_spent=_spent(evidence, mechanism, epsilon, cost),
        accountant=accountant,
        algorithm=recipe.run.algorithm,
        privacy=privacy,
        federation=recipe.federation if facts.across_devices else None,
        example_tokens=recipe.local.tokens if privacy.examples_per_user else None,
        mechanism=MechanismFacts.of(mechanism.across_devices() if facts.across_devices else mechanism),
        turns=None if sampler.amplifies else sampler.participations(facts.rounds_planned),
        min_separation=None if participation is None else participation.min_separation,
        not_covered=tuple(not_covered(recipe, facts)) if private else (),
        charged=charged,
    )


def _spent(evidence: Evidence, mechanism: Mechanism, epsilon: float, cost: Any) -> float:
    """ε of the rounds that are done."""
    facts = evidence.facts
    if not facts.rounds_done:
        return 0.0
    if not facts.is_unfinished or facts.chosen:
        return epsilon
    done = mechanism.events(facts.rounds_done)
    return cost([*evidence.before, *done])


def merged(spent: Spent) -> tuple[tuple[Event, int], ...]:
    """Every event once, with the number of times that it was charged."""
    return tuple(total_of(spent).items())


def not_covered(recipe: Recipe, facts: RunFacts) -> list[str]:
    """Codes of what the guarantee does not cover."""
    devices, sampling = facts.across_devices, recipe.privacy.sampling
    applies = {
        "held_out": facts.held_out == EXACT,
        **dict.fromkeys(("settings", "later_runs", "owners_files", "other_models", "second_ids"), True),
        "shared_records": facts.owners_per_record > 1,
        "records_as_users": facts.every_record_is_a_user,
        "start": facts.start is not None,
        "turns": sampling == "in_turn",
        "separated_rounds": sampling == "min_separation",
        "adversaries": devices,
        "spoiled_rounds": devices and recipe.federation.masked,
        "silos": devices,
        "rehearsed": recipe.local.objective == "rehearsal",
    }
    return [code for code, is_so in applies.items() if is_so]


def charge_faults(evidence: Evidence) -> Iterator[str]:
    """Rounds that a ledger does not charge, and charges for no round of this run, nor for what it began with."""
    facts, mechanism = evidence.facts, evidence.mechanism()
    charged, due = evidence.rounds, total_of(mechanism.events(facts.rounds_planned))
    if facts.start and total_of(facts.start.charged) - total_of(evidence.charged):
        yield "it does not charge the runs that the model starts from, whose people are this run's"
    yield from _fact_faults(evidence, mechanism)
    if facts.vocabulary.private != any(event.giveaway > 0 for event, _ in evidence.charged):
        yield "a vocabulary is charged, or found in the users' own text, and not both"
    choices = [event for event in charged if isinstance(event, BestOfRuns)]
    if bool(facts.chosen) != bool(choices):
        yield "the model was chosen among runs in its charges or in its facts, and not in both"
    elif choices and (len(charged) != 1 or charged[choices[0]] != 1 or total_of(choices[0].run) != due):
        yield "the model was chosen among runs, and its charges are not one for a choice of such runs"
    elif not choices and charged != due:
        yield f"its rounds are charged as {_told(charged)}, and due are {_told(due)}"
    yield from _unbudgeted(evidence, mechanism)


def _told(rounds: Counter[Event]) -> str:
    each = (f"{count} {event.kind} of noise multiplier {event.noise_multiplier:g}" for event, count in rounds.items())
    return ", ".join(each) or "none"


def _fact_faults(evidence: Evidence, mechanism: Mechanism) -> Iterator[str]:
    """Facts that contradict the recipe, the ledger or one another."""
    facts, recipe, start, words = evidence.facts, evidence.recipe, evidence.facts.start, evidence.facts.vocabulary
    if min(facts.rounds_done, facts.starts - 1, facts.clipped_parts - 1, facts.owners_per_record - 1) < 0:
        yield "it counts fewer than none"
    if recipe.model.initial not in (None, NO_BASE) and start is None:
        yield f"the recipe starts from {recipe.model.initial!r}, and nothing is said of it"
    if start is not None and start.trained_on == UNKNOWN:
        yield "the model starts from one that gives nobody a guarantee"
    if start is not None and (start.trained_on == PRIVATE) != bool(start.runs):
        yield "the start is of private runs, or names such runs, and not both"
    if mechanism.devices is not None and (facts.chosen or (start is not None and start.charged)):
        yield "no ε holds against a server that saw several runs of the same people"
    if facts.registered is not None and not 0 <= facts.registered.keys_made_by_server <= facts.registered.devices:
        yield "the server made more keys than there are devices"
    if facts.registered is not None and facts.registered.devices < recipe.federation.survivors:
        yield f"a sum is over {recipe.federation.survivors} devices, and {facts.registered.devices} are registered"
    found = [(event, count) for event, count in evidence.charged if event.giveaway > 0]
    if found and words.epsilon is not None and words.delta is not None:
        try:
            cost = accounting.epsilon(found, words.delta)
        except SottoError:  # the accountant refuses a δ that they use up
            cost = math.inf
        if not cost <= words.epsilon * 1.01:  # noise is chosen for it
            yield f"the words are said to cost ε = {words.epsilon:g} at δ = {words.delta:g}, and it comes to {cost:.4g}"


def _unbudgeted(evidence: Evidence, mechanism: Mechanism) -> Iterator[str]:
    """Fewer rounds than the recipe asks for are planned, or charged, and no budget forbids the next one.

    A budget is that of one run, also of one that was chosen among others.
    """
    facts, recipe, limit = evidence.facts, evidence.recipe, evidence.recipe.privacy.epsilon
    if facts.rounds_done > facts.rounds_planned or facts.rounds_planned > recipe.run.rounds:
        yield f"{facts.rounds_done} rounds are done of {facts.rounds_planned} planned and {recipe.run.rounds} asked for"
        return
    if facts.rounds_planned == recipe.run.rounds:
        return
    more = [*evidence.before, *mechanism.events(facts.rounds_planned + 1)]
    if limit is None or accounting.epsilon(more, recipe.privacy.delta, accountant_of(recipe.privacy)) <= limit * (
        1 - 1e-3
    ):
        yield "it does not charge all rounds that the recipe asks for, and no budget of the recipe forbids the others"


def differences(stated: Any, due: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where two JSON values are not the same: the path, and both values. Numbers may differ by their rounding."""
    if isinstance(stated, dict) and isinstance(due, dict):
        for name in {**due, **stated}:
            yield from differences(stated.get(name), due.get(name), f"{path}.{name}" if path else name)
    elif isinstance(stated, list) and isinstance(due, list) and len(stated) == len(due):
        for number, (one, other) in enumerate(zip(stated, due, strict=True)):
            yield from differences(one, other, f"{path}[{number}]")
    elif not _alike(stated, due):
        yield path, stated, due


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float | int) and not isinstance(other, bool):
        return math.isclose(one, other, rel_tol=ROUNDING)
    return type(one) is type(other) and one == other


def store_total(spent: Spent, delta: float, accountant: str) -> tuple[float, Any]:
    """ε of all that a store was charged, and what may change between two populations."""
    relation = accounting.relation_of(event for event, _ in spent) or "none"
    # RDP has an answer for some rounds that PLD has none for.
    for tried in (accountant, "rdp") if accountant == "pld" else (accountant,):
        try:
            return accounting.epsilon(spent, delta, tried), relation
        except SottoError:
            continue
    return math.inf, relation
