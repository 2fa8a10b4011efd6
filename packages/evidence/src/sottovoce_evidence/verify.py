"""Verify a release: its files, its signature, and its statement, which follows again from recipe, ledger and facts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from sottovoce_evidence import accounting, bases, private_accuracy, signature
from sottovoce_evidence.accounting import Spent
from sottovoce_evidence.accounting.cross_check import dp_accounting_epsilon
from sottovoce_evidence.bounds import joint_norm
from sottovoce_evidence.errors import DamagedRun, SettingError, SottoError, plain_number
from sottovoce_evidence.files import (
    CHECKSUM,
    Facts,
    Json,
    as_json,
    from_json_number,
    parse_json,
    read_plain,
    read_sealed,
    sha256_of,
)
from sottovoce_evidence.ledger import charges_of, read_release
from sottovoce_evidence.readme import Released, readme
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.release import (
    BASELINES,
    CARD,
    DERIVED,
    FACTS,
    LEDGER,
    ONNX,
    README,
    RECIPE,
    RECORD,
    STATEMENT,
    WEIGHTS,
    check_sizes,
    check_work,
    folder_faults,
    is_line,
    is_release,
    largest,
    numbers_in,
    texts_in,
)
from sottovoce_evidence.rules import guarantee_rules
from sottovoce_evidence.signature import shown
from sottovoce_evidence.statement import (
    EXACT,
    PRIVATE,
    ROUNDING,
    Evidence,
    RunFacts,
    Statement,
    charge_faults,
    differences,
    is_epsilon,
    state,
)
from sottovoce_evidence.statement_text import LOUD

T = TypeVar("T")

PASSED, FAILED, ABSENT, UNCHECKED = "passed", "failed", "not there", "not checked"
OWN_CODE = "own code"  # the check of what only code of the owner's own could show
_CONTRADICTED = ("rounds_planned", "rounds_done", "files", "chosen")  # by the recipe, the ledger or the folder
OWNERS_WORD = tuple(each.name for each in fields(RunFacts) if each.name not in _CONTRADICTED)
NOT_PROVED = (
    "that the model was trained as the statement says, with this noise: only its owner's machine shows that",
    "that the ledger lists all uses of these people's text: others may be in another store or in no ledger",
    "that declared constants were not counted from the data, and that text or a vocabulary called public is public",
    f"facts that are the owner's word: {', '.join(name.replace('_', ' ') for name in OWNERS_WORD)}",
    "that report.html and accuracy figures are true",
    "that the weights have the shapes of the model, and that graphs in onnx/ compute the same",
    "that no exact figure of held-out users was published elsewhere: the owner alone knows of other releases",
    "who the signer is: compare the fingerprint with one that the owner gave you in another way",
)
NOT_PROVED_OF_BASES = ("that this text is public, and that there was no other", NOT_PROVED[-1])
_AGREE = 0.02  # by how much the accountant of dp-accounting may lie above a claim: it rounds more coarsely
_MOST_CROSS_CHECKED = 10  # kinds of rounds: dp-accounting takes more than a second for each
_LINE = {"round", "epsilon", "delta", "clip_norm", "noise_std", "evaluation", "beside"}  # of the record


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


def verify_release(folder: str | Path, *, signer: str | None = None, unsigned: bool = False) -> Verification:
    """Check the folder of a release, and compute its statement again.

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
    released = is_release(folder)
    if not released and not bases.is_base(folder):
        why = f"it has neither {STATEMENT} nor {LEDGER}" if folder.is_dir() else "there is no such folder"
        raise SottoError(f"{str(folder)!r} is not a release: {why}; give the folder that `sotto release` wrote")
    if signer is not None and not signer.startswith("SHA256:"):
        signer = _fingerprint_in(signer, folder)
    signed = signature.check_folder(folder, signature.RELEASE if released else signature.BASE, largest)
    checks = [_files(signed, released=released), _signature(signed, signer, unsigned)]
    named = signer is not None and checks[1].result == PASSED  # the fingerprint was compared
    found = _Found(folder, signed)
    if signed.odd or any(size > largest(name) for name, size in signed.sizes.items()):
        checks.append(Check("statement", UNCHECKED, "no file was opened: see the files"))
    else:
        checks += found.checks() if released else [_base_card(folder)]
    unproved = NOT_PROVED if released else NOT_PROVED_OF_BASES
    return Verification(
        folder=str(folder),
        verified=all(check.result != FAILED and check.name != OWN_CODE for check in checks),
        signed=not signed.unsigned,
        signer=signed.signer,
        claimed=found.claimed,
        delta=found.delta,
        checks=tuple(replace(check, found=_without_folder(check.found, folder)) for check in checks),
        epsilons=found.epsilons,
        notes=tuple(found.notes),
        not_proved=unproved[:-1] if named else unproved,
    )


class _Found:
    """What is found in the files of a release."""

    def __init__(self, folder: Path, signed: signature.Signed):
        self.folder, self.signed = folder, signed
        self.claimed: float | None = None
        self.delta: float | None = None
        self.epsilons: tuple[Accounted, ...] = ()
        self.notes: list[str] = []

    def checks(self) -> Iterator[Check]:
        evidence, why = _try(lambda: read_evidence(self.folder))
        stated, unreadable = _try(lambda: read_sealed(self.folder / STATEMENT))
        if stated is not None:
            claims = (stated.get(name) for name in ("epsilon", "delta"))
            self.claimed, self.delta = (claim if isinstance(claim, float) else None for claim in claims)
        if evidence is None or stated is None:
            yield Check("statement", FAILED, why or unreadable)
            return
        if own := list(evidence.own_code()):
            yield Check(OWN_CODE, UNCHECKED, f"code of the owner's own, which is not here: {'; '.join(own)}")
        due, why = _try(lambda: state(evidence))
        if due is None:
            yield Check("statement", FAILED, f"none follows from {RECIPE}, {LEDGER} and {FACTS} ({why})")
            return
        self.epsilons = tuple(_try(lambda: accounted(evidence.charged, due.delta))[0] or ())
        follows = f"follows from {RECIPE}, {LEDGER} and {FACTS}"
        yield _judged("statement", chain(_promise_faults(due), self._compared(stated, due)), follows)
        yield _judged("recipe", self._rule_faults(evidence), "breaks no rule of a guarantee")
        yield _judged("ledger", charge_faults(evidence), "charges what the recipe's rounds cost")
        cost = f"ε = {accounting.rounded_up(due.epsilon, 4)} at δ = {plain_number(due.delta)}"
        yield _judged("epsilon", self._second_opinions(evidence, due), f"{cost}, and no accountant contradicts it")
        yield _judged("model", self._model_faults(evidence, due), f"weights and {CARD} fit the recipe")
        yield _judged("record", self._record_faults(evidence, due), "its rounds are those of the recipe")
        if due.private_accuracy is not None or due.held_out == PRIVATE:
            yield _judged("held-out users", self._held_out_faults(due), "no exact figure in this folder is of them")
        self._read_readme(due)
        self.notes += _notes(self.signed, due)

    def _rule_faults(self, evidence: Evidence) -> Iterator[str]:
        if list(evidence.own_code()):  # what its rules are, only that code knows
            return
        if evidence.recipe.privacy.mode != "private":
            yield f"its mode is {evidence.recipe.privacy.mode!r}, which promises nothing"
        yield from guarantee_rules(evidence.recipe, evidence.before)

    def _compared(self, stated: Json, due: Statement) -> Iterator[str]:
        """A claimed ε may be larger than the one that follows, never smaller. All else is equal."""
        stated = {name: value for name, value in stated.items() if name != CHECKSUM}
        for path, claim, value in differences(stated, due.exactly()):
            numbers = isinstance(claim, float) and isinstance(value, float)
            follows = is_epsilon(path) and path not in {each.name for each in fields(RunFacts)}
            if not (numbers and follows and claim >= value * (1 - ROUNDING)):
                yield f"{path} is {_value(claim)}, and {_value(value)} follows"
            elif not claim <= value * (1 + 1e-2):
                self.notes.append(f"{path} is stated as {claim:g}, and {value:.4g} follows: it claims less")

    def _second_opinions(self, evidence: Evidence, due: Statement) -> Iterator[str]:
        """Every accountant's figure is an upper bound. dp-accounting's own must not lie far above what is claimed."""
        for name, claimed in (("epsilon", due.epsilon), ("epsilon_replaced", due.epsilon_replaced)):
            theirs = _theirs(evidence.charged, due.delta, replaced=name != "epsilon") if claimed is not None else None
            if theirs is not None and claimed is not None and not theirs <= claimed * (1 + _AGREE):
                yield f"{name} comes to {claimed:.4g}, and dp-accounting computes {accounting.rounded_up(theirs, 4)}"

    def _model_faults(self, evidence: Evidence, due: Statement) -> Iterator[str]:
        """The files that follow from nothing else have the hashes that facts.json names."""
        there = {name for name in self.signed.sizes if name not in DERIVED}
        for name in sorted(there | set(due.files)):
            if name not in there or name not in due.files:
                yield f"{shown(name)} is {'not there' if name in due.files else f'not in {FACTS}'}"
            elif sha256_of(self.folder / name) != due.files[name]:
                yield f"{name} is not the file that {FACTS} names"
        card, model = read_sealed(self.folder / CARD), as_json(evidence.recipe.model)
        if (numbers := numbers_in(self.folder / WEIGHTS)) != card["parameters"]:
            yield f"{WEIGHTS} has {numbers:,} numbers, and the card {card['parameters']} parameters"
        if card["rounds"] != due.rounds_done:
            yield f"{CARD} has {card['rounds']} rounds, and the statement {due.rounds_done}"
        for name, value in (card.get("model") or {}).items():
            if model.get(name) != value:
                yield f"{CARD} has the model's {shown(name)} {_value(value)}, and {RECIPE} {_value(model.get(name))}"

    def _record_faults(self, evidence: Evidence, due: Statement) -> Iterator[str]:
        """Lines that no run writes: rounds in order, with the clip norm and noise of the recipe and an ε that rises."""
        mechanism, before, spent = evidence.mechanism(), -1, 0.0
        both = (mechanism, mechanism.across_devices())  # a server whose devices add noise adds less of it itself
        norms = mechanism.clip_norms(1, mechanism.start())
        lines = _lines(self.folder / RECORD)
        for line in lines:
            number, epsilon = line["round"], from_json_number(line.get("epsilon", spent))
            if line.keys() - _LINE or not before < number <= due.rounds_done or not epsilon >= spent * (1 - 1e-3):
                yield f"no run writes the line of round {number}"
                return
            before, spent = number, epsilon
            planned = joint_norm(mechanism.clip_norms(max(number, 1), mechanism.start()))
            norm = line.get("clip_norm", planned)
            stds = [one.noise_std(max(number, 1), norms)[0] / joint_norm(norms) * norm for one in both]
            std, delta = line.get("noise_std", stds[0]), line.get("delta", due.delta)
            clipped = mechanism.tracking is not None or math.isclose(norm, planned, rel_tol=ROUNDING)
            if not clipped or not any(math.isclose(std, one, rel_tol=ROUNDING) for one in stds) or delta != due.delta:
                stated = f"clip norm {norm:g} and noise of standard deviation {std:g} at δ = {_value(delta)}"
                yield f"round {number} has {stated}, and by {RECIPE} they are {planned:.7g} and {stds[0]:.7g}"
                return
        if not lines or due.chosen:  # the ε of a choice has more than the rounds of the record
            return
        if before != due.rounds_done or (before and spent < due.epsilon_spent * (1 - 1e-3)):
            ends = f"round {due.rounds_done} and ε = {due.epsilon_spent:.4g}"
            yield f"it ends with round {before} and ε = {spent:.4g}, and the statement with {ends}"

    def _held_out_faults(self, due: Statement) -> Iterator[str]:
        """Exact figures of people who have a guarantee, and an accuracy of theirs that does not fit its noise."""
        if due.held_out == EXACT:
            yield "they have a private accuracy, and were declared to be measured exactly"
        baselines = self.folder / BASELINES
        if baselines.exists() and any(isinstance(value, dict) for value in read_sealed(baselines).values()):
            yield f"{BASELINES} has exact figures of them"
        if measured := [line["round"] for line in _lines(self.folder / RECORD) if "evaluation" in line]:
            yield f"{RECORD} has exact figures of them, in round {measured[0]} first"
        manifest = self.folder / ONNX / "manifest.json"
        smaller = read_sealed(manifest).get("eight_bits") if manifest.exists() else None
        if smaller and any(smaller.get(name) is not None for name in ("top1", "top1_float32")):
            yield f"{ONNX}/{manifest.name} has exact figures of them"
        if (found := due.private_accuracy) is None:
            return
        yield from private_accuracy.faults(found, read_sealed(self.folder / CARD)["vocabulary"])
        cost, total = accounting.epsilon([(found.terms.event, 1)], found.terms.delta), due.epsilon_held_out
        if not cost <= found.terms.epsilon * (1 + ROUNDING):
            yield f"ε = {found.terms.epsilon:g} is claimed, and the noise of the accuracy comes to {cost:.4g}"
        if total is None or not cost * (1 - ROUNDING) <= total < math.inf:
            yield f"ε of all private evaluations is {_value(total)}, and that of this one {cost:.4g}"

    def _read_readme(self, due: Statement) -> None:
        """Prose is compared where it was written by this version."""
        writer, own = due.software.get("sottovoce-evidence"), version("sottovoce-evidence")
        if writer != own:
            self.notes.append(f"{README} was written by version {_value(writer)}, and is not compared by {own}")
            return
        signer = self.signed.signer or "FINGERPRINT"
        text, why = _try(lambda: readme(Released.of(self.folder, due), signer).encode().decode())
        if text is None:
            self.notes.append(f"{LOUD}: {README} could not be rendered again ({why})")
        elif read_plain(self.folder / README) != text.encode():
            promised = text.split("## What is promised", 1)[1].split("\n", 2)[2].split("\n\nNot covered", 1)[0]
            self.notes.append(f"{LOUD}: {README} was edited by its owner. This is what follows:\n{promised}")


def read_evidence(folder: Path) -> Evidence:
    """Recipe, ledger and facts of a release: each must be as it is written, with nothing beside it."""
    recipe = Recipe.parse(read_plain(folder / RECIPE, 10**5).decode(), RECIPE)
    run, charges = read_release(folder / LEDGER)
    check_work([one["event"] for one in charges])
    values = {name: value for name, value in read_sealed(folder / FACTS).items() if name != CHECKSUM}
    facts = RunFacts.from_json(values)
    if other := [path for path, *_ in differences(values, facts.to_json())]:
        raise SottoError(f"{FACTS} has more than its facts: {', '.join(map(shown, other))}")
    if run != facts.run:
        raise SottoError(f"{LEDGER} is that of the run {shown(run)}, and {FACTS} names {shown(facts.run)}")
    check_sizes(recipe.to_dict(), facts.clipped_parts)
    if odd := [text for text in texts_in(values) if not is_line(text)]:
        raise SottoError(f"{FACTS} has a text that is not one plain line: {shown(odd[0])}")
    evidence = Evidence(recipe, charges_of(charges), facts)
    check_work([event.to_json() for event, _ in evidence.mechanism().events(max(facts.rounds_done, 1))])
    return evidence


def _theirs(spent: Spent, delta: float, *, replaced: bool = False) -> float | None:
    return dp_accounting_epsilon(spent, delta, replaced=replaced) if len(spent) <= _MOST_CROSS_CHECKED else None


def accounted(spent: Spent, delta: float) -> list[Accounted]:
    """ε by three accountants."""
    found = {"PLD of dp-accounting alone": _theirs(spent, delta)}
    for name in ("pld", "rdp"):
        known = all(name in event.accountants for event, _ in spent)
        found[accounting.accountant_name(name)] = accounting.epsilon(spent, delta, name) if known else None
    return [Accounted(name, epsilon) for name, epsilon in found.items()]


def _promise_faults(due: Statement) -> Iterator[str]:
    if not due.has_guarantee or not math.isfinite(due.mechanism.sensitivity):
        yield "it gives no guarantee: ε is infinite, or nothing bounds what one user can do"
    if due.is_seeded:
        yield "the noise follows from the seed of the recipe: anyone who knows it can undo the noise"
    if not due.epsilon_store >= due.epsilon * (1 - 1e-3):
        yield "the total of the store is less than what this run alone was charged"
    for audit in due.audits:
        if audit.contradicted or audit.result == "failed":
            yield f"the audit by {shown(audit.audit)} contradicts what is claimed"


def _notes(signed: signature.Signed, due: Statement) -> Iterator[str]:
    if math.isinf(due.epsilon_store):
        yield "the total of the store is not known: no accountant has an answer for all its runs together"
    if signed.not_signed:
        yield f"not part of the release, and not signed: {', '.join(signed.not_signed)}"
    if not_run := [audit.audit for audit in due.audits if audit.result == "not run"]:
        yield f"not audited by {' and '.join(not_run)}"


def _lines(path: Path) -> list[Json]:
    """The lines of a record, which must end with one."""
    if not path.exists():
        return []
    contents = read_plain(path, int(largest(RECORD)))
    *lines, rest = contents.split(b"\n")
    if rest:
        raise SottoError(f"{path.name} does not end with a line")
    return [parse_json(line) for line in lines]


def _value(value: Any) -> str:
    """A value of a file, for one line."""
    text = "not stated" if value is None else f"{value:.7g}" if isinstance(value, float) else ascii(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _try(read: Callable[[], T]) -> tuple[T | None, str]:
    """What a file holds, or why it cannot be read: a damaged file is a failed check, not a wrong command."""
    try:
        return read(), ""
    except Exception as error:  # noqa: BLE001 -- whatever the file of a stranger makes a library raise
        return None, " ".join(str(error.what if isinstance(error, DamagedRun) else error).split()) or repr(error)


def _judged(name: str, faults: Iterable[str], fine: str) -> Check:
    """The check of a file. Faults that cannot be looked for are one."""
    found: list[str] = []
    if why := _try(lambda: found.extend(faults))[1]:
        found.append(f"cannot be checked ({why})")
    return Check(name, FAILED if found else PASSED, "; ".join(found[:20]) or fine)


def _without_folder(text: str, folder: Path) -> str:
    """A text that names files of a release by their names alone."""
    return re.sub(rf"(?<![\w./-]){re.escape(str(folder))}/", "", text)


def _files(signed: signature.Signed, *, released: bool) -> Check:
    faults = list(signed.file_faults)
    if released:
        faults += [fault for fault in folder_faults(signed.sizes) if fault not in faults]
    if signed.unsigned and not faults:
        return Check("files", ABSENT, f"there is no {signature.MANIFEST}: added or changed files would not be found")
    return _judged("files", faults, "are those that were signed, and there are no others")


def _fingerprint_in(file: str, release: Path) -> str:
    if Path(file).resolve().is_relative_to(release.resolve()):
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
    return _judged("signature", faults, f"by {signed.signer}: {whose}")


def _base_card(folder: Path) -> Check:
    base, why = _try(lambda: bases.read_base(folder))
    if base is None:
        return Check("card", FAILED, why)
    hashes = {name: _try(lambda name=name: sha256_of(folder / name))[0] for name in base.files}
    changed = (f"{name} is not the file that it names" for name in hashes if hashes[name] != base.files[name])
    return _judged("card", changed, f"trained on {base.text} by its card")
