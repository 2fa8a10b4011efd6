"""The page of all claims is what the results that are kept give; it says which claims rest on one seed."""

from __future__ import annotations

import json
from pathlib import Path

from sottovoce.papers.registry import PAPERS
from sottovoce.papers.reproduce import claims_page

RESULTS = Path(__file__).parents[4] / "docs" / "results"


def test_the_page_is_what_the_results_give():
    """After new results: `sotto reproduce --claims --out docs/results/PAPER`, then the same for docs/results."""
    page = claims_page(RESULTS)
    assert (RESULTS / "README.md").read_text(encoding="utf-8") == page
    claims = [claim for name in PAPERS for claim in json.loads((RESULTS / name / "claims.json").read_text())]
    assert page.count("| **") == len(claims), "a row for each claim"
    for figures in (
        "| 17.49 % | 17.81 % ± 0.11 |",
        "perplexity printed (round) | perplexity here",
        "| ε printed | 0.67 |",
    ):
        assert figures in page, "theirs beside ours"
    for claim in claims:
        assert f" | {claim['measured']} | " in page
        assert not claim["seeds"] or " ± " in claim["measured"] or "no spread" in claim["measured"], claim["claim"]
        assert ("one seed" in page.split(f"{claim['says']} (")[1].split("\n")[0]) == (1 in claim["seeds"])
