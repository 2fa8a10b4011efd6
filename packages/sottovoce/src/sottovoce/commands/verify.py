"""Verify a release: its files, its signature, and its ε, computed again. It needs neither jax nor the training code."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TypeVar

from sottovoce.commands import verify_files
from sottovoce.evaluation import private_accuracy
from sottovoce.evaluation.private_accuracy import Terms
from sottovoce.reporting import sentences
from sottovoce.reporting.adversaries import adversaries
from sottovoce.reporting.derived import (
    Derived,
    charge_faults,
    derive,
    fact_faults,
    has_room,
    own_blocks,
    record_faults,
    with_one_more,
)
from sottovoce.reporting.statement import DECLARED, FORM, LOUD, RUN_NAME, Correlation, Statement
from sottovoce.runs.card import Card
from sottovoce.runs.folder import README, RECIPE, STATEMENT, RunFolder, is_release, kind_of
from sottovoce_evidence import accounting, bases, signature
from sottovoce_evidence.accounting import (
    BestOfRuns,
    SampledExamples,
    SampledGaussian,
    SampledSilos,
    SampledSkellam,
    Spent,
    ThresholdedHistogram,
)
from sottovoce_evidence.accounting.cross_check import dp_accounting_epsilon
from sottovoce_evidence.accounting.events import ADDED, REPLACED, CorrelatedGaussian, Sampled
from sottovoce_evidence.errors import DamagedRun, SettingError, SottoError, count_of, plain_number
from sottovoce_evidence.files import Facts, Json, sha256_of
from sottovoce_evidence.hash_chain import Chain
from sottovoce_evidence.ledger import EXACT, PRIVATE, RELEASE, read_ledger
from sottovoce_evidence.recipe import Recipe

T = TypeVar("T")

PASSED, FAILED, ABSENT, UNCHECKED = "passed", "failed", "not there", "not checked"
OWN_CODE = "own code"  # the check of what only code of the owner's own could show
NOT_PROVED = (
    "that the model was trained as the statement says, with this noise: only its owner's machine shows that",
    "that the ledger lists all uses of these people's text: others may be in another store or in no ledger",
    "that declared constants were not counted from the data, and that text or a vocabulary called public is public",
    "the total of the store, and that audits passed: the ledger of the store and the audits are the owner's",
    "that report.html, record.jsonl, accuracy figures and text of the owner's own in README.md are true",
    "that graphs in onnx/ compute the same model",
    "that the arrays of the weights have the shapes of the model: whoever loads it finds out",
    "that no exact figure of private held-out users was published elsewhere: the owner alone knows of other releases",
    "who the signer is: compare the fingerprint with one that the owner gave you in another way",
)
NOT_PROVED_OF_BASES = ("that this text is public, and that there was no other", NOT_PROVED[-1])
# Whatever the file of a stranger makes a library raise is a failed check.
_UNREADABLE: tuple[type[Exception], ...] = (Exception,)
_ROUNDING = 1e-6  # the same charges in another order, on another machine
_SAME = "says the same as the card"
_GRID = 1e-3  # more charges on another grid of losses
_MOST_CROSS_CHECKED = 10  # kinds of rounds: dp-accounting takes more than a second for each
_CARD, _LEDGER = "card.json", "ledger.jsonl"
# The checks of a release, and which of its files each needs. Those of the last lines are made where they apply.
_NEEDS = {
    "statement": (),
    "recipe": (STATEMENT, RECIPE),
    OWN_CODE: (STATEMENT, RECIPE),
    "model": (STATEMENT, _CARD),
    "ledger": (STATEMENT, _LEDGER, RECIPE),
    "epsilon": (STATEMENT, _LEDGER),
    "other epsilons": (STATEMENT, _LEDGER, RECIPE),
    "epsilon against the server": (STATEMENT, _LEDGER),
    "epsilon of held-out users": (STATEMENT,),
    "private accuracy": (STATEMENT, _CARD),
    "held-out users": (STATEMENT,),
    "sentences": (STATEMENT, _CARD),
}
_WHERE_THEY_APPLY = (
    "epsilon against the server",
    "epsilon of held-out users",
    "private accuracy",
    "held-out users",
    OWN_CODE,
)
_OF_HEADER, _OF_CHARGES = {"ledger", "run", "charges", "check"}, {"event", "count", "check"}  # lines of a ledger
_CALIBRATED = 0.01  # by how much a charge for a vocabulary may be below the ε that its noise was chosen for
_AGREE = 0.02  # by how much the accountant of dp-accounting may lie above a claim: it rounds more coarsely


@dataclass(frozen=True)
class Check(Facts):
    """One check, its result (`passed`, `failed`, `not there` or `not checked`), and what was found."""

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
    """What `sotto verify` found. `verified`: no check failed, and none needs code that is not here."""

    folder: str
    verified: bool
    signed: bool  # does it have a signature, valid or not?
    signer: str | None  # fingerprint of the key that signed; None without a valid signature
    claimed: float | None
    delta: float | None
    checks: tuple[Check, ...]
    epsilons: tuple[Accounted, ...]
    notes: tuple[str, ...]
    not_proved: tuple[str, ...] = NOT_PROVED

    def __repr__(self) -> str:
        found = {word: [check.name for check in self.checks if check.result == word] for word in (FAILED, UNCHECKED)}
        told = [f"{word}: {', '.join(names)}" for word, names in found.items() if names]
        return f"<Verification of {self.folder}: {'; '.join(['verified'] * self.verified + told)}>"


@dataclass(frozen=True)
class _Evidence:
    """What was read of a release."""

    release: RunFolder
    statement: Statement
    run: str
    spent: Spent
    recipe: Recipe


def verify_release(folder: str | Path, *, signer: str | None = None, unsigned: bool = False) -> Verification:
    """Check the folder of a release, and compute its ε from the events of its ledger by three accountants.

    Of a base, which is of public text and has no ε, files and signature are checked.

    Args:
        folder: what `sotto release` or `sotto base train` wrote.
        signer: the fingerprint of the owner's key (`SHA256:…`), or the file of their public key. A release of another
            key, or without signature, fails.
        unsigned: check a release without signature too. Anyone may have made or changed it.

    Guarantee: no file is opened that is not a plain file of the folder, or that is larger than such a file may be.
    Whatever the files hold, it answers, and a file that cannot be understood is a failed check.
    """
    folder = Path(folder)
    if not is_release(folder) and not bases.is_base(folder):
        raise SottoError(f"{str(folder)!r} is not a release: {_no_release(folder)}")
    if signer is not None and not signer.startswith("SHA256:"):
        signer = _fingerprint_in(signer, folder)
    purpose = signature.RELEASE if is_release(folder) else signature.BASE
    signed = signature.check_folder(folder, purpose, verify_files.largest)
    checks = [_files(signed, released=is_release(folder)), _signature(signed, signer, unsigned)]
    named = signer is not None and checks[1].result == PASSED  # the fingerprint was compared
    statement: Statement | None = None
    epsilons: tuple[Accounted, ...] = ()
    notes: tuple[str, ...] = ()
    unproved = NOT_PROVED if is_release(folder) else NOT_PROVED_OF_BASES
    if signed.odd or verify_files.too_large(signed.sizes):
        names = [name for name in _NEEDS if name not in _WHERE_THEY_APPLY] if is_release(folder) else ["card"]
        checks += [Check(name, UNCHECKED, "no file was opened: see the files") for name in names]
    elif not is_release(folder):
        checks.append(_base_card(folder))
    else:
        statement, found, epsilons, notes = _read(folder, signed)
        checks += found
    return Verification(
        folder=str(folder),
        verified=all(check.result != FAILED and check.name != OWN_CODE for check in checks),
        signed=not signed.unsigned,
        signer=signed.signer,
        claimed=statement.epsilon if statement else None,
        delta=statement.delta if statement else None,
        checks=tuple(replace(check, found=_without_folder(check.found, folder)) for check in checks),
        epsilons=epsilons,
        notes=notes,
        not_proved=unproved[:-1] if named else unproved,
    )


def _no_release(folder: Path) -> str:
    """What a folder is, and what to do."""
    known = {
        "missing": "there is no such folder; check the path",
        "file": "it is a file; give the folder that `sotto release` wrote",
        "empty": "the folder is empty; give the one that `sotto release` wrote",
        "run": f"it is a run; `sotto release {folder} --out DIR` makes one",
        "store": "it is a store; `sotto train` makes a run on it, and `sotto release` a release of the run",
    }
    neither = f"it has neither {STATEMENT} nor {_LEDGER}; give the folder that `sotto release` wrote"
    return known.get(kind_of(folder), neither)


def _read(
    folder: Path, signed: signature.Signed
) -> tuple[Statement | None, list[Check], tuple[Accounted, ...], tuple[str, ...]]:
    """The statement of a release, what was found in its files, its ε, and notes."""
    release = RunFolder.of_release(folder)
    statement, no_statement = _try(lambda: _statement(release))
    charged, no_ledger = _try(lambda: _charges(release.ledger_file))
    card, _ = _try(release.read_card)
    recipe, no_recipe = _try(lambda: Recipe.of(release))
    if not release.recipe_file.exists():
        no_recipe = f"{RECIPE} is missing: nothing shows that the statement's facts are those of the run"
    made = {"statement": _judged("statement", _statement_faults(release, statement, no_statement), _SAME)}
    epsilons: tuple[Accounted, ...] = ()
    notes: tuple[str, ...] = ()
    if recipe is None:
        made["recipe"] = Check("recipe", FAILED, no_recipe)
    if charged is None:
        made["ledger"] = Check("ledger", FAILED, no_ledger)
    if statement is not None:
        made |= _by_name(_of_statement(release, statement, card))
    if statement is not None and recipe is not None:
        made["recipe"] = _recipe_check(release, statement, recipe, card)
        made |= _by_name(_own_code(statement, recipe))
        notes += tuple(_own_code_that_is_here(statement, recipe))
        notes += _noted("the start", verify_files.start_notes(release, statement, recipe))
    if statement is not None and charged is not None:
        accounted, failed = _try(lambda: _accounted(charged[1], statement.delta))
        epsilons = tuple(accounted or ())
        made["epsilon"] = _judged("epsilon", _epsilon_faults(epsilons, statement, failed), _follows(statement))
        if statement.mechanism.devices is not None:
            made |= _by_name([_against_server(statement, charged[1])])
        if recipe is not None:
            found = _Evidence(release, statement, *charged, recipe)
            made["ledger"] = _judged("ledger", _ledger_faults(found), "has the statement's charges")
            if epsilons:
                fine = "follow too, and the store's is no smaller"
                made["other epsilons"] = _judged("other epsilons", _other_faults(found), fine)
    if statement is not None:
        notes += _noted("what a reader should know of it", _notes(signed, statement, release))
        notes += _noted(README, sentences.notes(release, statement))
    unread = {STATEMENT: statement, _CARD: card, _LEDGER: charged, RECIPE: recipe}
    lacking = [name for name, value in unread.items() if value is None]
    return statement, list(_with_those_not_made(made, statement, lacking)), epsilons, notes


def _with_those_not_made(made: dict[str, Check], statement: Statement | None, lacking: list[str]) -> Iterator[Check]:
    """All checks of a release in their order; one that another fault prevents is said to be not checked."""
    applies = {"epsilon against the server": statement is not None and statement.mechanism.devices is not None}
    measured = statement is not None and statement.private_accuracy is not None
    applies |= dict.fromkeys(_WHERE_THEY_APPLY[1:], measured) | {OWN_CODE: False}
    for name, needs in _NEEDS.items():
        if name in made:
            yield made[name]
        elif applies.get(name, True):
            files = [file for file in needs if file in lacking]
            yield Check(name, UNCHECKED, f"it needs {' and '.join(files)}" if files else "ε could not be computed")


def _by_name(checks: Iterable[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


def _recipe_check(release: RunFolder, statement: Statement, recipe: Recipe, card: Json | None) -> Check:
    faults = chain(
        _recipe_faults(statement, recipe),
        _start_faults(statement, recipe, card),
        record_faults(statement, recipe, _record(release)),
    )
    if card is not None:
        faults = chain(faults, verify_files.setting_faults(recipe, card))
    return _judged("recipe", faults, f"the statement follows from {RECIPE}")


def _record(release: RunFolder) -> list[Json]:
    """The rounds of the record; none of a damaged one, which the check of the statement tells."""
    return [line for line in _try(release.record.read)[0] or [] if line["round"] > 0]


def _own_code(statement: Statement, recipe: Recipe) -> Iterator[Check]:
    """What follows from code that is not here: a release of it never looks as if all of it had been checked."""
    unknown = [block for block in own_blocks(statement, recipe) if block.kind is None and block.bounds]
    told = [f"{block.shown} is of the owner's own code: nothing here shows that {block.bounds}" for block in unknown]
    if told:
        yield Check(OWN_CODE, UNCHECKED, "; ".join(told))


def _own_code_that_is_here(statement: Statement, recipe: Recipe) -> Iterator[str]:
    for block in own_blocks(statement, recipe):
        if (kind := block.kind) is not None:
            yield f"{block.shown} is not of this package: {kind.__module__}.{kind.__qualname__} was taken at its word"


def _of_statement(release: RunFolder, statement: Statement, card: Json | None) -> Iterator[Check]:
    """What needs neither ledger nor recipe."""
    if statement.private_accuracy is not None:
        yield _held_out(statement.private_accuracy.terms)
    elif statement.epsilon_held_out is not None:
        yield Check("private accuracy", FAILED, "held-out users have an ε, and there is no private accuracy")
    if statement.held_out == PRIVATE:
        found = "no exact figure in this folder is of them"
        yield _judged("held-out users", verify_files.exact_figures(release), found)
    if statement.mechanism.devices is None and statement.epsilon_server is not None:
        yield _against_server(statement, [])
    if card is None:
        return
    yield _judged("model", verify_files.model_faults(release, statement), "is the one of card and statement")
    if statement.private_accuracy is not None:
        yield _judged("private accuracy", _accuracy_faults(release, statement), "its figures fit its noise")
    yield _judged("sentences", sentences.faults(release, statement), "say what the facts say")


def _statement(release: RunFolder) -> Statement:
    values = release.read_statement()
    try:
        verify_files.check_work([one["event"] for one in values.get("charged", ())])
        statement = Statement.from_json(values)
    except _UNREADABLE as error:
        raise SottoError(f"{STATEMENT} is no statement that can be checked ({_why(error)})") from None
    for name in ("epsilon", "delta", "epsilon_spent", "epsilon_store"):
        if math.isnan(getattr(statement, name)):
            raise SottoError(f"{name} is no number")
    return statement


def _try(read: Callable[[], T]) -> tuple[T | None, str]:
    """What a file holds, or why it cannot be read: a damaged file is a failed check, not a wrong command."""
    try:
        return read(), ""
    except _UNREADABLE as error:
        return None, _why(error)


def _noted(what: str, found: Iterable[str]) -> tuple[str, ...]:
    """All notes on something, or that there may be some: a file that hinders them hides none."""
    notes, failed = _try(lambda: tuple(found))
    return (f"{LOUD}: {what} could not be compared ({failed})",) if notes is None else notes


def _why(error: Exception) -> str:
    """What is wrong, for a reader of a copy: what its owner may do about it is left out."""
    return " ".join(str(error.what if isinstance(error, DamagedRun) else error).split()) or type(error).__name__


def _without_folder(text: str, folder: Path) -> str:
    """A text that names files of a release by their names alone."""
    return re.sub(rf"(?<![\w./-]){re.escape(str(folder))}/", "", text)


def _judged(name: str, faults: Iterator[str], fine: str) -> Check:
    """The check of a file. Faults that cannot be looked for are one."""
    found: list[str] = []
    if why := _try(lambda: found.extend(faults))[1]:
        found.append(f"cannot be checked ({why})")
    return Check(name, FAILED if found else PASSED, "; ".join(found) or fine)


def _files(signed: signature.Signed, *, released: bool) -> Check:
    faults = list(signed.file_faults)
    if signed.unsigned:
        faults += verify_files.too_large(signed.sizes)
        faults += [f"{name} is not a plain file" for name in map(ascii, signed.odd)]
    if released:
        faults += verify_files.unknown(signed.sizes)
    if released:
        faults += [fault for fault in verify_files.missing(signed.sizes) if fault not in faults]
    if signed.unsigned and not faults:
        return Check("files", ABSENT, f"there is no {signature.MANIFEST}: added or changed files would not be found")
    return _judged("files", iter(faults), "are those that were signed, and there are no others")


def _fingerprint_in(file: str, release: str | Path) -> str:
    if Path(file).resolve().is_relative_to(Path(release).resolve()):
        raise SettingError("{signer!r} came with the release, and proves nothing; get it in another way", signer=file)
    try:
        return signature.public_fingerprint(Path(file))
    except OSError:
        text = "{signer!r} must be a fingerprint (SHA256: and 43 letters and digits), or a file with a public key"
        raise SettingError(text, signer=file) from None


def _signature(signed: signature.Signed, signer: str | None, unsigned: bool) -> Check:
    anyone = "it is not signed: anyone may have made or changed it"
    if signed.unsigned and unsigned and signer is None:
        return Check("signature", ABSENT, anyone)
    faults = [f"{anyone}; --unsigned checks the rest"] if signed.unsigned else list(signed.signature_faults)
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
        yield why
        return
    if not statement.has_guarantee:
        yield "it gives no guarantee: ε is infinite"
    if statement.secrets == "seeded":
        yield "the noise follows from the seed of the recipe: anyone who knows it can undo the noise"
    yield from _label_faults(statement)
    card, no_card = _try(release.read_card)
    if card is None:
        yield no_card
    else:
        if card.get("privacy") != _try(release.read_statement)[0]:
            yield f"{_CARD} says otherwise"
        yield from verify_files.round_faults(release, statement, card)
    if not statement.files:
        yield "it names no hash of weights and vocabulary"
    for name, sha256 in (statement.files or {}).items():
        if name not in verify_files.KNOWN or not (release.path / name).is_file():
            yield f"{verify_files.shown(name)} is missing"
        elif sha256_of(release.path / name) != sha256:
            yield f"{name} is not the file that it names"


# What a fact may say; another word has no meaning, or one that a reader only guesses.
_LABELS = {
    "secrets": ("entropy", "seeded"),
    "statement": (FORM,),
    "practice": (False,),
    "held_out": (EXACT, PRIVATE),
    "out_of_date": (False,),
    "store_gone": (False,),
    "relation_store": (ADDED, REPLACED, None),
}
_AUDITS = {"rounds": ("passed", "not run"), "canaries": ("passed", "not run")}


def _label_faults(statement: Statement) -> Iterator[str]:
    for name, allowed in _LABELS.items():
        found = getattr(statement, name)
        if not any(found is one or (type(found) is type(one) and found == one) for one in allowed):
            meaning = ": the people are synthetic" if name == "practice" else ""
            yield f"{name} is {found!a}, and that of a release is not{meaning}"
    for run in (statement.run, statement.chosen.run if statement.chosen else None):
        if run is not None and not RUN_NAME.fullmatch(run):
            yield f"it is of a run with a name that no run has: {verify_files.shown(run)}"
    for audit in statement.audits:
        if not isinstance(audit.audit, str) or audit.result not in _AUDITS.get(audit.audit, ()):
            yield f"an audit {audit.audit!a} with the result {audit.result!a} is none of a release"
        elif audit.contradicted:
            yield f"the audit {audit.audit!a} contradicts what is claimed, and is said to have passed"
    counts = {name: getattr(statement, name) for name in ("charges", "charged_again", "charged_elsewhere")}
    yield from (f"{name} is {count}, below 0" for name, count in counts.items() if count < 0)
    if not 0 <= statement.rounds_done <= statement.rounds_planned or statement.rounds_planned < 1:
        done = count_of(statement.rounds_done, "round was", "rounds were")
        yield f"{done} done of {statement.rounds_planned} planned"


def _charges(path: Path) -> tuple[str, Spent]:
    lines = Chain.read(path).lines
    verify_files.check_work([line.get("event") for line in lines[1:]])
    ledger = read_ledger(path)
    if ledger.kind != RELEASE or len(ledger.runs) != 1:
        raise SottoError(f"{path.name} is not the ledger of a release")
    for number, line in enumerate(lines):
        if other := sorted(line.keys() - (_OF_CHARGES if number else _OF_HEADER)):
            raise SottoError(
                f"line {number + 1} has '{verify_files.shown(other[0])}', which no ledger of a release has"
            )
        if number and line["count"] == 0:
            raise SottoError(f"line {number + 1} charges nothing")
    return ledger.runs[0], ledger.spent


def _recipe_faults(statement: Statement, recipe: Recipe) -> Iterator[str]:
    """Where the statement says other than the recipe, or plans fewer rounds than its budget allows."""
    yield from fact_faults(statement, recipe)
    if recipe.audit.plants != (statement.canaries is not None):
        which = ("inserts", "has none") if recipe.audit.plants else ("inserts no", "has some")
        yield f"{RECIPE} {which[0]} canaries, and the statement {which[1]}"
    users = max(recipe.privacy.users, 1)
    if not statement.delta * users < 1 and not recipe.privacy.allow_large_delta:
        yield f"δ = {plain_number(statement.delta)} is not below 1/users = {1 / users:.2g}: it is too large"
    if statement.rounds_planned > recipe.run.rounds:
        planned = f"{count_of(statement.rounds_planned, 'round is', 'rounds are')} planned"
        yield f"{planned}, and by {RECIPE} {recipe.run.rounds}"
    elif more := has_room(statement, recipe, derive(statement, recipe)):
        limit = recipe.privacy.epsilon
        # By the accountant that the run was stopped by, which may be a looser one.
        accountant = recipe.privacy.accountant
        if limit is None or accounting.epsilon(more, statement.delta, accountant) <= limit * (1 - _GRID):
            rounds = f"{statement.rounds_planned} of {recipe.run.rounds} rounds"
            yield f"ε is that of {rounds}, and no budget of {RECIPE} forbids the others"


def _start_faults(statement: Statement, recipe: Recipe, card: Json | None) -> Iterator[str]:
    """A start that only one of statement and recipe has, or that says of itself what does not fit.

    The recipe of a model of the owner's own does not name it.
    """
    start, named = statement.start, recipe.model.initial not in (None, bases.NO_BASE)
    if start is None:
        if named:
            yield f"by {RECIPE} it began with '{verify_files.shown(str(recipe.model.initial))}', and no start is stated"
        return
    described = card is not None and not Card.from_json(card).own_model
    if described and not named:
        yield f"a start is stated, and by {RECIPE} there is none"
    if not re.fullmatch("[0-9a-f]{64}", start.weights or ""):
        yield "the start has no hash of its weights"
    elif start.weights and start.weights not in start.source:
        yield "the source of the start has another hash than its weights"
    if statement.private:
        yield from verify_files.start_faults(start)
    if recipe.model.initial_is_public and DECLARED not in start.source:
        yield f"by {RECIPE} the owner declared the start public, and the statement does not say so"


def _ledger_faults(found: _Evidence) -> Iterator[str]:
    statement, run, spent = found.statement, found.run, found.spent
    yield from charge_faults(statement, spent, derive(statement, found.recipe))
    yield from _again_faults(found)
    words = any(isinstance(event, ThresholdedHistogram) for event, _ in spent)
    if words != statement.vocabulary.private:
        yield "a private vocabulary is in its charges or in the statement, and not in both"
    yield from _vocabulary_faults(statement, spent)
    if run != statement.run:
        yield "it is the ledger of another run"
    listed: Counter[accounting.Event] = Counter()
    for event, count in statement.charged:
        listed[event] += count
    if dict(spent) != dict(listed):
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
    over_run = 1.0 if mechanism.correlation is None else mechanism.correlation.sensitivity
    if not mechanism.noise_std >= mechanism.noise_multiplier * over_run * mechanism.sensitivity * (1 - _ROUNDING):
        yield "the standard deviation of the noise is less than noise multiplier times sensitivity"
    rate = min((event.user_rate for event, _ in rounds), default=1.0)
    if not rate >= statement.declared.user_rate * (1 - _ROUNDING):
        yield f"it charges a user rate of {rate:g}, and the statement declares {statement.declared.user_rate:g}"
    yield from _example_faults(statement, spent)
    yield from _silo_faults(statement, spent)


def _vocabulary_faults(statement: Statement, spent: Spent) -> Iterator[str]:
    """Words of the users' own text are charged what the statement says that they cost."""
    counted = [(event, count) for event, count in spent if isinstance(event, ThresholdedHistogram)]
    if not counted or (cost := statement.vocabulary.cost) is None:
        return
    epsilon, delta = cost
    if not (charged := accounting.epsilon(counted, delta)) >= epsilon * (1 - _CALIBRATED):
        yield f"it charges ε = {charged:.4g} for the vocabulary, and the statement says that it cost {epsilon:g}"


def _again_faults(found: _Evidence) -> Iterator[str]:
    """Where rounds were paid for again, all that is charged, and only a budget may forbid the last planned rounds."""
    statement, recipe = found.statement, found.recipe
    if not (again := statement.charged_again + statement.charged_elsewhere):
        return
    derived = derive(statement, recipe)
    paid = sum(count for event, count in found.spent if not isinstance(event, ThresholdedHistogram))
    due = sum(count for _, count in derived.events(max(statement.rounds_done, 1)))
    if paid < due + again:
        has = f"it has {count_of(paid, 'charge')}"
        yield f"{has}, fewer than the {due} of the rounds done and the {again} that were paid again"
    more = with_one_more(statement, found.spent, derived)
    limit = recipe.privacy.epsilon
    if more is None:
        return
    if limit is None or accounting.epsilon(more, statement.delta, recipe.privacy.accountant) <= limit * (1 - _GRID):
        yield f"it does not charge all planned rounds, and no budget of {RECIPE} forbids the others"


def _choice_faults(statement: Statement, spent: Spent) -> Iterator[str]:
    """The best of several runs is charged as that."""
    charged = [event for event, _ in spent if isinstance(event, BestOfRuns)]
    chosen = statement.chosen
    if (chosen is None) != (not charged):
        yield "the model was chosen among runs in its charges or in the statement, and not in both"
    elif chosen and not chosen.run:
        yield "the statement does not name the charge for the choice, by which its people are known to have paid"
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
            examples = f"{count_of(event.examples_per_user, 'example')} of a user"
            yield f"it charges {examples}, and the statement declares {most}"
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
            yield f"it charges {count_of(charged, 'silo')} of a person, and the statement declares {most}"


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


def _least(spent: Spent, delta: float, *, replaced: bool = False) -> float:
    """The smaller of the bounds that PLD and RDP give."""
    names = [name for name in ("pld", "rdp") if all(name in event.accountants for event, _ in spent)]
    return min((accounting.epsilon(spent, delta, name, replaced=replaced) for name in names), default=math.inf)


def _other_faults(found: _Evidence) -> Iterator[str]:
    """Every other ε of the statement that can be computed: it must be no smaller."""
    statement, delta = found.statement, found.statement.delta
    words = [(event, count) for event, count in found.spent if isinstance(event, ThresholdedHistogram)]
    rounds = [(event, count) for event, count in found.spent if not isinstance(event, ThresholdedHistogram)]
    derived = derive(statement, found.recipe)
    done = [*words, *derived.events(statement.rounds_done)] if statement.rounds_done else []
    computed: dict[str, Callable[[], float]] = {
        "epsilon_replaced": lambda: _least(found.spent, delta, replaced=True),
        "epsilon_training": lambda: _least(rounds, delta),
        "epsilon_spent": lambda: _least(done, delta),
    }
    relation = accounting.relation_of(event for event, _ in found.spent)
    replaceable = relation == ADDED and found.recipe.privacy.accountant != "moments"  # which has no answer for it
    for name, compute in computed.items():
        claimed = getattr(statement, name)
        if claimed is None:
            if name != "epsilon_replaced" or replaceable:
                yield f"{name} is not stated"
            continue
        same = not words if name == "epsilon_training" else Counter(dict(done)) == Counter(dict(found.spent))
        if name != "epsilon_replaced" and same and claimed == statement.epsilon:
            continue  # it was computed already
        least, shown = compute(), f"{name} = {accounting.rounded_up(claimed, 4)} is claimed"
        theirs = _theirs(found.spent, delta, replaced=True) if name == "epsilon_replaced" else None
        if not claimed >= least * (1 - _GRID):
            yield f"{shown}, and it comes to {accounting.rounded_up(least, 4)}"
        elif theirs is not None and not theirs <= claimed * (1 + _AGREE):
            yield f"{shown}, and dp-accounting computes {accounting.rounded_up(theirs, 4)}"
    yield from _record_epsilon_faults(found, words, derived)
    if not statement.epsilon_store >= statement.epsilon * (1 - _GRID):
        yield "the total of the store is less than what this run alone was charged"
    yield from _adversary_faults(statement)


def _record_epsilon_faults(found: _Evidence, words: Spent, derived: Derived) -> Iterator[str]:
    """The first and the last ε of the record: no smaller than what these rounds cost. Between them it does not fall."""
    lines = [line for line in _record(found.release) if isinstance(line.get("epsilon"), int | float)]
    for line in (lines[0], lines[-1]) if lines else ():
        number, claimed = line["round"], line["epsilon"]
        if claimed >= found.statement.epsilon or not 0 < number <= found.statement.rounds_done:
            continue
        least = _least([*words, *derived.events(number)], found.statement.delta)
        if not claimed >= least * (1 - _GRID):
            comes_to = f"and it comes to {accounting.rounded_up(least, 4)}"
            yield f"round {number} of the record has ε = {accounting.rounded_up(claimed, 4)}, {comes_to}"


def _adversary_faults(statement: Statement) -> Iterator[str]:
    """The table of who could attack a run across devices, made again."""
    federation = statement.federation
    if federation is None:
        if statement.adversaries or (statement.epsilon_server is not None and statement.mechanism.devices is None):
            yield "it has a table of adversaries, and does not say how devices were added up"
        return
    if not statement.across_devices:
        yield "it says how devices were added up, and that there were none"
    if federation.epsilon_server != statement.epsilon_server:
        yield "it has two different ε against the server"
    if statement.adversaries != adversaries(statement.epsilon, federation):
        yield "the table of adversaries is not the one that follows from how devices were added up"


def _accounted(spent: Spent, delta: float) -> list[Accounted]:
    by_pld = None
    if all("pld" in event.accountants for event, _ in spent):
        by_pld = accounting.epsilon(spent, delta, "pld")
    found = [Accounted(accounting.accountant_name("pld"), by_pld)]
    found.append(Accounted("PLD of dp-accounting alone", _theirs(spent, delta)))
    by_rdp = None
    if all("rdp" in event.accountants for event, _ in spent):
        by_rdp = accounting.epsilon(spent, delta, "rdp")
    return [*found, Accounted(accounting.accountant_name("rdp"), by_rdp)]


def _theirs(spent: Spent, delta: float, *, replaced: bool = False) -> float | None:
    """ε by dp-accounting alone; None where it has no answer, or would take long."""
    return dp_accounting_epsilon(spent, delta, replaced=replaced) if len(spent) <= _MOST_CROSS_CHECKED else None


def _epsilon_faults(epsilons: tuple[Accounted, ...], statement: Statement, why: str) -> Iterator[str]:
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
    rounds = count_of(devices.participations, "round")
    most = f"{rounds}, {devices.survivors} survivors, {devices.colluding} colluding"
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


def _accuracy_faults(release: RunFolder, statement: Statement) -> Iterator[str]:
    """What is wrong with the accuracy that is stated of held-out users, apart from its ε."""
    found, total = statement.private_accuracy, statement.epsilon_held_out
    if found is None:
        return
    if statement.held_out != PRIVATE:
        yield "held-out users were declared exact, and an accuracy is said to be private for them"
    yield from private_accuracy.faults(found, release.read_card()["vocabulary"])
    least = accounting.epsilon([(found.terms.event, 1)], found.terms.delta)
    if total is None or not least * (1 - _GRID) <= total < math.inf:
        shown = "no number" if total is None or math.isnan(total) else accounting.rounded_up(total, 4)
        yield f"ε of all private evaluations is {shown}, and that of this one {accounting.rounded_up(least, 4)}"


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


def _follows(statement: Statement) -> str:
    cost = f"ε = {accounting.rounded_up(statement.epsilon, 4)} at δ = {plain_number(statement.delta)}"
    return f"{cost} follows from the ledger"


def _notes(signed: signature.Signed, statement: Statement, release: RunFolder) -> Iterator[str]:
    if statement.delta * statement.declared.users >= 1:
        least = f"1/users = {1 / statement.declared.users:.2g}"
        delta = f"δ = {plain_number(statement.delta)}"
        yield f"{LOUD}: {delta} IS NOT BELOW {least}. One person in so many may be given away; the recipe allows it"
    if math.isinf(statement.epsilon_store):
        yield "the total of the store is not known: no accountant has an answer for all its runs together"
    if statement.rounds_done and not release.record.path.exists():
        yield f"there is no {release.record.path.name}: the rounds done are those of the statement and its card alone"
    if (_try(release.read_card)[0] or {}).get("trained_on") == bases.PUBLIC:
        yield f"by {_CARD} it was trained on public text: nothing here shows that"
    if signed.not_signed:
        yield f"not part of the release, and not signed: {', '.join(signed.not_signed)}"
    if not_run := [audit.audit for audit in statement.audits if audit.result == "not run"]:
        yield f"not audited by {' and '.join(not_run)}"
