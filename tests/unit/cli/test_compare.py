"""`sotto compare`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

COMPARE, WRITE = "sottovoce.commands.compare.compare_runs", "sottovoce.commands.compare.write_comparison"
ROW = {"Run": "an-experiment-with-a-long-name-2", "ε": "6 at δ = 1e-5", "Top-1": "15.75% ± 0.42", "Perplexity": "120.5"}
FOUND = SimpleNamespace(
    to_json=lambda: {"runs": []},
    same_words=True,
    people="about 200 held-out users",
    rows=lambda: [{**ROW, "Measured on": "the same users", "Rounds": "60 of 60", "Model": "lstm"}],
    notices=lambda: [("Seeded secrets", "of one.")],
)


def test_runs_are_compared_and_the_page_is_named(sotto, stub, capsys, tmp_path):
    compare, write = stub(COMPARE, FOUND), stub(WRITE)
    page = tmp_path / "page.html"
    sotto(["compare", "one", "two", "--out", str(page), "--users", "5", "--internal"])
    assert compare.places == ([Path("one"), Path("two")],)
    assert compare.names == {"users": 5, "internal": True, "words": 2000}
    assert write.places == (FOUND, page)
    assert capsys.readouterr().out.endswith(f"\n{page}\n")


def test_json_needs_no_page(stub, answer):
    compare, write = stub(COMPARE, FOUND), stub(WRITE)
    assert answer("compare", "one") == {"runs": []}
    assert compare.names == {"users": 1000, "internal": False, "words": 2000}
    assert write.calls == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--out", "record.jsonl"], "must end in .html"),
        (["--out", "nowhere/page.html"], "no folder nowhere"),
    ],
)
def test_a_page_that_cannot_be_written_is_refused_before_anything_is_measured(stub, refusal, options, words):
    compare = stub(COMPARE)
    assert words in refusal("compare", "one", *options)
    assert compare.calls == []
