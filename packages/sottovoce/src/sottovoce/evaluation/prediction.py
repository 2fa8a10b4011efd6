"""How well a model predicts the next token of people it has never seen.

Targets are the tokens of the text, for a word model words and marks, and EOS; what begins a text, as BOS, is never one.
What is outside the vocabulary always counts as a mistake, even where UNK is predicted. The hidden state is carried
through all texts of a user. Definitions: docs/reference/metrics.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Int

from sottovoce.data.store import Store
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.evaluation.bits_per_byte import Text
from sottovoce.evaluation.figures import Evaluation
from sottovoce.evaluation.ranks import OfRanks, Ranks
from sottovoce.local.update import begins_text
from sottovoce.models.contract import LanguageModel
from sottovoce_evidence.errors import SottoError


class Counts(NamedTuple):
    """Sums over the targets: of one user on the device, arrays over users or floats on the host."""

    targets: Any
    known: Any
    words: Any
    top1: Any
    top3: Any
    top5: Any
    top1_words: Any
    loss: Any
    loss_known: Any


class TokenKinds(NamedTuple):
    """What a tokenizer says of its ids, as arrays on the device."""

    unknown: Bool[Array, " vocabulary"]
    starts_word: Bool[Array, " vocabulary"]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TokenKinds:
        unknown = np.arange(tokenizer.size) == tokenizer.specials.unk
        return cls(jnp.asarray(unknown), jnp.asarray(tokenizer.starts_word))


_observer: ContextVar[Callable[[int, int], None] | None] = ContextVar("observer", default=None)


@contextmanager
def observed(step: Callable[[int, int], None]) -> Generator[None, None, None]:
    """Within it, `step(done, all)` is called after each block of users that is measured."""
    before = _observer.set(step)
    try:
        yield
    finally:
        _observer.reset(before)


_CHUNK = 64  # tokens evaluated at once: bounds memory at users x 64 x vocabulary


def count_hits(model: LanguageModel, store: Store, rows: Sequence[int] | None = None, block: int = 0) -> Counts:
    """The sums of every user in `rows` (all users by default), each as an array over users, `block` at a time."""
    return sum_by_user(OfRanks(count_targets), model, store, TokenKinds.of(store.vocabulary), rows, block)


def sum_by_user(
    measure: Callable, model: LanguageModel, store: Store, facts: Any, rows: Sequence[int] | None = None, block: int = 0
) -> Any:
    """Sums of `measure(logits, targets, counted, facts)` over the targets of every user, as arrays over users.

    Each core of a CPU reads some of the users of a block, which are about as long.
    """
    chosen = np.arange(store.users) if rows is None else np.asarray(rows, int)
    order = np.argsort(store.lengths(chosen), kind="stable")
    on_cpu = jax.default_backend() == "cpu" and not block
    devices = min(jax.local_device_count(), max(1, len(chosen))) if on_cpu else 1
    each = block or min(users_at_once(), 2 ** math.ceil(math.log2(max(1, len(chosen) / devices))))
    spec = _Shares(measure, devices)
    shared = (model, jnp.asarray(store.vocabulary.specials.begins), facts)
    shared = jax.device_put(shared, NamedSharding(spec.mesh, PartitionSpec()))
    parts = []
    for tokens, lengths, users in blocks_of(store, chosen[order], each * devices):
        sums = _sum_shares(spec, shared, tokens, lengths)
        parts.append(jax.tree.map(lambda column, users=users: np.asarray(column, np.float64)[:users], sums))
    back = np.argsort(order)
    return jax.tree.map(lambda *columns: np.concatenate(columns)[back], *parts)


class _Shares(NamedTuple):
    """What is measured, and how many devices share the users of a block."""

    measure: Callable
    devices: int

    @property
    def mesh(self) -> Mesh:
        return Mesh(np.array(jax.local_devices()[: self.devices]), ("users",))


@partial(jax.jit, static_argnums=0)
def _sum_shares(spec: _Shares, shared: tuple[LanguageModel, Array, Any], tokens: Array, lengths: Array) -> Any:
    def share(shared: tuple[LanguageModel, Array, Any], tokens: Array, lengths: Array) -> Any:
        model, begins, facts = shared
        return sum_block(spec.measure, model, begins, tokens, lengths, facts)

    alike, apart = PartitionSpec(), PartitionSpec("users")
    return jax.shard_map(share, mesh=spec.mesh, in_specs=(alike, apart, apart), out_specs=apart, check_vma=False)(
        shared, tokens, lengths
    )


@partial(jax.jit, static_argnums=0)
def sum_block(measure: Callable, model: LanguageModel, begins: Array, tokens: Array, lengths: Array, facts: Any) -> Any:
    count = partial(measure, facts=facts)
    return jax.vmap(lambda tokens, length: sum_over_targets(model, begins, tokens, length, count))(tokens, lengths)


def users_at_once() -> int:
    """Reading is one token after another: a GPU takes as long for 64 users as for 16."""
    return 16 if jax.default_backend() == "cpu" else 64


def blocks_of(store: Store, rows: Any, block: int = 0) -> Iterator[tuple[Array, Array, int]]:
    """Users in blocks, padded to few shapes: their tokens, their lengths, and how many users they are.

    Args:
        store: the users.
        rows: which of them; None is all.
        block: how many in a block; 0 chooses.
    """
    block = block or users_at_once()
    chosen_rows = np.arange(store.users) if rows is None else np.asarray(rows)
    if not len(chosen_rows):
        raise SottoError("there is no user to evaluate on; prepare the store with --test-users 0.1")
    for start in range(0, len(chosen_rows), block):
        chosen = chosen_rows[start : start + block]
        users = store.gather(chosen)
        columns = _padded(store, int(users.lengths.max()))
        tokens = np.zeros((block, columns), np.int32)
        filled = min(columns, users.tokens.shape[1])
        tokens[: len(chosen), :filled] = users.tokens[:, :filled]
        lengths = np.pad(users.lengths, (0, block - len(chosen)))
        yield jnp.asarray(tokens), jnp.asarray(lengths), len(chosen)
        if step := _observer.get():
            step(min(start + block, len(chosen_rows)), len(chosen_rows))


def _padded(store: Store, longest: int) -> int:
    """Compiled shapes come in powers of two of the longest user, not one for every length, up to the public cap."""
    width = _CHUNK * 2 ** max(0, math.ceil(math.log2(max(1, longest) / _CHUNK)))
    return min(width, _CHUNK * math.ceil(store.tokens_per_user / _CHUNK))


def evaluate(model: LanguageModel, store: Store, rows: Sequence[int] | None = None) -> Evaluation:
    """How well a model predicts the next words of users.

    Args:
        model: any language model.
        store: the users, in the words of the model.
        rows: which of them; all by default.
    """
    return summarise(count_hits(model, store, rows), Text.of(store, rows))


def summarise(counts: Counts, text: Text) -> Evaluation:
    """The figures of some users from their sums, and from what is known of their text."""
    total = Counts(*(float(np.sum(column)) for column in counts))
    if not total.targets:
        raise SottoError("the users to evaluate on have no words at all")
    return Evaluation(
        users=len(counts.targets),
        targets=int(total.targets),
        top1=total.top1 / total.targets,
        top3=total.top3 / total.targets,
        top5=total.top5 / total.targets,
        top1_words=total.top1_words / max(total.words, 1) if text.is_words else None,
        perplexity=perplexity_of(total.loss, total.targets),
        perplexity_in_vocabulary=perplexity_of(total.loss_known, total.known),
        oov_rate=1 - total.known / total.targets if text.has_unk else None,
        bits_per_byte=text.bits_per_byte(total.loss),
        bytes=0 if math.isnan(text.bytes) else round(text.bytes),
    )


def average_perplexity(parts: Sequence[tuple[float, float]]) -> float:
    """The perplexity of several texts as one text, from the perplexity and the number of targets of each.

    Popov et al. 2018 average so in Tables 1 and 2, over texts of 170 and 200 thousand tokens.
    """
    loss = sum(targets * math.log(perplexity) for perplexity, targets in parts)
    return perplexity_of(loss, sum(targets for _, targets in parts))


def averages(evaluations: Sequence[Evaluation]) -> dict[str, float]:
    """The average perplexity of several texts, over all targets and over those in the vocabulary."""
    return {
        "average_perplexity": average_perplexity([(one.perplexity, one.targets) for one in evaluations]),
        "average_perplexity_in_vocabulary": average_perplexity(
            [(one.perplexity_in_vocabulary, one.targets * (1 - (one.oov_rate or 0))) for one in evaluations]
        ),
    }


def spread(counts: Counts) -> dict[str, float]:
    """Quantiles of top-1 over users. Exact figures of single people: internal."""
    return quantiles("top1", counts.top1 / np.maximum(counts.targets, 1))


def quantiles(name: str, values: np.ndarray) -> dict[str, float]:
    return {f"{name}_p{share}": float(np.quantile(values, share / 100)) for share in (5, 25, 50, 75, 95)}


def token_counts(store: Store, rows: Iterable[int]) -> np.ndarray:
    """How often these users wrote each token."""
    counts = np.zeros(store.vocabulary.size, np.int64)
    for row in rows:
        counts += np.bincount(store[row], minlength=counts.size)
    return counts


def sum_over_targets(
    model: LanguageModel, begins: Array, tokens: Array, length: Array, measure: Callable, start: Array | int = 0
) -> Any:
    """Read all of a user's text; add up `measure(logits, targets, counted)`, which sums over some targets.

    Targets before place `start` are read and not counted.
    """
    inputs = jnp.concatenate([begins[:1].astype(tokens.dtype), tokens[:-1]])
    place = jnp.arange(tokens.shape[0])
    counted = (start <= place) & (place < length) & ~begins_text(tokens, begins)
    chunks = (inputs.reshape(-1, _CHUNK), tokens.reshape(-1, _CHUNK), counted.reshape(-1, _CHUNK))

    def chunk(state: Any, part: tuple[Array, Array, Array]) -> tuple[Any, Any]:
        inputs, targets, counted = part
        outputs, state = model.read(inputs, state)
        return state, measure(model.logits(outputs), targets, counted.astype(jnp.float32))

    _, sums = jax.lax.scan(chunk, model.initial_state(), chunks)
    return jax.tree.map(partial(jnp.sum, axis=0), sums)


def count_targets(ranks: Ranks, targets: Int[Array, " time"], counted: Array, facts: TokenKinds) -> Counts:
    rank, loss = ranks
    known = counted * ~facts.unknown[targets]
    # A token outside the vocabulary nearly always replaces a word, and is always a mistake.
    words = counted * facts.starts_word[targets]
    return Counts(
        targets=jnp.sum(counted),
        known=jnp.sum(known),
        words=jnp.sum(words),
        top1=jnp.sum(known * (rank < 1)),
        top3=jnp.sum(known * (rank < 3)),
        top5=jnp.sum(known * (rank < 5)),
        top1_words=jnp.sum(known * words * (rank < 1)),
        loss=jnp.sum(counted * loss),
        loss_known=jnp.sum(known * loss),
    )


def perplexity_of(loss: float, targets: float) -> float:
    mean = loss / max(targets, 1)
    return math.exp(mean) if mean < 700 else math.inf  # a diverged model (NaN too) has no finite perplexity
