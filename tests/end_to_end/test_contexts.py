"""What is known of writers, from the corpus to a trained model: it helps where people write differently."""

from __future__ import annotations

import json
from functools import partial

import jax
import numpy as np
import pytest
from small_world import call
from tiny_run import WORDS, make_recipe

import sottovoce
from sottovoce.data.store import Store
from sottovoce.local.fine_tune import FineTune
from sottovoce.local.update import User
from sottovoce.models.lstm import LSTM

GROUPS = {"de": WORDS[:3], "en": WORDS[3:]}


def people(users: int) -> list[dict[str, str]]:
    """Everybody writes one word, of the three that are their group's."""
    draw = np.random.default_rng(5)
    groups = [str(each) for each in draw.choice([*GROUPS], users)]
    return [{"user": f"u{n}", "text": str(draw.choice(GROUPS[lang])), "lang": lang} for n, lang in enumerate(groups)]


@partial(jax.jit, static_argnums=0)
def train(training: FineTune, model: LSTM, user: User) -> LSTM:
    return training(model, user, jax.random.key(0))


@pytest.mark.slow
def test_a_private_run_of_known_writers_is_evaluated_and_states_the_contexts(tmp_path, capsys):
    corpus, store, run = tmp_path / "corpus.jsonl", tmp_path / "store", tmp_path / "run"
    corpus.write_text("".join(json.dumps(each) + "\n" for each in people(60)))
    (tmp_path / "words.txt").write_text("\n".join(WORDS))
    known = ("--context-field", "lang", "--context-values", "de", "en", "--every-record-is-a-user")
    call("prepare", corpus, "--vocabulary", tmp_path / "words.txt", "--out", store, *known)
    sottovoce.train(make_recipe(store).replace(run={"rounds": 2}), run, progress=False)
    loaded = sottovoce.ModelFolder.open(run)
    assert loaded.tokenizer.contexts == ("de", "en")
    assert loaded.statement is not None
    assert loaded.statement.vocabulary.contexts == ("de", "en")
    assert loaded.suggest("red", context="de") != loaded.suggest("red", context="en")
    capsys.readouterr()
    call("evaluate", run, "--json")
    figures = json.loads(capsys.readouterr().out)
    assert figures["targets"] == 2 * Store.open(store, "test").users
