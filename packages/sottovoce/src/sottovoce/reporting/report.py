"""A run's evidence on one page that opens anywhere: no scripts, nothing fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sottovoce.audit.results import Audits
from sottovoce.evaluation.figures import Evaluation, coarse_count, evaluations, last_evaluation
from sottovoce.reporting.draw.curves import Figure, Level, Line
from sottovoce.reporting.draw.lanes import draw_number_line
from sottovoce.reporting.draw.style import DEEP, MIDDLE, PALE
from sottovoce.reporting.findings import Finding, findings, lanes_of, public
from sottovoce.reporting.meaning import meaning_of
from sottovoce.reporting.pages import Bar, Drawing, render_page
from sottovoce.reporting.words import bytes_text, released_texts
from sottovoce.runs.baselines import Baselines
from sottovoce_evidence.errors import count_of, plural
from sottovoce_evidence.files import Json
from sottovoce_evidence.statement import PRIVATE, Statement
from sottovoce_evidence.statement_text import (
    PRACTICE,
    epsilon_text,
    finite,
    other_relation,
    paragraphs,
    percent,
    plain,
    rows,
    uncovered_texts,
)

_MEASURES = (
    ("top1", "Top-1", "the likeliest token is the right one"),
    ("top3", "Top-3", "the right one is among three"),
    ("top5", "Top-5", "the right one is among five"),
    ("top1_words", "Top-1 over words", "without punctuation and ends of text"),
    ("bits_per_byte", "Bits per byte", "lower is better; can be compared whatever the tokens are"),
    ("perplexity", "Perplexity", "lower is better; per token"),
    ("perplexity_in_vocabulary", "Perplexity, in vocabulary", "over targets that are in the vocabulary"),
    ("oov_rate", "Out of vocabulary", "share of targets that no model with this vocabulary can get right"),
)
_SHARES = {"top1", "top3", "top5", "top1_words", "oov_rate"}

Lines = list[Json]  # of record.jsonl or diagnostics.jsonl
Points = list[tuple[int, float]]


@dataclass(frozen=True)
class Evidence:
    """What a report shows. With `diagnostics` it is internal; without, of `findings` only what may be published."""

    name: str
    recipe: dict[str, Json]
    statement: Statement
    record: Lines
    suggestions: list[tuple[str, list[tuple[str, float]]]]  # public prompt -> likely next words
    baselines: Baselines | None = None  # None for a release without exact figures
    diagnostics: Lines | None = None  # exact figures of private data; given only for an internal report
    findings: tuple[Finding, ...] = ()  # what is proved and what audits found
    traffic: dict[str, float] | None = None  # bytes, as the model's card has them
    date: str = ""  # when the page is written

    @property
    def not_evaluated(self) -> str:
        """Why there is no curve of evaluations."""
        if self.statement.held_out == PRIVATE:
            return "Held-out users were declared private: no exact figure of them is computed."
        return "No evaluation was made in this run."

    @property
    def scores(self) -> dict[str, Evaluation]:
        """Those of the baselines."""
        return self.baselines.scores if self.baselines else {}


def render(evidence: Evidence) -> str:
    """The whole page."""
    return render_page("report.html.jinja", _view(evidence))


def _view(evidence: Evidence) -> Json:
    """What the template prints, in its order; all words and figures are decided here."""
    import tomli_w

    statement = evidence.statement
    recipe = {
        name: {key: value for key, value in keys.items() if value is not None} for name, keys in evidence.recipe.items()
    }
    view = {
        "name": evidence.name,
        "date": evidence.date,
        "summary": _summary(evidence),
        "meaning": meaning_of(statement),
        "verdict": _verdict(statement),
        "private": statement.has_guarantee,
        "notices": _notices(evidence),
        "facts": _key_facts(evidence),
        "paragraphs": paragraphs(statement),
        "statement_rows": _statement_rows(statement).items(),
        "not_covered": uncovered_texts(statement) if statement.has_guarantee else [],
        "figures": _figures(evidence),
        "suggestions": evidence.suggestions,
        "likeliest": max((share for _, words in evidence.suggestions for _, share in words), default=0) or 1,
        "evaluation": _evaluation_table(evidence),
        "audit": _audit(evidence),
        "internal": None if evidence.diagnostics is None else _diagnostics(evidence, evidence.diagnostics),
        "recipe": tomli_w.dumps(recipe),
        "version": statement.software.get("sottovoce", ""),
    }
    return {**view, "contents": _contents(view)}


def _contents(view: Json) -> dict[str, str]:
    """The sections that the page has, in their order, with their titles."""
    internal = view["internal"] is not None
    titles = {
        "meaning": view["meaning"].title,
        "evaluation": "How good the model is",
        "suggestions": "What it suggests",
        "progress": "Training, round by round",
        "statement": "Privacy statement",
        "audit": "Internal: proofs and attacks, do not publish" if internal else "Proofs and attacks",
        "internal": "Internal: exact figures of private data, do not publish",
        "recipe": "Recipe: all settings",
    }
    left_out = {name for name in ("suggestions", "evaluation") if not view[name]}
    if not internal:
        left_out.add("internal")
    return {name: title for name, title in titles.items() if name not in left_out}


def _verdict(statement: Statement) -> str:
    if not statement.has_guarantee:
        return "No privacy guarantee"
    projected = " (projected)" if statement.is_unfinished else ""
    return f"ε = {epsilon_text(statement.epsilon)} at δ = {plain(statement.delta)}, per user{projected}"


def _summary(evidence: Evidence) -> str:
    """The model and the data in a sentence."""
    statement, model = evidence.statement, evidence.recipe["model"]
    declared, start = statement.privacy, model.get("initial")
    kind = model["kind"].replace("_", " ")
    first = f"that started from “{start}”" if start and start != "none" else "that started untrained"
    about = "about " if statement.privacy.sampling == "poisson" else ""
    where = "on their own devices" if statement.across_devices else "in a simulation"
    rounds = "one round" if statement.rounds_done == 1 else f"each of {statement.rounds_done:,} rounds"
    people = count_of(declared.users, *(("synthetic person", "synthetic people") if statement.practice else ("user",)))
    protected = {
        True: "what it may tell about one of them is bounded as stated here",
        False: "their text is not protected",
    }
    return (
        f"A language model ({kind.upper() if len(kind) < 5 else kind}) {first} and was trained on the text of "
        f"{people} (declared), {about}{declared.cohort:,g} in {rounds}, "
        f"{where}; {protected[statement.has_guarantee]}."
    )


def _notices(evidence: Evidence) -> list[tuple[str, str]]:
    statement = evidence.statement
    notices = [("Synthetic people", PRACTICE)] if statement.practice else []
    _, last = last_evaluation(evidence.record)
    if evidence.baselines and last and (text := evidence.baselines.no_better(last)):
        notices.append(("Not better than without training", f"{text[0].upper()}{text[1:]}."))
    if statement.is_unfinished:
        planned = count_of(statement.rounds_planned, "planned round")
        text = f"{statement.rounds_done:,} of {planned} {plural(statement.rounds_done, 'is', 'are')} done."
        if statement.has_guarantee:
            text += (
                f" ε = {epsilon_text(statement.epsilon)} is projected, for all that are planned; "
                f"{epsilon_text(statement.epsilon_spent)} is spent. Stopping here does not make it smaller."
            )
        notices.append(("Unfinished run", text))
    if statement.is_seeded:
        text = "Who was sampled and what noise was drawn follow from the run's seed."
        if statement.has_guarantee:
            text += " Anyone who knows it can undo the noise: a run for tests and reproductions, not one to release."
        notices.append(("Seeded secrets", text))
    return notices


def _key_facts(evidence: Evidence) -> list[tuple[str, str, str]]:
    """Label, figure, remark."""
    statement, model = evidence.statement, evidence.recipe["model"]
    _, last = last_evaluation(evidence.record)
    declared = statement.privacy
    people = "held-out users"
    if last:
        people = f"about {count_of(coarse_count(last.users), 'held-out user')}"
    best = max(evidence.scores.items(), key=lambda named: named[1].top1, default=None)
    beaten = "" if best is None else f"; {best[0]}: {percent(best[1].top1)}"
    sent = (evidence.traffic or {}).get("total") if statement.across_devices else None  # a simulation sends nothing
    traffic = "" if sent is None else f"; {bytes_text(sent)} sent and received"
    facts = [
        ("Top-1", _measure("top1", last), people + beaten),
        ("Perplexity", _measure("perplexity", last), f"{people}; per token{_bits_of(last)}"),
        ("Rounds", f"{statement.rounds_done:,}", f"of {statement.rounds_planned:,} planned{traffic}"),
        ("ε", "infinite", "no guarantee"),
        ("Users", f"{declared.users:,}", f"declared; {declared.cohort:,g} a round"),
    ]
    if statement.has_guarantee:
        facts[3] = ("ε of the store", epsilon_text(statement.epsilon_store), f"all private runs on it{_of(statement)}")
    sizes = ", ".join(f"{key} {value}" for key, value in model.items() if key not in ("kind", "initial"))
    kind = model["kind"].replace("_", " ")
    return [*facts, ("Model", kind.upper() if sizes else "own", sizes or kind)]


def _bits_of(evaluation: Evaluation | None) -> str:
    """What can be compared between tokenizers, where it was measured."""
    bits = finite(evaluation.bits_per_byte) if evaluation else None
    return "" if bits is None else f"; {bits:.3f} bits per byte"


def _of(statement: Statement) -> str:
    """What the total of a store is for. Later runs on a store that is gone are not known."""
    return other_relation(statement) + (" when this run ended" if statement.store_gone else "")


def _statement_rows(statement: Statement) -> dict[str, list[str]]:
    released = {"released": released_texts(statement)} if statement.has_guarantee else {}
    return {**rows(statement), **released}


def _evaluation_table(evidence: Evidence) -> Json | None:
    at, last = last_evaluation(evidence.record)
    if not last:
        return None
    columns, measured = ["This run"], [last]
    if evidence.baselines and evidence.baselines.start_model:
        columns.insert(1, f"The start, {evidence.baselines.start}")
        measured.insert(1, evidence.baselines.start_model)
    bars, end = _bars(evidence, last)
    rows = [
        (label, [_measure(key, values) for values in measured], meaning)
        for key, label, meaning in _MEASURES
        if getattr(last, key) is not None
    ]
    users = coarse_count(last.users)
    return {"round": at, "users": users, "bars": bars, "bars_end": end, "columns": columns, "rows": rows}


def _bars(evidence: Evidence, last: Evaluation) -> tuple[list[Bar], str]:
    """Top-1 of the baselines and of this run: from 0 to the next tenth above all, which is shown too."""
    found = [*((name, score, True) for name, score in evidence.scores.items()), ("this run", last, False)]
    end = min(1, (int(10 * max(score.top1 for _, score, _ in found)) + 1) / 10)
    bars = [
        Bar(name, score.top1 / end, percent(score.top1), _perplexity_of(score), quiet) for name, score, quiet in found
    ]
    return bars, f"{end:.0%}"


def _perplexity_of(score: Evaluation) -> str:
    return "" if finite(score.perplexity) is None else f"perplexity {_measure('perplexity', score)}"


def _audit(evidence: Evidence) -> Json:
    """One table, one picture. A page that is not internal never sees what is the owner's."""
    rows = list(evidence.findings) or findings(evidence.statement, Audits())
    if evidence.diagnostics is None:
        rows = public(rows)
    return {"rows": rows, "svg": draw_number_line(lanes_of(rows))}


def _measure(key: str, evaluation: Evaluation | None) -> str:
    if evaluation is None or getattr(evaluation, key) is None:
        return "–"
    value = finite(getattr(evaluation, key))
    if value is None:
        return "not finite"
    if key in _SHARES:
        return percent(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def measured(record: Iterable[Json], key: str) -> Points:
    """A measure of the evaluations by round, where it is finite."""
    return finite_points(({"round": at, key: getattr(found, key)} for at, found in evaluations(record)), key)


def finite_points(lines: Iterable[Json], key: str) -> Points:
    return [(line["round"], value) for line in lines if (value := finite(line.get(key))) is not None]


def _figures(evidence: Evidence) -> list[Drawing]:
    """How the run went, by round."""
    figures = [_accuracy(evidence), _perplexity(evidence), _epsilon(evidence)]
    return [*figures, _clip_norm(evidence)] if evidence.statement.clip_norm_changes else figures


def _accuracy(evidence: Evidence) -> Drawing:
    colours = {"top-5": PALE, "top-3": MIDDLE, "top-1": DEEP}
    lines = [Line(name, measured(evidence.record, name.replace("-", "")), colour) for name, colour in colours.items()]
    words = "Share of targets where the right token is among the one, three or five likeliest, on held-out users."
    if levels := levels_of(evidence.scores, "top1"):
        words += f" Dashed: top-1 without training on people: {_named(levels, percent)}."
    figure = Figure("accuracy", "Accuracy by round", "share of targets", lines, levels, percent=True)
    return figure.drawing(words, evidence.not_evaluated)


def _perplexity(evidence: Evidence) -> Drawing:
    points, made = measured(evidence.record, "perplexity"), len(evaluations(evidence.record))
    lines = [Line("", points)]
    words = "How many tokens the model hesitates between, on held-out users. Lower is better."
    if missing := made - len(points):
        words += f" Not finite, so not drawn, at {missing} of the evaluations."
    if levels := levels_of(evidence.scores, "perplexity"):
        words += f" Dashed: without training on people: {_named(levels, plain)}."
    figure = Figure("perplexity", "Perplexity by round", "perplexity", lines, levels, widen=True)
    diverged = "It was not finite at any evaluation: the model diverged."
    return figure.drawing(words, diverged if made else evidence.not_evaluated)


def levels_of(scores: dict[str, Evaluation], key: str) -> list[Level]:
    """The baselines, where they have a finite value. The top-1 of a unigram is at most that of a constant keyboard."""
    return [
        Level(name.removeprefix("the start, "), value)
        for name, score in scores.items()
        if finite(value := getattr(score, key)) is not None and not (key == "top1" and name.startswith("a unigram"))
    ]


def _named(levels: list[Level], shown: Callable[[float], str]) -> str:
    return ", ".join(f"{level.label} {shown(level.value)}" for level in levels)


def _epsilon(evidence: Evidence) -> Drawing:
    title, statement = "Privacy spent by round", evidence.statement
    if not statement.has_guarantee:
        return Drawing(title, "This run gives no privacy guarantee: ε is infinite from the first round on.")
    lines, levels = [Line("spent", finite_points(evidence.record, "epsilon"))], []
    words = f"ε spent after each round, at δ = {plain(statement.delta)}."
    if (budget := evidence.recipe["privacy"].get("epsilon")) is not None:
        levels.append(Level("budget", budget))
        words += f" Dashed: the budget, ε = {epsilon_text(budget, 6)}; training stops before it would pass it."
    if statement.is_unfinished:
        lines.append(Line("projected", [(statement.rounds_planned, statement.epsilon)], hollow=True))
        words += f" Open circle: projected for the {count_of(statement.rounds_planned, 'planned round')}."
    return Figure("epsilon", title, "ε", lines, levels, bound=True).drawing(words, "No round was recorded.")


def _clip_norm(evidence: Evidence) -> Drawing:
    """Planned, or read from noised counts: public either way."""
    words = "The longest update a user could send."
    if (quantile := evidence.statement.privacy.adaptive_quantile) is not None:
        words += f" It follows the {quantile:g} quantile of users' norms, read from noised counts."
    lines = [Line("", finite_points(evidence.record, "clip_norm"))]
    return Figure("clip_norm", "Clip norm by round", "L2 norm", lines).drawing(words, "No round was recorded.")


def _diagnostics(evidence: Evidence, lines: Lines) -> list[Drawing]:
    """Exact figures of private data, by round."""
    clipped, loss = ([Line("", finite_points(lines, key))] for key in ("clipped_share", "loss"))
    drawings = [
        _norms(evidence, [line for line in lines if line.get("norm_quantiles")]),
        Figure("clipped_share", "Share of users clipped", "share", clipped, percent=True).drawing(
            "Users of whose update anything was cut off.", ""
        ),
        Figure("loss", "Training loss", "mean loss", loss).drawing(
            "Mean over the round's users, in their last local epoch.", ""
        ),
    ]
    return [drawing for drawing in drawings if drawing.svg]


def _norms(evidence: Evidence, lines: Lines) -> Drawing:
    quantiles = [
        Line(label, [(line["round"], line["norm_quantiles"][index]) for line in lines], colour)
        for index, (label, colour) in enumerate((("p10", PALE), ("median", DEEP), ("p90", PALE)))
    ]
    mechanism, levels = evidence.statement.mechanism, []
    words = "L2 norm of users' updates before the last clip: 10th percentile, median, 90th percentile."
    if mechanism.clip_norm is None:
        words += " Updates are not clipped."
    elif evidence.statement.clip_norm_changes:
        words += " The clip norm changes: see the clip norm by round."
    else:
        levels = [Level("clip norm", mechanism.clip_norm)]
        words += f" Dashed: the clip norm, {mechanism.clip_norm:g}."
    return Figure("norms", "Update norms", "L2 norm", quantiles, levels, widen=True, band=True).drawing(words, "")
