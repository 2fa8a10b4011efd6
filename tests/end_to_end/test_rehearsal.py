"""Fine-tuning with rehearsal and without forgetting, through the front door."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from small_world import call, results_of
from tiny_run import WORDS, StopAfter, make_recipe, make_store

import sottovoce
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.commands.report import report_run
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import prepare
from sottovoce.data.vocabulary import Vocabulary
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe


def make_public(folder: Path, words: list[str] = WORDS, lines: int = 40) -> Path:
    text = folder / "public.txt"
    text.write_text("\n".join(" ".join(words[place % 3 :]) for place in range(lines)), encoding="utf-8")
    out = folder / "public"
    prepare([text], out, Vocabulary.from_words(words), Grouping(tokens_per_user=16, test_users=0.1, plain_text=True))
    return out


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path)


@pytest.fixture
def public(tmp_path: Path) -> Path:
    return make_public(tmp_path)


def rehearsing(store: Path, public: Path) -> Recipe:
    local = {"objective": "rehearsal", "user_share": 0.5, "public": str(public)}
    return make_recipe(store).replace(local=local)


def weights(run: Path) -> list:
    return jax.tree.leaves(ModelFolder.open(run).model)


@pytest.mark.slow
def test_a_private_run_rehearses_and_goes_on_to_the_same_bits(store, public, tmp_path):
    recipe = rehearsing(store, public)
    result = sottovoce.train(recipe, tmp_path / "whole")
    assert result.statement.private
    assert sottovoce.train(recipe, tmp_path / "stopped", stop=StopAfter(3)).ended == "stopped"
    sottovoce.resume(tmp_path / "stopped")
    for one, other in zip(weights(tmp_path / "whole"), weights(tmp_path / "stopped"), strict=True):
        np.testing.assert_array_equal(one, other)
    assert results_of(tmp_path / "whole") == results_of(tmp_path / "stopped")
    assert any("rehearse" in words for words in result.statement.not_covered)
    # Rehearsal costs no privacy, and changes the model.
    plain = sottovoce.train(make_recipe(store), tmp_path / "plain")
    assert plain.statement.epsilon == result.statement.epsilon
    assert any(np.any(a != b) for a, b in zip(weights(tmp_path / "whole"), weights(tmp_path / "plain"), strict=True))
    # What travels: a model and 16 tokens of two bytes to a device, an update back, nine devices a round.
    cards = [json.loads((tmp_path / run / "model" / "card.json").read_text())["bytes"] for run in ("whole", "plain")]
    size, rounds = sum(leaf.nbytes for leaf in weights(tmp_path / "whole")), recipe.run.rounds
    both = [2 * size + 32, 2 * size]
    for card, down, there_and_back in zip(cards, (size + 32, size), both, strict=True):
        a_round = 9 * there_and_back
        assert card == {"down": down, "up": size, "round": a_round, "total": rounds * a_round}
    assert cards[0] == result.traffic
    # The page for others names the text and tells no path.
    page = report_run(tmp_path / "whole").read_text(encoding="utf-8")
    assert str(public) not in page
    assert "rehearsal" in page
    assert "sent and received" not in page  # a simulation sends nothing


@pytest.mark.slow
def test_a_run_goes_on_with_the_text_it_began_with(store, public, tmp_path):
    recipe = rehearsing(store, public)
    sottovoce.train(recipe, tmp_path / "run", stop=StopAfter(3))
    for path in public.iterdir():
        path.unlink()
    public.rmdir()
    make_public(tmp_path, lines=50)
    with pytest.raises(SottoError, match=r"was begun with .* rehearsal of text"):
        sottovoce.resume(tmp_path / "run")


@pytest.mark.slow
def test_seeded_runs_with_other_public_text_do_not_share_their_noise(store, public, tmp_path):
    """The same noise under two sums would cancel in their difference."""
    (tmp_path / "elsewhere").mkdir()
    other = make_public(tmp_path / "elsewhere", lines=50)
    salts = []
    for number, text in enumerate((public, other)):
        sottovoce.train(rehearsing(store, text), tmp_path / f"run{number}")
        header = json.loads((tmp_path / f"run{number}" / "ledger.jsonl").read_text().splitlines()[0])
        salts.append(header["store"])  # the same store, blinded by secrets that differ
    assert salts[0] != salts[1]


def test_peoples_text_is_never_rehearsed(store, tmp_path):
    (tmp_path / "others").mkdir()
    others = make_store(tmp_path / "others", seed=1)
    with pytest.raises(SottoError, match="holds people's text"):
        sottovoce.train(rehearsing(store, others), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_without_forgetting_trains_too(store, tmp_path):
    recipe = make_recipe(store).replace(local={"objective": "without_forgetting", "user_share": 0.5})
    assert sottovoce.train(recipe, tmp_path / "run").statement.private
    header = json.loads((tmp_path / "run" / "ledger.jsonl").read_text().splitlines()[0])
    assert "without forgetting, λ = 0.5" in header["code"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["local.objective=rehearsal"], "needs local.public"),
        (["local.objective=rehearsal", "local.public=PUBLIC", "local.user_share=0.01"], "fewer than the"),
        (["local.objective=rehearsal", "local.public=OTHER", "local.user_share=0.5"], "another vocabulary"),
        (["local.objective=rehearsal", "local.public=nowhere"], "nowhere"),
    ],
)
def test_what_cannot_be_is_refused(store, public, tmp_path, settings, said, capsys):
    (tmp_path / "other").mkdir()
    other = make_public(tmp_path / "other", words=[*WORDS[:-1], "boat"])
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(make_recipe(store).to_toml(), encoding="utf-8")
    options = [part for each in settings for part in ("--set", each)]
    options = [text.replace("PUBLIC", str(public)).replace("OTHER", str(other)) for text in options]
    assert call("train", recipe, "--out", tmp_path / "run", *options) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
