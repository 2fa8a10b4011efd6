"""Releases made of evidence alone: a recipe, a ledger, facts and the files around them, without a model's training."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sottovoce_evidence.accounting import BestOfRuns, GaussianRelease, epsilon
from sottovoce_evidence.bounds import joint_norm
from sottovoce_evidence.files import CHECKSUM, Json, as_json, pretty, sealed, sha256_of
from sottovoce_evidence.ledger import chained, release_ledger
from sottovoce_evidence.mechanism import mechanism_of
from sottovoce_evidence.readme import Released, readme
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.release import CARD, FACTS, LEDGER, README, RECIPE, RECORD, STATEMENT, WEIGHTS
from sottovoce_evidence.signature import RELEASE, fingerprint, sign_folder
from sottovoce_evidence.statement import (
    SOFTWARE,
    ChosenFacts,
    EarlierRun,
    Evidence,
    Published,
    Registered,
    RunFacts,
    StartFacts,
    VocabularyFacts,
    state,
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
SIGNER = fingerprint(KEY.public_key())
HASH = "0" * 64
PLAIN = Recipe().replace(
    privacy={
        "mode": "private",
        "users": 5_000,
        "cohort": 50.0,
        "noise_multiplier": 1.0,
        "clip_norm": 0.5,
        "delta": 1e-6,
    },
    run={"rounds": 6},
)
TURNS = PLAIN.replace(privacy={"sampling": "min_separation", "min_separation": 3, "participations": 2})
ADAPTIVE = PLAIN.replace(privacy={"adaptive_quantile": 0.5, "adaptive_bit_noise": 5.0})
CORRELATED = TURNS.replace(privacy={"noise": "banded", "noise_coefficients": (1.0, 0.5)})
MASKED = TURNS.replace(
    federation={
        "survivors": 8,
        "colluding": 2,
        "noise": "devices",
        "server_noise_multiplier": 0.8,
    }
)
WORDS = GaussianRelease(20.0, 1e-8)
FACTS_OF_A_RUN = RunFacts(
    run="1234567890ab",
    rounds_planned=6,
    rounds_done=6,
    vocabulary=VocabularyFacts("ab" * 16, "public", language="en"),
    epsilon_store=50.0,
    relation_store="add-or-remove-one-user",
    software=dict.fromkeys(SOFTWARE, "0.1.0"),
    published=Published("model", "apache-2.0", "en", "How are"),
)


def _facts(**changes: Any) -> RunFacts:
    return replace(FACTS_OF_A_RUN, **changes)


def _planned(recipe: Recipe) -> list[Any]:
    return mechanism_of(recipe).events(recipe.run.rounds)


def evidences() -> dict[str, Evidence]:
    """One of each kind of run."""
    start = StartFacts("cd" * 32, "private", runs=(EarlierRun("earlier", 1.0, 1e-6),), charged=tuple(_planned(PLAIN)))
    found_words = VocabularyFacts("ab" * 16, "private", epsilon=epsilon([(WORDS, 1)], 1e-7) * 1.001, delta=1e-7)
    best = BestOfRuns(4.0, "geometric", tuple(_planned(PLAIN)))
    return {
        "poisson": Evidence(PLAIN, _planned(PLAIN), FACTS_OF_A_RUN),
        "turns": Evidence(TURNS, _planned(TURNS), FACTS_OF_A_RUN),
        "adaptive": Evidence(ADAPTIVE, _planned(ADAPTIVE), FACTS_OF_A_RUN),
        "correlated": Evidence(CORRELATED, _planned(CORRELATED), FACTS_OF_A_RUN),
        "masked": Evidence(MASKED, _planned(MASKED), _facts(registered=Registered(20, 1))),
        "words": Evidence(PLAIN, [(WORDS, 1), *_planned(PLAIN)], _facts(vocabulary=found_words)),
        "start": Evidence(PLAIN, [*start.charged, *_planned(PLAIN)], _facts(start=start)),
        "chosen": Evidence(PLAIN, [(best, 1)], _facts(chosen=ChosenFacts(3, "perplexity", "best"))),
    }


def write(folder: Path, evidence: Evidence) -> Path:
    """The folder of a release of this run, signed."""
    folder.mkdir(parents=True)
    mechanism, facts = mechanism_of(evidence.recipe), evidence.facts
    numbers = b"\0" * 40
    header = json.dumps({"w": {"dtype": "F32", "shape": [10], "data_offsets": [0, 40]}}).encode()
    (folder / WEIGHTS).write_bytes(len(header).to_bytes(8, "little") + header + numbers)
    (folder / "vocabulary.txt").write_text("the\na\n")
    model = {"kind": "lstm", "embedding": evidence.recipe.model.embedding}
    card = {"code": "lstm", "model": model, "parameters": 10, "vocabulary": 2, "rounds": facts.rounds_done}
    write_json(folder / CARD, card)
    (folder / LEDGER).write_bytes(release_ledger(facts.run, state(evidence).charged))
    (folder / RECIPE).write_text(evidence.recipe.to_toml())
    due, norms = state(evidence), mechanism.clip_norms(1, mechanism.start())
    lines = [{"round": 0, "evaluation": {"users": 10, "top1": 0.1, "top3": 0.2, "perplexity": 50.0}}]
    for number in range(1, facts.rounds_done + 1):
        norm, std = joint_norm(norms), mechanism.noise_std(number, norms)[0]
        spent = {"epsilon": due.epsilon_spent, "delta": due.delta}
        lines.append({"round": number, **spent, "clip_norm": norm, "noise_std": std})
    lines[-1]["evaluation"] = {"users": 10, "top1": 0.2, "top3": 0.3, "perplexity": 40.0}
    (folder / RECORD).write_bytes(b"".join(json.dumps(as_json(line)).encode() + b"\n" for line in lines))
    files = {path.name: sha256_of(path) for path in folder.iterdir()}
    state_again(folder, replace(evidence, facts=replace(facts, files=files)))
    return folder


def state_again(folder: Path, evidence: Evidence) -> None:
    """Write facts, statement and README, and sign."""
    statement = state(evidence)
    write_json(folder / FACTS, evidence.facts.to_json())
    write_json(folder / STATEMENT, statement.to_json())
    (folder / README).write_text(readme(Released.of(folder, statement), SIGNER))
    sign_folder(folder, KEY, RELEASE)


def write_json(path: Path, value: Json) -> None:
    path.write_bytes(pretty(sealed({name: one for name, one in value.items() if name != CHECKSUM})))


def write_lines(path: Path, lines: Sequence[Json]) -> None:
    """A ledger, whose lines hold one another, or a record."""
    if path.name == LEDGER:
        path.write_bytes(chained([{name: value for name, value in line.items() if name != "check"} for line in lines]))
    else:
        path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in JSON that hold no others."""
    if isinstance(value, dict):
        return [found for name, one in value.items() for found in leaves(one, (*path, name))]
    if isinstance(value, list):
        return [found for number, one in enumerate(value) for found in leaves(one, (*path, number))]
    return [path]


def changed(value: Any, path: tuple[Any, ...], to: Callable[[Any], Any]) -> Any:
    """The same JSON with another value at a path."""
    if not path:
        return to(value)
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], to)
    return copy


def other(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 0.9 if value else 0.5
    return "x" if value is None else f"{value}x"
