"""The folder of a release: the names of its files, how large each may be, and how much work a check of it is."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sottovoce_evidence.errors import SottoError
from sottovoce_evidence.files import FACTS as LARGEST_FACTS
from sottovoce_evidence.files import LINES, TOKENS, Json, open_plain, parse_json
from sottovoce_evidence.signature import MANIFEST, SIGNATURE, SIGNER, shown

STATEMENT, FACTS, LEDGER, RECIPE = "privacy.json", "facts.json", "ledger.jsonl", "training.toml"
CARD, WEIGHTS, README, RECORD = "card.json", "weights.safetensors", "README.md", "record.jsonl"
BASELINES, CANARIES, REPORT, ONNX = "baselines.json", "canaries.json", "report.html", "onnx"
TOKENIZERS = ("vocabulary.txt", "tokenizer.json")
DERIVED = (STATEMENT, FACTS, README, MANIFEST, SIGNATURE, SIGNER)  # all others are named in facts.json, with hashes
_NEEDED = (STATEMENT, FACTS, LEDGER, RECIPE, CARD, WEIGHTS, README)
_EXPORTED = ("manifest.json", CANARIES, "pieces.json", "step.onnx", "sequence.onnx", "batch.onnx", *TOKENIZERS)
_LARGEST = {
    **dict.fromkeys((STATEMENT, FACTS, LEDGER, RECIPE, CARD, README), LARGEST_FACTS),
    **dict.fromkeys((BASELINES, CANARIES, REPORT, RECORD, MANIFEST, SIGNATURE, SIGNER), LINES // 10),
    **dict.fromkeys(TOKENIZERS, TOKENS),
    **{f"{ONNX}/{name}": 10**11 for name in _EXPORTED},
    WEIGHTS: 10**11,
}
RUN_NAME = re.compile(r"[\w-]{1,64}", re.ASCII)
# A kind of round takes about a third of a second, a thousand examples of a user a few.
_MOST_KINDS, _MOST_NUMBERS, _MOST_MOVED, _MOST_OF_MATRIX = 40, 10**4, 100, 10**8
_LIMITS = {"examples_per_user": 10_000, "silos": 10_000, "rounds": 10**7}


def largest(name: str) -> float:
    """The most bytes of a file of a release or a base, by its name."""
    return _LARGEST.get(name, LINES // 10)


def folder_faults(sizes: Mapping[str, int]) -> list[str]:
    """Files that no release has, which may be someone's text or a key, and those that each has."""
    faults = [f"{shown(name)} is no file of a release" for name in sorted(sizes) if name not in _LARGEST]
    faults += [f"{name} is missing" for name in _NEEDED if name not in sizes]
    return faults if set(TOKENIZERS) & set(sizes) else [*faults, f"{' or '.join(TOKENIZERS)} is missing"]


def check_work(events: Sequence[object]) -> None:
    """Refuse charges that would take longer to account for than a reviewer waits."""
    events = [inner for event in events for inner in _with_inner(event)]
    if len(events) > _MOST_KINDS:
        raise SottoError(f"{len(events):,} kinds of rounds take too long to account for: {_MOST_KINDS} are allowed")
    together = 0
    for event in events:
        if not isinstance(event, dict):
            raise SottoError("a charge is no object")
        for name, value in event.items():
            if isinstance(value, list) and len(value) > _MOST_NUMBERS:
                raise SottoError(f"{len(value):,} numbers of one charge take too long to account for")
            if name in _LIMITS and not (isinstance(value, int) and value <= _LIMITS[name]):
                raise SottoError(f"{name} of a charge must be a whole number up to {_LIMITS[name]:,}")
        if _moved(event) > _MOST_MOVED:
            raise SottoError("the examples of a user move a round by 100 times its noise or more: nothing is protected")
        together += sum(event.get(name) or 0 for name in ("examples_per_user", "silos"))
    if together > _LIMITS["silos"]:
        raise SottoError(f"{together:,} examples of a user in all charges take too long to account for")


def texts_in(value: object) -> Iterator[str]:
    """All texts in a JSON value, names of keys among them."""
    if isinstance(value, str):
        yield value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts_in(one)
    if isinstance(value, dict):
        yield from value


def is_line(text: str) -> bool:
    """Is it one line, without marks that change a page around it? Facts of a release are written into its README."""
    return not any(unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp") or sign in "<>`" for sign in text)


def check_sizes(recipe: Json, parts: int) -> None:
    """Refuse a recipe whose mechanism would take longer to compute than a reviewer waits, or more memory."""
    numbers = {f"{section}.{key}": value for section, keys in recipe.items() for key, value in keys.items()}
    limits = {"run.rounds": _LIMITS["rounds"], "clipped_parts": _MOST_NUMBERS}
    for name, value in {**numbers, "clipped_parts": parts}.items():
        many = isinstance(value, list | tuple) and len(value) > _MOST_NUMBERS
        if many or (isinstance(value, int) and value > limits.get(name, math.inf)):
            raise SottoError(f"{name} takes too long to compute with")
    if len(recipe["privacy"]["noise_coefficients"]) * recipe["run"]["rounds"] > _MOST_OF_MATRIX:
        raise SottoError("a matrix of so many rounds takes too long to account for")


def _moved(event: Json) -> float:
    """By how many times the noise a user's examples move a round, on average. Where it is much, ε takes minutes."""
    names = ("examples_per_user", "example_rate", "noise_multiplier")
    examples, rate, noise = (float(event.get(name, 0)) for name in names)
    return examples * rate / noise if noise > 0 else 0.0


def _with_inner(event: object) -> list[object]:
    """An event, and those of one run where it is the best of several."""
    run = event.get("run") if isinstance(event, dict) else None
    return [event, *(one[0] if isinstance(one, list) and one else one for one in run)] if run else [event]


def is_release(path: Path) -> bool:
    """Is it a folder as `sotto release` writes it? Some of its files may be missing."""
    there = {name for name in (WEIGHTS, STATEMENT, LEDGER, MANIFEST) if (path / name).is_file()}
    return not (path / "recipe.toml").exists() and (STATEMENT in there or LEDGER in there) and len(there) > 1


def numbers_in(weights: Path) -> int:
    """How many numbers a safetensors file has, by its header, which must fit its size."""
    size = weights.stat().st_size
    with open_plain(weights) as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= min(size, LARGEST_FACTS):
            raise ValueError(f"its header would have {length:,} bytes")
        header = parse_json(file.read(length))
    arrays = [facts for name, facts in header.items() if name != "__metadata__"]
    if max((facts["data_offsets"][1] for facts in arrays), default=0) + 8 + length != size:
        raise ValueError("its arrays do not fill it")
    return sum(math.prod(facts["shape"]) for facts in arrays)
