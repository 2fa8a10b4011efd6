"""Release a run: a signed folder of what may be public, if its ledger is whole and no audit contradicts its claim."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sottovoce.audit.results import Audits, CanariesResult, RoundsResult
from sottovoce.commands.insert_canaries import read_registry
from sottovoce.commands.new_run import start_in
from sottovoce.commands.release_folder import NotVerified, Publication, ReleaseFolder, store_ledger
from sottovoce.data.tokenizer_files import load_tokenizer
from sottovoce.files import check_empty, made_aside
from sottovoce.privacy.kinds import KINDS
from sottovoce.reporting.statement import read_statement
from sottovoce.runs import checkpoint as checkpoints
from sottovoce.runs.folder import WEIGHTS, RunFolder
from sottovoce.runs.ledger import PREPARATION, Ledger
from sottovoce.runs.owner_key import owner_key, owner_key_file
from sottovoce.runs.secrets import Secrets
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import Covered, total_of
from sottovoce_evidence.errors import DamagedRun, SettingError, count_of, plain_number
from sottovoce_evidence.files import Facts
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.signature import fingerprint
from sottovoce_evidence.statement import AuditOutcome, AuditResult, Evidence, Statement, differences, state

CHANCE_BITS = 10  # a model that knows nothing of one secret exposes it by more with a chance of 1 in 1,024
AUDITS = ("rounds", "canaries")
_ROUNDING = 1e-6  # the same charges in another order


BY_DEFAULT = Publication()


@dataclass(frozen=True)
class Release(Facts):
    """Whether a run was released, and why not; of a rehearsal, what would be written."""

    run: str
    released: bool
    out: str
    reasons: tuple[str, ...]
    audits: tuple[AuditOutcome, ...]
    not_run: tuple[str, ...] = ()
    check: str = ""  # the command by which anyone with the released folder checks it
    epsilon: float = math.inf
    delta: float = math.nan
    files: tuple[str, ...] = ()
    signer: str = ""  # fingerprint of the key, or where a new one is made
    notes: tuple[str, ...] = ()
    again: bool = False  # the run was released before: its secrets are erased already

    def __repr__(self) -> str:
        done = f"released to {self.out}" if self.released else f"not released, {len(self.reasons)} reasons against it"
        return f"<Release of {self.run}: {done}>"


def release_run(
    path: str | Path,
    out: str | Path,
    *,
    most_exposure: float | None = None,
    require_audit: bool = False,
    publication: Publication = BY_DEFAULT,
    dry_run: bool = False,
) -> Release:
    """Write what may be public of a run into a new, signed folder, and erase the run's secrets.

    Nothing is written or erased where there is a reason against it: `reasons` then lists all of them. The last check is
    that of `sotto verify`, on the signed folder; a rehearsal writes none, and cannot make it.

    Args:
        path: the run's folder.
        out: the folder to make.
        most_exposure: bits by which a planted secret of one user may be exposed.
        require_audit: refuse a model that was not audited by rounds and by canaries.
        publication: licence, language and key.
        dry_run: only say what would be written.
    """
    run = RunFolder.open(path)
    out = Path(out)
    check_empty(out)
    if most_exposure is not None and not most_exposure > 0:
        raise SettingError("{most_exposure:g} must be above 0; it is in bits, often 10", most_exposure=most_exposure)
    key = None if publication.key is None and not owner_key_file().exists() else owner_key(publication.key)
    with run.locked():
        audits: list[AuditOutcome] = []
        reasons: list[str] = []
        try:
            reasons += run_faults(run)
        except DamagedRun as error:
            reasons.append(str(error))
        try:
            audits, against = check_audits(run, most_exposure)
        except DamagedRun as error:
            against = [str(error)]
        reasons += [reason for reason in against if reason not in reasons]
        missing = tuple(audit.audit for audit in audits if audit.result == "not run")
        if require_audit:
            reasons += [f"no audit by {name} of this model: sotto audit {name} {path}" for name in missing]
        signer = f"a new key, {owner_key_file()}" if key is None else fingerprint(key.public_key())
        found = Release(run.path.resolve().name, False, str(out), tuple(reasons), tuple(audits), missing, signer=signer)
        if reasons:
            return found
        statement = read_statement(run)
        again = not run.secrets.exists()
        before = tuple(to_do_before(path, statement, missing, again=again))
        found = replace(found, epsilon=statement.epsilon, delta=statement.delta, again=again)
        if dry_run:
            draft = ReleaseFolder(run, out, publication, signer)
            return replace(found, files=draft.files, notes=(*before, *draft.notes))
        key = owner_key(publication.key)
        draft = ReleaseFolder(run, out, publication, fingerprint(key.public_key()))
        try:
            with made_aside(out) as folder:
                draft.publish(folder, tuple(audits), key)
                # Before the folder has its name: what is released never exists together with the keys of its noise.
                Secrets.erase(run.secrets)
        except NotVerified as error:
            return replace(found, reasons=error.reasons)
    check = f"sotto verify {out} --signer {draft.signer}"
    return replace(found, released=True, files=draft.files, signer=draft.signer, notes=draft.notes, check=check)


def to_do_before(path: str | Path, statement: Statement, missing: tuple[str, ...], *, again: bool) -> Iterator[str]:
    """What the owner may want to do before a release, which ends the run."""
    if statement.is_unfinished:
        done = f"only {statement.rounds_done} of {statement.rounds_planned} paid rounds were done"
        resume = "sotto federate resume" if statement.across_devices else "sotto resume"
        first = "" if again else f"; releasing ends the run; `{resume} {path}` first costs nothing more"
        yield done + first
    for name in missing:
        how = " (it trains a copy)" if name == "canaries" else ""
        yield f"not audited by {name}" + ("" if again else f"; to audit it first{how}: sotto audit {name} {path}")


def run_faults(run: RunFolder) -> Iterator[str]:
    """What is wrong with the ledger, or does not belong to it."""
    recipe, statement, weights = Recipe.of(run), read_statement(run), run.load_weights()
    ledger, privacy, again = Ledger.open(run.ledger_file), recipe.privacy, f"`sotto resume {run.path}` writes it again"
    if not statement.private:
        yield "the run gives no guarantee (ε is infinite): there is nothing to keep"
        return
    if statement.practice:
        yield "it was trained on synthetic people, by `sotto train --practice`: there is nothing to release"
        return
    if privacy.secrets == "seeded":
        yield f"anyone who knows run.seed={recipe.run.seed} can undo the noise; train with privacy.secrets='entropy'"
    if ledger.header.get("recipe") != recipe.sha256():
        yield "recipe.toml is not the one that the ledger names: it was edited after the run began"
    if ledger.header.get("run") != statement.run:
        yield "privacy.json is the statement of another run than the ledger's"
    rounds = statement.rounds_done
    if ledger.rounds < rounds:
        yield f"the ledger has no entry for round {ledger.rounds + 1}, and the model is of round {rounds}"
    people = store_ledger(run, recipe)
    # A round that another charge covers was paid for with that one.
    paid = [(event, count) for event, count in ledger.spent() if not isinstance(event, Covered)]
    if missing := total_of(paid) - total_of(people.spent(statement.run)):
        lacking = f"{missing.total()} of the run's {count_of(ledger.rounds, 'charge')}"
        yield f"{people.path} lacks {lacking}: its people were not asked to pay for them"
    # What is listed must be what the ledgers have, and have the ε that is claimed: a release has one number.
    start = start_in(ledger.header)
    before = [*people.spent(PREPARATION), *(start.charged if start else ())]
    least = accounting.epsilon([*before, *ledger.spent()], privacy.delta, privacy.accountant)
    cost = accounting.epsilon(statement.charged, privacy.delta, privacy.accountant)
    if not least <= cost * (1 + _ROUNDING):
        charged = f"{accounting.rounded_up(least, 4)} at {plain_number(privacy.delta)}"
        yield f"the statement's charges come to ε = {accounting.rounded_up(cost, 4)}, and the ledger's to {charged}"
    due = state(Evidence(recipe, statement.charged, statement.facts, KINDS))
    other = [path for path, *_ in differences(statement.to_json(), due.to_json())]
    if other:
        yield f"privacy.json is not what recipe and charges come to: {', '.join(other)}; {again}"
    words = run.tokenizer_file()
    if load_tokenizer(words).fingerprint != statement.vocabulary.fingerprint:
        yield f"model/{words.name} is not the vocabulary of the statement"
    read_registry(run, ledger.header)
    saved = checkpoints.open_committed(run, people.commits(ledger.run))
    if saved.round != rounds or not _same(saved, _trained(run, weights, ledger)):
        yield f"{WEIGHTS} is not the model of the last checkpoint, or that is not of round {rounds}; {again}"


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
    """Are these the first arrays of a checkpoint, which are the model's? A checkpoint does not have their names."""
    first = [saved.arrays.get(f"{index:04d}", np.zeros(0)) for index in range(len(weights))]
    hashes = [Counter(checkpoints.digest({"": array}) for array in arrays) for arrays in (first, weights.values())]
    return hashes[0] == hashes[1]


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
        shown = f"noise of at most {accounting.rounded_up(result.shown_multiplier)} times the sensitivity"
        claimed = f"{result.claimed_multiplier:g}"
    elif isinstance(result, CanariesResult) and not result.shown > result.claimed:
        share = result.one_run.noise if result.one_run else math.nan
        shown = f"at most {accounting.rounded_up(share)} of the claimed noise"
        claimed = f"ε <= {accounting.rounded_up(result.claimed)}"
    else:
        shown = f"ε >= {accounting.rounded_down(result.shown)} at δ = {plain_number(result.delta)}"
        claimed = accounting.rounded_up(result.claimed)
    yield f"the audit by {name} shows {shown}, and {claimed} is claimed"


def _exposed(result: CanariesResult, most_exposure: float | None) -> Iterator[str]:
    """Secrets of one user: the guarantee is about these. A private model may know what many users wrote."""
    single = [one for one in result.exposure if one.holders == 1]
    most = most_exposure or threshold(len(single))
    for one in single:
        if not one.bits <= most:
            exposed = (
                f"is exposed by {one.bits:.1f} bits (rank {one.rank:,} of {one.references:,}), more than {most:.3g}"
            )
            yield f"the secret {one.text!r}, which one user held, {exposed}"


def threshold(secrets: int) -> float:
    """Bits above which a model that knows none of the secrets exposes any of them with chance 1 in 1,024 at most."""
    return CHANCE_BITS + math.log2(max(secrets, 1))


def _outcome(result: RoundsResult | CanariesResult, passed: AuditResult) -> AuditOutcome:
    """Figures that follow from what is released and from made-up users alone.

    Scores of a run's own rounds and results of a copy do not: only whether they passed may be published.
    """
    if isinstance(result, CanariesResult):
        of, curve = ("this model", result.curve) if result.itself else ("a copy", None)
        return AuditOutcome("canaries", passed, of=of, one_run=result.one_run is not None, curve=curve)
    published = ("claimed", "shown", "delta", "confidence", "rounds")
    published += ("claimed_multiplier", "shown_multiplier", "would_notice")
    return AuditOutcome("rounds", passed, **{name: getattr(result, name) for name in published})
