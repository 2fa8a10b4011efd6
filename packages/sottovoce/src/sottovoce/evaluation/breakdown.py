"""Who pays for privacy: accuracy by word frequency and by group of users, of one model or of two.

Bands are of the evaluated users' own words, by rank (of tokens, where words are cut into pieces); with marks and what
is outside the vocabulary they make up all targets, once each. Groups are quarters of the users, by amount of text and
by words outside the vocabulary; users who are alike stay in one group, and no group has fewer than ten.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy import special

from sottovoce.data.store import Store
from sottovoce.evaluation.prediction import (
    Counts,
    TokenKinds,
    count_targets,
    perplexity_of,
    sum_by_user,
    token_counts,
)
from sottovoce.evaluation.ranks import OfRanks, Ranks
from sottovoce.models.contract import LanguageModel

RANKS = (10, 100, 1000)
FEWEST = 10  # users of a group: a figure of fewer is nearly that of single people
CONFIDENCE = 0.95
_GROUPS = 4


@dataclass(frozen=True, eq=False)
class Bands:
    """Which band each token of a vocabulary is in."""

    names: tuple[str, ...]
    of_token: np.ndarray


class Part(NamedTuple):
    """Some of the targets of each user: sums as arrays over users."""

    name: str
    targets: np.ndarray
    top1: np.ndarray
    top3: np.ndarray
    loss: np.ndarray


@dataclass(frozen=True, eq=False)
class Breakdown:
    """The same targets, taken apart in several ways."""

    bands: tuple[Part, ...]
    groups: dict[str, tuple[Part, ...]]

    def to_json(self, other: Breakdown | None = None) -> dict[str, Any]:
        theirs = other.groups if other else {}
        return {
            "by_band": _rows(self.bands, other.bands if other else ()),
            "by_group": {name: _rows(parts, theirs.get(name, ())) for name, parts in self.groups.items()},
        }


def bands_of(store: Store, ranks: Sequence[int] = RANKS) -> Bands:
    """By the rank of each word among the store's own; of words as frequent as one another the lower id comes first.

    Where words are cut into pieces, the bands are of tokens.
    """
    vocabulary = store.vocabulary
    counts = token_counts(store, range(store.users))
    unit, others = ("words", "marks and ends of texts") if vocabulary.is_words else ("tokens", "ends of texts")
    words = np.flatnonzero(vocabulary.word_mask if vocabulary.is_words else vocabulary.typed_mask)
    order = words[np.argsort(-counts[words], kind="stable")]
    names = [f"the {ranks[0]:,} most frequent {unit}"]
    names += [f"the next {high - low:,}" for low, high in pairwise(ranks)]
    names += [f"all other {unit}", others, "outside the vocabulary"]
    of_token = np.full(vocabulary.size, len(names) - 2, np.int32)
    of_token[order] = np.searchsorted(ranks, np.arange(len(order)), side="right")
    if vocabulary.specials.unk is not None:
        of_token[vocabulary.specials.unk] = len(names) - 1
    return Bands(tuple(names), of_token)


def count_parts(model: LanguageModel, store: Store, bands: Bands) -> tuple[Counts, Breakdown]:
    """The counts of `count_hits`, and the same by part, in one pass."""
    in_band = jax.nn.one_hot(bands.of_token, len(bands.names))
    counts, by_band = sum_by_user(OfRanks(_count_bands), model, store, (TokenKinds.of(store.vocabulary), in_band))
    parts = tuple(Part(name, *(column[:, band] for column in by_band)) for band, name in enumerate(bands.names))
    return counts, Breakdown(tuple(part for part in parts if part.targets.sum()), _groups(counts))


def lost(part: Part, other: Part) -> tuple[float, float]:
    """By how much the top-1 of `other` is higher, and the half-width of its confidence interval over users."""
    return share_of(other.top1 - part.top1, part.targets)


def share_of(hits: np.ndarray, targets: np.ndarray) -> tuple[float, float]:
    """Hits over targets, both sums over users, and the half-width of the 95% confidence interval of that share.

    The error is that of a ratio of two sums over independent users.
    """
    total = max(targets.sum(), 1)
    share = hits.sum() / total
    users = int(np.sum(targets > 0))
    residuals = hits - share * targets
    error = np.sqrt(np.sum(residuals**2) * users / max(users - 1, 1)) / total
    return float(share), float(-special.ndtri((1 - CONFIDENCE) / 2) * error)


def _rows(parts: Sequence[Part], others: Sequence[Part]) -> list[dict[str, Any]]:
    everything = sum(part.targets.sum() for part in parts)
    rows = [{**_summary(part), "share": float(part.targets.sum() / max(everything, 1))} for part in parts]
    for row, part, other in zip(rows, parts, others, strict=False):
        difference, within = lost(part, other)
        measures = ("top1", "top3", "perplexity")
        row |= {"beside": {name: _summary(other)[name] for name in measures}, "lost": difference, "within": within}
    return rows


def _summary(part: Part) -> dict[str, Any]:
    targets = part.targets.sum()
    perplexity = perplexity_of(part.loss.sum(), targets)
    return {
        "part": part.name,
        "users": int(np.sum(part.targets > 0)),
        "targets": int(targets),
        "top1": float(part.top1.sum() / max(targets, 1)),
        "top3": float(part.top3.sum() / max(targets, 1)),
        "perplexity": perplexity if np.isfinite(perplexity) else None,
    }


def _groups(counts: Counts) -> dict[str, tuple[Part, ...]]:
    """By amount of text, and by the share of it outside the vocabulary; {} for too few users."""
    some = counts.targets > 0
    outside = 1 - counts.known / np.maximum(counts.targets, 1)
    columns = (counts.targets, counts.top1, counts.top3, counts.loss)
    made = {}
    # To two digits: exactly how much one of them wrote is private. Users who are shown alike are in one group.
    written = np.array([float(f"{amount:.2g}") for amount in counts.targets])
    for name, values, shown in (
        ("amount of text, in targets", written, "{:,.0f}"),
        ("words outside the vocabulary", outside.round(3), "{:.1%}"),
    ):
        made[name] = tuple(
            Part(_range(values[group], shown), *(np.where(group, column, 0) for column in columns))
            for group in quarters(values, some)
        )
    return {name: parts for name, parts in made.items() if len(parts) > 1}


def _range(values: np.ndarray, shown: str) -> str:
    low, high = shown.format(values.min()), shown.format(values.max())
    return low if low == high else f"{low} to {high}"


def quarters(values: np.ndarray, some: np.ndarray) -> list[np.ndarray]:
    """`some` of the users by value, in groups of about a quarter. Equal users are in one group, of at least ten."""
    target = max(int(some.sum()) / _GROUPS, FEWEST)
    groups: list[np.ndarray] = []
    group = np.zeros(len(values), bool)
    for value in np.unique(values[some]):
        group = group | (some & (values == value))
        if group.sum() >= target:
            groups.append(group)
            group = np.zeros(len(values), bool)
    if not group.any():
        return groups
    if group.sum() < FEWEST and groups:
        return [*groups[:-1], groups[-1] | group]
    return [*groups, group]


def _count_bands(
    ranks: Ranks, targets: Array, counted: Array, facts: tuple[TokenKinds, Array]
) -> tuple[Counts, tuple[Array, ...]]:
    kinds, in_band = facts

    def one(target: Array, ranks: Ranks, seen: Array) -> Counts:
        return count_targets(jax.tree.map(lambda part: part[None], ranks), target[None], seen[None], kinds)

    each = jax.vmap(one)(targets, ranks, counted)
    by_band = tuple(column @ in_band[targets] for column in (each.targets, each.top1, each.top3, each.loss))
    return jax.tree.map(jnp.sum, each), by_band
