"""The folder of a release: the files of a run that may be public, and a README for people who find them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sottovoce.build.assembly import model_settings
from sottovoce.commands.export import export_run
from sottovoce.commands.private_evaluation import private_accuracy
from sottovoce.commands.report import public_recipe, report_run
from sottovoce.commands.stores import held_out_folder, store_folder
from sottovoce.data.languages import DEFAULT, SPACES
from sottovoce.data.prompts import prompts_for
from sottovoce.data.tokenizer_files import find_tokenizer, load_tokenizer
from sottovoce.evaluation.figures import last_evaluation
from sottovoce.files import write_aside
from sottovoce.reporting.statement import read_statement, with_store_total
from sottovoce.runs.baselines import Baselines
from sottovoce.runs.card import Card
from sottovoce.runs.checkpoint import digest
from sottovoce.runs.folder import RunFolder
from sottovoce.runs.ledger import StoreLedger
from sottovoce.runs.record import as_lines
from sottovoce_evidence import accounting, bases
from sottovoce_evidence.accounting import Spent
from sottovoce_evidence.errors import SettingError, SottoError
from sottovoce_evidence.files import sealed, sha256_of
from sottovoce_evidence.ledger import release_ledger
from sottovoce_evidence.private_accuracy import PrivateAccuracy
from sottovoce_evidence.readme import Released, readme
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.release import CARD, FACTS, LEDGER, ONNX, README, RECIPE, REPORT, STATEMENT, WEIGHTS
from sottovoce_evidence.signature import MANIFEST, RELEASE, SIGNATURE, SIGNER, fingerprint, sign_folder
from sottovoce_evidence.statement import PRIVATE, AuditOutcome, Evidence, Published, Statement, state
from sottovoce_evidence.verify import FAILED, read_evidence, verify_release

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_LICENSE = re.compile(r"[\w.+-]{1,64}", re.ASCII)
_LANGUAGE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*")


@dataclass(frozen=True)
class Publication:
    """What an owner adds to a release: under which licence and key it is published."""

    license: str = "other"  # as Hugging Face names licences, for example apache-2.0
    language: str | None = None  # a code such as en; that of the base with the same words, or theirs, unless given
    key: Path | None = None  # that of the owner unless given

    def __post_init__(self) -> None:
        if not _LICENSE.fullmatch(self.license):
            raise SettingError("{license!r} must be the short name of a licence: apache-2.0", license=self.license)
        if self.language is not None and not _LANGUAGE.fullmatch(self.language):
            raise SettingError("{language!r} must be the code of a language: en, de, pt-BR", language=self.language)


class NotVerified(SottoError):
    """A release that `sotto verify` would not pass, and why: one line for each check."""

    def __init__(self, faults: Sequence[str]):
        self.reasons = tuple(f"`sotto verify` of the release would fail: {fault}" for fault in faults)
        super().__init__("; ".join(self.reasons))


@dataclass
class ReleaseFolder:
    """What is written for a run that may be released. `notes` says what is left out, and why."""

    run: RunFolder
    out: Path
    publication: Publication
    signer: str
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.card = Card.from_json(self.run.read_card())
        self.statement = read_statement(self.run)
        self.held_out = held_out_folder(Recipe.of(self.run), self.run)
        self.accuracy = self._private_accuracy()
        self.notes += tuple(self._own_code())
        if worse := self._no_better():
            self.notes += (worse,)
        if self.statement.held_out == PRIVATE and self.accuracy is None:
            why = "no accuracy: held-out users were declared private, and have not paid for one"
            self.notes += (f"{why}; `sotto evaluate {self.run.path} --private-epsilon 1` measures it",)
        own, words = self.card.own_model, find_tokenizer(self.run.model).name
        files = [WEIGHTS, words, CARD, STATEMENT, FACTS, LEDGER, RECIPE]
        files += self._copied
        if own:
            self.notes += ("no report.html and no ONNX: the model is your own; `sotto report` needs it from Python",)
        else:
            files.append(REPORT)
        self.onnx = not own and all(find_spec(name) for name in ("jax2onnx", "onnxruntime"))
        if not own and not self.onnx:
            self.notes += ("no ONNX: that needs `pip install 'sottovoce[export]'`",)
        files += [f"{ONNX}/"] * self.onnx
        self.files = (*files, README, MANIFEST, SIGNATURE, SIGNER)

    def _own_code(self) -> Iterator[str]:
        """What others cannot check without code of the owner's own."""
        statement = self.statement
        for block in Evidence(Recipe.of(self.run), statement.charged, statement.facts).own_code():
            yield f"{block}: code of your own; `sotto verify` says that it is not checked; publish it with the model"

    @property
    def _copied(self) -> dict[str, bytes]:
        """Public files that not every run has."""
        run = self.run
        files = [run.registry_file, run.record.path, run.baselines_file]
        copied = {file.name: file.read_bytes() for file in files if file.exists()}
        if run.record.path.name in copied:  # whole lines alone
            copied[run.record.path.name] = as_lines(run.record.read())
        return copied

    def _private_accuracy(self) -> PrivateAccuracy | None:
        """Of this model, where held-out users were declared private and have paid for one."""
        if self.held_out is None or self.statement.held_out != PRIVATE:
            return None
        return private_accuracy(self.held_out, digest(self.run.load_weights()))

    def _no_better(self) -> str | None:
        """A sentence for a model that training did not make better, where that was measured."""
        baselines = Baselines.of(self.run)
        _, last = last_evaluation(self.run.record.read())
        return baselines.no_better(last) if baselines and last else None

    def publish(self, draft: Path, audits: tuple[AuditOutcome, ...], key: Ed25519PrivateKey) -> None:
        """Fill the folder, sign it, and check it as anyone would who gets it.

        Raises:
            NotVerified: a check fails. Nothing outside the folder was written.
        """
        self.write(draft, audits)
        sign_folder(draft, key, RELEASE)
        checks = verify_release(draft, signer=fingerprint(key.public_key())).checks
        if faults := [f"{check.name}: {check.found}" for check in checks if check.result == FAILED]:
            raise NotVerified(faults)

    def write(self, draft: Path, audits: tuple[AuditOutcome, ...]) -> None:
        run, recipe = self.run, Recipe.of(self.run)
        for file in (run.model_file(WEIGHTS), run.tokenizer_file()):
            write_aside(draft / file.name, file.read_bytes())
        public = public_recipe(run, self.card)
        if self.card.own_model:
            del public["model"]
        public = Recipe.from_dict(public)
        # Later runs on the same people count: the total is the one of today.
        stated = with_store_total(self.statement, store_ledger(run, recipe).spent())
        stated = replace(stated, audits=audits, published=self._published(stated))
        if self.accuracy is not None and self.held_out is not None:
            spent = StoreLedger(self.held_out / "ledger.jsonl").spent_on_held_out()
            stated = with_private_accuracy(stated, self.accuracy, spent)
        model = {} if self.card.own_model else {"kind": recipe.model.kind, **model_settings(recipe)}
        run.write_json(draft / CARD, sealed({**run.read_card(), "model": model or None}))
        write_aside(draft / LEDGER, release_ledger(stated.run, stated.charged))
        write_aside(draft / RECIPE, public.to_toml().encode())
        for name, text in self._copied.items():
            write_aside(draft / name, text)
        if REPORT in self.files:
            report_run(run.path, out=draft / REPORT, statement=stated)
        if self.onnx:
            self._export(draft, stated)
        files = {path.relative_to(draft).as_posix(): sha256_of(path) for path in draft.rglob("*") if path.is_file()}
        run.write_json(draft / FACTS, sealed(replace(stated, files=files).facts.to_json()))
        evidence = read_evidence(draft)
        statement = state(evidence)
        run.write_json(draft / STATEMENT, sealed(statement.to_json()))
        text = readme(Released.of(draft, statement), self.signer)
        write_aside(draft / README, text.encode())

    def _export(self, draft: Path, statement: Statement) -> None:
        try:
            export_run(self.run.path, draft / ONNX, statement=statement)
        except SottoError as error:  # such as a model that ONNX does not compute alike: the release is whole without it
            self.onnx, self.notes = False, (*self.notes, f"no ONNX: {error}")
            self.files = tuple(name for name in self.files if name != f"{ONNX}/")

    def _published(self, statement: Statement) -> Published:
        run = self.run
        cards = [bases.read_base(folder) for name in bases.shipped() if (folder := bases.find(name))]
        same_words = [card.language for card in cards if card.words == statement.vocabulary.fingerprint]
        vocabulary = load_tokenizer(run.tokenizer_file())
        # A default says nothing of the text.
        named = None if vocabulary.language in (DEFAULT, SPACES) else vocabulary.language
        return Published(
            name=self.out.resolve().name,
            license=self.publication.license,
            language=self.publication.language or next(iter(same_words), None) or named,
            prompt=next(iter(prompts_for(vocabulary, listed=not statement.vocabulary.private)), ""),
        )


def with_private_accuracy(statement: Statement, accuracy: PrivateAccuracy, spent: Spent) -> Statement:
    """The same with an accuracy that is private for held-out users. `spent` is all that they were charged."""
    total = accounting.epsilon(spent, accuracy.terms.delta)
    return replace(statement, private_accuracy=accuracy, epsilon_held_out=total)


def store_ledger(run: RunFolder, recipe: Recipe) -> StoreLedger:
    """What was charged to the people of a run's store."""
    return StoreLedger(store_folder(recipe, run) / "ledger.jsonl")
