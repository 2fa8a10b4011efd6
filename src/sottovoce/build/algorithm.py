"""The parts of a run that a recipe describes beside its promise: what devices minimise and do, what the server does.

Each refuses what has no meaning together.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import optax

from sottovoce import recipe as recipes
from sottovoce.data.store import Store
from sottovoce.errors import SottoError
from sottovoce.local.objective import Objective, Penalised, WithoutForgetting, plain
from sottovoce.local.quantise import EightBit
from sottovoce.local.update import FedAvg, FedSGD, UserUpdate, rehearsed
from sottovoce.privacy.clipping import Clip
from sottovoce.privacy.sampling import sampler_named
from sottovoce.privacy.schedule import build_schedule
from sottovoce.recipe import Recipe
from sottovoce.training.server import Server
from sottovoce.training.variants.central import Central
from sottovoce.training.variants.distillation import Distillation
from sottovoce.training.variants.stale_updates import StaleUpdates

MOST_PREDICTED = 2**31  # probabilities that returned models give to the words of a text: 8 GiB
MOST_READ = 10**7  # tokens of a user and rehearsed with theirs: beyond it their number leaves 32 bits


def build_objective(recipe: Recipe, store: Store) -> Objective:
    """What the recipe says a device minimises."""
    local = recipe.local
    if local.user_share > 1:
        raise SottoError(f"local.user_share={local.user_share:g} must be in (0, 1]; it is the user's own share, λ")
    no_reader = recipe.server.update != "transfer" or recipe.server.text != "public"
    if local.objective == "plain":
        for name, unused in (("user_share", local.user_share < 1), ("public", no_reader and local.public is not None)):
            if unused:
                raise SottoError(
                    f"local.{name} has no meaning with local.objective='plain'; use 'rehearsal'"
                    f"{', or without_forgetting' if name == 'user_share' else ''}, or remove it"
                )
        return plain
    if recipe.run.algorithm != "fedavg":
        raise SottoError(
            f"local.objective={local.objective!r} is for what devices do in fedavg, not for {recipe.run.algorithm}; "
            f"use 'plain'"
        )
    if local.objective == "without_forgetting":
        if no_reader and local.public is not None:
            raise SottoError("local.public is for rehearsal; without_forgetting reads no other text: remove it")
        return WithoutForgetting(local.user_share)
    needed = rehearsed(store.tokens_per_user, local.user_share)
    if (read := store.tokens_per_user + needed) > MOST_READ:
        raise SottoError(f"a user would read {read:,} tokens, more than {MOST_READ:,}; raise local.user_share")
    _check_public(recipe, store, needed, "that one user may rehearse", "raise local.user_share")
    return plain


def _check_public(recipe: Recipe, store: Store, needed: int, what: str, otherwise: str) -> None:
    public = recipe.local.public
    if store.public is None:
        wanted = "server.text='public'" if recipe.local.objective != "rehearsal" else "local.objective='rehearsal'"
        raise SottoError(f"{wanted} needs local.public: a store made by `sotto prepare --plain-text`")
    if store.public.vocabulary != store.vocabulary.fingerprint:
        raise SottoError(f"local.public={public} has another vocabulary than the store; prepare both alike")
    if store.public.tokens.size < needed:
        raise SottoError(
            f"local.public={public} has {store.public.tokens.size:,} tokens, fewer than the {needed:,} {what}; prepare "
            f"more text, or {otherwise}"
        )


def build_user_update(recipe: Recipe, clipping: Clip, objective: Objective) -> UserUpdate:
    local = recipe.local
    if local.penalty:
        if recipe.run.algorithm == "central":
            raise SottoError(
                f"local.penalty={local.penalty:g} is on what one user changed, and central training has no users "
                f"apart; use fedavg, or 0"
            )
        if recipe.run.algorithm == "fedsgd":
            raise SottoError(
                f"local.penalty={local.penalty:g} does nothing with fedsgd, whose one gradient is taken before "
                f"anything has changed; use fedavg, or 0"
            )
        if 2 * local.penalty * local.learning_rate >= 1:
            raise SottoError(
                f"local.penalty={local.penalty:g} must be below {0.5 / local.learning_rate:.3g}, half of "
                f"1 / learning_rate: a step would take back more than the whole update"
            )
        objective = Penalised(objective, local.penalty)
    if local.gradient_clip is not None and recipe.run.algorithm != "fedavg":
        raise SottoError(
            f"local.gradient_clip={local.gradient_clip:g} is on the steps that a device takes in fedavg, not for "
            f"{recipe.run.algorithm}; remove it"
        )
    compression = EightBit() if local.compression == "8bit" else None
    if compression and recipe.run.algorithm == "central":
        raise SottoError("local.compression has no meaning in central training, which sends no updates; use none")
    if recipe.run.algorithm == "fedavg":
        return FedAvg(
            clipping, recipe.privacy.clip_when == "every_step", epochs=local.epochs, batch=local.batch,
            unroll=local.unroll, learning_rate=local.learning_rate, objective=objective,
            user_share=local.user_share if local.objective == "rehearsal" else 1.0, compression=compression,
            gradient_clip=local.gradient_clip,
        )  # fmt: skip
    # Central training takes the steps of FedSGD, on other people's text each.
    return FedSGD(
        clipping, batch=local.batch, unroll=local.unroll, learning_rate=local.learning_rate, tokens=local.tokens,
        objective=objective, compression=compression,
    )  # fmt: skip


def build_server(recipe: Recipe) -> Server:
    points = recipe.server.schedule
    try:
        schedule = build_schedule(points)
    except SottoError as error:
        raise SottoError(f"server.schedule: {error}") from None
    if schedule.last_change > recipe.run.rounds:
        raise SottoError(
            f"server.schedule changes at round {schedule.last_change} of run.rounds={recipe.run.rounds}; end it before"
        )
    return Server(build_optimiser(replace(recipe.server, schedule=())), schedule)


@lru_cache  # optimisers are compared by identity: the same one again spares a compilation
def build_optimiser(server: recipes.Server) -> optax.GradientTransformation:
    if server.optimiser == "momentum":
        return optax.sgd(server.learning_rate, momentum=server.momentum)
    if server.optimiser == "adam":
        return optax.adam(server.learning_rate)
    return optax.sgd(server.learning_rate)


def build_passes(recipe: Recipe, store: Store, processes: int) -> Central | None:
    """Whose text makes a round of central training; nothing for the others, which draw cohorts."""
    if recipe.run.algorithm != "central":
        return None
    cohort = recipe.privacy.cohort
    if cohort != int(cohort):
        raise SottoError(
            f"privacy.cohort={cohort:g} must be a whole number in central training: the users whose text is a round"
        )
    if recipe.run.devices > 1 or processes > 1:
        raise SottoError("run.algorithm='central' trains on one device, in one process; leave the others out")
    if not store.users:
        raise SottoError("the store has nobody to train on; central training needs one user at least")
    return Central(int(cohort), recipe.run.seed)


def build_transfer(recipe: Recipe, store: Store, processes: int) -> Distillation | None:
    """How the server imitates the models that come back; nothing where it averages updates."""
    server, local = recipe.server, recipe.local
    if server.update != "transfer":
        return None
    if recipe.run.devices > 1 or processes > 1:
        raise SottoError("server.update='transfer' trains on one device, in one process; leave the others out")
    if local.batch * local.unroll > server.tokens:
        raise SottoError(
            f"server.tokens={server.tokens} must be {local.batch * local.unroll} or more, one step of local.batch="
            f"{local.batch} lanes of local.unroll={local.unroll}; it is the text that transfer reads"
        )
    # Lanes are of one length, so the last may be filled up.
    tokens = -(-server.tokens // local.batch) * local.batch
    if tokens * store.vocabulary.size > MOST_PREDICTED:
        raise SottoError(
            f"server.tokens={server.tokens} must be at most {MOST_PREDICTED // store.vocabulary.size:,}: a probability "
            f"is kept for each of the {store.vocabulary.size:,} words at each; read more texts (server.cycles) instead"
        )
    if server.text == "public":
        _check_public(recipe, store, tokens, "that transfer reads at once", "lower server.tokens")
    return Distillation(server.tokens, server.epochs, server.cycles, server.text == "generated")


def build_queue(recipe: Recipe) -> StaleUpdates | None:
    """How far devices are behind; nothing where every round begins with the newest model."""
    run = recipe.run
    if run.deploy_every == 1 and not run.delays:
        return None
    name = "deploy_every" if run.deploy_every > 1 else "delays"
    if run.algorithm == "central" or recipe.server.update == "transfer":
        other = "run.algorithm='central'" if run.algorithm == "central" else "server.update='transfer'"
        raise SottoError(f"run.{name} is for updates that devices return and a server averages, not for {other}")
    if run.delays and sum(run.delays) <= 0:
        raise SottoError(f"run.delays={list(run.delays)} has no share above 0; [0.7, 0.3] has 30% one deployment late")
    return StaleUpdates(run.deploy_every, run.delays or (1.0,))


def check_canaries(recipe: Recipe, processes: int) -> None:
    """Refuse canaries where they would take somebody's place, or where no round can be watched."""
    if not recipe.audit.plants:
        return
    privacy, run = recipe.privacy, recipe.run
    if not sampler_named(privacy.sampling).independent:
        raise SottoError(
            f"[audit] plants canary users, who would take the places of others with privacy.sampling="
            f"{privacy.sampling!r}; use 'poisson', where one user more changes nobody's chance"
        )
    other = {
        "run.algorithm='central'": run.algorithm == "central",
        "server.update='transfer'": recipe.server.update == "transfer",
        "run.deploy_every or run.delays": build_queue(recipe) is not None,
        "several processes": processes > 1,
    }
    for name, there in other.items():
        if there:
            raise SottoError(
                f"[audit] watches the rounds of Algorithm 1 in one process, and cannot with {name}; take one of the "
                f"two out, or audit a run of its own"
            )
