"""A statement, a record and evidence of a run that never was, and what a page of it shows."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

from scores import score
from sottovoce.reporting.report import Evidence
from sottovoce.runs.baselines import Baselines
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.statement import FORM, SOFTWARE, Statement

ROUNDS = 60
NOT_COVERED = ["held_out", "settings", "later_runs", "owners_files", "other_models", "second_ids"]  # of every run


def statement_json(private: bool = True, done: int = ROUNDS) -> dict[str, Any]:
    """The facts that every statement has."""
    spent = 4.6231 * math.sqrt(done / ROUNDS)
    return {
        "statement": FORM,
        "private": private,
        "epsilon": 4.6231 if private else "infinity",
        "delta": 1e-6,
        "run": "b1946ac9",
        "relation": "add-or-remove-one-user" if private else "none",
        "epsilon_spent": spent if private else "infinity",
        "epsilon_store": 6.9174 if private else "infinity",
        "rounds_planned": ROUNDS,
        "rounds_done": done,
        "accountant": "pld",
        "algorithm": "fedavg",
        "privacy": {"mode": "private" if private else "none", "users": 20000, "cohort": 200.0, "weight_cap": 160.0},
        "mechanism": {
            "user_rate": 0.01,
            "clip_norm": 15.0 if private else None,
            "sensitivity": 0.075 if private else "infinity",
            "noise_multiplier": 0.8125 if private else 0.0,
            "noise_std": 0.0609 if private else 0.0,
        },
        "not_covered": NOT_COVERED if private else [],
        "vocabulary": {"fingerprint": "9f86d081884c7d65", "source": "declared"},
        "software": dict.fromkeys(SOFTWARE, "0.1.0") | {"jax": "0.10.2"},
        "charged": [],
    }


def make_statement(private: bool = True, done: int = ROUNDS, **changes: Any) -> Statement:
    return replace(Statement.from_json(statement_json(private, done)), **changes)


def make_record(private: bool = True, done: int = ROUNDS, every: int = 5, skill: float = 1.0) -> list[dict[str, Any]]:
    record = []
    for round_number in range(1, done + 1):
        epsilon = 4.6231 * math.sqrt(round_number / ROUNDS) if private else "infinity"
        line: dict[str, Any] = {"round": round_number, "epsilon": epsilon, "delta": 1e-6, "noise_std": 0.0609}
        if every and round_number % every == 0:
            learned = skill * (1 - math.exp(-round_number / 18))
            perplexity = 120 + 4000 * math.exp(-round_number / 7)
            line["evaluation"] = {
                "users": 200, "targets": 31_482, "top1": 0.04 + 0.15 * learned, "top3": 0.09 + 0.22 * learned,
                "top5": 0.12 + 0.26 * learned, "top1_words": 0.03 + 0.12 * learned, "perplexity": perplexity / skill,
                "perplexity_in_vocabulary": 0.8 * perplexity / skill, "oov_rate": 0.043,
            }  # fmt: skip
        record.append(line)
    return record


def make_diagnostics() -> list[dict[str, Any]]:
    lines = []
    for at in range(1, ROUNDS + 1):
        middle = 6 + 7 * math.exp(-at / 20) + 0.4 * math.sin(at)
        lines.append({
            "round": at, "users": 200, "weight": 181.2, "not_finite": 0, "seconds": 1.2,
            "clipped_share": 0.1 + 0.5 * math.exp(-at / 20), "loss": 4.5 + 3 * math.exp(-at / 15),
            "norm_quantiles": [0.5 * middle, middle, 1.9 * middle],
        })  # fmt: skip
    return lines


SUGGESTIONS = [
    ("good morning ,", [("how", 0.124), ("everyone", 0.081), ("i", 0.062)]),
    ("thank you so", [("much", 0.612), ("i", 0.021), ("for", 0.017)]),
    ("see you", [("tomorrow", 0.213), ("there", 0.104), ("at", 0.096)]),
    ("i am going to the", [("<b>", 0.08), ("r&d", 0.055), ("shop", 0.031)]),
]


BASELINES = Baselines(
    start="base english",
    start_model=score(200, 0.117, 0.21, 0.26, 310.2),
    frequencies="the text of base english",
    token=".",
    constant=score(200, 0.051, 0.1, 0.12, math.inf),
    unigram=score(200, 0.049, 0.1, 0.12, 1042.0),
)


def make_evidence(**changes: Any) -> Evidence:
    recipe = Recipe().replace(
        data={"store": "/data/forum"},
        privacy={"users": 20000, "cohort": 200.0, "epsilon": 5.0, "noise_multiplier": 0.8125, "weight_cap": 160.0},
        run={"rounds": ROUNDS, "evaluate_every": 5},
    )
    values: dict[str, Any] = {
        "name": "forum-lstm", "recipe": recipe.to_dict(), "statement": make_statement(), "record": make_record(),
        "suggestions": SUGGESTIONS, "baselines": BASELINES,
    }  # fmt: skip
    return Evidence(**(values | changes))


def make_public_run() -> Evidence:
    return make_evidence(statement=make_statement(private=False), record=make_record(private=False))


def figures(page: str) -> dict[str, ET.Element]:
    found = [ET.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]
    return {str(svg.get("aria-labelledby")).split("-title")[0]: svg for svg in found}


def sections(page: str) -> list[str]:
    return re.findall(r'<section id="(\w+)"', page)


def lines_of(page: str) -> list[str]:
    """What a reader sees, without tags: a line for each piece of text."""
    pieces: list[str] = []
    parser = HTMLParser()
    parser.handle_data = pieces.append  # type: ignore[method-assign]
    parser.feed(re.sub(r"<style>.*?</style>|<svg.*?</svg>", "", page, flags=re.DOTALL))
    return [" ".join(piece.split()) for piece in pieces if piece.strip()]


def text_of(page: str) -> str:
    """What a reader sees, without tags."""
    pieces: list[str] = []
    parser = HTMLParser()
    parser.handle_data = pieces.append  # type: ignore[method-assign]
    parser.feed(re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL))
    return " ".join(" ".join(pieces).split())
