"""Canaries: made-up users who train with the others, and secrets of theirs that a model may give away.

A canary user writes one sequence of random words over and over. An attacker knows its first words; the others are the
secret. Canary users are added to the declared population: with Poisson sampling one more user changes no other user's
chance to join, and q and W stay those of the population. There are two kinds:

- **secrets**, each held by as many users as its place in `holders` says: how much a model gives away of what one, four
  or sixteen users wrote (`expose`);
- **users** who are each in or out by a secret coin: can an attacker tell which of them were in? (`audit/one_run`).

Which canaries were inserted is public (`Registry`). Exposure needs the registry and a model; the coins are not in it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from sottovoce.audit.bounds import check_trials
from sottovoce.audit.registry import Registry
from sottovoce.audit.results import Exposure, ExposurePoint
from sottovoce.data.store import Store
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.data.vocabulary import needs_words
from sottovoce.models.contract import LanguageModel
from sottovoce.models.generate import count_likelier, search_beams
from sottovoce.privacy.rng import philox
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Audit

HEADS = 4096  # of the reference space: each with every last word, so that two million are ranked among 500 words
BEAMS = 5


def choose(audit: Audit, vocabulary: Tokenizer, tokens_per_user: int, seed: int = 0) -> Registry:
    """Sequences of words by chance, no two with the same beginning: they follow from the seed, and are public."""
    needs_words(vocabulary, "a canary (audit.users, audit.secrets)")
    length = audit.prefix + audit.words
    if audit.users:
        check_trials(audit.users, "audit.users")
    if audit.secrets and not audit.holders:
        raise SottoError("audit.holders is empty: say how many users hold a secret, for example [1, 4, 16]")
    most = tokens_per_user // (length + 2)
    if max(audit.copies, 1) > most:
        raise SottoError(
            f"audit.copies={audit.copies} of {length} words do not fit the {tokens_per_user} tokens of a user; at most "
            f"{most} do: lower audit.copies, audit.prefix or audit.words"
        )
    sequences = _different(audit, vocabulary, audit.users + audit.secrets, seed)
    return Registry(
        vocabulary=vocabulary.fingerprint,
        prefix=audit.prefix,
        copies=audit.copies,
        tokens_per_user=tokens_per_user,
        users=tuple(sequences[: audit.users]),
        secrets=tuple(sequences[audit.users :]),
        holders=tuple(audit.holders[number % len(audit.holders)] for number in range(audit.secrets)),
    )


def _different(audit: Audit, vocabulary: Tokenizer, count: int, seed: int) -> list[tuple[str, ...]]:
    choices = np.flatnonzero(vocabulary.word_mask)
    if len(choices) ** audit.prefix < 2 * count:
        raise SottoError(
            f"{len(choices)} words have too few beginnings of audit.prefix={audit.prefix} for {count} canaries; take a "
            f"longer one, or fewer canaries"
        )
    key = hashlib.blake2b(f"canaries {seed}".encode(), digest_size=16).digest()
    generator, found = philox(key), dict[tuple[str, ...], tuple[str, ...]]()
    while len(found) < count:
        words = tuple(vocabulary.text_of(token) for token in generator.choice(choices, audit.prefix + audit.words))
        found.setdefault(words[: audit.prefix], words)
    return list(found.values())


def insert(store: Store, registry: Registry, present: np.ndarray | None = None) -> Store:
    """The users of a store, and the canaries after them; a canary user that is out has written nothing."""
    rows = registry.rows(store.vocabulary)
    if present is not None:
        present = np.concatenate([present, np.ones(sum(registry.holders), bool)])
        rows = [row if there else row[:0] for row, there in zip(rows, present, strict=True)]
    return store.followed_by(rows)


def expose(model: LanguageModel, registry: Registry, vocabulary: Tokenizer) -> list[Exposure]:
    """The exposure of every secret."""
    choices = np.flatnonzero(vocabulary.word_mask)
    found = []
    for number, (secret, holders) in enumerate(zip(registry.secrets, registry.holders, strict=True)):
        tokens = registry.encode(secret, vocabulary)
        beginning, ending = tokens[: registry.prefix], tokens[registry.prefix :]
        heads, whole = _heads(choices, len(ending) - 1, number)
        rank = 1 + count_likelier(model, vocabulary.specials, beginning, ending, heads, choices)
        allowed = jnp.asarray(vocabulary.word_mask)
        beams = search_beams(model, vocabulary.specials, jnp.asarray(beginning), len(ending), BEAMS, allowed)
        others = len(heads) * len(choices) - int(np.sum(np.all(heads == ending[:-1], axis=1)))
        references, extracted = 1 + others, bool(np.any(np.all(np.asarray(beams) == ending, axis=1)))
        bits, most = math.log2(references / rank), math.log2(references)
        found.append(Exposure(" ".join(secret), holders, bits, most, rank, references, whole, extracted))
    return found


def _heads(choices: np.ndarray, words: int, number: int) -> tuple[np.ndarray, bool]:
    """Every head of that many words where they are few, else some by chance."""
    if len(choices) ** words <= HEADS:
        grids = np.meshgrid(*[choices] * words, indexing="ij")
        return np.stack([grid.ravel() for grid in grids], axis=-1) if words else np.zeros((1, 0), int), True
    return np.random.default_rng([number, words]).choice(choices, size=(HEADS, words)), False


def curve(exposures: Sequence[Exposure]) -> tuple[ExposurePoint, ...]:
    """Exposure against the number of users who held a secret."""
    points = []
    for holders in sorted({one.holders for one in exposures}):
        some = [one for one in exposures if one.holders == holders]
        bits = [one.bits for one in some]
        middle, extracted = float(np.median(bits)), sum(one.extracted for one in some)
        points.append(ExposurePoint(holders, len(some), min(bits), middle, max(bits), extracted))
    return tuple(points)
