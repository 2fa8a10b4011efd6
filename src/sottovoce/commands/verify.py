"""Verify a release: its files, its signature, and its ε, computed again. It needs neither jax nor the training code."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sottovoce import accounting, bases
from sottovoce.accounting import (
    BestOfRuns,
    SampledExamples,
    SampledGaussian,
    SampledSilos,
    SampledSkellam,
    Spent,
    ThresholdedHistogram,
)
from sottovoce.accounting.cross_check import dp_accounting_epsilon
from sottovoce.accounting.events import CorrelatedGaussian, Sampled
from sottovoce.errors import SettingError, SottoError, plain_number
from sottovoce.evaluation.private_accuracy import Terms
from sottovoce.files import Facts, read_sealed, sha256_of
from sottovoce.reporting.statement import Correlation, Statement
from sottovoce.runs import signature
from sottovoce.runs.folder import RunFolder, is_release
from sottovoce.runs.ledger import RELEASE, read_ledger

T = TypeVar("T")

PASSED, FAILED, ABSENT = "passed", "failed", "not there"
NOT_PROVED = (
    "that the model was trained as the statement says, with this noise: only its owner's machine shows that",
    "that the ledger lists all uses of these people's text: others may be in another store or in no ledger",
    "that declared constants were not counted from the data, and that text called public is public",
    "who the signer is: compare the fingerprint with one that the owner gave you in another way",
)
NOT_PROVED_OF_BASES = ("that this text is public, and that there was no other", NOT_PROVED[-1])
_UNREADABLE = (OSError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, SottoError)
_ROUNDING = 1e-6  # the same charges in another order, on another machine
_AGREE = 0.02  # by how much the accountant of dp-accounting may lie above a claim: it rounds more coarsely


@dataclass(frozen=True)
class Check(Facts):
    """One check, its result (`passed`, `failed` or `not there`), and what was found."""

    name: str
    result: str
    found: str


@dataclass(frozen=True)
class Accounted(Facts):
    """The ε of the ledger by one accountant; None where it has no answer."""

    accountant: str
    epsilon: float | None


@dataclass(frozen=True)
class Verification(Facts):
    """What `sotto verify` found. `verified`: no check failed."""

    folder: str
    verified: bool
    signer: str | None  # fingerprint of the key that signed; None without a valid signature
    claimed: float | None
    delta: float | None
    checks: tuple[Check, ...]
    epsilons: tuple[Accounted, ...]
    notes: tuple[str, ...]
    not_proved: tuple[str, ...] = NOT_PROVED

    def __repr__(self) -> str:
        failed = [check.name for check in self.checks if check.result == FAILED]
        return f"<Verification of {self.folder}: {'verified' if self.verified else 'failed: ' + ', '.join(failed)}>"


def verify_release(folder: str | Path, *, signer: str | None = None) -> Verification:
    """Check the folder of a release, and compute its ε from the events of its ledger by three accountants.

    Of a base, which is of public text and has no ε, files and signature are checked.

    Args:
        folder: what `sotto release` or `sotto base train` wrote.
        signer: the fingerprint of the owner's key (`SHA256:…`), or the file of their public key. A release of another
            key, or without signature, fails.
    """
    folder = Path(folder)
    if not is_release(folder) and not bases.is_base(folder):
        raise SottoError(f"{str(folder)!r} is not a release; give the folder that `sotto release` wrote")
    if signer is not None and not signer.startswith("SHA256:"):
        signer = _fingerprint_in(signer, folder)
    signed = signature.check_folder(folder, signature.RELEASE if is_release(folder) else signature.BASE)
    checks = [_files(signed), _signature(signed, signer)]
    named = signer is not None and checks[1].result == PASSED  # the fingerprint was compared
    if not is_release(folder):
        checks.append(_base_card(folder))
        fine = all(check.result != FAILED for check in checks)
        unproved = NOT_PROVED_OF_BASES[:-1] if named else NOT_PROVED_OF_BASES
        return Verification(str(folder), fine, signed.signer, None, None, tuple(checks), (), (), unproved)
    release = RunFolder.of_release(folder)
    statement, why = _try(lambda: Statement.from_json(read_sealed(release.statement_file)))
    charged, damage = _try(lambda: _charges(release.ledger_file))
    checks.append(_judged("statement", _statement_faults(release, statement, why), "says the same as the card"))
    checks.append(_judged("ledger", _ledger_faults(charged, damage, statement), "has the statement's charges"))
    epsilons: list[Accounted] = []
    if statement is not None and charged is not None:
        accounted, failed = _try(lambda: _accounted(charged, statement.delta))
        epsilons = accounted or []
        checks.append(_judged("epsilon", _epsilon_faults(epsilons, statement, failed), _follows(statement)))
        if statement.mechanism.devices is not None or statement.epsilon_server is not None:
            checks.append(_against_server(statement, charged[1]))
    if statement is not None and statement.private_accuracy is not None:
        checks.append(_held_out(statement.private_accuracy.terms))
    return Verification(
        folder=str(folder),
        verified=all(check.result != FAILED for check in checks),
        signer=signed.signer,
        claimed=statement.epsilon if statement else None,
        delta=statement.delta if statement else None,
        checks=tuple(checks),
        epsilons=tuple(epsilons),
        notes=tuple(_notes(signed, statement)),
        not_proved=NOT_PROVED[:-1] if named else NOT_PROVED,
    )


def _try(read: Callable[[], T]) -> tuple[T | None, str]:
    """What a file holds, or why it cannot be read: a damaged file is a failed check, not a wrong command."""
    try:
        return read(), ""
    except _UNREADABLE as error:
        return None, " ".join(f"{error}".split()) or type(error).__name__


def _judged(name: str, faults: Iterator[str], fine: str) -> Check:
    found = list(faults)
    return Check(name, FAILED if found else PASSED, "; ".join(found) or fine)


def _files(signed: signature.Signed) -> Check:
    if signed.unsigned:
        return Check("files", ABSENT, f"there is no {signature.MANIFEST}: added or changed files would not be found")
    return _judged("files", iter(signed.file_faults), "are those that were signed, and there are no others")


def _fingerprint_in(file: str, release: str | Path) -> str:
    if Path(file).resolve().is_relative_to(Path(release).resolve()):
        raise SettingError("{signer!r} came with the release, and proves nothing; get it in another way", signer=file)
    try:
        return signature.public_fingerprint(Path(file))
    except OSError:
        text = "{signer!r} must be a fingerprint (SHA256: and 43 letters and digits), or a file with a public key"
        raise SettingError(text, signer=file) from None


def _signature(signed: signature.Signed, signer: str | None) -> Check:
    if signed.unsigned and signer is None:
        return Check("signature", ABSENT, "this release is not signed: anyone may have made or changed it")
    faults = ["this release is not signed"] if signed.unsigned else list(signed.signature_faults)
    if signer is not None and not faults and signed.signer != signer:
        faults.append(f"it was signed by {signed.signer}, not by {signer}")
    whose = "the signer that you named" if signer else "compare it with the fingerprint that the owner gave you"
    return _judged("signature", iter(faults), f"by {signed.signer}: {whose}")


def _base_card(folder: Path) -> Check:
    base, why = _try(lambda: bases.read_base(folder))
    if base is None:
        return Check("card", FAILED, why)
    hashes = {name: _try(lambda name=name: sha256_of(folder / name))[0] for name in base.files}
    changed = (f"{name} is not the file that it names" for name in hashes if hashes[name] != base.files[name])
    return _judged("card", changed, f"trained on {base.text} by its card")


def _statement_faults(release: RunFolder, statement: Statement | None, why: str) -> Iterator[str]:
    if statement is None:
        yield f"cannot read privacy.json ({why})"
        return
    if not statement.has_guarantee:
        yield "it gives no guarantee: ε is infinite"
    if statement.secrets == "seeded":
        yield "the noise follows from the seed of the recipe: anyone who knows it can undo the noise"
    card, why = _try(release.read_card)
    if card is None:
        yield f"cannot read card.json ({why})"
    elif card.get("privacy") != _try(release.read_statement)[0]:
        yield "card.json says otherwise"
    if not statement.files:
        yield "it names no hash of weights and vocabulary"
    for name in statement.files or ():
        _, why = _try(lambda name=name: release.model_file(name))
        if why:
            yield f"{name} is not the file that it names"


def _charges(path: Path) -> tuple[str, Spent]:
    ledger = read_ledger(path)
    if ledger.kind != RELEASE or len(ledger.runs) != 1:
        raise SottoError(f"{path.name} is not the ledger of a release")
    return ledger.runs[0], ledger.spent


def _ledger_faults(charged: tuple[str, Spent] | None, damage: str, statement: Statement | None) -> Iterator[str]:
    if charged is None:
        yield f"cannot read ledger.jsonl ({damage})"
        return
    if statement is None:
        return
    run, spent = charged
    if run != statement.run:
        yield "it is the ledger of another run"
    listed: Counter[accounting.Event] = Counter()
    for event, count in statement.charged:
        listed[event] += count
    if statement.charged and dict(spent) != dict(listed):
        yield "its charges are not those of the statement"
    yield from _choice_faults(statement, spent)
    # Of the best of several runs, each has to be what the statement describes.
    runs = [(event.run if isinstance(event, BestOfRuns) else ((event, count),)) for event, count in spent]
    spent = [pair for run in runs for pair in run]
    rounds = [(event, count) for event, count in spent if isinstance(event, Sampled | SampledSilos)]
    mechanism, factors = statement.mechanism, [factor for _, factor in statement.mechanism.noise_schedule] or [1.0]
    described = [(mechanism.nominal_noise_multiplier or mechanism.noise_multiplier) * factor for factor in factors]
    most = max((event.noise_multiplier for event, _ in rounds), default=0.0)
    if not most <= max(described) * (1 + _ROUNDING):  # NaN is no guarantee
        yield f"it charges rounds of noise multiplier {most:g}, and the statement describes {max(described):g}"
    yield from _correlation_faults(statement, spent)
    yield from _device_noise_faults(statement, spent)
    yield from _late_faults(statement)
    over_run = 1.0 if mechanism.correlation is None else mechanism.correlation.sensitivity
    if not mechanism.noise_std >= mechanism.noise_multiplier * over_run * mechanism.sensitivity * (1 - _ROUNDING):
        yield "the standard deviation of the noise is less than noise multiplier times sensitivity"
    rate = min((event.user_rate for event, _ in rounds), default=1.0)
    if not rate >= statement.declared.user_rate * (1 - _ROUNDING):
        yield f"it charges a user rate of {rate:g}, and the statement declares {statement.declared.user_rate:g}"
    yield from _example_faults(statement, spent)
    yield from _silo_faults(statement, spent)
    if statement.turns is None and sum(count for _, count in rounds) < statement.rounds_done:
        yield f"it charges fewer rounds than the {statement.rounds_done} that were done"


def _choice_faults(statement: Statement, spent: Spent) -> Iterator[str]:
    """The best of several runs is charged as that."""
    charged = [event for event, _ in spent if isinstance(event, BestOfRuns)]
    chosen = statement.chosen
    if (chosen is None) != (not charged):
        yield "the model was chosen among runs in its charges or in the statement, and not in both"
    for event in charged:
        if chosen and (event.expected_runs, event.distribution) != (chosen.expected_runs, chosen.distribution):
            yield f"it charges {event.expected_runs:g} runs, {event.distribution}, and the statement says otherwise"


def _example_faults(statement: Statement, spent: Spent) -> Iterator[str]:
    """Where examples are sampled: each round is charged for all of a user's."""
    declared = statement.declared
    most = declared.examples_per_user
    events = [event for event, _ in spent if isinstance(event, SampledExamples)]
    if statement.private and (most is None) != (not events):
        yield "examples are sampled in its charges or in the statement, and not in both"
    for event in events:
        if most is not None and event.examples_per_user < most:
            yield f"it charges {event.examples_per_user} examples of a user, and the statement declares {most}"
        if declared.example_rate is not None and not event.example_rate >= declared.example_rate * (1 - _ROUNDING):
            shown = f"{event.example_rate:g}, and the statement declares {declared.example_rate:g}"
            yield f"it charges a rate of examples of {shown}"


def _silo_faults(statement: Statement, spent: Spent) -> Iterator[str]:
    """Where one person may be in several silos by chance: each round is charged for all of them."""
    most = statement.declared.silos or 1
    for event, _ in spent:
        sampled = isinstance(event, SampledGaussian | SampledSkellam)
        drawn = sampled and event.sampling == "poisson" and event.user_rate < 1
        charged = (event.silos or 1) if isinstance(event, SampledSilos | SampledSkellam) else 1
        if (drawn or isinstance(event, SampledSilos)) and charged < most:
            yield f"it charges {charged} silos of a person, and the statement declares {most}"


def _correlation_faults(statement: Statement, spent: Spent) -> Iterator[str]:
    """Where noise is correlated, one charge is for the run."""
    mechanism, described = statement.mechanism, statement.mechanism.correlation
    runs = [event for event, _ in spent if isinstance(event, CorrelatedGaussian)]
    if statement.private and (described is None) != (not runs):
        yield "the noise is correlated in its charges or in the statement, and not in both"
    for event in runs:
        if event.noise_multiplier > mechanism.noise_multiplier * (1 + _ROUNDING):
            shown = f"{event.noise_multiplier:g}, and the statement describes {mechanism.noise_multiplier:g}"
            yield f"it charges a run of noise multiplier {shown}"
        if event.participation.rounds < statement.rounds_done:
            yield f"it charges a run of fewer rounds than the {statement.rounds_done} that were done"
        found = Correlation.of(event).to_json()
        for name, value in ({} if described is None else described.to_json()).items():
            if not (value == found[name] or (isinstance(value, float) and math.isclose(value, found[name]))):
                yield f"it charges a run of {name} {found[name]}, and the statement describes {value}"


def _accounted(charged: tuple[str, Spent], delta: float) -> list[Accounted]:
    _, spent = charged
    by_pld = None
    if all("pld" in event.accountants for event, _ in spent):
        by_pld = accounting.epsilon(spent, delta, "pld")
    found = [Accounted(accounting.accountant_name("pld"), by_pld)]
    found.append(Accounted("PLD of dp-accounting alone", dp_accounting_epsilon(spent, delta)))
    by_rdp = None
    if all("rdp" in event.accountants for event, _ in spent):
        by_rdp = accounting.epsilon(spent, delta, "rdp")
    return [*found, Accounted(accounting.accountant_name("rdp"), by_rdp)]


def _epsilon_faults(epsilons: list[Accounted], statement: Statement, why: str) -> Iterator[str]:
    if not epsilons:
        yield f"it cannot be computed ({why})"
        return
    ours, theirs, by_rdp = (one.epsilon for one in epsilons)
    ours = by_rdp if ours is None else ours
    claimed = accounting.rounded_up(statement.epsilon, 4)
    # Each is an upper bound: a claim holds if one of them is below it.
    if ours is None or not ours <= statement.epsilon * (1 + _ROUNDING):
        yield f"ε = {claimed} is claimed, and the ledger comes to {accounting.rounded_up(ours or math.inf, 4)}"
    elif theirs is not None and not theirs <= statement.epsilon * (1 + _AGREE):
        yield f"ε = {claimed} is claimed, and dp-accounting computes {accounting.rounded_up(theirs, 4)}"


def _against_server(statement: Statement, spent: Spent) -> Check:
    """ε against the server, computed again from what is declared of the noise of devices."""
    name, devices, claimed = "epsilon against the server", statement.mechanism.devices, statement.epsilon_server
    if devices is None or claimed is None:
        return Check(name, FAILED, "it is claimed without noise of devices, or not claimed with it")
    words = [(event, count) for event, count in spent if isinstance(event, ThresholdedHistogram)]
    found, why = _try(lambda: accounting.epsilon([*words, *devices.against_server], statement.delta))
    shown = accounting.rounded_up(claimed, 4)
    if found is None:
        return Check(name, FAILED, f"it cannot be computed ({why})")
    if not found <= claimed * (1 + _ROUNDING):
        return Check(name, FAILED, f"ε = {shown} is claimed, and it comes to {accounting.rounded_up(found, 4)}")
    most = f"{devices.participations} rounds, {devices.survivors} survivors, {devices.colluding} colluding"
    return Check(name, PASSED, f"ε = {shown} follows from what is declared: {most}")


def _held_out(terms: Terms) -> Check:
    """ε of the accuracy that is stated of held-out users, computed again from its noise."""
    name = "epsilon of held-out users"
    found, why = _try(lambda: accounting.epsilon([(terms.event, 1)], terms.delta))
    if found is None:
        return Check(name, FAILED, f"it cannot be computed ({why})")
    if not found <= terms.epsilon * (1 + _ROUNDING):
        claimed, cost = accounting.rounded_up(terms.epsilon, 4), accounting.rounded_up(found, 4)
        return Check(name, FAILED, f"ε = {claimed} is claimed, and the noise of the accuracy comes to {cost}")
    cost = f"ε = {accounting.rounded_up(terms.epsilon, 4)} at δ = {plain_number(terms.delta)}"
    return Check(name, PASSED, f"{cost} follows from the noise of the accuracy")


def _device_noise_faults(statement: Statement, spent: Spent) -> Iterator[str]:
    """Where devices add noise, rounds are charged for Skellam noise, and a part of it is theirs."""
    devices = statement.mechanism.devices
    events = [event for event, _ in spent if isinstance(event, SampledSkellam)]
    if statement.private and (devices is None) != (not events):
        yield "the noise is Skellam in its charges or in the statement, and not in both"
    if devices is None:
        return
    if not 0 <= devices.colluding < devices.survivors:
        yield f"{devices.colluding} of {devices.survivors} survivors may collude, and none need be honest"
    if not devices.noise_multiplier <= statement.mechanism.noise_multiplier * (1 + _ROUNDING):
        yield "the noise of devices is more than all noise"
    if any(event.steps != devices.steps for event in events):
        yield "it charges noise in other steps than the statement describes"


def _late_faults(statement: Statement) -> Iterator[str]:
    """Where answers may be late, the clip norm of the round that they enter was known when they were drawn for it."""
    found = statement.federation
    if found is None or not found.staleness:
        return
    if statement.mechanism.adaptive is not None:
        yield "answers enter a later round, whose clip norm adapts: they were clipped before it was known"
    if not 0 < found.staleness < max(statement.rounds_planned, 2):
        yield f"answers are up to {found.staleness} rounds late, and it plans {statement.rounds_planned}"


def _follows(statement: Statement) -> str:
    cost = f"ε = {accounting.rounded_up(statement.epsilon, 4)} at δ = {plain_number(statement.delta)}"
    return f"{cost} follows from the ledger"


def _notes(signed: signature.Signed, statement: Statement | None) -> Iterator[str]:
    if signed.not_signed:
        yield f"not part of the release, and not signed: {', '.join(signed.not_signed)}"
    if statement is None:
        return
    if statement.delta * statement.declared.users >= 1:
        least = f"1/users = {1 / statement.declared.users:.2g}"
        yield f"δ = {plain_number(statement.delta)} is not below {least}: it is too large"
    if not_run := [audit.audit for audit in statement.audits if audit.result == "not run"]:
        yield f"not audited by {' and '.join(not_run)}"
