"""The folder of a run: what lies where, made whole or not at all, and used by one process at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sottovoce.errors import DamagedRun, SottoError
from sottovoce.files import (
    Json,
    locked,
    made_aside,
    pretty,
    read_sealed,
    remove_partial,
    sealed,
    sha256_of,
    write_aside,
)
from sottovoce.runs.record import Lines

WEIGHTS, VOCABULARY = "weights.safetensors", "vocabulary.txt"


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def recipe_file(self) -> Path:
        return self.path / "recipe.toml"

    @property
    def ledger_file(self) -> Path:
        return self.path / "ledger.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def frozen_file(self) -> Path:
        """What of the model is not trained, where there is such a part: as it was when the run began."""
        return self.path / "frozen.safetensors"

    @property
    def secrets(self) -> Path:
        return self.path / "secrets"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def card_file(self) -> Path:
        return self.model / "card.json"

    @property
    def statement_file(self) -> Path:
        return self.path / "privacy.json"

    @property
    def report_file(self) -> Path:
        return self.path / "report.html"

    @property
    def record(self) -> Lines:
        return Lines(self.path / "record.jsonl")

    @property
    def diagnostics(self) -> Lines:
        return Lines(self.path / "diagnostics.jsonl", private=True)

    @property
    def registry_file(self) -> Path:
        """What canaries were planted: public."""
        return self.path / "canaries.json"

    @property
    def audits(self) -> Path:
        """What audits found: computed from private text, for the owner alone."""
        return self.path / "audit"

    @property
    def own_store(self) -> Path:
        """The synthetic population of a run that asked for one."""
        return self.path / "store"

    @staticmethod
    @contextmanager
    def making(out: Path) -> Iterator[RunFolder]:
        """A folder beside `out` to fill; it becomes `out` when the block ends well and vanishes when it does not."""
        _refuse_existing(out)
        with made_aside(out) as draft:
            yield RunFolder(draft)

    @staticmethod
    def open(path: str | Path) -> RunFolder:
        run = RunFolder(Path(path))
        if not run.recipe_file.is_file():
            released = (run.path / WEIGHTS).is_file() and run.statement_file.is_file()
            instead = "it is a released model; give the folder of its run" if released else "`sotto train` makes one"
            raise SottoError(f"{str(path)!r} holds no run: there is no recipe.toml; {instead}")
        return run

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process out: two of them would release the same rounds with different noise."""
        with locked(self.path / ".lock", f"{self.path} is being trained by another process; wait for it or stop it"):
            remove_partial((self.checkpoints, self.secrets, self.model))
            yield

    def save_model(self, weights: dict[str, np.ndarray], vocabulary: str) -> dict[str, str]:
        """Write the files of a model; their hashes, for its statement."""
        from safetensors.numpy import save as to_bytes

        self.model.mkdir(exist_ok=True)
        files = {WEIGHTS: to_bytes(weights), VOCABULARY: vocabulary.encode()}
        for name, contents in files.items():
            write_aside(self.model / name, contents)
        return {name: hashlib.sha256(contents).hexdigest() for name, contents in files.items()}

    def save_frozen(self, arrays: dict[str, np.ndarray]) -> None:
        from safetensors.numpy import save as to_bytes

        write_aside(self.frozen_file, to_bytes(arrays))

    def load_frozen(self) -> dict[str, np.ndarray]:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            return load_file(self.frozen_file)
        except (SafetensorError, OSError) as error:
            raise DamagedRun(f"cannot read {self.frozen_file}: {error}; put it back, or start another run") from None

    def save_statement(self, statement: Json, card: Json) -> None:
        """Write a run's statement, and the card of its model, which has it too."""
        statement = sealed(statement)
        write_aside(self.card_file, pretty(sealed({**card, "privacy": statement})))
        write_aside(self.statement_file, pretty(statement))

    def model_file(self, name: str) -> Path:
        """A file of the model, once it is clear that it is the one that card and statement name.

        Both are read, and must agree. Those of version 0.1 name no hash.
        """
        path = self.model / name
        if not path.is_file():
            raise SottoError(f"{self.path} has no finished model yet; go on with `sotto resume {self.path}`")
        statement, card = self.read_statement(), self.read_card()
        named = statement.get("files", {})
        if named and card.get("privacy") != statement:
            raise DamagedRun(f"{self.card_file} and {self.statement_file} do not say the same; {self._again}")
        if name in named and named[name] != sha256_of(path):
            raise DamagedRun(
                f"{path} is not the file that {self.statement_file.name} names: it was changed; {self._again}"
            )
        return path

    def load_weights(self) -> dict[str, np.ndarray]:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        path = self.model_file(WEIGHTS)
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise DamagedRun(f"cannot read {path}: {error}") from None

    def read_statement(self) -> Json:
        return self._read_facts(self.statement_file, self._again)

    def read_card(self) -> Json:
        return self._read_facts(self.card_file, self._again)

    @property
    def _again(self) -> str:
        return f"`sotto resume {self.path}` writes it again"

    @staticmethod
    def _read_facts(path: Path, then: str) -> Json:
        try:
            return read_sealed(path)
        except (OSError, ValueError) as error:
            raise DamagedRun(f"cannot read {path} ({error}); {then}") from None

    def save_audit(self, name: str, value: Json, figure: bytes | None) -> None:
        self.audits.mkdir(mode=0o700, exist_ok=True)
        picture = self.audits / f"{name}.png"
        picture.unlink(missing_ok=True)  # that of an earlier audit would not belong to these figures
        if figure is not None:
            write_aside(picture, figure, private=True)
        write_aside(self.audits / f"{name}.json", pretty(sealed(value)), private=True)

    def read_audit(self, name: str) -> Json | None:
        path = self.audits / f"{name}.json"
        return self._read_facts(path, "remove it, or audit again") if path.exists() else None

    def write_json(self, path: Path, value: Json) -> None:
        write_aside(path, pretty(value))


def names_of(paths: Sequence[Path]) -> list[str]:
    """The last part of each path, with as many before it as tell them apart; never where they lie."""
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(set(parts)):
            break
    return names


def _refuse_existing(out: Path) -> None:
    if RunFolder(out).recipe_file.exists():
        raise SottoError(f"{str(out)!r} holds another run; choose another --out, or go on with `sotto resume {out}`")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SottoError(f"{str(out)!r} exists and is not an empty folder; choose another --out")
