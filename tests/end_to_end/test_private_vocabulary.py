"""`sotto prepare --private-vocabulary`: what is shown, what is hidden, and that it is paid for."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_world import WORDS, Sotto, parse_json, read_lines

import sottovoce
from sottovoce.commands.prepare import PrivateVocabulary, prepare_privately
from sottovoce.data.grouping import Grouping
from sottovoce.data.store import Store
from sottovoce.data.words import FRAME
from sottovoce.privacy.histogram import NoisyHistogram
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import StoreLedger
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import SampledGaussian
from sottovoce_evidence.accounting.events import GaussianRelease
from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.statement_text import prose

PEOPLE = 400


@pytest.fixture(autouse=True)
def known_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """One noise for all draws: by chance, one of 400 words of their own is shown once in ten thousand runs."""
    monkeypatch.setattr("sottovoce.privacy.histogram.os_entropy", SimpleNamespace(token_bytes=bytes))


PRICE = ("--private-vocabulary", "--epsilon", 4, "--delta", 1e-5)


def letters(number: int) -> str:
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everybody writes the shared words, a word of their own, and, if held out, one that only held-out people have."""
    rows = []
    for number in range(PEOPLE):
        user = f"person {number}"
        own = f"zz{letters(number)}"
        held_out = "heldout" if Grouping().holds_out(Grouping().name(user)) else "trained"
        rows += [{"user": user, "text": " ".join(WORDS[:9])}, {"user": user, "text": f"{own}. {held_out}!"}]
        rows += [{"user": user, "text": " ".join(WORDS[9:])}]
    path = tmp_path_factory.mktemp("text") / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_shared_words_are_found_and_paid_for_and_nobodys_own_is(sotto: Sotto, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "store"
    answer = sotto("prepare", corpus, "--out", out, *PRICE, "--words-per-user", 20, "--json").json()
    words = (out / "vocabulary.txt").read_text(encoding="utf-8").split()
    assert tuple(words[: len(FRAME)]) == FRAME
    assert sorted(words[len(FRAME) :]) == sorted([*WORDS, "trained"])
    facts = parse_json((out / "store.json").read_text())["vocabulary"]
    assert facts == answer["vocabulary"] == Store.open(out).vocabulary_source
    assert (facts["source"], facts["epsilon"], facts["delta"], facts["words_per_user"]) == ("private", 4, 1e-5, 20)
    assert facts["words_found"] == len(WORDS) + 1
    (line,) = read_lines(out / "ledger.jsonl")
    assert (line["what"], line["count"]) == ("private vocabulary", 1)
    assert line["event"] == GaussianRelease(facts["noise_multiplier"], 5e-6).to_json()
    assert len(StoreLedger(out / "ledger.jsonl").spent()) == 1
    assert answer["users_seen"] == PEOPLE
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_with_hardly_any_noise_the_words_are_the_most_frequent_in_their_order(sotto: Sotto, tmp_path: Path) -> None:
    """The word number k is written by 40·k people: noise of 2 leaves that order."""
    corpus, out = tmp_path / "corpus.jsonl", tmp_path / "store"
    wrote = [" ".join(word for k, word in enumerate(WORDS[:8], 1) if number < 40 * k) for number in range(320)]
    corpus.write_text("".join(json.dumps({"user": n, "text": text}) + "\n" for n, text in enumerate(wrote)))
    size = len(FRAME) + 5
    told = ("--epsilon", 100, "--delta", 1e-3, "--words-per-user", 8, "--vocabulary-size", size, "--test-users", 0)
    one_each = ("--every-record-is-a-user", "--private-vocabulary", "--json")
    assert sotto("prepare", corpus, "--out", out, *one_each, *told).status == 0
    assert (out / "vocabulary.txt").read_text().split()[len(FRAME) :] == WORDS[7:2:-1]


def test_the_public_list_is_extended_by_words_that_it_lacks(sotto: Sotto, corpus: Path, tmp_path: Path) -> None:
    rows = [{"user": n, "text": "the morning froobled and gribbled"} for n in range(PEOPLE)]
    new = tmp_path / "new.jsonl"
    new.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "store"
    more = ("--extend-public", "--vocabulary-size", 1000)
    answer = sotto("prepare", corpus, new, "--out", out, *PRICE, *more, "--json").json()
    words = (out / "vocabulary.txt").read_text(encoding="utf-8").split()
    assert len(words) == 1000
    assert {"the", "and", "froobled", "gribbled"} <= set(words)
    assert answer["vocabulary"]["words_per_user"] == 25
    assert not any(word.startswith("zz") for word in words)


def test_a_draw_that_shows_nothing_is_paid_for_too(sotto: Sotto, tmp_path: Path) -> None:
    """That no word passed is an answer about the users: an error would leave its charge nowhere."""
    corpus, out = tmp_path / "corpus.jsonl", tmp_path / "store"
    corpus.write_text("".join(json.dumps({"user": n, "text": f"zz{letters(n)}!"}) + "\n" for n in range(99)))
    outcome = sotto("prepare", corpus, "--out", out, *PRICE, "--words-per-user", 4)
    assert outcome.status == 0
    assert "warning: no word is shared by enough users" in outcome.out
    assert "drawing noise" in outcome.err
    assert tuple((out / "vocabulary.txt").read_text().split()) == FRAME
    assert len(read_lines(out / "ledger.jsonl")) == 1


def test_the_charge_is_written_before_the_draw(
    sotto: Sotto, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw(histogram: NoisyHistogram, counts: dict[str, int]) -> dict[str, int]:
        (ledger,) = tmp_path.glob(".store-*/store/ledger.jsonl")
        assert StoreLedger(ledger).spent() == [(histogram.event(), 1)]
        return {"tea": 99}

    monkeypatch.setattr(NoisyHistogram, "draw", draw)
    assert (
        sotto("prepare", corpus, "--out", tmp_path / "store", *PRICE, "--json").json()["vocabulary"]["words_found"] == 1
    )


def test_what_fails_after_the_draw_leaves_no_store_and_no_trace(
    sotto: Sotto, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise SottoError("the disk is full")

    monkeypatch.setattr("sottovoce.data.prepare.save_tokenizer", full)
    assert sotto("prepare", corpus, "--out", tmp_path / "store", *PRICE, "--json").status == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_model_is_charged_for_the_words_it_is_released_with(corpus: Path, tmp_path: Path) -> None:
    _, facts = prepare_privately(corpus, tmp_path / "store", PrivateVocabulary(2.0, 1e-5, words_per_user=20))
    recipe = Recipe.from_dict({
        "data": {"store": str(tmp_path / "store")},
        "model": {"embedding": 4, "hidden": 5},
        "local": {"batch": 2, "unroll": 5, "learning_rate": 1.0},
        "privacy": {"users": 350, "cohort": 9, "clip_norm": 0.3, "noise_multiplier": 1.2, "delta": 1e-4},
        "run": {"rounds": 3, "evaluate_every": 0, "block": 4},
    })  # fmt: skip
    with pytest.raises(SottoError, match="delta"):  # the threshold alone uses up so small a δ
        sottovoce.train(recipe.replace(privacy={"delta": 5e-6}), tmp_path / "refused")
    statement = sottovoce.train(recipe, tmp_path / "run").statement
    words = (GaussianRelease(facts["noise_multiplier"], 5e-6), 1)
    rounds = (SampledGaussian(1.2, "poisson", 9 / 350), 3)
    assert StoreLedger(tmp_path / "store" / "ledger.jsonl").spent() == [words, rounds]
    assert statement.epsilon == pytest.approx(accounting.epsilon([words, rounds], 1e-4))
    assert statement.epsilon_training == pytest.approx(accounting.epsilon([rounds], 1e-4))
    assert statement.epsilon > statement.epsilon_training
    assert statement.epsilon_store == pytest.approx(statement.epsilon)
    assert "found in the users' own text" in prose(statement)
    record = RunFolder(tmp_path / "run").record.read()
    assert record[-1]["epsilon"] == pytest.approx(statement.epsilon)
    assert statement.epsilon_spent == pytest.approx(statement.epsilon)
    # A budget is for both, and so is the noise that is found for it.
    asked = recipe.replace(privacy={"noise_multiplier": None, "epsilon": 2.5})
    found = sottovoce.train(asked, tmp_path / "budget").statement
    assert found.epsilon_training < 2.2
    assert 2.45 < found.epsilon <= 2.5
    with pytest.raises(SottoError, match="used up before the first round"):
        sottovoce.train(asked.replace(privacy={"epsilon": 1.5}), tmp_path / "refused")
    (tmp_path / "store" / "ledger.jsonl").unlink()
    with pytest.raises(SottoError, match="has no charge"):
        sottovoce.train(recipe, tmp_path / "unpaid")
