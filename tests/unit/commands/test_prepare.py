"""A private vocabulary: its budget, its noise, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sottovoce.commands.prepare import PrivateVocabulary, prepare, prepare_privately, refuse_hopeless
from sottovoce.data.grouping import Grouping
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.runs.ledger import PREPARATION, StoreLedger
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import SampledGaussian
from sottovoce_evidence.errors import SottoError


def test_the_noise_is_the_least_that_keeps_epsilon_at_half_of_delta() -> None:
    z = PrivateVocabulary(4, 1e-5).histogram().noise_multiplier

    def cost(noise: float) -> float:
        return accounting.epsilon([(SampledGaussian(noise, "poisson", user_rate=1.0), 1)], 5e-6)

    assert 3.99 < cost(z) <= 4 < cost(0.999 * z)


def test_what_is_charged_is_within_what_was_asked() -> None:
    """Also where δ is not small next to ε: the threshold's half of it adds to ε."""
    for epsilon, delta in ((0.5, 1e-6), (2.0, 1e-5), (4.0, 1e-9), (0.01, 1e-3), (0.5, 9e-3), (0.1, 1e-4)):
        charged = PrivateVocabulary(epsilon, delta).histogram().event()
        assert 0.99 * epsilon < accounting.epsilon([(charged, 1)], delta) <= epsilon


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"epsilon": 0.0}, r"epsilon=0 must be in \(0, 100\]"),
        ({"epsilon": 101.0}, r"epsilon=101 must be in \(0, 100\]"),
        ({"delta": 0.01}, r"delta=0\.01 must be in \[1e-30, 0\.01\)"),
        ({"delta": 0.0}, r"delta=0 must be in"),
        ({"epsilon": 5e-4, "delta": 1e-3}, r"epsilon=0\.0005 must be above 0\.0005001.*larger epsilon"),
        ({"words_per_user": 0}, r"words_per_user=0 must be in \[1, "),
        ({"size": 3}, "size"),
    ],
    ids=str,
)
def test_a_budget_or_a_size_that_cannot_be_used_is_refused(given: dict, words: str) -> None:
    with pytest.raises(SottoError, match=words):
        PrivateVocabulary(**{"epsilon": 1.0, "delta": 1e-6, **given})


def test_an_epsilon_for_which_no_noise_is_enough_is_refused() -> None:
    with pytest.raises(SottoError, match=r"no noise keeps .* epsilon=1e-6 at delta=1e-7.*larger epsilon"):
        PrivateVocabulary(1e-6, 1e-7).histogram()


def test_users_bring_fewer_words_to_a_list_that_is_extended() -> None:
    assert PrivateVocabulary(4, 1e-5).histogram().names_per_user == 400
    assert PrivateVocabulary(4, 1e-5, extend_public=True).histogram().names_per_user == 25
    assert PrivateVocabulary(4, 1e-5, words_per_user=9).histogram().names_per_user == 9


def test_a_draw_that_finds_no_word_is_charged_too(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps({"user": n, "text": "word" + chr(192 + n)}) + "\n" for n in range(50)))
    stages: list[str] = []
    read: list[int] = []
    wanted = PrivateVocabulary(1.0, 1e-6, words_per_user=2)
    summary, facts = prepare_privately(
        corpus, tmp_path / "store", wanted, log=stages.append, progress=lambda records, size: read.append(size)
    )
    assert read.count(corpus.stat().st_size) >= 2, "progress is shown both times that the corpus is read"
    assert (summary.users_seen, facts["words_found"], facts["words_per_user"]) == (50, 0, 2)
    assert StoreLedger(tmp_path / "store" / "ledger.jsonl").spent(PREPARATION) == [(wanted.histogram().event(), 1)]
    assert Store.open(tmp_path / "store").vocabulary_source == facts
    assert len(stages) == 4


def test_a_draw_that_can_find_no_word_is_refused_before_it_is_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the number of users alone, in two digits: that all of them share a word changes nothing."""
    monkeypatch.setattr(StoreLedger, "charge", lambda *_: pytest.fail("it was paid for"))
    people = [(f"user {n}", "tea") for n in range(30)]
    with pytest.raises(SottoError, match=r"about 33 users .* Nothing was charged"):
        prepare_privately(people, tmp_path / "store", PrivateVocabulary(1.0, 1e-6, words_per_user=2))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("users", "threshold", "refused"), [(3_201, 3_300, False), (3_299, 3_301, True), (9, 10, True)]
)
def test_the_rule_for_hopeless_draws_is_coarse(users: int, threshold: int, refused: bool) -> None:
    if refused:
        with pytest.raises(SottoError, match="nothing would be found"):
            refuse_hopeless(threshold, users)
    else:
        refuse_hopeless(threshold, users)


def test_records_named_as_users_are_refused_before_words_are_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StoreLedger, "charge", lambda *_: pytest.fail("it was paid for"))
    messages = [(f"message {n}", "tea") for n in range(200)]
    with pytest.raises(SottoError, match="every_record_is_a_user"):
        prepare_privately(messages, tmp_path / "store", PrivateVocabulary(1.0, 1e-6, words_per_user=2))


def test_a_generator_cannot_be_read_twice(tmp_path: Path) -> None:
    people = ((f"user {n}", "tea") for n in range(50))
    with pytest.raises(SottoError, match="reads the corpus twice"):
        prepare_privately(people, tmp_path / "store", PrivateVocabulary(1.0, 1e-6))


def test_plain_text_has_no_users_whose_words_are_hidden(tmp_path: Path) -> None:
    with pytest.raises(SottoError, match="leave --private-vocabulary out"):
        prepare_privately("text.txt", tmp_path / "store", PrivateVocabulary(1.0, 1e-6), Grouping(plain_text=True))
    assert not (tmp_path / "store").exists()


def test_a_program_is_warned_and_needs_no_vocabulary(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="2 users to train on are few"):
        summary = prepare([("ann", "hello"), ("bob", "hello")], tmp_path / "store", grouping=Grouping(test_users=0))
    assert summary.train_users == 2
    store = Store.open(tmp_path / "store")
    assert (store.vocabulary.size, store.vocabulary_source["source"]) == (10_000, "public")


@pytest.mark.filterwarnings("ignore:.*are few")
@pytest.mark.filterwarnings("ignore:.*not in the vocabulary")
def test_a_program_names_its_vocabulary_or_what_it_may_cost(tmp_path: Path) -> None:
    people = [(f"user {n}", f"{word} tea") for n in range(60) for word in ("red", "green")]
    prepare(people, tmp_path / "named", Vocabulary.from_words(["tea"]))
    assert Store.open(tmp_path / "named").vocabulary_source["source"] == "declared"
    prepare(people, tmp_path / "found", PrivateVocabulary(8.0, 1e-4, words_per_user=3))
    assert Store.open(tmp_path / "found").vocabulary_source["source"] == "private"
    assert StoreLedger(tmp_path / "found" / "ledger.jsonl").spent(PREPARATION)
