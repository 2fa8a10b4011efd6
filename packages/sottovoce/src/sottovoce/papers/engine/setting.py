"""What one folder of results is about: a paper, a size and a population."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from sottovoce.files import write_aside
from sottovoce_evidence.errors import SottoError

SETTING_FILE = "reproduction.json"


@dataclass(frozen=True)
class Setting:
    """One folder has one setting: figures of different sizes or populations cannot be compared."""

    paper: str
    size: str
    rounds: int
    users: int
    held_out_users: int
    vocabulary: int
    tokens_per_user: int
    synthetic: bool = False

    @staticmethod
    def load(out: Path) -> Setting:
        path = out / SETTING_FILE
        if not path.is_file():
            raise SottoError(f"{out} holds no reproduction: there is no {SETTING_FILE}; run one into it first")
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return Setting(**values)
        except (OSError, ValueError, TypeError) as error:
            raise SottoError(f"cannot read {path} ({error}); choose another --out") from None

    def save(self, out: Path) -> None:
        """Write the setting, or refuse a folder that has another one."""
        path = out / SETTING_FILE
        if path.exists():
            known, wanted = asdict(Setting.load(out)), asdict(self)
            if different := [key for key, value in wanted.items() if known[key] != value]:
                what = ", ".join(f"{key} = {known[key]}, not {wanted[key]}" for key in different)
                raise SottoError(f"{out} holds a reproduction with {what}; choose another --out")
        write_aside(path, json.dumps(asdict(self), indent=1).encode() + b"\n")
