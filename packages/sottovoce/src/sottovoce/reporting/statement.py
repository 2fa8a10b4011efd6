"""The privacy statement of a run: what is proved, for whom, under which assumptions, and what is not covered.

`statement_text` writes it as sentences.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from sottovoce.audit.results import CanarySummary, ExposurePoint
from sottovoce.evaluation.private_accuracy import PrivateAccuracy
from sottovoce.reporting.adversaries import Adversary, FederationFacts, adversaries, not_covered_of
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import BestOfRuns, Event, NonPrivate, Spent, ThresholdedHistogram, event_from_json
from sottovoce_evidence.accounting.events import ADDED, CorrelatedGaussian, SampledSkellam
from sottovoce_evidence.errors import DamagedRun, SottoError, plain_number
from sottovoce_evidence.files import Facts, Json, in_file
from sottovoce_evidence.ledger import EXACT, HeldOut
from sottovoce_evidence.recipe import Recipe

if TYPE_CHECKING:  # a reviewer's machine needs no jax to read evidence
    from sottovoce.privacy.mechanism import Mechanism

EXACT_ACCURACY = "held-out users: accuracy is measured on them exactly, and they are not protected"
NOT_COVERED = (
    EXACT_ACCURACY,
    "choosing hyper-parameters by looking at results on the private text, other than through runs charged to the store",
    "the store's total, where later runs were chosen by the results of earlier ones",
    "diagnostics.jsonl, participation.json, preparation.json, audits, the secrets, the checkpoints and timing: "
    "they are for the owner only",
    "models of non-private or experimental runs on the same store: releasing one voids this statement",
    "a person who holds two user ids, or text about one person written by another",
)
RELEASED = ("the model after every round", "record.jsonl", "this statement", "the report without --internal")
SOFTWARE = ("sottovoce", "jax", "dp-accounting", "numpy")  # whose versions it has
REGISTRY = "canaries.json: which canaries were inserted, not which of them were in"
STARTED_FROM = "the people whose text the model was trained on before this run began"
DECLARED = "declared public by the owner"  # of a start
LOUD = "WARNING"  # how a note to a reviewer begins that is read first
RUN_NAME = re.compile(r"[\w-]{1,64}", re.ASCII)
PROTECTS = "users whose text the model was trained on; not those held out, on whom it is measured"
REHEARSED = "the authors of the text that devices rehearse: the owner declares it public"
NOISE_GENERATOR = "exactly rounded Gaussians, from ChaCha20 with a 256-bit key"
SKELLAM_GENERATOR = "Skellam numbers, exact to 2^-1000, from ChaCha20 with 256-bit keys of each device and the server"
NO_CIPHER = "anyone who can tell the output of Philox from chance: it draws who joins a round, and is not a cipher"
Schedule = tuple[tuple[float, ...], ...]  # pairs of a round and a factor
# The form of a statement: its keys, its words and its sentences. Whoever changes one of them counts it up.
FORM = 3


@dataclass(frozen=True)
class Declared(Facts, sparse=True):
    """The public constants that the recipe declares."""

    users: int
    cohort: float
    user_rate: float
    total_weight: float
    weight_cap: float
    min_weight: float | None = None
    examples_per_user: int | None = None  # at most, where examples are sampled: `cohort` counts them
    example_rate: float | None = None
    example_tokens: int | None = None
    silos: int | None = None  # that one person may be a user of, where it is more than one


@dataclass(frozen=True)
class Adaptive(Facts):
    """A clip norm that follows a quantile of the norms of updates, by noised counts."""

    quantile: float
    learning_rate: float
    bit_noise: float | None
    bits: int


@dataclass(frozen=True)
class Correlation(Facts):
    """Noise that a strategy matrix correlates over rounds, and how often one user may join them.

    The noise multiplier of the mechanism is over the sensitivity of the run, which is this `sensitivity` times that of
    one round. `noise_over_clip` is the noise over the sensitivity of one round: what Gboard's papers call z.
    """

    noise: str
    buffers: int  # vectors of the model's size that the noise keeps
    sensitivity: float
    noise_over_clip: float
    min_separation: int
    participations: int
    in_turn: bool

    @staticmethod
    def of(event: CorrelatedGaussian) -> Correlation:
        matrix, participation = event.matrix, event.participation
        return Correlation(
            noise=matrix.kind,
            buffers=matrix.buffers(participation.rounds),
            sensitivity=event.sensitivity,
            noise_over_clip=event.noise_multiplier * event.sensitivity,
            min_separation=participation.min_separation,
            participations=participation.most,
            in_turn=participation.in_turn,
        )


@dataclass(frozen=True)
class DeviceNoiseFacts(Facts):
    """Skellam noise that devices add before their sums are masked, and what it holds against.

    The server sees who takes part. Against it, with up to `colluding` devices, the updates of one user in all rounds
    that they join are as good as zeros.
    """

    noise_multiplier: float  # of the honest survivors together, over S
    survivors: int  # devices in a sum that is unmasked, at least
    colluding: int  # of them that may collude with the server, at most
    participations: int  # rounds that one user joins at most
    steps: float  # S in whole steps of the noise, at least

    @staticmethod
    def of(mechanism: Mechanism) -> DeviceNoiseFacts | None:
        if (devices := mechanism.devices) is None:
            return None
        return DeviceNoiseFacts(
            noise_multiplier=devices.noise_multiplier,
            survivors=devices.survivors,
            colluding=devices.colluding,
            participations=devices.participations,
            steps=devices.steps,
        )

    @property
    def against_server(self) -> Spent:
        """What the server sees of one user."""
        return [(SampledSkellam(self.noise_multiplier, "poisson", 1.0, self.steps), self.participations)]


@dataclass(frozen=True)
class MechanismFacts(Facts, sparse=True):
    """How a round is made private: clip norm, sensitivity and noise are those of round 1 where they change.

    A schedule is in factors, and the `nominal` value is what they multiply.
    """

    mode: str
    algorithm: str
    clipping: str
    clip_when: str
    clip_norm: float | None  # None where updates are not clipped
    estimator: str
    sensitivity: float  # infinite where updates are not clipped
    noise_multiplier: float
    noise_std: float
    server_update: str | None = None
    clip_weighted: bool = False
    layer_clip_norms: tuple[float, ...] = ()
    nominal_clip_norm: float | None = None
    clip_schedule: Schedule = ()
    clip_path: str | None = None
    nominal_noise_multiplier: float | None = None
    noise_schedule: Schedule = ()
    adaptive: Adaptive | None = None
    correlation: Correlation | None = None  # None where the noise of rounds is independent
    devices: DeviceNoiseFacts | None = None  # None where the server adds all noise

    @property
    def clip_norm_changes(self) -> bool:
        return bool(self.clip_schedule) or self.adaptive is not None


# What is public in a tokenizer, by the name that a store gives it.
_PUBLIC = {
    "bytes": "the bytes of UTF-8",
    "characters": "the characters of wordfreq's list, and bytes",
    "own words": "the most frequent words of public text",
}
_LISTED = "the list of wordfreq"


def _known(contexts: Sequence[str]) -> str:
    return f"; the contexts {', '.join(contexts)}, declared public by the owner of the store" if contexts else ""


@dataclass(frozen=True)
class VocabularyFacts(Facts):
    """The tokens and where they come from; `private`: found in the users' own text, and part of the run's ε."""

    fingerprint: str
    source: str
    private: bool = False

    def comes_from(self, kind: str, contexts: Sequence[str]) -> bool:
        """May `of` have described the tokens of this kind so? Then no other words are in it."""
        listed = "|".join(map(re.escape, (*_PUBLIC.values(), _LISTED)))
        figure = r"[0-9][0-9.,e+-]{0,20}"
        source = (
            rf"found in the users' own text with ε = {figure} at δ = {figure}, which is part of this run's ε"
            if self.private
            else rf"{'' if kind == 'words' else re.escape(f'{kind}, ')}"
            rf"(declared public by the owner of the store|public: ({listed})( \([\w-]{{1,30}}\))?)"
        )
        return re.fullmatch(source + re.escape(_known(contexts)), self.source) is not None

    @property
    def cost(self) -> tuple[float, float] | None:
        """ε and δ that the words of the users' own text are said to have cost."""
        found = re.search(r"with ε = ([0-9.e+-]{1,20}) at δ = ([0-9.e-]{1,20}),", self.source)
        return None if found is None else (float(found[1]), float(found[2]))

    @staticmethod
    def of(
        fingerprint: str, origin: Mapping[str, float | str], kind: str = "words", contexts: Sequence[str] = ()
    ) -> VocabularyFacts:
        """From what the store says of its vocabulary, whose tokens are of a kind, some for `contexts` of writers."""
        known = _known(contexts)
        if origin["source"] == "private":
            epsilon, delta = float(origin["epsilon"]), float(origin["delta"])
            cost = f"ε = {accounting.rounded_up(epsilon, 6)} at δ = {plain_number(delta)}"
            source = f"found in the users' own text with {cost}, which is part of this run's ε"
            return VocabularyFacts(fingerprint, source + known, private=True)
        source = "declared public by the owner of the store"
        if origin["source"] == "public":
            listed = _PUBLIC.get(str(origin.get("list")), _LISTED)
            source = f"public: {listed}" + (f" ({origin['language']})" if "language" in origin else "")
        return VocabularyFacts(fingerprint, (source if kind == "words" else f"{kind}, {source}") + known)


@dataclass(frozen=True)
class StartFacts(Facts, sparse=True):
    """The model that a run began with, if not one initialised from the seed."""

    source: str
    run: str | None = None
    weights: str | None = None
    trained_on: str | None = None  # "public", where its card says so; "private": with all before it
    runs: tuple[str, ...] = ()  # the private runs that it comes from
    name: str | None = None  # of a base: "base english"

    @property
    def described(self) -> str:
        """The start in a sentence: by its name, if it has one, and the first digits of its hash."""
        source = re.sub(r"\b([0-9a-f]{8})[0-9a-f]{56}\b", r"\1", self.source)
        source = re.sub(r"^(\w+ )?start: ", "weights ", source)
        return f"{self.name} ({source})" if self.name else source


@dataclass(frozen=True)
class AuditOutcome(Facts, sparse=True):
    """What a released statement says of one audit: figures of made-up users and of the released model alone."""

    audit: str
    result: str  # "passed", "failed" or "not run"
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

    expected_runs: float
    distribution: str
    settings: int  # that were tried: each run had one of them, drawn at random
    score: str
    run: str | None = None  # the name under which the store was charged for all of them


@dataclass(frozen=True, kw_only=True)
class Statement(Facts, sparse=True):
    """`epsilon` is for the planned rounds: stopping early because of what was seen does not make it smaller."""

    private: bool
    epsilon: float
    delta: float
    statement: int = FORM
    run: str
    unit: str
    protects: str | None = None
    relation: str
    epsilon_replaced: float | None = None
    epsilon_training: float | None = None
    epsilon_server: float | None = None  # against the server, where devices add noise and it cannot look
    epsilon_spent: float
    epsilon_store: float
    relation_store: str | None = None
    rounds_planned: int
    rounds_done: int
    charges: int
    charged_again: int
    charged_elsewhere: int = field(default=0, metadata=in_file("charged_beside"))  # for copies of the run
    charged_to_store: int | None = None
    charged: tuple[tuple[Event, int], ...] = ()  # what the ε is of
    accountant: str
    sampling: str
    declared: Declared
    mechanism: MechanismFacts
    secrets: str
    noise_generator: str | None = None
    sampling_generator: str | None = None
    released: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    vocabulary: VocabularyFacts
    software: dict[str, str]
    start: StartFacts | None = None
    canaries: CanarySummary | None = None
    turns: int | None = None  # where it is public when users join: how often one does at most
    min_separation: int | None = None  # the same: the fewest rounds from one that a user joins to the next
    across_devices: bool = False
    federation: FederationFacts | None = None  # of a run across devices
    adversaries: tuple[Adversary, ...] = ()  # of a private run across devices
    practice: bool = False  # the people are synthetic
    held_out: HeldOut = EXACT  # "exact": figures of those held out are exact and public; "private": none is computed
    files: dict[str, str] | None = None  # the model's, with their hashes
    audits: tuple[AuditOutcome, ...] = ()  # of a released model
    private_accuracy: PrivateAccuracy | None = None  # of a released model, on held-out users
    chosen: ChosenFacts | None = None  # of a model that is the best of several runs: what ε is of
    epsilon_held_out: float | None = None  # of all private evaluations on them, at the δ of that accuracy
    store_gone: bool = False  # the total is that of the day the run ended
    out_of_date: bool = False  # the store was charged for the run since

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
    def is_unfinished(self) -> bool:
        return self.rounds_done < self.rounds_planned

    def to_json(self) -> Json:
        written = super().to_json()
        if self.charged:
            written["charged"] = [{"event": event.to_json(), "count": count} for event, count in self.charged]
        return written

    @classmethod
    def from_json(cls, values: Json) -> Statement:
        """Read privacy.json."""
        charged = [(event_from_json(one["event"]), one["count"]) for one in values.get("charged", ())]
        statement = super().from_json({**values, "charged": charged})
        if math.isnan(statement.epsilon):
            raise ValueError("epsilon is not a number")
        return statement


def read_statement(run: RunFolder) -> Statement:
    """The statement of a run, as its folder holds it."""
    values = run.read_statement()
    try:
        return Statement.from_json(values)
    except (KeyError, TypeError, ValueError) as error:
        lacks = f"{run.statement_file} lacks facts of a statement ({type(error).__name__}: {error})"
        raise DamagedRun(f"{lacks}; `sotto resume {run.path}` writes it again") from None


@dataclass(frozen=True)
class Charges:
    """What was charged for a run, its vocabulary and its store."""

    planned: Spent  # the planned rounds, as far as the budget allows them
    done: Spent = ()  # all that the run's ledger holds
    repeated: Spent = ()  # rounds that were paid for again
    elsewhere: Spent = ()  # for copies of the run's folder that went on
    vocabulary: Spent = ()
    store: Spent = ()  # of every run on the store
    to_store: int = 0  # how many charges the store has for this run: if it has more one day, the statement is outdated

    @property
    def training(self) -> Spent:
        return [*self.elsewhere, *self.planned, *self.repeated]


@dataclass(frozen=True)
class RunFacts:
    """What a statement says of a run apart from its recipe and its charges."""

    run: str
    rounds_planned: int
    rounds_done: int
    vocabulary: VocabularyFacts
    start: Mapping[str, str] | None = None
    canaries: Json | None = None  # what the ledger says of them
    federation: FederationFacts | None = None  # where users were trained where their text is
    practice: bool = False  # the people are synthetic
    held_out: HeldOut = EXACT
    not_covered: tuple[str, ...] = ()  # because of how records became users
    files: dict[str, str] | None = None


def make_statement(
    recipe: Recipe, mechanism: Mechanism, accountant: str, charges: Charges, about: RunFacts
) -> Statement:
    """The statement of a run from its recipe, its mechanism and its ledger.

    ε is that of all that was charged: planned rounds, repeated ones, and those of copies of the run. The statement
    lists these charges, and a release has no others. A model is released with its words, so ε includes their cost.
    """
    privacy = recipe.privacy
    event = mechanism.event(1)
    private = not isinstance(event, NonPrivate)

    def cost(of: Spent) -> float:
        return accounting.epsilon(of, privacy.delta, accountant) if private else math.inf

    against_server = _against_server(mechanism, charges, cost)
    federation = about.federation and replace(about.federation, epsilon_server=against_server)
    listed = _merged([*charges.vocabulary, *charges.training])
    epsilon, done = cost(listed), _count(charges.done)
    participation = mechanism.sampler.participation(about.rounds_planned)
    replaced = accounting.relation_of(event for event, _ in listed) == ADDED and accountant != "moments"
    statement = Statement(
        private=private,
        epsilon=epsilon,
        delta=privacy.delta,
        run=about.run,
        unit=mechanism.unit,
        protects=PROTECTS if private else None,
        relation="none" if isinstance(event, NonPrivate) else event.relation,
        epsilon_replaced=accounting.epsilon(listed, privacy.delta, accountant, replaced=True) if replaced else None,
        epsilon_training=cost(charges.training) if charges.vocabulary else epsilon,
        epsilon_server=against_server,
        epsilon_spent=cost([*charges.vocabulary, *charges.elsewhere, *charges.done]) if done else 0.0,
        epsilon_store=math.inf,
        rounds_planned=about.rounds_planned,
        rounds_done=about.rounds_done,
        charges=done,
        charged_again=_count(charges.repeated),
        charged_elsewhere=_count(charges.elsewhere),
        charged_to_store=charges.to_store,
        charged=listed,
        accountant=accounting.accountant_name(accountant),
        sampling="none: everybody in turn" if recipe.run.algorithm == "central" else privacy.sampling,
        declared=declared_facts(recipe, mechanism),
        mechanism=mechanism_facts(recipe, mechanism if federation is None else mechanism.across_devices()),
        secrets=privacy.secrets,
        noise_generator=NOISE_GENERATOR if mechanism.devices is None else SKELLAM_GENERATOR,
        sampling_generator=mechanism.sampler.generator,
        released=RELEASED if about.canaries is None else (*RELEASED, REGISTRY),
        not_covered=not_covered(
            generator=mechanism.sampler.generator,
            started=about.start is not None,
            sampler=mechanism.sampler.not_covered,
            federation=about.federation,
            objective=recipe.local.objective,
            held_out=about.held_out,
            because_of_records=about.not_covered,
        ),
        vocabulary=about.vocabulary,
        software={name: version(name) for name in SOFTWARE},
        start=None if about.start is None else StartFacts.from_json(dict(about.start)),
        canaries=None if about.canaries is None else CanarySummary(**about.canaries),
        turns=None if mechanism.sampler.amplifies else mechanism.sampler.participations(about.rounds_planned),
        min_separation=None if participation is None else participation.min_separation,
        across_devices=about.federation is not None,
        federation=federation,
        adversaries=() if federation is None or not private else adversaries(epsilon, federation),
        practice=about.practice,
        held_out=about.held_out,
        files=about.files,
    )
    return with_store_total(statement, charges.store, accountant)


def _against_server(mechanism: Mechanism, charges: Charges, cost: Callable[[Spent], float]) -> float | None:
    """ε against the server: of a vocabulary, and of all rounds that one user may join."""
    found = DeviceNoiseFacts.of(mechanism)
    return None if found is None else cost([*charges.vocabulary, *found.against_server])


def realised_epsilon(statement: Statement, sensitivity: float | None, accountant: str) -> float | None:
    """ε of the same charges, had it been planned how often and how close together users joined.

    `sensitivity` is the largest of a user who joined, for the rounds that they joined. The figure follows exactly from
    who takes part, and no noise covers it: it is for the owner alone, and no file that may be released has it.
    """
    if not sensitivity or not any(isinstance(event, CorrelatedGaussian) for event, _ in statement.charged):
        return None
    spent = []
    for event, count in statement.charged:
        if isinstance(event, CorrelatedGaussian):
            smaller = min(sensitivity / event.sensitivity, 1.0)
            event = replace(event, noise_multiplier=event.noise_multiplier / smaller)
        spent.append((event, count))
    return accounting.epsilon(spent, statement.delta, accountant)


def with_private_accuracy(statement: Statement, accuracy: PrivateAccuracy, spent: Spent) -> Statement:
    """The same with an accuracy that is private for held-out users. `spent` is all that they were charged."""
    total = accounting.epsilon(spent, accuracy.terms.delta)
    return replace(statement, private_accuracy=accuracy, epsilon_held_out=total)


def as_chosen(statement: Statement, event: BestOfRuns, chosen: ChosenFacts) -> Statement:
    """The statement of a run that is the best of several: ε is that of the choice, and of the vocabulary."""
    words = [(each, count) for each, count in statement.charged if isinstance(each, ThresholdedHistogram)]
    charged = (*words, (event, 1))

    def cost(replaced: bool = False) -> float:
        return accounting.epsilon(charged, statement.delta, "rdp", replaced=replaced)

    return replace(
        statement,
        epsilon=cost(),
        epsilon_replaced=None if statement.epsilon_replaced is None else cost(replaced=True),
        epsilon_training=accounting.epsilon([(event, 1)], statement.delta, "rdp"),
        epsilon_spent=cost(),
        charged=charged,
        accountant=accounting.accountant_name("rdp"),
        chosen=chosen,
    )


def with_store_total(statement: Statement, spent: Spent, accountant: str) -> Statement:
    """The same with ε over every run on a store, and what may change between two populations."""
    if not statement.private:
        return replace(statement, epsilon_store=math.inf, relation_store="none")
    relation = accounting.relation_of(event for event, _ in spent)
    epsilon = store_total(spent, statement.delta, accountant)
    return replace(statement, epsilon_store=epsilon, relation_store=relation or "none")


def store_total(spent: Spent, delta: float, accountant: str) -> float:
    """ε of all that a store was charged."""
    # RDP has an answer for some rounds that PLD has none for.
    for tried in (accountant, "rdp") if accountant == "pld" else (accountant,):
        with suppress(SottoError):
            return accounting.epsilon(spent, delta, tried)
    return math.inf


def not_covered(
    *,
    generator: str | None,
    started: bool,
    sampler: Sequence[str],
    federation: FederationFacts | None,
    objective: str,
    held_out: HeldOut,
    because_of_records: Sequence[str] = (),
) -> tuple[str, ...]:
    """What a statement lists as not covered.

    Args:
        generator: what cohorts are drawn with; None in statements that do not say it.
        started: did the run begin with a trained model?
        sampler: what the sampler leaves uncovered.
        federation: how devices were asked; None in a simulation.
        objective: of local training.
        held_out: what the store declares of its held-out users.
        because_of_records: what follows from how records became users.
    """
    return (
        *(text for text in NOT_COVERED if text != EXACT_ACCURACY or held_out == EXACT),
        *because_of_records,
        *([NO_CIPHER] if generator == "Philox" else []),
        *([STARTED_FROM] if started else []),
        *sampler,
        *(() if federation is None else not_covered_of(federation)),
        *([REHEARSED] if objective == "rehearsal" else []),
    )


def _merged(spent: Spent) -> tuple[tuple[Event, int], ...]:
    """Every event once, with the number of times that it was charged."""
    total: Counter[Event] = Counter()
    for event, count in spent:
        total[event] += count
    return tuple(total.items())


def _count(spent: Spent) -> int:
    return sum(count for _, count in spent)


def declared_facts(recipe: Recipe, mechanism: Mechanism) -> Declared:
    privacy = recipe.privacy
    weight = privacy.total_weight or privacy.places
    least = privacy.min_weight or weight if privacy.estimator == "clipped_denominator" else None
    if not privacy.examples_per_user:
        declared = Declared(privacy.users, privacy.cohort, privacy.rate, weight, privacy.weight_cap, least)
        most = mechanism.sampler.most_updates
        return declared if most == 1 else replace(declared, silos=most)
    return Declared(
        users=privacy.users,
        cohort=privacy.cohort,
        user_rate=mechanism.sampler.user_rate,
        total_weight=weight,
        weight_cap=privacy.weight_cap,
        min_weight=least,
        examples_per_user=privacy.examples_per_user,
        example_rate=privacy.rate,
        example_tokens=recipe.local.tokens,
    )


def mechanism_facts(recipe: Recipe, mechanism: Mechanism) -> MechanismFacts:
    privacy, tracking = recipe.privacy, mechanism.tracking
    clip_norms = mechanism.clip_norms(1, mechanism.start())
    noise_std, bit_noise = mechanism.noise_std(1, clip_norms)
    adaptive = None
    if tracking is not None:
        adaptive = Adaptive(tracking.quantile, tracking.learning_rate, bit_noise, len(clip_norms))
    # To the digits that the float32 of its parts holds: 0.3, not 0.30000001.
    clip_norm = float(f"{math.hypot(*map(float, clip_norms)):.7g}")
    return MechanismFacts(
        mode=privacy.mode,
        algorithm=recipe.run.algorithm,
        clipping=privacy.clipping,
        clip_when=privacy.clip_when,
        clip_norm=clip_norm if mechanism.clipping.bounded else None,
        estimator=privacy.estimator,
        sensitivity=mechanism.sensitivity(clip_norms),
        noise_multiplier=mechanism.noise_multiplier * mechanism.noise_schedule(1),
        noise_std=noise_std,
        server_update=recipe.server.update if recipe.server.update != "average" else None,
        clip_weighted=privacy.clip_weighted,
        layer_clip_norms=tuple(privacy.layer_clip_norms or ()),
        nominal_clip_norm=privacy.clip_norm if privacy.clip_schedule else None,
        clip_schedule=privacy.clip_schedule,
        clip_path=privacy.clip_path if privacy.clip_schedule else None,
        nominal_noise_multiplier=mechanism.noise_multiplier if privacy.noise_schedule else None,
        noise_schedule=privacy.noise_schedule,
        adaptive=adaptive,
        correlation=Correlation.of(event) if isinstance(event := mechanism.event(1), CorrelatedGaussian) else None,
        devices=DeviceNoiseFacts.of(mechanism),
    )
