"""The search on the device finds what the rule says, one hypothesis after another."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.data.subwords import Subwords
from sottovoce.evaluation.pieces import Pieces, pieces_of
from sottovoce.evaluation.whole_words import (
    PieceTable,
    Place,
    Reader,
    Typed,
    begin,
    hash_of,
    likeliest_words,
    read_on,
    search,
)
from sottovoce.models.lstm import LSTM
from sottovoce.models.transformer import Transformer
from table_model import Table
from tokenizer_examples import byte_level, few_pieces, wordpiece

SMALL = pieces_of(few_pieces())
IDS = {text: token for token, text in enumerate(map(SMALL.tokenizer.text_of, range(SMALL.tokenizer.size)))}
FAST = jax.jit(search, static_argnames=("count", "most"))


@jax.jit
def read(model, tokens: jax.Array) -> Reader:
    return read_on(model, tokens, begin(model, tokens), len(tokens))


def place_of(model, tokens: list[int], after_word: bool) -> Place:
    reader = read(model, jnp.asarray(tokens, jnp.int32))
    return Place(reader.state, reader.output, jnp.asarray(after_word))


def searched(model, pieces: Pieces, place: Place, count: int, typed: bytes = b"") -> tuple[list, float]:
    """As `likeliest_words` gives it."""
    given = Typed(jnp.asarray(np.frombuffer(typed.ljust(8), np.uint8)), jnp.asarray(len(typed))) if typed else None
    found, other = FAST(model, PieceTable.of(pieces), place, count=count, most=pieces.most, typed=given)
    words = [b"".join(pieces.texts[token] for token in row if token >= 0) for row in np.asarray(found.tokens)]
    assert [hash_of(word) for word in words] == found.hash.tolist()
    assert [len(word) for word in words] == found.size.tolist()
    kept = [(word, score) for word, score in zip(words, found.score.tolist(), strict=True) if score > -math.inf]
    return kept, float(other)


def by_hand() -> Table:
    """Chances of the next token, by the last one. What is not said has no chance."""
    chances = {
        "<bos>": {"a": 0.6, " a": 0.3, ".": 0.1},
        "a": {"b": 0.5, "bc": 0.1, " ": 0.2, "<eos>": 0.2},  # a word that ends here: 0.4
        " a": {"b": 0.2, " a": 0.8},
        "b": {"c": 0.5, ".": 0.5},
        "bc": {"<eos>": 1.0},
        "c": {" ": 1.0},
        " ": {"a": 0.5, "c": 0.5},
        ".": {"<eos>": 1.0},
    }
    rows = np.full((len(IDS), len(IDS)), -np.inf, np.float32)
    for last, following in chances.items():
        for token, chance in following.items():
            rows[IDS[last], IDS[token]] = math.log(chance)
    rows[~np.isfinite(rows).any(axis=1)] = 0
    return Table(jnp.asarray(rows))


@pytest.mark.parametrize("find", [likeliest_words, searched], ids=["rule", "device"])
def test_an_example_worked_out_on_paper(find) -> None:
    model, pieces = by_hand(), SMALL
    words, other = find(model, pieces, place_of(model, [IDS["<bos>"]], False), 4)
    # "a": 0.6 × 0.4, and " a" spells the same: 0.3 × 0.8 = 0.24 too. "ab": 0.6 × 0.5 × 0.5. "abc": 0.6 × 0.5 × 0.5 × 1,
    # as b and c, or 0.6 × 0.1 as bc: the better counts. A dot: 0.1.
    assert [word for word, _ in words] in ([b"a", b"ab", b"abc"], [b"a", b"abc", b"ab"])
    assert {word: pytest.approx(math.exp(score), rel=1e-4) for word, score in words} == {
        b"a": 0.24, b"ab": 0.15, b"abc": 0.15
    }  # fmt: skip
    assert math.exp(other) == pytest.approx(0.1)
    # Two letters are typed, and the second piece goes beyond them.
    words, _ = find(model, pieces, place_of(model, [IDS["<bos>"]], False), 4, b"ab")
    assert sorted(word for word, _ in words) == [b"ab", b"abc"]
    assert find(model, pieces, place_of(model, [IDS["<bos>"]], False), 4, b"ca")[0] == []
    # After the word "a", which has ended (0.4 of all): " " (0.2) and then "a" or "c".
    words, other = find(model, pieces, place_of(model, [IDS["<bos>"], IDS["a"]], True), 3)
    found = {word: pytest.approx(math.exp(score), rel=1e-4) for word, score in words}
    assert found[b"c"] == 0.2 / 0.4 * 0.5 * 1.0
    assert math.exp(other) == pytest.approx(0.2 / 0.4)  # the end of the text


@pytest.mark.parametrize(
    ("tokenizer", "count"),
    [
        (few_pieces(), 2),
        pytest.param(byte_level(), 3, marks=pytest.mark.slow),
        pytest.param(wordpiece(), 1, marks=pytest.mark.slow),
        pytest.param(Subwords.of_bytes(), 9, marks=pytest.mark.slow),
    ],
    ids=["few", "bpe", "wordpiece", "bytes"],
)
def test_the_device_finds_what_the_rule_says(tokenizer: Subwords, count: int) -> None:
    pieces = pieces_of(tokenizer)
    generator = np.random.default_rng(0)
    rows = generator.normal(0, 3, (tokenizer.size, tokenizer.size))
    rows[:, pieces.joins] += 1.0  # words of several pieces
    model = Table(jnp.asarray(rows, jnp.float32))
    lengths = set()
    for typed in (b"", b"", b"t", b"th", b"a", b"ca"):
        tokens = [tokenizer.specials.bos, int(generator.integers(tokenizer.size))]
        place = place_of(model, tokens, bool(generator.integers(2)))
        slow, fast = likeliest_words(model, pieces, place, count, typed), searched(model, pieces, place, count, typed)
        assert [word for word, _ in fast[0]] == [word for word, _ in slow.words]
        assert [score for _, score in fast[0]] == pytest.approx([score for _, score in slow.words], rel=1e-4)
        assert typed or fast[1] == pytest.approx(slow.other, rel=1e-4)
        assert all(word.startswith(typed) for word, _ in slow.words)
        lengths |= {len(word) for word, _ in slow.words}
    assert max(lengths) > 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lstm", pytest.param("transformer", marks=pytest.mark.slow)])
def test_hypotheses_keep_their_own_states(kind: str) -> None:
    """A hidden state or a key-value cache differs between hypotheses; the score of a word is that of reading it."""
    pieces, tokenizer = SMALL, SMALL.tokenizer
    model = LSTM(tokenizer.size, embedding=4, hidden=8, key=jax.random.key(0))
    if kind == "transformer":
        sizes = {"embedding": 8, "hidden": 8, "layers": 2, "heads": 2, "kv_heads": 1, "context": 6}
        model = Transformer(tokenizer.size, **sizes, key=jax.random.key(0))
    model = jax.tree.map(lambda leaf: 4 * leaf, model)
    context = tokenizer.encode("abc. a ca")[:-1]
    place = place_of(model, context, True)
    found, _ = FAST(model, PieceTable.of(pieces), place, count=3, most=pieces.most)
    assert searched(model, pieces, place, 3)[0] == [
        (word, pytest.approx(score, rel=1e-4)) for word, score in likeliest_words(model, pieces, place, 3).words
    ]
    tokens = [token for token in np.asarray(found.tokens)[0].tolist() if token >= 0]
    outputs, _ = model.read(jnp.asarray([*context, *tokens]), model.initial_state())
    chances = np.asarray(jax.nn.log_softmax(model.logits(outputs)))[len(context) - 1 :]
    ends = [np.logaddexp.reduce(row[~pieces.joins]) for row in (chances[0], chances[-1])]
    read = sum(row[token] for row, token in zip(chances, tokens, strict=False))
    assert float(found.score[0]) == pytest.approx(read + ends[1] - ends[0], rel=1e-4)


@pytest.mark.parametrize("find", [likeliest_words, searched], ids=["rule", "device"])
def test_a_model_gone_to_nan_offers_nothing(find) -> None:
    model = Table(jnp.full((len(IDS), len(IDS)), jnp.nan))
    for after_word in (False, True):
        assert find(model, SMALL, place_of(model, [IDS["<bos>"]], after_word), 2)[0] == []


@pytest.mark.slow
def test_places_are_searched_side_by_side() -> None:
    """As users are: each finds what it finds alone."""
    model = by_hand()
    places = [place_of(model, [IDS["<bos>"], IDS[last]], last == "a") for last in ("a", ".", " ", "c")]
    together = jax.tree.map(lambda *leaves: jnp.stack(leaves), *places)
    look = partial(search, model, PieceTable.of(SMALL), count=2, most=SMALL.most)
    found, other = jax.jit(jax.vmap(look))(together)
    for row, place in enumerate(places):
        alone, besides = FAST(model, PieceTable.of(SMALL), place, count=2, most=SMALL.most)
        np.testing.assert_array_equal(found.hash[row], alone.hash)
        np.testing.assert_array_equal(found.score[row], alone.score)
        assert float(other[row]) == float(besides)
