"""The folder of a run: which file is where. It is made whole or not at all, and used by one process at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from sottovoce.data.store import STORE_FILE
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.data.tokenizer_files import find_tokenizer
from sottovoce.files import check_empty, locked, made_aside, make_folder, remove_partial, write_aside
from sottovoce.runs.card import Card
from sottovoce.runs.record import Lines
from sottovoce_evidence import bases
from sottovoce_evidence.errors import DamagedRun, SottoError
from sottovoce_evidence.files import (
    FACTS,
    TOKENS,
    Json,
    check_plain,
    pretty,
    read_sealed,
    sealed,
    sha256_of,
    unreadable,
)
from sottovoce_evidence.release import is_release

WEIGHTS, STATEMENT = "weights.safetensors", "privacy.json"
HUGGING_FACE, _CONFIG = "hugging_face", "config.json"  # a kind of folder, and the file that it has
RECIPE = "training.toml"  # of a release: its run's recipe, without the paths
_BYTES = 8  # of a number of the weights, at most
AGAIN = "get the release again"  # what a reader of a release does about a damaged file
README, ONNX, REPORT = "README.md", "onnx", "report.html"  # of a release too

_NO_RUN = {  # by kind, why it is no run, and what to do
    "missing": "there is no such folder; check the path",
    "file": "it is a file; give the folder of a run",
    "empty": "the folder is empty; `sotto train` makes one",
    "release": "it is a released model; give the folder of its run",
    "base": "it is a base, from which `sotto train --from` starts one",
    "hugging_face": "it is a folder of Hugging Face, from which `sotto train --from` starts one",
    "store": "it is a store, on which `sotto train` makes one",
}


class RunFolder:
    def __init__(self, path: Path):
        self.path = path
        self.recipe_file = path / "recipe.toml"
        self.ledger_file = path / "ledger.jsonl"
        self.lock_file = path / ".lock"
        self.record = Lines(path / "record.jsonl")
        self.diagnostics = Lines(path / "diagnostics.jsonl", private=True)
        self.participation_file = path / "participation.json"  # exact figures of who joined: for the owner alone
        self.checkpoints = path / "checkpoints"
        self.frozen_file = path / "frozen.safetensors"  # the part of the model that is not trained, if any
        self.secrets = path / "secrets"
        self.model = path / "model"
        self.card_file = self.model / "card.json"
        self.statement_file = path / STATEMENT
        self.report_file = path / "report.html"
        self.baselines_file = path / "baselines.json"
        self.registry_file = path / "canaries.json"  # the canaries that were planted: public
        self.audits = path / "audit"  # computed from private text: for the owner alone
        self.own_store = path / "store"  # the synthetic population, where the recipe asks for one
        self.is_release = False
        self._again = f"`sotto resume {path}` writes it again"

    @staticmethod
    @contextmanager
    def making(out: Path) -> Iterator[RunFolder]:
        """A folder to fill, which becomes `out` at the end. After an error nothing remains."""
        if (other := RunFolder(out)).recipe_file.exists():
            then = f"or go on with `sotto resume {out}`" if other.secrets.exists() else "as that one was released"
            raise SottoError(f"{str(out)!r} holds another run; use another --out, {then}")
        check_empty(out)
        with made_aside(out) as draft:
            yield RunFolder(draft)

    @staticmethod
    def open(path: str | Path) -> RunFolder:
        run = RunFolder(Path(path))
        if not run.recipe_file.is_file():
            why = _NO_RUN.get(kind_of(run.path), "there is no recipe.toml; `sotto train` makes one")
            raise SottoError(f"{str(path)!r} holds no run: {why}")
        return run

    @staticmethod
    def of_release(path: Path) -> RunFolder:
        """What `sotto release` wrote: the files of a run that are public, all in one folder."""
        release = RunFolder(path)
        release.model, release.card_file = path, path / "card.json"
        release.recipe_file = path / RECIPE
        release.is_release, release._again = True, AGAIN
        release.record = Lines(release.record.path, then=AGAIN)
        return release

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process out: two of them would release the same rounds with different noise."""
        with locked(self.lock_file, f"{self.path} is being trained by another process; wait for it or stop it"):
            remove_partial((self.checkpoints, self.secrets, self.model))
            yield

    def save_model(
        self, weights: dict[str, np.ndarray], tokenizer: Tokenizer, *, private: bool = False
    ) -> dict[str, str]:
        """Write the files of a model, and return their hashes for its statement. `private`: for their owner alone."""
        from safetensors.numpy import save as to_bytes

        make_folder(self.model, 0o700 if private else 0o777)
        files = {WEIGHTS: to_bytes(weights), tokenizer.file_name: tokenizer.contents}
        for name, contents in files.items():
            write_aside(self.model / name, contents, private=private)
        return {name: hashlib.sha256(contents).hexdigest() for name, contents in files.items()}

    def save_frozen(self, arrays: dict[str, np.ndarray]) -> None:
        from safetensors.numpy import save as to_bytes

        write_aside(self.frozen_file, to_bytes(arrays))

    def load_frozen(self) -> dict[str, np.ndarray]:
        return load_arrays(self.frozen_file, "put it back, or start another run")

    def save_statement(self, statement: Json, card: Json) -> None:
        """Write a run's statement, and the card of its model."""
        statement = sealed(statement)
        write_aside(self.card_file, pretty(sealed(card)))
        write_aside(self.statement_file, pretty(statement))

    def save_participation(self, figures: Json) -> None:
        """Write what follows exactly from who joined: for the owner alone, and part of no release."""
        write_aside(self.participation_file, pretty(figures), private=True)

    def model_file(self, name: str) -> Path:
        """The path of a file of the model, which must have the hash that the statement names."""
        path = self.model / name
        if not path.is_file():
            then = self._again if self.is_release else f"go on with `sotto resume {self.path}`"
            raise SottoError(f"{self.path} has no finished model yet; {then}")
        statement, card = self.read_statement(), self.read_card()
        try:
            found = sha256_of(path, _BYTES * card.get("parameters", 0) + FACTS if name == WEIGHTS else TOKENS)
        except OSError as error:
            raise DamagedRun(unreadable(path, error), self._again) from None
        if (statement.get("files") or {}).get(name) != found:
            raise DamagedRun(f"{path} is not the file that privacy.json names: it was changed; {self._again}")
        return path

    def tokenizer_file(self) -> Path:
        """The path of the model's tokenizer, checked as `model_file` does."""
        return self.model_file(find_tokenizer(self.model).name)

    def load_weights(self) -> dict[str, np.ndarray]:
        return load_arrays(self.model_file(WEIGHTS), self._again)

    def read_statement(self) -> Json:
        return _read_facts(self.statement_file, self._again)

    def read_card(self) -> Json:
        card = _read_facts(self.card_file, self._again)
        try:
            Card.from_json(card)
        except (TypeError, ValueError) as error:
            raise DamagedRun(unreadable(self.card_file, error), self._again) from None
        return card

    def save_audit(self, name: str, value: Json, figure: bytes | None) -> None:
        make_folder(self.audits, 0o700)
        picture = self.audits / f"{name}.png"
        picture.unlink(missing_ok=True)  # it may be of an earlier audit
        if figure is not None:
            write_aside(picture, figure, private=True)
        write_aside(self.audits / f"{name}.json", pretty(sealed(value)), private=True)

    def read_audit(self, name: str) -> Json | None:
        path = self.audits / f"{name}.json"
        return _read_facts(path, "remove it, or audit again") if path.exists() else None

    def write_json(self, path: Path, value: Json) -> None:
        write_aside(path, pretty(value))


def kind_of(path: Path) -> str:
    """What a path that somebody gave is.

    It is `run`, `release`, `base`, `hugging_face` or `store`; else `missing`, `file`, `empty` or `other`.
    """
    if not path.is_dir():
        return "file" if path.exists() else "missing"
    if (path / "recipe.toml").is_file():
        return "run"
    if is_release(path):
        return "release"
    if bases.is_base(path):
        return "base"
    if (path / _CONFIG).is_file():
        return HUGGING_FACE
    if (path / STORE_FILE).is_file():
        return "store"
    return "other" if any(path.iterdir()) else "empty"


def load_arrays(path: Path, then: str) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file. An error says what to do (`then`)."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(check_plain(path))
    except (SafetensorError, OSError) as error:
        raise DamagedRun(f"cannot read {path} ({error}); {then}") from None


def _read_facts(path: Path, then: str) -> Json:
    try:
        return read_sealed(path)
    except (OSError, ValueError) as error:
        raise DamagedRun(unreadable(path, error), then) from None


def names_of(paths: Sequence[Path]) -> list[str]:
    """Short names that tell paths apart: the last part of each, with as many parts before it as needed."""
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(set(parts)):
            break
    return names
