"""How good a model is: the one value of every record, page, release and command that says it.

`sottovoce.evaluation.prediction` measures it. Definitions: docs/reference/metrics.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Self

from sottovoce_evidence.errors import DamagedRun, count_of
from sottovoce_evidence.files import Facts, Json


def coarse_count(people: int) -> int:
    """A number of people for public files: its first two digits, rounded down. These people are not protected."""
    unit = 10 ** max(len(str(people)) - 2, 0)
    return people // unit * unit


@dataclass(frozen=True)
class Evaluation(Facts):
    """Shares are over all targets unless the name says otherwise. Targets are tokens: only bits per byte and the top-1
    of words can be compared between models with different tokenizers."""

    users: int
    targets: int  # 0: not told, as in public files
    top1: float
    top3: float
    top5: float
    top1_words: float | None  # over whole words: no marks, no EOS; words outside the vocabulary are mistakes
    perplexity: float = field(metadata={"null": math.inf})  # per token
    perplexity_in_vocabulary: float = field(metadata={"null": math.inf})  # over targets that are in the vocabulary
    oov_rate: float | None  # None where a tokenizer can write everything
    bits_per_byte: float | None = None  # None where the length of the text is not known
    bytes: int = 0  # of the text without white space; 0: not known, or not told
    words: int | None = None  # at which `top1_words` was measured, where it was not at all of them

    def __repr__(self) -> str:
        return f"<Evaluation: top-1 {self.top1:.2%}, perplexity {self.perplexity:.4g}, {count_of(self.users, 'user')}>"

    @property
    def public(self) -> Evaluation:
        """The same of held-out people for public files: how well a model does on them, and a coarse count of them.

        The length of their text is left out, and figures are rounded so that it cannot be computed from them.
        """
        figures = {each.name: getattr(self, each.name) for each in fields(self)}
        rounded = {name: _coarse(value) for name, value in figures.items() if isinstance(value, float)}
        words = None if self.words is None else coarse_count(self.words)  # of a short text, all are measured
        return replace(self, **rounded, users=coarse_count(self.users), targets=0, bytes=0, words=words)

    def to_json(self) -> Json:
        """Plain JSON values. What is infinite is `null`; what was not measured or is not told is left out."""
        left_out = {name for name in ("targets", "bytes") if not getattr(self, name)}
        known = {name: value for name, value in asdict(self).items() if value is not None and name not in left_out}
        return {name: value if math.isfinite(value) else None for name, value in known.items()}

    @classmethod
    def from_json(cls, values: Json) -> Self:
        return super().from_json({"targets": 0, "top1_words": None, "oov_rate": None, **values})


def evaluations(record: Iterable[Json], of: str = "evaluation") -> list[tuple[int, Evaluation]]:
    """The evaluations in the lines of a record, with their rounds; those `of` "beside" are on public text.

    Raises:
        DamagedRun: one of them lacks a figure, or has one that is none.
    """
    try:
        return [(line["round"], Evaluation.from_json(line[of])) for line in record if line.get(of)]
    except (TypeError, ValueError) as error:
        raise DamagedRun(f"the record has an evaluation that cannot be read ({error})") from None


def last_evaluation(record: Iterable[Json]) -> tuple[int, Evaluation | None]:
    """The last of them, and its round: 0 where there is none."""
    found = evaluations(record)
    return found[-1] if found else (0, None)


def _coarse(value: float) -> float:
    return round(value, 4) if value <= 1 else float(f"{value:.4g}")
