"""The page of all claims is what the results that are kept give; it says which claims rest on one seed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sottovoce.papers.engine.claims import HOLDS, OPEN, CheckedClaim, Claim, Finding
from sottovoce.papers.engine.claims_page import MARK, ClaimsOfFolder, render_claims
from sottovoce.papers.engine.setting import Setting
from sottovoce.papers.mcmahan2018.trials import noised
from sottovoce.papers.registry import MCMAHAN2018, PAPERS
from sottovoce.papers.reproduce import claims_page, read_folder, write_claims_page
from sottovoce_evidence.errors import SottoError

RESULTS = Path(__file__).parents[4] / "docs" / "results"
SETTING = Setting("mcmahan2018", "gpu", 1500, 7818, 874, 10_000, 1600)


def checked(verdict: str, **runs: int) -> CheckedClaim:
    claim = Claim("name", "Noise hurts", "Table 9", "at most 0.3", lambda evidence: Finding("", ""))
    return CheckedClaim(claim, Finding("+0.1", verdict), runs)


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


def test_a_claim_with_a_setting_that_was_run_once_says_so():
    once, thrice, never = checked(HOLDS, a=1, b=3), checked(HOLDS, a=3), checked(OPEN)
    assert [each.verdict for each in (once, thrice, never)] == ["holds, one seed", "holds", "cannot be told"]
    assert [each.seeds for each in (once, thrice, never)] == [[1, 3], [3], []]
    page = render_claims(
        [ClaimsOfFolder("runs", MCMAHAN2018, SETTING, [once, thrice, never], "A note.")], {"a.md": "A"}
    )
    assert page.startswith(f"{MARK}\n\n# All claims")
    assert "3 claims of 1 papers" in page
    assert "2 hold, 0 do not hold, 1 cannot be told. 1 of them rest on a setting that was run once" in page
    assert "| 1 and 3 | **holds, one seed** |" in page
    assert "| no runs | **cannot be told** | `--claims` |" in page
    assert "- [A](a.md)" in page


def test_a_row_names_few_experiments_that_run_its_settings():
    trials = {noised(sigma, norm).name: 1 for sigma, norm in ((0.0, 15.0), (0.003, 15.0), (0.2, 20.0))}
    claim = checked(HOLDS, **trials)
    page = render_claims([ClaimsOfFolder("runs", MCMAHAN2018, SETTING, [claim], "")], {})
    assert "| `--experiment sigma --figure 3` |" in page


def test_a_page_of_another_hand_stays_and_a_folder_without_claims_is_refused(tmp_path):
    with pytest.raises(SottoError, match="holds no folder whose claims were checked"):
        claims_page(tmp_path)
    for file in ("reproduction.json", "claims.json", "results"):
        (tmp_path / "popov2018").mkdir(exist_ok=True)
        source = RESULTS / "popov2018" / file
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / "popov2018" / file)
    (tmp_path / "README.md").write_text("# Mine\n", encoding="utf-8")
    with pytest.raises(SottoError, match=r"README\.md was not written by this command"):
        write_claims_page(tmp_path)
    (tmp_path / "README.md").unlink()
    before = sorted(tmp_path.rglob("*"))
    claims_page(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before, "a page alone writes no file"
    assert write_claims_page(tmp_path) == write_claims_page(tmp_path) == (tmp_path / "README.md").read_text("utf-8")
    paper, size, results = read_folder(tmp_path / "popov2018")
    assert [each.to_json() for each in paper.check_claims(results, size)[0]] == json.loads(
        (tmp_path / "popov2018" / "claims.json").read_text(encoding="utf-8")
    )
