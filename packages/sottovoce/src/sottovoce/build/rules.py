"""Every refused combination of settings. A rule is a condition and the sentence of the refusal.

Builders do not refuse; they call `check` first. The range of a single value is in `recipe.py`. Objects such as
`Mechanism` keep a guard of their own where building them by hand could break a guarantee.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from sottovoce.data.store import Store
from sottovoce.local.update import rehearsed
from sottovoce.models.lora import Survey, starred
from sottovoce.privacy.clipping import CLIPS
from sottovoce.privacy.estimators import ESTIMATORS
from sottovoce.privacy.kinds import KINDS
from sottovoce.privacy.sampling import SAMPLERS
from sottovoce_evidence import accounting
from sottovoce_evidence import rules as guarantee
from sottovoce_evidence.bases import NO_BASE
from sottovoce_evidence.errors import SottoError, count_of, plural
from sottovoce_evidence.recipe import ADAPTER_KEYS, Local, Model, Privacy, Recipe
from sottovoce_evidence.schedule import Schedule, build_schedule

MOST_MASKED = 2048  # devices in a masked round: what a message holds of names and signatures
MOST_READ = 10**7  # tokens that one user reads, rehearsed ones included: more do not fit the 32 bits of their number

NEEDS_START = (
    "trains beside frozen weights, and fresh ones know nothing; set model.initial to a base, a run or a folder"
)


def check(rules: Iterator[str]) -> None:
    """Raise the sentence of the first rule that applies."""
    if sentence := next(rules, None):
        raise SottoError(sentence)


def recipe_rules(recipe: Recipe, processes: int = 1, before: accounting.Spent = ()) -> Iterator[str]:
    """Rules of a recipe alone. `before` was spent on the store's vocabulary."""
    # Only the first sentence is shown, so the order is from what is trained to how it is done.
    sampler = SAMPLERS[recipe.privacy.sampling]
    yield from model_keys(recipe.model)
    yield from guarantee.method(recipe)
    yield from guarantee.examples(recipe)
    if recipe.run.algorithm == "els" and processes > 1:
        yield "run.algorithm='els' trains in one process; remove the others"
    yield from _cohort(recipe.privacy)
    yield from guarantee.separation(recipe.privacy, recipe.run.rounds, sampler)
    yield from _schedules(recipe)
    yield from guarantee.clip(recipe.privacy, KINDS)
    yield from guarantee.correlated(recipe.privacy, sampler)
    if recipe.privacy.mode == "experiment":
        yield from _experiment(recipe.privacy)
    if recipe.privacy.mode == "private":
        yield from guarantee.private(recipe.privacy, before, KINDS)
    yield from _local(recipe)
    yield from _central(recipe, processes)
    if recipe.audit.plants:
        yield from _canaries(recipe, processes)
    yield from guarantee.federation(recipe, KINDS)


def model_keys(model: Model) -> Iterator[str]:
    """Rules of the [model] section alone."""
    if model.initial_is_public and model.initial in (None, NO_BASE):
        yield "model.initial_is_public is said of nothing: set model.initial to a folder, or remove it"
    if model.adapter_rank is None:
        for key in ADAPTER_KEYS:
            if getattr(model, key) is not None:
                yield f"model.{key} is for adapters, and model.adapter_rank is not set; set it, or remove {key}"
    elif model.initial == NO_BASE:
        yield f"model.adapter_rank={model.adapter_rank} {NEEDS_START}"


def _cohort(privacy: Privacy) -> Iterator[str]:
    cohort, users = privacy.cohort, privacy.users
    if users < 1:
        yield "privacy.users is not set, or 0: declare the population, a public constant > 0 (it gives q and W)"
    if cohort <= 0:
        yield "privacy.cohort is not set, or 0: it must be > 0, the expected number of users in a round"
    fixed_size = SAMPLERS[privacy.sampling].takes("cohort")
    if privacy.examples_per_user and cohort > privacy.places:
        yield f"privacy.cohort={cohort:g} must be at most users · examples_per_user = {privacy.places}, all examples"
    if not fixed_size and not privacy.examples_per_user and cohort > users:
        yield f"privacy.cohort={cohort:g} must be at most privacy.users={users}, all the people there are"
    if fixed_size and cohort != int(cohort):
        yield f"privacy.cohort={cohort:g} must be a whole number unless privacy.sampling='poisson'"
    if fixed_size and cohort > users:
        yield f"privacy.cohort={cohort:g} must be at most the declared privacy.users={users}"


def _schedules(recipe: Recipe) -> Iterator[str]:
    privacy, rounds = recipe.privacy, recipe.run.rounds
    schedules = {
        "privacy.clip_schedule": privacy.clip_schedule,
        "privacy.noise_schedule": privacy.noise_schedule,
        "server.schedule": recipe.server.schedule,
    }
    for key, points in schedules.items():
        last = _schedule(key, points).last_change
        if last > rounds:
            yield f"{key} changes at round {last}, and run.rounds={rounds}; end the schedule before, or train longer"
    if privacy.clip_schedule and privacy.adaptive_quantile is not None:
        yield "privacy.clip_schedule and privacy.adaptive_quantile both move the clip norm; keep one"
    if privacy.clip_schedule and not CLIPS[privacy.clipping].bounded and privacy.mode != "experiment":
        yield f"privacy.clip_schedule has nothing to change: privacy.clipping={privacy.clipping!r}; remove one of them"
    if privacy.noise_schedule and privacy.mode == "none":
        yield "privacy.noise_schedule has no meaning in mode 'none', which adds no noise; remove it"
    changes = not build_schedule(privacy.noise_schedule).constant
    if changes and not SAMPLERS[privacy.sampling].amplifies:
        noise = "a noise schedule gives users who join in different rounds different noise"
        yield f"{noise}; with privacy.sampling={privacy.sampling!r} keep the noise as it is"


def _schedule(key: str, points: tuple[tuple[float, ...], ...]) -> Schedule:
    """The error of a bad schedule names its key."""
    try:
        return build_schedule(points)
    except SottoError as error:
        raise SottoError(f"{key}: {error}") from None


def _experiment(privacy: Privacy) -> Iterator[str]:
    if privacy.epsilon is not None:
        yield "privacy.epsilon has no meaning in experiment mode: its ε is infinite; remove it"
    if privacy.noise_std is None and privacy.noise_multiplier is None:
        yield "experiment mode needs privacy.noise_std or privacy.noise_multiplier (0 is allowed)"
    if privacy.noise_std is not None and privacy.noise_multiplier is not None:
        yield "privacy.noise_std and privacy.noise_multiplier are both given; keep one"
    if privacy.noise_multiplier and not ESTIMATORS[privacy.estimator].bounded:
        yield "privacy.noise_multiplier needs an estimator of bounded sensitivity; give noise_std instead"


def _local(recipe: Recipe) -> Iterator[str]:
    local, algorithm = recipe.local, recipe.run.algorithm
    if local.objective == "plain":
        for key, is_set in (("user_share", local.user_share < 1), ("public", local.public is not None)):
            if is_set:
                yield f"local.{key} has no meaning with local.objective='plain'; use 'rehearsal', or remove it"
    if local.objective == "without_forgetting" and local.public is not None:
        yield "local.public is for rehearsal; without_forgetting reads no other text: remove it"
    if algorithm != "fedavg":
        for key in ("objective", "penalty", "gradient_clip"):
            value = getattr(local, key)
            if value != getattr(Local(), key):
                yield f"local.{key}={value!r} is for the local steps of fedavg, not for {algorithm}; remove it"
    if 2 * local.penalty * local.learning_rate >= 1:
        limit = f"{0.5 / local.learning_rate:.3g}, half of 1 / learning_rate"
        yield f"local.penalty={local.penalty:g} must be below {limit}: a step would undo more than the whole update"


def _central(recipe: Recipe, processes: int) -> Iterator[str]:
    cohort = recipe.privacy.cohort
    if recipe.run.algorithm != "central":
        return
    if cohort != int(cohort):
        yield f"privacy.cohort={cohort:g} must be a whole number in central training: the users whose text is a round"
    if recipe.run.devices > 1 or processes > 1:
        yield "run.algorithm='central' trains on one device, in one process; remove the others"


def strategy_rules(recipe: Recipe, processes: int = 1) -> Iterator[str]:
    """Rules of a way to train that a caller gives in Python: nothing of what it releases is known here."""
    if recipe.privacy.mode != "none":
        yield "a strategy of your own has no accounting, so it promises nothing; use privacy.mode='none'"
    if recipe.run.algorithm in ("central", "els"):
        yield f"run.algorithm={recipe.run.algorithm!r} is a strategy, and one of your own was given; keep one"
    if recipe.audit.plants:
        yield "[audit] watches rounds of Algorithm 1, and a strategy of your own was given; keep one of the two"
    if processes > 1:
        yield "a strategy of your own trains in one process; remove the others"


def _canaries(recipe: Recipe, processes: int) -> Iterator[str]:
    sampling = recipe.privacy.sampling
    if not SAMPLERS[sampling].independent:
        yield f"[audit] canaries would take the places of users with privacy.sampling={sampling!r}; use 'poisson'"
    other = f"run.algorithm={recipe.run.algorithm!r}" if recipe.run.algorithm in ("central", "els") else ""
    unwatched = other or ("several processes" if processes > 1 else "")
    if unwatched:
        yield f"[audit] watches rounds of Algorithm 1 in one process, and cannot with {unwatched}; keep one of the two"


@dataclass(frozen=True)
class StoreFacts:
    """What rules ask about a store."""

    users: int
    tokens_per_user: int
    public_tokens: int | None = None  # None: no public text was opened
    same_words: bool = True  # does the public text have the vocabulary of the store?
    longest_is_cap: bool = False  # was the cap taken from the longest text?

    @staticmethod
    def of(store: Store) -> StoreFacts:
        public = store.public
        same = public is None or public.vocabulary == store.vocabulary.fingerprint
        tokens = None if public is None else int(public.tokens.size)
        facts = (store.users, store.tokens_per_user, tokens, same, store.longest_is_cap)
        return StoreFacts(*facts)


def store_rules(recipe: Recipe, store: StoreFacts, own_objective: bool = False) -> Iterator[str]:
    """Rules of a recipe and a store. `own_objective`: the caller gave an objective in Python."""
    local, length, central = recipe.local, store.tokens_per_user, recipe.run.algorithm == "central"
    if recipe.privacy.mode == "private" and store.longest_is_cap:
        yield (
            f"tokens_per_user={store.tokens_per_user} is the length of the longest text, so one person decides how "
            f"far all texts are padded; declare it when the store is made"
        )
    if own_objective and local.objective != "plain":
        yield f"local.objective={local.objective!r} is in the recipe, and an objective of your own was given; keep one"
    if not store.same_words:
        yield f"local.public={local.public} has another vocabulary than the store; prepare both alike"
    if local.objective == "rehearsal":
        public = rehearsed(length, local.user_share)
        if length + public > MOST_READ:
            yield f"a user would read {length + public:,} tokens, more than {MOST_READ:,}; raise local.user_share"
        if store.public_tokens is None:
            yield "local.objective='rehearsal' needs local.public: a store made by `sotto prepare --plain-text`"
        elif store.public_tokens < public:
            found = f"local.public={local.public} has {store.public_tokens:,} tokens, fewer than the {public:,}"
            yield f"{found} that one user may rehearse; prepare more text, or raise local.user_share"
    if recipe.run.algorithm == "els":
        fit = -(-length // local.tokens)
        most, length = recipe.privacy.examples_per_user, min(length, local.tokens)
        if most > fit:
            cut = f"users are cut to {store.tokens_per_user} tokens, {fit} examples of local.tokens={local.tokens}"
            yield f"privacy.examples_per_user={most} pays for more than there can be: {cut}; use {fit}"
    if central and not store.users:
        yield "the store has no users to train on; central training needs at least one"
    stream = length * (int(recipe.privacy.cohort) if central else 1)
    if local.batch * local.unroll > 4 * stream:
        lanes = f"local.batch={local.batch} lanes of local.unroll={local.unroll}"
        text = f"{'a round of central training has' if central else 'users of the store have'} at most {stream} tokens"
        yield f"{lanes} are mostly empty: {text}; use fewer lanes or a shorter unroll"


def adapter_rules(survey: Survey) -> Iterator[str]:
    """Rules of adapters and the model that gets them."""
    for pattern in survey.empty_patterns:
        named, can = survey.named_by(pattern), ", ".join(dict.fromkeys(map(starred, survey.adaptable))) or "none"
        problem = f"names {', '.join(named)}, not used as x @ weight.T" if named else "names no array of the model"
        yield f"model.adapter_matrices: {pattern!r} {problem}; matrices that can have an adapter: {can}"
    if not survey.matrices:
        yield "model.adapter_rank is set, and no matrix of the model is used as x @ weight.T; train all of it instead"
    for name, shape in survey.matrices.items():
        if survey.adapters.rank >= min(shape):
            small = (
                f"must be below {min(shape)}, or the adapter of {name} {list(shape)} is no smaller than what it adapts"
            )
            yield f"model.adapter_rank={survey.adapters.rank} {small}; lower it, or leave it out of adapter_matrices"
    for word in survey.empty_words:
        yield f"model.adapter_trains: {word!r} names no array without an adapter; use a name or a pattern of one"


def model_rules(recipe: Recipe, layers: Sequence[str], devices_here: int) -> Iterator[str]:
    """Rules of a recipe, the layers of its model and the devices of this process."""
    if recipe.run.devices > devices_here:
        yield f"run.devices={recipe.run.devices} is more than the {devices_here} there are; 0 takes all"


def device_rules(recipe: Recipe) -> Iterator[str]:
    """Rules of a recipe that is trained across real devices."""
    privacy, local, run = recipe.privacy, recipe.local, recipe.run
    if run.algorithm == "central":
        yield "run.algorithm='central' pools text, and devices keep theirs; use fedavg"
    if run.algorithm == "els":
        yield "run.algorithm='els' samples the examples of all users in one place; across devices use fedsgd"
    if not (SAMPLERS[privacy.sampling].independent or SAMPLERS[privacy.sampling].takes("min_separation")):
        known = "devices flip their own coins, or keep their own separation: use 'poisson' or 'min_separation'"
        yield f"privacy.sampling={privacy.sampling!r} draws from all users; {known}"
    if privacy.secrets == "seeded" and privacy.mode == "private":
        seed = f"run.seed={run.seed}, which others can guess"
        yield f"privacy.secrets='seeded' takes the noise from {seed}: a device could undo all the noise; use 'entropy'"
    if local.objective == "rehearsal" or local.public is not None:
        yield "local.objective='rehearsal' sends public text, which devices do not take yet; use without_forgetting"
    if recipe.audit.plants:
        yield "[audit] plants made-up users in a store, and there is none across devices; audit a simulated run"


def roster_rules(recipe: Recipe, registered: Collection[int], made_by_server: int = 0) -> Iterator[str]:
    """Rules of a recipe, the registered users of each device, and how many device keys the server made."""
    devices = len(registered)
    if recipe.federation.masked and devices > MOST_MASKED:
        yield f"a masked sum is over {MOST_MASKED:,} devices at most, and {devices:,} are registered; remove survivors"
    if recipe.federation.survivors > devices:
        there = f"the {count_of(devices, 'device')} registered: no round would be unmasked"
        yield f"federation.survivors={recipe.federation.survivors} is more than {there}; lower it"
    if recipe.federation.masked and made_by_server > recipe.federation.colluding:
        many = f"federation.colluding={recipe.federation.colluding}, and the server made the keys of"
        many += f" {count_of(made_by_server, 'device')}, so could sign for {plural(made_by_server, 'it', 'them')}"
        yield f"{many}: rekey these (`sotto federate key` and `rekey`), or raise it"


def simulation_rules(recipe: Recipe) -> Iterator[str]:
    """Rules of a recipe that is trained on a store, in one place."""
    if recipe.federation.masked and recipe.federation.noise == "server":
        simulated = "a simulation has no server to hide from, and its sums are the same"
        yield f"federation.survivors={recipe.federation.survivors} is for real devices: {simulated}; remove it"
