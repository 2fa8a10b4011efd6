"""What a notebook or a prompt shows of results: short, whole, and never code of their own."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import builders
import pytest

from scores import score
from sottovoce.commands.evaluate import Measured
from sottovoce.commands.init import FirstRecipe
from sottovoce.commands.release import Release
from sottovoce.commands.train import RunResult
from sottovoce.data.store import Store
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.evaluation.figures import Evaluation
from sottovoce.planning.plan import make_plan
from sottovoce.reporting.compare import Comparison
from sottovoce.reporting.notebook import PagePath, html_frame, html_table
from sottovoce.runs.baselines import Baselines
from sottovoce_evidence.verify import Check, Verification

MEASURED = Evaluation(412, 98_765, 0.123456789, 0.2, 0.3, 0.1, 345.6789, 300.0, 0.05)
CHECKS = (Check("files", "failed", "x"), Check("signature", "passed", ""))
WORDS = Vocabulary.from_words(["tea", "milk"])
CONSTANT = Baselines(token=".", constant=score(400, 0.05, 0.1, 0.2, None))
RUN = RunResult(Path("runs/<b>"), 60, "finished", builders.make_statement(), MEASURED, baselines=CONSTANT)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (RUN, "<Run runs/<b>: 60 of 60 rounds, finished, ε = "),
        (RUN.statement, "<Statement: ε = "),
        (builders.make_statement(private=False), "<Statement: ε = ∞, no guarantee>"),
        (MEASURED, "<Evaluation: top-1 12.35%, perplexity 345.7, 412 users>"),
        (Measured(MEASURED, None, {}), "<Measured: <Evaluation: top-1 12.35%"),
        (make_plan(users=3_000, cohort=30, rounds=5, delta=1e-5, epsilon=4), "<Plan: ε = 4 at δ = 1e-5, noise"),
        (WORDS, "<Vocabulary: 41 tokens>"),
        (Store.from_users([[3, 4], [5]], WORDS), "<Store in memory: 2 users of at most 2 tokens>"),
        (Comparison([]), "<Comparison: >"),
        (FirstRecipe("[data]\n" * 99, 3_900, ()), "<FirstRecipe: 3,900 users declared, 0 notes>"),
        (Release("run", False, "out", ("no",), ()), "<Release of run: not released, 1 reasons against it>"),
        (Release("run", True, "out", (), ()), "<Release of run: released to out>"),
        (
            Verification("out", False, True, None, 1.0, 1e-5, CHECKS, (), ()),
            "<Verification of out: failed: files>",
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_results_are_shown_in_a_line(given: object, shown: str) -> None:
    text = repr(given)
    assert text.startswith(shown)
    assert len(text) < 160
    assert "\n" not in text


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_a_run_is_a_table_with_its_baselines_and_its_name_is_text() -> None:
    page = RUN._repr_html_()
    assert {tag for tag, _ in Tags(page).found} == {"table", "caption", "b", "tr", "th", "td"}
    for words in ("12.35%", "345.7", "top-1 of always “.”", "5.00%", "runs/&lt;b&gt;", "60 of 60, finished"):
        assert words in page


def test_a_page_is_shown_whole_in_a_frame_without_scripts(tmp_path: Path) -> None:
    page = '<!doctype html><p title="a &amp; b">“x”</p><script>alert(1)</script>'
    path = PagePath(tmp_path / "report.html")
    path.write_text(page, encoding="utf-8")
    assert isinstance(path, Path)
    assert path._repr_html_() == html_frame(page)
    ((tag, attributes),) = Tags(html_frame(page)).found
    assert (tag, attributes["srcdoc"]) == ("iframe", page)
    assert attributes["sandbox"] == "allow-same-origin", "what is not allowed here is refused, scripts too"


def test_a_table_escapes() -> None:
    assert "<i>" not in html_table("<i>", {"<i>": "<i>"})
