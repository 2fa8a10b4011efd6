"""The gate: what may be public of a run leaves it, if its ledger is whole and no audit contradicts its claim."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sottovoce import accounting
from sottovoce.accounting import Covered, Event, event_from_json
from sottovoce.commands.insert_canaries import read_registry
from sottovoce.commands.stores import TURNS_BY_PLACE, store_folder
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.errors import DamagedRun, SettingError, SottoError
from sottovoce.files import made_aside, sealed
from sottovoce.privacy.sampling import sampler_named
from sottovoce.recipe import Recipe
from sottovoce.reporting.statement import restate, store_total
from sottovoce.runs import checkpoint as checkpoints
from sottovoce.runs.budget import total_of
from sottovoce.runs.checkpoint import check_origin
from sottovoce.runs.folder import VOCABULARY, WEIGHTS, RunFolder
from sottovoce.runs.ledger import PREPARATION, Ledger, StoreLedger, write_release
from sottovoce.runs.secrets import Secrets

CHANCE_BITS = 10  # a model that knows nothing of one secret exposes it by more with a chance of 1 in 1,024
AUDITS = ("rounds", "canaries")
_ROUNDING = 1e-6  # the same charges in another order


def release_run(
    path: str | Path, out: str | Path, *, most_exposure: float | None = None, require_audit: bool = False
) -> dict[str, Any]:
    """Copy weights, words, card, statement and charges into a new folder, and throw the run's secrets away.

    Nothing is copied or thrown away where there is a reason against it: `reasons` then says all of them.
    """
    run = RunFolder.open(path)
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SottoError(f"{str(out)!r} exists and is not an empty folder; choose another --out")
    if most_exposure is not None and not most_exposure > 0:
        raise SettingError("{most_exposure:g} must be above 0; it is in bits, often 10", most_exposure=most_exposure)
    with run.locked():
        reasons = _faults(run)
        try:
            audits, found = _judge(run, most_exposure)
        except DamagedRun as error:
            audits, found = [], [str(error)]
        reasons += [reason for reason in found if reason not in reasons]
        missing = [one["audit"] for one in audits if one["result"] == "not run"]
        if require_audit:
            reasons += [f"no audit by {name} of this model: sotto audit {name} {path}" for name in missing]
        result = {
            "run": run.path.resolve().name, "released": not reasons, "out": str(out), "reasons": reasons,
            "audits": audits, "not_run": missing, "check": _how_to_check(run, out),
        }  # fmt: skip
        if not reasons:
            _write(run, out, audits)
    return result


def _write(run: RunFolder, out: Path, audits: list[dict[str, Any]]) -> None:
    with made_aside(out) as draft:
        for name in (WEIGHTS, VOCABULARY):
            (draft / name).write_bytes(run.model_file(name).read_bytes())
        # Later runs on the same people count: the total is the one of today.
        recipe, told = Recipe.of(run), run.read_statement()
        people = _people(run, recipe)
        total = store_total(people.spent(), told["delta"], recipe.privacy.accountant)
        statement = sealed(restate(told, audits=audits, **total))
        run.write_json(draft / "privacy.json", statement)
        run.write_json(draft / "card.json", sealed({**run.read_card(), "privacy": statement}))
        write_release(draft / "ledger.jsonl", told["run"], _listed(told))
        if run.registry_file.exists():
            (draft / run.registry_file.name).write_bytes(run.registry_file.read_bytes())
        # Before the folder has its name: what is released never stands beside the keys of its noise.
        Secrets.erase(run.secrets)


def _how_to_check(run: RunFolder, out: Path) -> str:
    """What whoever has the released folder alone calls to find the ε of its statement."""
    privacy = Recipe.of(run).privacy
    return f"sotto plan --ledger {out / 'ledger.jsonl'} --delta {privacy.delta} --accountant {privacy.accountant}"


def _faults(run: RunFolder) -> list[str]:
    """What is wrong with the ledger, or does not belong to it."""
    try:
        return list(_check(run))
    except DamagedRun as error:
        return [str(error)]


def _check(run: RunFolder) -> Iterator[str]:
    recipe, statement, weights = Recipe.of(run), run.read_statement(), run.load_weights()
    ledger = Ledger.open(run.ledger_file)
    if not statement["private"]:
        yield "the run gives no guarantee (ε is infinite): there is nothing to keep"
        return
    if recipe.privacy.secrets == "seeded":
        yield (
            f"privacy.secrets='seeded': whoever knows run.seed={recipe.run.seed} can undo the noise, and it cannot be "
            f"thrown away; train with 'entropy'"
        )
    if ledger.header.get("recipe") != recipe.sha256():
        yield "recipe.toml is not the one that the ledger names: it was edited after the run began"
    if ledger.header.get("run") != statement["run"]:
        yield "privacy.json is the statement of another run than the ledger's"
    if sampler_named(recipe.privacy.sampling).uses_names and "turns" not in ledger.header:
        yield TURNS_BY_PLACE
    rounds = statement["rounds_done"]
    if ledger.rounds < rounds:
        yield f"the ledger has no entry for round {ledger.rounds + 1}, and the model is of round {rounds}"
    if statement["charges"] != len(ledger.entries):
        yield f"the statement counts {statement['charges']} charges, and the ledger has {len(ledger.entries)}"
    people = _people(run, recipe)
    # A round that another charge covers was paid for with that one.
    paid = [(event, count) for event, count in ledger.spent() if not isinstance(event, Covered)]
    if missing := total_of(paid) - total_of(people.spent(statement["run"])):
        yield (
            f"{people.path} lacks {missing.total()} of the run's {len(ledger.entries)} charges: its people were not "
            f"asked to pay for them"
        )
    if statement.get("charged_to_store") != sum(count for _, count in people.spent(statement["run"])):
        yield (
            f"privacy.json is out of date: another copy of the run was charged for since, or an earlier version wrote "
            f"it; `sotto resume {run.path}` writes it again"
        )
        return
    # What is listed must be what the ledgers have, and have the ε that is claimed: a release has one number.
    listed = _listed(statement)
    spent = [*people.spent(PREPARATION), *ledger.spent()]
    least, cost = (accounting.epsilon(of, recipe.privacy.delta, recipe.privacy.accountant) for of in (spent, listed))
    claimed = statement["epsilon"]
    if least > cost * (1 + _ROUNDING) or abs(cost - claimed) > claimed * _ROUNDING:
        yield (
            f"the statement claims ε = {accounting.rounded_up(claimed, 4)} at δ = {statement['delta']:g}, and the "
            f"ledger's charges come to {accounting.rounded_up(max(least, cost), 4)} at {recipe.privacy.delta:g}"
        )
    if statement["delta"] != recipe.privacy.delta:
        yield f"the statement is for δ = {statement['delta']:g}, and the recipe for {recipe.privacy.delta:g}"
    if run.read_card()["privacy"] != statement:
        yield "model/card.json and privacy.json do not say the same"
    if Vocabulary.load(run.model_file(VOCABULARY)).fingerprint != statement["vocabulary"]["fingerprint"]:
        yield "model/vocabulary.txt is not the vocabulary of the statement"
    read_registry(run, ledger.header)
    saved, _ = checkpoints.latest(run.checkpoints)
    if saved is None or saved.round != rounds or not _same(saved, _trained(run, weights, ledger)):
        yield (
            f"model/weights.safetensors is not the model of the last checkpoint, or that is not of round {rounds}: "
            f"whether the ledger paid for it cannot be told; `sotto resume {run.path}` writes it again"
        )
    elif run.secrets.exists():  # a first release throws them away
        check_origin(run, ledger, saved)


def _listed(statement: dict[str, Any]) -> list[tuple[Event, int]]:
    """The charges that a statement's ε is of."""
    return [(event_from_json(one["event"]), one["count"]) for one in statement["charged"]]


def _people(run: RunFolder, recipe: Recipe) -> StoreLedger:
    return StoreLedger(store_folder(recipe, run) / "ledger.jsonl")


def _trained(run: RunFolder, weights: dict[str, np.ndarray], ledger: Ledger) -> dict[str, np.ndarray]:
    """The weights that are not of the frozen part, which must be the one that the run began with."""
    if "frozen" not in ledger.header:
        return weights
    frozen = run.load_frozen()
    kept = {name: weights[name] for name in frozen if name in weights}
    if not checkpoints.digest(frozen) == checkpoints.digest(kept) == ledger.header["frozen"]:
        raise DamagedRun(f"the frozen part of {run.path} is not the one that its ledger names; put it back")
    return {name: array for name, array in weights.items() if name not in frozen}


def _same(saved: checkpoints.Checkpoint, weights: dict[str, np.ndarray]) -> bool:
    """Are these the first arrays of a checkpoint, which are the model's? It does not know their names."""
    first = [saved.arrays.get(f"{index:04d}", np.zeros(0)) for index in range(len(weights))]
    return Counter(map(_seal, first)) == Counter(map(_seal, weights.values()))


def _seal(array: np.ndarray) -> str:
    return checkpoints.digest({"": array})


def _judge(run: RunFolder, most_exposure: float | None) -> tuple[list[dict[str, Any]], list[str]]:
    """What each audit says, as far as it may be told, and what speaks against a release."""
    weights = checkpoints.digest(run.load_weights())
    told: list[dict[str, Any]] = []
    reasons: list[str] = []
    for name in AUDITS:
        found = run.read_audit(name)
        if found is None or found.get("weights") != weights:  # an audit of an earlier model says nothing of this one
            told.append({"audit": name, "result": "not run"})
            continue
        against = [*_contradicted(name, found), *(_exposed(found, most_exposure) if name == "canaries" else ())]
        reasons += against
        told.append({"audit": name, "result": "failed" if against else "passed", **_public(name, found)})
    return told, reasons


def _contradicted(name: str, found: dict[str, Any]) -> Iterator[str]:
    if not found["contradicted"]:
        return
    noise, z = found.get("shown_multiplier", math.inf), found.get("claimed_multiplier", 0.0)
    if noise < z:
        yield (
            f"the audit by {name} shows noise of at most {accounting.rounded_up(noise)} times the sensitivity, and "
            f"{z:g} is claimed"
        )
    else:
        yield (
            f"the audit by {name} shows ε >= {accounting.rounded_down(found['shown'])} at δ = {found['delta']:g}, and "
            f"{found['claimed']:.3g} is claimed"
        )


def _exposed(found: dict[str, Any], most_exposure: float | None) -> Iterator[str]:
    """Secrets of one user: what the guarantee is about. What many wrote, a private model may know."""
    single = [one for one in found["exposure"] if one["holders"] == 1]
    most = most_exposure or threshold(len(single))
    for one in single:
        if one["bits"] > most:
            yield (
                f"the secret {one['text']!r}, which one user held, is exposed by {one['bits']:.1f} bits (rank "
                f"{one['rank']:,} of {one['references']:,}), more than {most:.3g}"
            )


def threshold(secrets: int) -> float:
    """Bits that a model which knows none of them exposes one of so many by with a chance of 1 in 1,024 at most."""
    return CHANCE_BITS + math.log2(max(secrets, 1))


def _public(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Figures that follow from what is released and from made-up users alone.

    Scores of a run's own rounds and whatever a twin showed do not: of them nothing is told but that they passed.
    """
    if name == "rounds":
        facts = ("claimed", "shown", "delta", "confidence", "rounds")
        # Audits of version 0.1 guessed alone, and do not know what they would have noticed.
        more = ("claimed_multiplier", "shown_multiplier", "would_notice")
        return {key: found[key] for key in facts} | {key: found[key] for key in more if key in found}
    told: dict[str, Any] = {
        "of": "this model" if found["itself"] else "a twin",
        "one_run": found["one_run"] is not None,
    }
    if found["itself"]:
        told["curve"] = found["curve"]
    return told
