"""What is known of a writer: the token that begins a text, and nothing else, differs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from sottovoce.commands.prepare import PrivateVocabulary, prepare_privately
from sottovoce.data.contexts import begin_token, declare
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import prepare
from sottovoce.data.store import Store, store_facts
from sottovoce.data.subwords import Subwords
from sottovoce.data.tokenizer import Tokenizer, last_typed
from sottovoce.data.tokenizer_files import load_tokenizer, save_tokenizer
from sottovoce.data.vocabulary import Vocabulary
from sottovoce_evidence.errors import SottoError

WORDS = Vocabulary.from_words(["red", "tree", "blue", "sky"])
KINDS: tuple[Tokenizer, ...] = (WORDS, Vocabulary.from_words(["rot"], language="de"), Subwords.of_bytes())
KINDS += (Subwords.of_characters("redt"),)
GROUPING = Grouping(context_field="lang", context_values=("de", "en"), test_users=0)
ROWS = [
    {"user": "ann", "text": "red tree", "lang": "de"},
    {"user": "bob", "text": "blue sky", "lang": "en"},
    {"user": "cid", "text": "sky", "lang": "fr"},  # not declared
    {"user": "ann", "text": "tree", "lang": ""},
    {"user": "bob", "text": "red", "lang": "en"},
]
BEGINS = {"ann": ["de", None], "bob": ["en", "en"], "cid": [None]}


@pytest.mark.parametrize("tokenizer", KINDS, ids=lambda each: f"{each.kind} {each.language}")
def test_ids_of_a_vocabulary_stay_and_contexts_come_after_them(tokenizer, tmp_path):
    more = tokenizer.with_contexts(["de", "x>y"])
    assert (more.contexts, more.size) == (("de", "x>y"), tokenizer.size + 2)
    assert more.specials == (*tokenizer.specials[:3], (tokenizer.size, tokenizer.size + 1))
    assert more.specials.begins == (tokenizer.specials.bos, *more.specials.contexts)
    for text in ("red tree", "<context:de> & <context:x>y>", ""):
        assert [*more.encode(text)] == [*tokenizer.encode(text)]  # no text contains such a token
        measured = np.array(more.encode_measured(text))
        assert more.encode_many(pa.array([text])).tokens.tolist() == measured.tolist()
    assert more.fingerprint != tokenizer.fingerprint
    assert more.kind == tokenizer.kind
    assert more.without_contexts().fingerprint == tokenizer.fingerprint
    assert tokenizer.without_contexts().fingerprint == tokenizer.fingerprint
    assert tokenizer.contexts == tokenizer.specials.contexts == ()
    save_tokenizer(more, tmp_path)
    assert load_tokenizer(tmp_path) == more


@pytest.mark.parametrize("tokenizer", KINDS, ids=lambda each: f"{each.kind} {each.language}")
def test_a_context_is_no_word_and_nobody_types_it(tokenizer):
    more = tokenizer.with_contexts(["de"])
    for mask in (more.word_mask, more.typed_mask, more.starts_word, more.joins):
        assert len(mask) == more.size
        assert not mask[more.specials.contexts[0]]
    assert more.bytes_of(more.specials.contexts[0]) == b""
    assert more.text_of(more.specials.contexts[0]) == "<context:de>"
    assert last_typed(more) == last_typed(tokenizer)


def test_text_that_is_cut_already_has_no_context_either():
    words = Vocabulary.from_words(["a", "<context:de>", "b"], language="spaces")
    assert "<context:de>" not in words.words
    more = words.with_contexts(["de"])
    assert more.encode("a <context:de>") == [0, words.words.index("a"), 2, 1]


def test_a_saved_vocabulary_is_a_word_list_with_its_contexts(tmp_path):
    WORDS.with_contexts(["de"]).save(tmp_path / "vocabulary.txt")
    assert Vocabulary.from_file(tmp_path / "vocabulary.txt") == WORDS.with_contexts(["de"])
    shorter = Vocabulary.from_file(tmp_path / "vocabulary.txt", WORDS.size - 1)
    assert shorter.words == (*WORDS.words[:-1], "<context:de>")


def written(folder: Path, kind: str) -> object:
    """The records as a file or a table; `lines` and `columns` are parsed by Arrow, `numbers` and `csv` one by one."""
    path = folder / f"corpus.{ {'lines': 'jsonl', 'numbers': 'jsonl', 'columns': 'parquet'}.get(kind, kind) }"
    if kind == "table":
        return pa.Table.from_pylist(ROWS)
    if kind == "columns":
        parquet.write_table(pa.Table.from_pylist(ROWS), path)
    elif kind == "csv":
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, ["user", "text", "lang"])
            table.writeheader()
            table.writerows(ROWS)
    else:
        # A record may lack the field; with a number among its values Arrow reads none of them.
        rows = [{**row, "lang": 7} if kind == "numbers" and row["user"] == "cid" else row for row in ROWS]
        path.write_text("".join(json.dumps({k: v for k, v in row.items() if v != ""}) + "\n" for row in rows))
    return [path]


@pytest.mark.parametrize("kind", ["lines", "numbers", "csv", "columns", "table"])
def test_a_record_begins_with_the_token_of_its_value_and_is_the_same_after_it(kind, tmp_path):
    corpus = written(tmp_path, kind)
    summary = prepare(corpus, tmp_path / "with", WORDS, GROUPING)
    prepare(corpus, tmp_path / "without", WORDS, Grouping(test_users=0))
    known, plain = Store.open(tmp_path / "with"), Store.open(tmp_path / "without")
    order = sorted(BEGINS, key=GROUPING.name)
    for row, user in enumerate(order):
        tokens, same = known[row].copy(), plain[row] != 0
        assert tokens[~same].tolist() == [begin_token(known.vocabulary, value) for value in BEGINS[user]]
        assert tokens[same].tolist() == plain[row][same].tolist()
    assert plain.vocabulary == WORDS
    assert known.vocabulary == WORDS.with_contexts(["de", "en"])
    assert store_facts(tmp_path / "with")["context"] == {"field": "lang", "values": ["de", "en"]}
    assert "context" not in store_facts(tmp_path / "without")
    assert summary.records_with_context == 3
    assert not any("declared values" in each for each in summary.warnings)


def test_numbers_are_values_and_a_store_gives_its_values_to_the_next_one(tmp_path):
    rows = [{"user": str(n), "text": "red", "age": n % 2} for n in range(4)]
    known = Grouping(context_field="age", context_values=("1",), test_users=0)
    prepare(rows, tmp_path / "a", Subwords.of_bytes(), known)
    one = Store.open(tmp_path / "a")
    assert sorted(int(one[row][0]) for row in range(4)) == [0, 0, 258, 258]
    prepare(rows, tmp_path / "b", load_tokenizer(tmp_path / "a"), Grouping(context_field="age", test_users=0))
    assert one.fingerprint == Store.open(tmp_path / "b").fingerprint


def test_neighbours_who_differ_in_what_is_known_of_one_writer_differ_in_that_row_alone(tmp_path):
    """The value is the user's data, as the text is: nothing of it reaches another row or the vocabulary."""
    prepare(ROWS, tmp_path / "a", WORDS, GROUPING)
    prepare([{**row, "lang": "en"} if row["user"] == "ann" else row for row in ROWS], tmp_path / "b", WORDS, GROUPING)
    one, other = Store.open(tmp_path / "a"), Store.open(tmp_path / "b")
    differ = [row for row in range(one.users) if one[row].tolist() != other[row].tolist()]
    assert differ == [sorted(BEGINS, key=GROUPING.name).index("ann")]
    assert one.vocabulary == other.vocabulary
    assert one.fingerprint != other.fingerprint  # noise is keyed by it
    assert one.names_fingerprint == other.names_fingerprint


def test_a_private_vocabulary_has_contexts_too_and_bad_values_cost_nothing(tmp_path):
    wanted = PrivateVocabulary(8.0, 1e-3, words_per_user=2, size=100)
    rows = [{"user": str(n), "text": "red", "lang": "de"} for n in range(300)]
    grouping = Grouping(context_field="lang", context_values=("de",), every_record_is_a_user=True)
    prepare_privately(rows, tmp_path / "store", wanted, grouping)
    store = Store.open(tmp_path / "store")
    assert store.vocabulary.contexts == ("de",)
    assert {int(store[row][0]) for row in range(store.users)} == {store.vocabulary.size - 1}
    stages: list[str] = []
    with pytest.raises(SottoError, match="has a space"):
        prepare_privately(
            rows, tmp_path / "bad", wanted, Grouping(context_field="l", context_values=(" ",)), stages.append
        )
    assert "drawing noise" not in stages


def test_a_value_that_was_not_declared_has_no_token():
    words = declare(WORDS, ["de", "en"])
    assert begin_token(words, None) == words.specials.bos
    assert begin_token(words, "en") == words.size - 1
    with pytest.raises(SottoError, match="the model knows de, en"):
        begin_token(words, "fr")
    with pytest.raises(SottoError, match="trained without contexts"):
        begin_token(WORDS, "de")


@pytest.mark.parametrize("value", ["<script>x</script>", "a`b", "[a](b)", "a\u202eb", "a" * 61])
def test_values_that_would_write_into_a_statement_are_refused(value):
    """Those of a word list that somebody else made, too."""
    words = Vocabulary.from_words(["red"])
    for tokenizer, values in ((words, [value]), (words.with_contexts([value]), [])):
        with pytest.raises(SottoError, match="is not plain, and would be in your statement"):
            declare(tokenizer, values)
    assert declare(words, ["<18", "de-AT", "ελ"]).contexts == ("<18", "de-AT", "ελ")
