"""Bases in the package: their cards say what their files are, and a base is found by model and vocabulary."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

from sottovoce.commands.bases import fitting, read_frequencies
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.models import registry
from sottovoce_evidence import bases
from sottovoce_evidence.files import sha256_of

PAPERS_LSTM = {"embedding": 96, "hidden": 256}


@pytest.fixture(scope="module")
def english():
    folder = bases.find("english")
    assert folder is not None
    return folder, bases.read_base(folder)


def test_a_folder_is_a_base_by_its_card(english, tmp_path):
    folder, _ = english
    assert bases.is_base(folder)
    for name in (bases.WEIGHTS, bases.VOCABULARY):
        (tmp_path / name).write_bytes(b"")
    assert not bases.is_base(tmp_path)
    for card in ("", "[]", '{"kind": "lstm", "trained_on": "public"}'):  # such as an export, or a damaged file
        (tmp_path / bases.CARD).write_text(card)
        assert not bases.is_base(tmp_path)


def test_the_card_of_the_english_base_names_its_files_text_and_licence(english):
    folder, card = english
    named = (bases.WEIGHTS, bases.VOCABULARY, bases.FREQUENCIES)
    assert card.files == {name: sha256_of(folder / name) for name in named}
    assert card.trained_on == "public"
    assert "CC BY-SA" in card.licence
    assert card.tokens > 10**7
    assert 0.1 < card.top1 < 0.5


def test_the_english_base_is_the_papers_lstm_in_less_than_three_megabytes(english):
    folder, card = english
    arrays = load_file(folder / bases.WEIGHTS)
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.float16)}
    assert all(np.isfinite(array).all() for array in arrays.values())
    assert card.model == PAPERS_LSTM == registry.defaults("lstm")
    assert sum((folder / name).stat().st_size for name in (*card.files, bases.CARD)) < 3_000_000


def test_its_words_are_those_that_prepare_takes_by_default(english):
    folder, card = english
    assert Vocabulary.load(folder / bases.VOCABULARY).fingerprint == Vocabulary.public().fingerprint == card.words


def test_a_base_is_found_by_kind_sizes_and_words(english):
    words = english[1].words
    assert fitting("lstm", PAPERS_LSTM, words) == "english"
    assert fitting("gru", PAPERS_LSTM, words) is None
    assert fitting("lstm", PAPERS_LSTM | {"hidden": 128}, words) is None
    assert fitting("lstm", PAPERS_LSTM, "other words") is None


def test_the_tokens_of_its_text_are_counted(english):
    folder, card = english
    counts = read_frequencies(folder)
    assert sum(counts.values()) == card.tokens
    assert list(counts) == list(Vocabulary.load(folder / bases.VOCABULARY).words)
    assert counts["the"] > counts["this"] > counts["zone"] > 0
