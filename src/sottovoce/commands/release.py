"""Release a run: copy what may be public, if its ledger is whole and no audit contradicts its claim."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sottovoce import accounting
from sottovoce.accounting import Covered
from sottovoce.audit.results import Audits, CanariesResult, RoundsResult
from sottovoce.commands.insert_canaries import read_registry
from sottovoce.commands.stores import TURNS_BY_PLACE, store_folder
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.errors import DamagedRun, SettingError, SottoError
from sottovoce.files import Facts, made_aside, sealed
from sottovoce.privacy.sampling import sampler_named
from sottovoce.recipe import Recipe
from sottovoce.reporting.statement import AuditOutcome, read_statement, with_store_total
from sottovoce.reporting.statement_text import with_prose
from sottovoce.runs import checkpoint as checkpoints
from sottovoce.runs.budget import total_of
from sottovoce.runs.checkpoint import check_origin
from sottovoce.runs.folder import VOCABULARY, WEIGHTS, RunFolder
from sottovoce.runs.ledger import PREPARATION, Ledger, StoreLedger, write_release
from sottovoce.runs.secrets import Secrets

CHANCE_BITS = 10  # a model that knows nothing of one secret exposes it by more with a chance of 1 in 1,024
AUDITS = ("rounds", "canaries")
_ROUNDING = 1e-6  # the same charges in another order


@dataclass(frozen=True)
class Release(Facts):
    """Whether a run was released, and why not."""

    run: str
    released: bool
    out: str
    reasons: tuple[str, ...]
    audits: tuple[AuditOutcome, ...]
    not_run: tuple[str, ...]
    check: str  # the command by which anyone with the released folder computes the ε of its statement


def release_run(
    path: str | Path, out: str | Path, *, most_exposure: float | None = None, require_audit: bool = False
) -> Release:
    """Copy weights, words, card, statement and charges into a new folder, and erase the run's secrets.

    Nothing is copied or erased where there is a reason against it: `reasons` then lists all of them.
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
            audits, found = check_audits(run, most_exposure)
        except DamagedRun as error:
            audits, found = [], [str(error)]
        reasons += [reason for reason in found if reason not in reasons]
        missing = tuple(audit.audit for audit in audits if audit.result == "not run")
        if require_audit:
            reasons += [f"no audit by {name} of this model: sotto audit {name} {path}" for name in missing]
        if not reasons:
            _write(run, out, tuple(audits))
        name, check = run.path.resolve().name, _how_to_check(run, out)
        return Release(name, not reasons, str(out), tuple(reasons), tuple(audits), missing, check)


def _write(run: RunFolder, out: Path, audits: tuple[AuditOutcome, ...]) -> None:
    with made_aside(out) as draft:
        for name in (WEIGHTS, VOCABULARY):
            (draft / name).write_bytes(run.model_file(name).read_bytes())
        # Later runs on the same people count: the total is the one of today.
        recipe, statement = Recipe.of(run), read_statement(run)
        spent = _people(run, recipe).spent()
        statement = with_store_total(replace(statement, audits=audits), spent, recipe.privacy.accountant)
        written = sealed(with_prose(statement))
        run.write_json(draft / "privacy.json", written)
        run.write_json(draft / "card.json", sealed({**run.read_card(), "privacy": written}))
        write_release(draft / "ledger.jsonl", statement.run, statement.charged)
        if run.registry_file.exists():
            (draft / run.registry_file.name).write_bytes(run.registry_file.read_bytes())
        # Before the folder has its name: what is released never exists at the same time as the keys of its noise.
        Secrets.erase(run.secrets)


def _how_to_check(run: RunFolder, out: Path) -> str:
    """The command that computes the ε of the statement from the released folder alone."""
    privacy = Recipe.of(run).privacy
    return f"sotto plan --ledger {out / 'ledger.jsonl'} --delta {privacy.delta} --accountant {privacy.accountant}"


def _faults(run: RunFolder) -> list[str]:
    """What is wrong with the ledger, or does not belong to it."""
    try:
        return list(_check(run))
    except DamagedRun as error:
        return [str(error)]


def _check(run: RunFolder) -> Iterator[str]:
    recipe, statement, weights = Recipe.of(run), read_statement(run), run.load_weights()
    ledger = Ledger.open(run.ledger_file)
    if not statement.private:
        yield "the run gives no guarantee (ε is infinite): there is nothing to keep"
        return
    if recipe.privacy.secrets == "seeded":
        yield (
            f"privacy.secrets='seeded': anyone who knows run.seed={recipe.run.seed} can undo the noise, and it cannot "
            f"be erased; train with 'entropy'"
        )
    if ledger.header.get("recipe") != recipe.sha256():
        yield "recipe.toml is not the one that the ledger names: it was edited after the run began"
    if ledger.header.get("run") != statement.run:
        yield "privacy.json is the statement of another run than the ledger's"
    if sampler_named(recipe.privacy.sampling).uses_names and "turns" not in ledger.header:
        yield TURNS_BY_PLACE
    rounds = statement.rounds_done
    if ledger.rounds < rounds:
        yield f"the ledger has no entry for round {ledger.rounds + 1}, and the model is of round {rounds}"
    if statement.charges != len(ledger.entries):
        yield f"the statement counts {statement.charges} charges, and the ledger has {len(ledger.entries)}"
    people = _people(run, recipe)
    # A round that another charge covers was paid for with that one.
    paid = [(event, count) for event, count in ledger.spent() if not isinstance(event, Covered)]
    if missing := total_of(paid) - total_of(people.spent(statement.run)):
        yield (
            f"{people.path} lacks {missing.total()} of the run's {len(ledger.entries)} charges: its people were not "
            f"asked to pay for them"
        )
    if statement.charged_to_store != sum(count for _, count in people.spent(statement.run)):
        yield (
            f"privacy.json is out of date: another copy of the run was charged for since, or an earlier version wrote "
            f"it; `sotto resume {run.path}` writes it again"
        )
        return
    # What is listed must be what the ledgers have, and have the ε that is claimed: a release has one number.
    delta, accountant = recipe.privacy.delta, recipe.privacy.accountant
    least = accounting.epsilon([*people.spent(PREPARATION), *ledger.spent()], delta, accountant)
    cost = accounting.epsilon(statement.charged, delta, accountant)
    claimed = statement.epsilon
    if not (least <= cost * (1 + _ROUNDING) and abs(cost - claimed) <= claimed * _ROUNDING):  # NaN is no guarantee
        yield (
            f"the statement claims ε = {accounting.rounded_up(claimed, 4)} at δ = {statement.delta:g}, and the "
            f"ledger's charges come to {accounting.rounded_up(max(least, cost), 4)} at {recipe.privacy.delta:g}"
        )
    if statement.delta != recipe.privacy.delta:
        yield f"the statement is for δ = {statement.delta:g}, and the recipe for {recipe.privacy.delta:g}"
    if run.read_card()["privacy"] != run.read_statement():
        yield "model/card.json and privacy.json do not say the same"
    if Vocabulary.load(run.model_file(VOCABULARY)).fingerprint != statement.vocabulary.fingerprint:
        yield "model/vocabulary.txt is not the vocabulary of the statement"
    read_registry(run, ledger.header)
    saved, _ = checkpoints.latest(run.checkpoints)
    if saved is None or saved.round != rounds or not _same(saved, _trained(run, weights, ledger)):
        yield (
            f"model/weights.safetensors is not the model of the last checkpoint, or that is not of round {rounds}: "
            f"whether the ledger paid for it cannot be told; `sotto resume {run.path}` writes it again"
        )
    elif run.secrets.exists():  # a first release erases them
        check_origin(run, ledger, saved)


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


def check_audits(run: RunFolder, most_exposure: float | None) -> tuple[list[AuditOutcome], list[str]]:
    """The outcome of each audit, as far as it may be published, and the reasons against a release."""
    weights = checkpoints.digest(run.load_weights())
    audits = Audits.from_json({name: run.read_audit(name) for name in AUDITS}, weights)
    outcomes, reasons = [], []
    for name, result in (("rounds", audits.rounds), ("canaries", audits.canaries)):
        # An audit of an earlier model, or one that does not say whether it contradicts, says nothing of this model.
        if result is None or result.weights != weights or result.contradicted is None:
            outcomes.append(AuditOutcome(name, "not run"))
            continue
        against = list(_contradicted(name, result))
        if isinstance(result, CanariesResult):
            against += _exposed(result, most_exposure)
        reasons += against
        outcomes.append(_outcome(result, "failed" if against else "passed"))
    return outcomes, reasons


def _contradicted(name: str, result: RoundsResult | CanariesResult) -> Iterator[str]:
    if not result.contradicted:
        return
    if isinstance(result, RoundsResult) and result.shown_multiplier < result.claimed_multiplier:
        yield (
            f"the audit by {name} shows noise of at most {accounting.rounded_up(result.shown_multiplier)} times the "
            f"sensitivity, and {result.claimed_multiplier:g} is claimed"
        )
    else:
        yield (
            f"the audit by {name} shows ε >= {accounting.rounded_down(result.shown)} at δ = {result.delta:g}, and "
            f"{result.claimed:.3g} is claimed"
        )


def _exposed(result: CanariesResult, most_exposure: float | None) -> Iterator[str]:
    """Secrets of one user: the guarantee is about these. A private model may know what many users wrote."""
    single = [one for one in result.exposure if one.holders == 1]
    most = most_exposure or threshold(len(single))
    for one in single:
        if not one.bits <= most:
            yield (
                f"the secret {one.text!r}, which one user held, is exposed by {one.bits:.1f} bits (rank "
                f"{one.rank:,} of {one.references:,}), more than {most:.3g}"
            )


def threshold(secrets: int) -> float:
    """Bits above which a model that knows none of the secrets exposes any of them with chance 1 in 1,024 at most."""
    return CHANCE_BITS + math.log2(max(secrets, 1))


def _outcome(result: RoundsResult | CanariesResult, passed: str) -> AuditOutcome:
    """Figures that follow from what is released and from made-up users alone.

    Scores of a run's own rounds and results of a copy do not: only whether they passed may be published.
    """
    if isinstance(result, CanariesResult):
        of, curve = ("this model", result.curve) if result.itself else ("a copy", None)
        return AuditOutcome("canaries", passed, of=of, one_run=result.one_run is not None, curve=curve)
    outcome = AuditOutcome(
        "rounds",
        passed,
        claimed=result.claimed,
        shown=result.shown,
        delta=result.delta,
        confidence=result.confidence,
        rounds=result.rounds,
    )
    if not result.measured_noise:  # audits of version 0.1 do not know what they would have noticed
        return outcome
    return replace(
        outcome,
        claimed_multiplier=result.claimed_multiplier,
        shown_multiplier=result.shown_multiplier,
        would_notice=result.would_notice,
    )
