"""`sotto reproduce popov2018` at the smallest size, on synthetic users."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path

import pytest
from small_world import Sotto

from sottovoce.papers import reproduce as running
from sottovoce.papers.engine.populations import Stores
from sottovoce.papers.engine.runner import Console
from sottovoce.papers.popov2018.measures import PUBLIC, USERS
from sottovoce.papers.registry import POPOV2018
from sottovoce_evidence.recipe import Recipe


def run(names: list[str], out: Path, stores: Stores | None = None, **console) -> bool:
    request = running.Request(POPOV2018, names, POPOV2018.size("smoke"))
    return running.reproduce(request, out, stores, Console(**console))


def results_of(out: Path) -> dict[str, dict]:
    return {path.stem: json.loads(path.read_text()) for path in (out / "results").glob("*.json")}


@pytest.fixture(scope="module")
def figure_2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stopped in the middle of the first averaging, and taken up again."""
    out, rounds_seen = tmp_path_factory.mktemp("popov2018") / "out", 0

    @contextmanager
    def counting(name: str):
        def observe(progress) -> None:
            nonlocal rounds_seen
            rounds_seen += 1

        yield observe

    assert not run(["figure-2"], out, progress=counting, stop=lambda: rounds_seen >= 5)
    assert list(results_of(out)) == ["pretrained-seed0"]
    assert run(["figure-2"], out)
    return out


@pytest.mark.slow
def test_runs_are_measured_on_both_texts(figure_2: Path):
    results = results_of(figure_2)
    assert set(results) == {"pretrained-seed0", "averaging-seed0", "averaging-plain-seed0"}
    for name, row in results.items():
        facts = row["facts"]
        texts = [facts["public_text"], facts["users_text"]]
        assert min(text["perplexity"] for text in texts) < facts["average_perplexity"]
        assert facts["average_perplexity"] < max(text["perplexity"] for text in texts)
        assert all(0 < text["keystroke_saving"] < 1 and text["users"] == 4 for text in texts)
        assert str(figure_2) not in json.dumps(row)  # where text lies is told nowhere
        if name != "pretrained-seed0":
            assert [point[0] for point in row[f"series: {USERS}"]] == [2, 4]
            assert row[f"series: {PUBLIC}"][-1][1] == pytest.approx(facts["public_text"]["perplexity"], rel=1e-3)
            assert row[f"series: {USERS}"][-1][1] == pytest.approx(facts["users_text"]["perplexity"], rel=1e-3)
    assert (figure_2 / "figure-2.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_both_began_with_the_pre_trained_model(figure_2: Path):
    results = results_of(figure_2)
    first = results["pretrained-seed0"]["facts"]["users_text"]["perplexity"]
    for name in ("averaging-seed0", "averaging-plain-seed0"):
        assert results[name]["facts"]["users_text"]["perplexity"] < first
        ledger = (figure_2 / "runs" / name / "ledger.jsonl").read_text().splitlines()
        assert "start" in json.loads(ledger[0])


@pytest.mark.slow
def test_claims_and_the_page_need_no_training(sotto: Sotto, figure_2: Path):
    told = {row["claim"]: row for row in sotto("reproduce", "--claims", "--out", figure_2, "--json").json()["claims"]}
    assert "times the perplexity on public text with rehearsal" in told["rehearsal keeps"]["measured"]
    assert told["rehearsal"]["measured"] == "not run"
    assert sotto("reproduce", "popov2018", "--from-results", "--figure", 2, "--out", figure_2).status == 0
    page = (figure_2 / "results.md").read_text()
    assert "neither clip nor noise" in page
    assert "`sotto reproduce popov2018 --figure 2 --size smoke --out DIR`" in page


@pytest.mark.slow
def test_tails_and_the_benchmark(figure_2: Path):
    assert run(["table-3", "table-4", "figure-3", "ptb"], figure_2)
    results = results_of(figure_2)
    pairs = results["averaging-pairs-seed0"]["facts"]["tails"]["pairs"]
    assert [pair["texts_of"] for pair in pairs] == ["with", "without"] * 2
    assert all(pair["alpha"] > 1 for pair in pairs)
    assert "not a guarantee" in (figure_2 / "table-4.md").read_text()
    for name in ("figure-3", "ptb"):
        assert (figure_2 / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    first, second = (results[f"ptb-round-0{number}-seed0"] for number in (1, 2))
    assert [row["curve"][0][0] for row in (first, second)] == [1, 2]
    began = Recipe.load(figure_2 / "runs" / "ptb-round-02-seed0" / "recipe.toml").model.initial
    assert Path(began or "").name == "ptb-round-01-seed0"  # it went on, and did not begin again
    assert first["facts"]["bytes"]["up"] == first["facts"]["bytes"]["down"] > 0
