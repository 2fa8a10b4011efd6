"""Every refused combination of settings: one table of conditions and sentences.

Builders do not refuse; they call `check` first. The range of a single value is in `recipe.py`. Objects such as
`Mechanism` keep a guard of their own where building them by hand could break a guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from sottovoce import accounting
from sottovoce import recipe as recipes
from sottovoce.data.store import Store
from sottovoce.errors import SottoError
from sottovoce.local.update import rehearsed
from sottovoce.privacy.clipping import Clip, clip_named
from sottovoce.privacy.estimators import Estimator, estimator_named
from sottovoce.privacy.sampling import Sampler, sampler_named
from sottovoce.privacy.schedule import Schedule, build_schedule
from sottovoce.recipe import Recipe

MOST_PREDICTED = 2**31  # probabilities that distillation keeps for one text: 8 GiB
MOST_READ = 10**7  # tokens that one user reads, rehearsed ones included: more do not fit the 32 bits of their number


class Scope(Enum):
    """What must be known to check a rule."""

    RECIPE = "recipe"
    STORE = "recipe and store"
    MODEL = "recipe and model"
    DEVICES = "across devices"


@dataclass(frozen=True)
class StoreFacts:
    """What rules ask about a store."""

    users: int
    tokens_per_user: int
    words: int
    public_tokens: int | None = None  # None: no public text was opened
    same_words: bool = True  # does the public text have the vocabulary of the store?

    @staticmethod
    def of(store: Store) -> StoreFacts:
        public = store.public
        same = public is None or public.vocabulary == store.vocabulary.fingerprint
        tokens = None if public is None else int(public.tokens.size)
        return StoreFacts(store.users, store.tokens_per_user, store.vocabulary.size, tokens, same)


@dataclass(frozen=True)
class Case:
    """A recipe, and what is known about the place where it is used."""

    recipe: Recipe
    processes: int = 1
    before: accounting.Spent = ()  # spent on the store's vocabulary
    facts: StoreFacts | None = None
    layers: Sequence[str] = ()
    own_objective: bool = False  # did the caller give an objective in Python?
    devices_here: int = 1

    @property
    def local(self) -> recipes.Local:
        return self.recipe.local

    @property
    def server(self) -> recipes.Server:
        return self.recipe.server

    @property
    def privacy(self) -> recipes.Privacy:
        return self.recipe.privacy

    @property
    def run(self) -> recipes.Run:
        return self.recipe.run

    @property
    def store(self) -> StoreFacts:
        assert self.facts is not None, "rules of this scope need the facts of a store"
        return self.facts

    @property
    def sampler(self) -> type[Sampler]:
        return sampler_named(self.privacy.sampling)

    @property
    def clip(self) -> type[Clip]:
        return clip_named(self.privacy.clipping)

    @property
    def estimator(self) -> type[Estimator]:
        return estimator_named(self.privacy.estimator)

    @property
    def private(self) -> bool:
        return self.privacy.mode == "private"

    @property
    def experiment(self) -> bool:
        return self.privacy.mode == "experiment"

    @property
    def central(self) -> bool:
        return self.run.algorithm == "central"

    @property
    def distils(self) -> bool:
        return self.server.update == "transfer"

    @property
    def rehearses(self) -> bool:
        return self.local.objective == "rehearsal"

    @property
    def is_late(self) -> bool:
        """Do some devices train an older model than the newest?"""
        return self.run.deploy_every > 1 or bool(self.run.delays)

    @property
    def is_split(self) -> bool:
        """Are users shared out over several devices or processes?"""
        return self.run.devices > 1 or self.processes > 1

    @property
    def public_is_unread(self) -> bool:
        return self.local.public is not None and not (self.distils and self.server.text == "public")

    @property
    def user_rate(self) -> float:
        return self.privacy.cohort / self.privacy.users

    @property
    def step_tokens(self) -> int:
        return self.local.batch * self.local.unroll

    @property
    def stray_distillation(self) -> str:
        """A setting of distillation that was changed."""
        names = ("text", "tokens", "epochs", "cycles")
        return next((name for name in names if getattr(self.server, name) != getattr(recipes.Server(), name)), "")

    @property
    def unwatched(self) -> str:
        """Why the canaries of a run cannot be watched."""
        reasons = {
            "run.algorithm='central'": self.central,
            "server.update='transfer'": self.distils,
            "run.deploy_every or run.delays": self.is_late,
            "several processes": self.processes > 1,
        }
        return next((name for name, applies in reasons.items() if applies), "")

    @cached_property
    def vocabulary_epsilon(self) -> float:
        """What the vocabulary cost."""
        return accounting.epsilon(self.before, self.privacy.delta, accountant_of(self.privacy))

    @property
    def rehearsed_tokens(self) -> int:
        """Public tokens that one user reads at most."""
        return rehearsed(self.store.tokens_per_user, self.local.user_share)

    @property
    def distilled_tokens(self) -> int:
        """Tokens of a text for distillation. All lanes have one length, so the last one may be padded."""
        return -(-self.server.tokens // self.local.batch) * self.local.batch

    @property
    def stream(self) -> int:
        """Tokens that a local step is taken from."""
        return self.store.tokens_per_user * (int(self.privacy.cohort) if self.central else 1)

    def schedule(self, key: str) -> Schedule:
        """A schedule of the recipe. An error of it names the key."""
        section, name = key.split(".")
        path = self.privacy.clip_path if name == "clip_schedule" else "steps"
        try:
            return build_schedule(getattr(getattr(self.recipe, section), name), path)
        except SottoError as error:
            raise SottoError(f"{key}: {error}") from None

    def is_too_long(self, key: str) -> bool:
        """Does the schedule change after the last round?"""
        return self.schedule(key).last_change > self.run.rounds


def accountant_of(privacy: recipes.Privacy) -> str:
    if privacy.accountant == "auto":
        return accounting.DEFAULT_ACCOUNTANT
    return privacy.accountant


Rule = tuple[Callable[[Case], object], str | Callable[[Case], str]]  # when it applies; the sentence, a template of `c`


def check(scope: Scope, case: Case) -> None:
    """Raise the sentence of the first rule of this scope that applies."""
    for rule in RULES[scope]:
        if rule[0](case):
            raise SottoError(sentence(rule, case))


def sentence(rule: Rule, case: Case) -> str:
    text = rule[1]
    return text.format(c=case) if isinstance(text, str) else text(case)


def _planned_is_not_done(key: str) -> Callable[[Case], str]:
    return lambda c: (
        f"{key} changes at round {c.schedule(key).last_change}, and run.rounds={c.run.rounds}: what would be planned "
        f"is not what is done; end the schedule before, or train longer"
    )


def _no_public(wanted: str) -> str:
    return f"{wanted} needs local.public: a store made by `sotto prepare --plain-text`"


def _other_words(c: Case) -> str:
    return f"local.public={c.local.public} has another vocabulary than the store; prepare both alike"


def _too_little_public(c: Case, needed: int, what: str, otherwise: str) -> str:
    return (
        f"local.public={c.local.public} has {c.store.public_tokens:,} tokens, fewer than the {needed:,} {what}; "
        f"prepare more text, or {otherwise}"
    )


# The first rule that applies is told, so the order is from what is trained to how it is done.
_RECIPE: tuple[Rule, ...] = (
    (
        lambda c: c.central and c.private,
        "run.algorithm='central' has no user-level guarantee: it trains on pooled text, where nobody's part is "
        "bounded; use fedavg or fedsgd for a private run, or say privacy.mode = 'none'",
    ),
    (
        lambda c: c.central and c.experiment,
        "run.algorithm='central' has no clip and no noise to experiment with; say privacy.mode = 'none'",
    ),
    (
        lambda c: not c.distils and c.stray_distillation,
        "server.{c.stray_distillation} has no meaning with server.update='average'; say 'transfer', or remove it",
    ),
    (
        lambda c: c.distils and c.central,
        "server.update='transfer' learns from models that users return, and central training has none; use fedavg",
    ),
    (
        lambda c: c.distils and c.private,
        "server.update='transfer' has no user-level guarantee: the server trains on what the users' models predict, "
        "and how far one of them can move that is not bounded; use 'average' for a private run, or say privacy.mode "
        "= 'none'",
    ),
    (
        lambda c: c.distils and c.experiment,
        "server.update='transfer' releases no average to add noise to; say privacy.mode = 'none' (updates are "
        "clipped as privacy.clipping says), or use 'average'",
    ),
    (
        lambda c: c.distils and c.privacy.adaptive_quantile is not None,
        "privacy.adaptive_quantile follows averaged updates; with server.update='transfer' remove it",
    ),
    (
        lambda c: c.privacy.users < 1,
        "privacy.users is not set: declare the population, a public constant (it gives q and W)",
    ),
    (
        lambda c: c.privacy.cohort <= 0,
        "privacy.cohort is not set: it is the expected number of users in a round",
    ),
    (
        lambda c: not c.sampler.takes("cohort") and c.user_rate > 1,
        "user_rate={c.user_rate:g} must be in (0, 1]; it is the chance that a user joins a round (cohort "
        "{c.privacy.cohort:g} of {c.privacy.users} users?)",
    ),
    (
        lambda c: c.sampler.takes("cohort") and c.privacy.cohort != int(c.privacy.cohort),
        "privacy.cohort={c.privacy.cohort:g} must be a whole number unless privacy.sampling='poisson'",
    ),
    (
        lambda c: c.sampler.takes("cohort") and c.privacy.cohort > c.privacy.users,
        "privacy.cohort={c.privacy.cohort:g} must be at most the declared privacy.users={c.privacy.users}; it is the "
        "number of users in a round",
    ),
    (
        lambda c: c.is_too_long("privacy.clip_schedule"),
        _planned_is_not_done("privacy.clip_schedule"),
    ),
    (
        lambda c: c.is_too_long("privacy.noise_schedule"),
        _planned_is_not_done("privacy.noise_schedule"),
    ),
    (
        lambda c: bool(c.privacy.clip_schedule) and c.privacy.adaptive_quantile is not None,
        "privacy.clip_schedule and privacy.adaptive_quantile both move the clip norm; keep one",
    ),
    (
        lambda c: bool(c.privacy.clip_schedule) and not c.clip.bounded and not c.experiment,
        "privacy.clip_schedule has nothing to change: privacy.clipping={c.privacy.clipping!r}; remove one of them",
    ),
    (
        lambda c: c.privacy.clip_path != "steps" and len(c.privacy.clip_schedule) < 2,
        "privacy.clip_path={c.privacy.clip_path!r} needs a clip_schedule of two pairs or more",
    ),
    (
        lambda c: bool(c.privacy.noise_schedule) and c.privacy.mode == "none",
        "privacy.noise_schedule has no meaning in mode 'none', which adds no noise; remove it",
    ),
    (
        lambda c: not c.sampler.noise_may_change and not c.schedule("privacy.noise_schedule").constant,
        "a noise schedule would give users of different turns different noise, and the least of it would have to be "
        "charged; in turn, keep the noise as it is",
    ),
    (
        lambda c: c.is_too_long("server.schedule"),
        lambda c: (
            f"server.schedule changes at round {c.schedule('server.schedule').last_change} of "
            f"run.rounds={c.run.rounds}; end it before"
        ),
    ),
    (
        lambda c: bool(c.privacy.layer_clip_norms) and not c.clip.takes("clip_norms"),
        "privacy.layer_clip_norms are for privacy.clipping='per_layer', not {c.privacy.clipping!r}; change one",
    ),
    (
        lambda c: c.privacy.adaptive_quantile is not None and not c.clip.bounded,
        "an adaptive clip norm needs a clip: flat or per_layer",
    ),
    (
        lambda c: c.privacy.clip_weighted and c.clip.bounded and not c.estimator.takes_weighted_clip,
        "weight-aware clipping bounds w·Δ, which is enough for the fixed denominator only: with the clipped one, "
        "many users of tiny weight could send huge updates; use fixed_denominator",
    ),
    (
        lambda c: c.experiment and c.privacy.epsilon is not None,
        "privacy.epsilon has no meaning in experiment mode: its ε is infinite; remove it",
    ),
    (
        lambda c: c.experiment and c.privacy.noise_std is None and c.privacy.noise_multiplier is None,
        "experiment mode needs privacy.noise_std or privacy.noise_multiplier (0 is allowed)",
    ),
    (
        lambda c: c.experiment and c.privacy.noise_std is not None and c.privacy.noise_multiplier is not None,
        "privacy.noise_std and privacy.noise_multiplier are both given; keep one",
    ),
    (
        lambda c: c.experiment and bool(c.privacy.noise_multiplier) and not c.estimator.bounded,
        "privacy.noise_multiplier needs an estimator of bounded sensitivity; give noise_std instead",
    ),
    (
        lambda c: c.private and c.privacy.noise_std is not None,
        "privacy.noise_std is for experiment mode; a private run derives it from noise_multiplier",
    ),
    (
        lambda c: c.private and not c.estimator.bounded,
        "privacy.estimator={c.privacy.estimator!r} has no bounded sensitivity: use fixed_denominator or "
        "clipped_denominator (the true average is for mode 'none')",
    ),
    (
        lambda c: c.private and not c.clip.bounded,
        "privacy.clipping={c.privacy.clipping!r} bounds no user's update; use flat or per_layer, or mode 'none'",
    ),
    (
        lambda c: c.private and c.privacy.noise_multiplier is None and c.privacy.epsilon is None,
        "a private run needs privacy.noise_multiplier or privacy.epsilon",
    ),
    (
        lambda c: c.private and c.privacy.noise_multiplier == 0,
        'privacy.noise_multiplier=0 must be above 0 in a private run; without noise use mode = "none"',
    ),
    (
        lambda c: c.private and c.privacy.delta >= 1 / c.privacy.users and not c.privacy.allow_large_delta,
        lambda c: (
            f"privacy.delta={c.privacy.delta:g} must be below 1/users = {1 / c.privacy.users:.2g}, or the guarantee "
            f"allows giving one person away; lower it, or say --allow-large-delta"
        ),
    ),
    (
        lambda c: c.private and c.privacy.weight_cap > 1 and c.privacy.total_weight == 0,
        "privacy.weight_cap={c.privacy.weight_cap:g} gives users unequal weights: declare privacy.total_weight (W), "
        "a public constant",
    ),
    (
        # It is computed without a budget too: the accountant refuses a δ that the vocabulary uses up.
        lambda c: c.private and bool(c.before) and c.vocabulary_epsilon >= (c.privacy.epsilon or math.inf),
        lambda c: (
            f"privacy.epsilon={c.privacy.epsilon or math.inf:g} is used up by the store's vocabulary, which cost "
            f"{accounting.rounded_up(c.vocabulary_epsilon, 4)} at delta={c.privacy.delta:g}; raise it, or train on a "
            f"store with a cheaper or a public vocabulary"
        ),
    ),
    (
        lambda c: c.local.objective == "plain" and c.local.user_share < 1,
        "local.user_share has no meaning with local.objective='plain'; use 'rehearsal', or without_forgetting, or "
        "remove it",
    ),
    (
        lambda c: c.local.objective == "plain" and c.public_is_unread,
        "local.public has no meaning with local.objective='plain'; use 'rehearsal', or remove it",
    ),
    (
        lambda c: c.local.objective != "plain" and c.run.algorithm != "fedavg",
        "local.objective={c.local.objective!r} is for what devices do in fedavg, not for {c.run.algorithm}; use "
        "'plain'",
    ),
    (
        lambda c: c.local.objective == "without_forgetting" and c.public_is_unread,
        "local.public is for rehearsal; without_forgetting reads no other text: remove it",
    ),
    (
        lambda c: bool(c.local.penalty) and c.central,
        "local.penalty={c.local.penalty:g} is on what one user changed, and central training has no users apart; use "
        "fedavg, or 0",
    ),
    (
        lambda c: bool(c.local.penalty) and c.run.algorithm == "fedsgd",
        "local.penalty={c.local.penalty:g} does nothing with fedsgd, whose one gradient is taken before anything has "
        "changed; use fedavg, or 0",
    ),
    (
        lambda c: 2 * c.local.penalty * c.local.learning_rate >= 1,
        lambda c: (
            f"local.penalty={c.local.penalty:g} must be below {0.5 / c.local.learning_rate:.3g}, half of "
            f"1 / learning_rate: a step would take back more than the whole update"
        ),
    ),
    (
        lambda c: c.local.gradient_clip is not None and c.run.algorithm != "fedavg",
        "local.gradient_clip={c.local.gradient_clip:g} is on the steps that a device takes in fedavg, not for "
        "{c.run.algorithm}; remove it",
    ),
    (
        lambda c: c.local.compression != "none" and c.central,
        "local.compression has no meaning in central training, which sends no updates; use none",
    ),
    (
        lambda c: c.central and c.privacy.cohort != int(c.privacy.cohort),
        "privacy.cohort={c.privacy.cohort:g} must be a whole number in central training: the users whose text is a "
        "round",
    ),
    (
        lambda c: c.central and c.is_split,
        "run.algorithm='central' trains on one device, in one process; leave the others out",
    ),
    (
        lambda c: c.distils and c.is_split,
        "server.update='transfer' trains on one device, in one process; leave the others out",
    ),
    (
        lambda c: c.distils and c.step_tokens > c.server.tokens,
        "server.tokens={c.server.tokens} must be {c.step_tokens} or more, one step of local.batch={c.local.batch} "
        "lanes of local.unroll={c.local.unroll}; it is the text that transfer reads",
    ),
    (
        lambda c: c.is_late and (c.central or c.distils),
        lambda c: (
            f"run.{'deploy_every' if c.run.deploy_every > 1 else 'delays'} is for updates that devices return and a "
            f"server averages, not for {'run.algorithm=' if c.central else 'server.update='}"
            f"{'central' if c.central else 'transfer'!r}"
        ),
    ),
    (
        lambda c: bool(c.run.delays) and sum(c.run.delays) <= 0,
        lambda c: f"run.delays={list(c.run.delays)} has no share above 0; [0.7, 0.3] has 30% one deployment late",
    ),
    (
        lambda c: c.recipe.audit.plants and not c.sampler.independent,
        "[audit] plants canary users, who would take the places of others with "
        "privacy.sampling={c.privacy.sampling!r}; use 'poisson', where one user more changes nobody's chance",
    ),
    (
        lambda c: c.recipe.audit.plants and bool(c.unwatched),
        "[audit] watches the rounds of Algorithm 1 in one process, and cannot with {c.unwatched}; take one of the "
        "two out, or audit a run of its own",
    ),
)

_STORE: tuple[Rule, ...] = (
    (
        lambda c: c.own_objective and c.local.objective != "plain",
        "local.objective={c.local.objective!r} is in the recipe, and an objective of your own was given; keep one",
    ),
    (
        lambda c: c.rehearses and c.store.tokens_per_user + c.rehearsed_tokens > MOST_READ,
        lambda c: (
            f"a user would read {c.store.tokens_per_user + c.rehearsed_tokens:,} tokens, more than {MOST_READ:,}; "
            f"raise local.user_share"
        ),
    ),
    (
        lambda c: c.rehearses and c.store.public_tokens is None,
        _no_public("local.objective='rehearsal'"),
    ),
    (
        lambda c: c.distils and c.server.text == "public" and c.store.public_tokens is None,
        _no_public("server.text='public'"),
    ),
    (
        lambda c: not c.store.same_words,
        _other_words,
    ),
    (
        lambda c: c.rehearses and (c.store.public_tokens or 0) < c.rehearsed_tokens,
        lambda c: _too_little_public(c, c.rehearsed_tokens, "that one user may rehearse", "raise local.user_share"),
    ),
    (
        lambda c: c.distils and c.distilled_tokens * c.store.words > MOST_PREDICTED,
        lambda c: (
            f"server.tokens={c.server.tokens} must be at most {MOST_PREDICTED // c.store.words:,}: a probability is "
            f"kept for each of the {c.store.words:,} words at each; read more texts (server.cycles) instead"
        ),
    ),
    (
        lambda c: c.distils and c.server.text == "public" and (c.store.public_tokens or 0) < c.distilled_tokens,
        lambda c: _too_little_public(c, c.distilled_tokens, "that transfer reads at once", "lower server.tokens"),
    ),
    (
        lambda c: c.central and not c.store.users,
        "the store has nobody to train on; central training needs one user at least",
    ),
    (
        lambda c: c.step_tokens > 4 * c.stream,
        lambda c: (
            f"local.batch={c.local.batch} lanes of local.unroll={c.local.unroll} are mostly empty: "
            f"{'a round of central training has' if c.central else 'users of the store have'} at most {c.stream} "
            f"tokens; use fewer lanes or a shorter unroll"
        ),
    ),
)

_MODEL: tuple[Rule, ...] = (
    (
        lambda c: bool(c.privacy.layer_clip_norms) and len(c.privacy.layer_clip_norms) != len(c.layers),
        lambda c: (
            f"privacy.layer_clip_norms has {len(c.privacy.layer_clip_norms)} norms, and the model {len(c.layers)} "
            f"layers: {', '.join(c.layers)}"
        ),
    ),
    (
        lambda c: c.run.devices > c.devices_here,
        "run.devices={c.run.devices} is more than the {c.devices_here} there are; 0 takes all",
    ),
)

_DEVICES: tuple[Rule, ...] = (
    (
        lambda c: c.central,
        "run.algorithm='central' pools text, and devices keep theirs; use fedavg",
    ),
    (
        lambda c: c.distils,
        "server.update='transfer' needs every user's model at the server; across devices use 'average'",
    ),
    (
        lambda c: not c.sampler.independent,
        "privacy.sampling={c.privacy.sampling!r} is drawn by one who knows all users; devices flip their own coins: "
        "use 'poisson'",
    ),
    (
        lambda c: c.privacy.secrets == "seeded" and c.private,
        "privacy.secrets='seeded' takes the noise from run.seed={c.run.seed}, which those who share the recipe know "
        "and others can guess: a device could undo all the noise; use 'entropy', or privacy.mode='none' for a run "
        "that promises nothing",
    ),
    (
        lambda c: c.is_late,
        "run.deploy_every and run.delays simulate late devices; real ones are late by themselves: remove them",
    ),
    (
        lambda c: c.rehearses or c.local.public is not None,
        "local.objective='rehearsal' sends public text along, which devices do not take yet; use without_forgetting, "
        "or plain",
    ),
    (
        lambda c: c.recipe.audit.plants,
        "[audit] plants made-up users in a store, and there is none across devices; audit a simulated run",
    ),
    (
        lambda c: c.local.compression != "none",
        "local.compression={c.local.compression!r} is simulated; devices send exact sums: use none",
    ),
)

RULES = {Scope.RECIPE: _RECIPE, Scope.STORE: _STORE, Scope.MODEL: _MODEL, Scope.DEVICES: _DEVICES}
