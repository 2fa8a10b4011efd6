"""What the folder of a release may hold, and how much work a check of it may be."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeGuard

import numpy as np
from safetensors.numpy import load_file

from sottovoce.audit.registry import Registry
from sottovoce.data.tokenizer_files import FILES, find_tokenizer, load_tokenizer
from sottovoce.reporting.statement import DECLARED, RUN_NAME, StartFacts, Statement
from sottovoce.runs import exported
from sottovoce.runs.baselines import Baselines
from sottovoce.runs.card import Card
from sottovoce.runs.checkpoint import digest
from sottovoce.runs.exported import CANARIES, read_manifest
from sottovoce.runs.folder import ONNX, README, RECIPE, REPORT, STATEMENT, WEIGHTS, RunFolder
from sottovoce.runs.record import as_lines
from sottovoce_evidence import bases
from sottovoce_evidence.errors import DamagedRun, SottoError
from sottovoce_evidence.files import (
    CHECKSUM,
    INFINITY,
    TOKENS,
    Json,
    as_json,
    parse_json,
    read_plain,
    read_sealed,
    sha256_of,
)
from sottovoce_evidence.recipe import Recipe
from sottovoce_evidence.signature import MANIFEST, SIGNATURE, SIGNER

_READ = (STATEMENT, "card.json", "ledger.jsonl", RECIPE, README)  # as a whole
_RECORD, _EXPORT = "record.jsonl", f"{ONNX}/{exported.MANIFEST}"
_SHOWN = (REPORT, _RECORD, "baselines.json", CANARIES)
KNOWN = frozenset({WEIGHTS, *FILES, *_READ, *_SHOWN, MANIFEST, SIGNATURE, SIGNER})
# What a line of the record has, and what an evaluation in it has.
_LINE = frozenset({"round", "epsilon", "delta", "clip_norm", "noise_std", "evaluation", "beside"})
_COUNTS, _SHARES = ("users", "targets", "bytes", "words"), ("top1", "top3", "top5", "top1_words", "oov_rate")
# Figures of an evaluation, the least that each may be, and the most. A mean of rounded numbers may be a bit below 1.
_MEASURED = {
    **dict.fromkeys(_COUNTS, (0, math.inf)), **dict.fromkeys(_SHARES, (0, 1)), "bits_per_byte": (0, math.inf),
    **dict.fromkeys(("perplexity", "perplexity_in_vocabulary"), (0.999, math.inf)),
}  # fmt: skip
_EXPORTED = frozenset(f"{ONNX}/{name}" for name in exported.FILES)
_LARGEST = 10**7  # bytes of a file that is read as a whole
_LARGEST_RECORD, _LARGEST_MODEL = 10**8, 10**11
_AT_ONCE = 2**22  # numbers of the weights that are in memory, of eight bytes
# Kinds of numbers, as safetensors and numpy name them. numpy has no bfloat16.
_FLOATS = {"F16": "float16", "F32": "float32", "F64": "float64", "BF16": "bfloat16"}
_WHOLE = {"BOOL": "bool"} | {
    f"{kind[0].upper()}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)
}
_OF_ARRAYS = {"dtype", "shape", "data_offsets"}  # in the header of weights
_OF_EXPORTS = ("private", "epsilon", "delta", "unit", "prose")  # of the statement, in the manifest of an export
_MOST_MOVED = 100
_FALLS = 1e-3  # of one ε to the next, where grids of losses differ
# A kind of round takes about a third of a second, a thousand examples of a user a few.
_MOST_KINDS, _MOST_EXAMPLES, _MOST_ROUNDS, _MOST_NUMBERS = 40, 10_000, 10**7, 10**4


def unknown(sizes: Mapping[str, int]) -> list[str]:
    """Files that no release has: they may be someone's text, or a key."""
    names = sorted(name for name in sizes if name not in KNOWN | _EXPORTED)
    return [f"{shown(name)} is no file of a release" for name in names]


def shown(name: str) -> str:
    """The name of a file, as somebody chose it, for one line."""
    return f"{ascii(name)[1:-1]:.200}"


def missing(sizes: Mapping[str, int]) -> list[str]:
    """Files that every release has."""
    faults = [f"{name} is missing" for name in (WEIGHTS, *_READ) if name not in sizes]
    return [*faults, *([] if set(FILES) & set(sizes) else [f"{' or '.join(FILES)} is missing"])]


def too_large(sizes: Mapping[str, int]) -> list[str]:
    """Files that are larger than such a file may be. They are not opened."""
    return [
        f"{shown(name)} has more than {largest(name):,} bytes" for name, size in sizes.items() if size > largest(name)
    ]


def largest(name: str) -> int:
    """The most bytes of a file of a release or a base, by its name."""
    if name in (*_READ, _EXPORT):
        return _LARGEST
    if name in FILES:
        return TOKENS
    return _LARGEST_MODEL if name == WEIGHTS or name in _EXPORTED else _LARGEST_RECORD


def check_work(events: Sequence[object]) -> None:
    """Refuse charges that would take longer to account for than a reviewer waits.

    Raises:
        SottoError: there are too many kinds of rounds, or too many examples, rounds or numbers in one of them.
    """
    events = [inner for event in events for inner in _with_inner(event)]
    if len(events) > _MOST_KINDS:
        raise SottoError(f"{len(events):,} kinds of rounds take too long to account for: {_MOST_KINDS} are allowed")
    limits = {"examples_per_user": _MOST_EXAMPLES, "silos": _MOST_EXAMPLES, "rounds": _MOST_ROUNDS}
    together = 0
    for event in events:
        if not isinstance(event, dict):
            raise SottoError("a charge is no object")
        for name, value in event.items():
            if isinstance(value, list) and len(value) > _MOST_NUMBERS:
                raise SottoError(f"{len(value):,} numbers of one charge take too long to account for")
            if name in limits and not (isinstance(value, int) and value <= limits[name]):
                raise SottoError(f"{name} of a charge must be a whole number up to {limits[name]:,}")
        if _moved(event) > _MOST_MOVED:
            raise SottoError("the examples of a user move a round by 100 times its noise or more: nothing is protected")
        together += sum(event.get(name) or 0 for name in ("examples_per_user", "silos"))
    if together > _MOST_EXAMPLES:
        raise SottoError(f"{together:,} examples of a user in all charges take too long to account for")


def _moved(event: Json) -> float:
    """By how many times the noise a user's examples move a round, on average. Where it is much, ε takes minutes."""
    names = ("examples_per_user", "example_rate", "noise_multiplier")
    examples, rate, noise = (float(event.get(name, 0)) for name in names)
    return examples * rate / noise if noise > 0 else 0.0


def _with_inner(event: object) -> list[object]:
    """An event, and those of one run where it is the best of several."""
    run = event.get("run") if isinstance(event, dict) else None
    return [event, *(one.get("event") if isinstance(one, dict) else one for one in run)] if run else [event]


def round_faults(release: RunFolder, statement: Statement, card: Json) -> Iterator[str]:
    """Files that know of other rounds than the statement."""
    if card.get("rounds") != statement.rounds_done:
        yield f"card.json has {card.get('rounds')!a} rounds, and the statement {statement.rounds_done}"
    try:
        lines = release.record.read()
    except DamagedRun as error:
        yield error.what
        return
    last = max((line["round"] for line in lines), default=0)
    if last > statement.rounds_done:
        yield f"{_RECORD} has round {last}, and the statement ends after round {statement.rounds_done}"
    yield from _line_faults(lines, statement)
    file = release.record.path
    if file.exists() and read_plain(file, _LARGEST_RECORD) != as_lines(lines):
        yield f"{_RECORD} has more than its lines"


def _line_faults(lines: Sequence[Json], statement: Statement) -> Iterator[str]:
    """Lines of a record that no run writes: each round once, in order, with the δ of the statement and a rising ε."""
    before, spent = -1, 0.0
    for line in lines:
        number = line["round"]
        if not before < number:
            yield f"{_RECORD} has round {number} after round {before}"
            return
        if odd := [shown(name) for name in line if name not in _LINE]:
            yield f"round {number} of {_RECORD} has {', '.join(odd)}, which no record has"
            return
        measured = [line[name] for name in ("evaluation", "beside") if name in line]
        if not all(isinstance(one, dict) and _are_figures(one) for one in measured):
            yield f"round {number} of {_RECORD} has an evaluation with more than its figures, or one that cannot be"
            return
        if line.get("delta", statement.delta) != statement.delta:
            yield f"round {number} of {_RECORD} has δ = {shown(str(line['delta']))}, and the statement another"
            return
        epsilon = line.get("epsilon", spent)
        if not _is_number(epsilon) or not epsilon >= spent * (1 - _FALLS):
            yield f"ε of {_RECORD} falls in round {number}, or is no number"
            return
        before, spent = number, epsilon


def _are_figures(evaluation: Json) -> bool:
    return evaluation.keys() <= _MEASURED.keys() and all(_is_figure(*figure) for figure in evaluation.items())


def _is_figure(name: str, value: object) -> bool:
    least, most = _MEASURED[name]
    if value is None or name in _COUNTS:
        return value is None or (type(value) is int and value >= least)
    return (value == INFINITY and most == math.inf) or (_is_number(value) and least <= value <= most)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


# What a statement says of a start, after its hash.
_PUBLIC_START = rf"public start: [0-9a-f]+, ({DECLARED}|public by its own card)"
_GIVEN_START = rf"weights given from Python: [0-9a-f]+, {DECLARED}"
_FIGURE = r"[0-9][0-9.,e+-]{0,30}"
_PRIVATE_START = (
    rf"private start: [0-9a-f]+, with ε = {_FIGURE} at δ = {_FIGURE} for its own users"
    rf"( \(a person who is among both has at most the sum of both ε\))?(, what it began with {DECLARED})?"
)
_STARTS = re.compile(rf"({_PUBLIC_START}|{_GIVEN_START}|{_PRIVATE_START})(, signed by SHA256:[A-Za-z0-9+/]{{43}})?")


def start_faults(start: StartFacts) -> Iterator[str]:
    """What no start of a private run says of itself."""
    private, public = start.source.startswith("private start"), start.source.startswith("public start")
    if not _STARTS.fullmatch(start.source):
        yield f"the source of the start is none of a private run: {shown(start.source)}"
        return
    if start.trained_on not in (None, "public", "private", "people or unknown"):
        yield f"the start was trained on {shown(str(start.trained_on))}, and that of a release is not"
    if (start.trained_on == "public" and not public) or (start.trained_on == "private" and not private):
        yield f"the start was trained on {start.trained_on} text, and its source says otherwise"
    if "its own card" in start.source and start.trained_on != "public":
        yield "the start is public by its own card, and was not trained on public text"
    if (start.trained_on == "private") != bool(start.runs):
        yield "the start is private, or has private runs before it, and not both"
    if start.name is not None and not (public and start.name.startswith("base ") and bases.is_plain(start.name[5:])):
        yield f"the name of the start is none of a base: {shown(start.name)}"
    for run in filter(None, (start.run, *start.runs)):
        if not RUN_NAME.fullmatch(run):
            yield f"the start is of a run with a name that no run has: {shown(run)}"


def start_notes(release: RunFolder, statement: Statement, recipe: Recipe) -> Iterator[str]:
    """A start that the recipe calls otherwise, or that is called as a base of this package, and is another one.

    Both may be so: the folder of a base may have any name, and a later version may have other bases.
    """
    start, initial = statement.start, Path(recipe.model.initial or "").name
    if start is None or start.weights is None:
        return
    name = start.name.removeprefix("base ") if start.name else initial
    if initial and initial not in (name, WEIGHTS):
        yield f"{RECIPE} calls the start '{shown(initial)}', and the statement '{shown(name)}'"
    folder = bases.find(name)
    if folder is None or load_tokenizer(find_tokenizer(release.path)).contexts:  # which have rows that no base has
        return
    arrays = {key: array.astype(np.float32) for key, array in load_file(folder / bases.WEIGHTS).items()}
    if digest(arrays) != start.weights:
        yield f"the start is called {name!r}, and its weights are not those of the base {name!r} of this package"


def exact_figures(release: RunFolder) -> Iterator[str]:
    """Files of a release that have exact figures of held-out people."""
    baselines = Baselines.of(release)
    if baselines is not None and baselines.scores:
        yield f"{release.baselines_file.name} has exact figures of them"
    measured = [line["round"] for line in release.record.read() if "evaluation" in line]
    if measured:
        yield f"{_RECORD} has exact figures of them, in round {measured[0]} first"
    manifest = release.path / _EXPORT
    smaller = read_sealed(manifest).get("eight_bits") if manifest.exists() else None
    if smaller and any(smaller.get(name) is not None for name in ("top1", "top1_float32")):
        yield f"{_EXPORT} has exact figures of them"


def model_faults(release: RunFolder, statement: Statement) -> Iterator[str]:
    """Whether weights and tokenizer can be read, and are those that card and statement describe."""
    named = set(statement.files or ())
    words = named & set(FILES)
    if WEIGHTS not in named or len(words) != 1 or named - {WEIGHTS, *FILES}:
        yield f"the statement must have the hash of {WEIGHTS} and of one tokenizer, and no others"
        return
    card = release.read_card()
    (name,) = words
    if lost := [file for file in (WEIGHTS, name) if not (release.path / file).is_file()]:
        yield "; ".join(f"{file} is missing" for file in lost)
        return
    try:
        numbers, weights, odd = _read_weights(release.path / WEIGHTS, own=Card.from_json(card).own_model)
    except Exception as error:  # noqa: BLE001 -- anything that a reader of arrays raises on hostile bytes
        yield f"{WEIGHTS} is no file of weights ({error})"
        return
    if numbers != card.get("parameters"):
        yield f"{WEIGHTS} has {numbers:,} numbers, and the card {card.get('parameters')} parameters"
    yield from (f"{WEIGHTS}: {what}" for what in odd)
    tokenizer = load_tokenizer(release.path / name)
    if tokenizer.fingerprint != statement.vocabulary.fingerprint:
        yield f"{name} is not the vocabulary of the statement"
    if not statement.vocabulary.comes_from(tokenizer.kind, tokenizer.contexts):
        yield "the source of the vocabulary is none that a store has"
    if tokenizer.size != card.get("vocabulary"):
        yield f"{name} has {tokenizer.size} tokens, and the card {card.get('vocabulary')}"
    yield from _card_faults(statement, card)
    yield from _canary_faults(release, statement)
    found = Baselines.of(release)  # it refuses a file that is none
    for name, score in (found.scores if found else {}).items():
        if not _are_figures(score.to_json()):
            yield f"{release.baselines_file.name} has a figure of '{shown(name)}' that cannot be"
    if (release.path / ONNX).is_dir():
        yield from _export_faults(release, statement, weights)


def _read_weights(file: Path, *, own: bool = False) -> tuple[int, str | None, list[str]]:
    """How many numbers weights have, their hash (as of `checkpoint.digest`), and what no model has.

    A model of the owner's `own` may have whole numbers too. The hash is None where there are numbers of a kind that is
    not known. A model may be larger than the memory of a reviewer's machine: some numbers are read at a time.
    """
    from safetensors import safe_open

    numbers, odd, readable, digest = 0, [], True, hashlib.sha256()
    with safe_open(file, framework="numpy") as arrays:  # it refuses a file whose parts do not fit together
        names, text = sorted(arrays.keys()), bool(arrays.metadata())
    with file.open("rb") as contents:
        size = int.from_bytes(contents.read(8), "little")
        header = parse_json(contents.read(size))
        if text or any(header[name].keys() != _OF_ARRAYS for name in names):
            odd.append("it has text beside its numbers")
        for name in names:
            kind, shape = header[name]["dtype"], header[name]["shape"]
            numbers += math.prod(shape)
            known = _FLOATS.get(kind) or _WHOLE.get(kind)
            if known is None or (kind in _WHOLE and not own):
                odd.append(f"{shown(name)} has numbers that no model has ({kind})")
                readable = readable and known is not None
            if known is None:
                continue
            digest.update(f"{name} {known} {tuple(shape)}".encode())
            start, end = (8 + size + offset for offset in header[name]["data_offsets"])
            contents.seek(start)
            finite = True
            while part := contents.read(min(_AT_ONCE * 8, end - contents.tell())):
                digest.update(part)
                finite = finite and (kind in _WHOLE or _are_finite(part, known))
            if not finite:
                odd.append(f"{shown(name)} has numbers that are not finite")
    return numbers, digest.hexdigest() if readable else None, odd


def _are_finite(part: bytes, kind: str) -> bool:
    if kind == "bfloat16":  # the first half of a float32
        return bool(np.isfinite((np.frombuffer(part, "<u2").astype("<u4") << 16).view("<f4")).all())
    return bool(np.isfinite(np.frombuffer(part, np.dtype(kind).newbyteorder("<"))).all())


def _card_faults(statement: Statement, card: Json) -> Iterator[str]:
    """What only a card says, as far as the statement knows of it."""
    facts = {**Card.from_json(card).to_json(), **{name: card.get(name) for name in ("privacy", CHECKSUM)}}
    other = sorted(name for name in {*card, *facts} if name not in card or card[name] != facts.get(name))
    if other:
        yield f"card.json has or lacks facts that a card has: {', '.join(map(shown, other))}"
    text, start = card.get("trained_on"), statement.start
    if text not in ("people", bases.PUBLIC):
        yield f"card.json has no known word for whose text it was trained on: {text!a:.200}"
    elif text == bases.PUBLIC and start is not None and start.trained_on not in (None, bases.PUBLIC):
        yield "card.json says that it was trained on public text, and the model that it began with was not"


def setting_faults(recipe: Recipe, card: Json) -> Iterator[str]:
    """A card that describes another model than the recipe. That of a model of the owner's own describes none."""
    told = Card.from_json(card)
    if told.own_model:
        if told.model or told.kind or told.adapter:
            yield "card.json describes a model of the owner's own, and one of a recipe"
        return
    if not told.model or told.kind is None:
        yield "card.json does not describe the model"
        return
    found = {**told.model, "kind": told.kind}
    found |= {} if told.adapter is None else {"adapter_rank": told.adapter.get("rank")}
    settings = as_json(recipe.model)
    for name, value in found.items():
        if name not in settings or settings[name] != value:
            wanted = f"{settings.get(name)!a}"
            yield f"card.json has the model's {shown(name)} {value!a:.200}, and {RECIPE} {wanted}"


def _canary_faults(release: RunFolder, statement: Statement) -> Iterator[str]:
    """A registry that is not the one of the statement."""
    if not release.registry_file.is_file():
        return
    if statement.canaries is None:
        yield f"{CANARIES} lists canaries, and the statement has none"
        return
    written = parse_json(read_plain(release.registry_file, _LARGEST_RECORD))
    registry = Registry.from_json(written)
    if registry.summary() != statement.canaries:
        yield f"{CANARIES} is not the registry of the statement"
    if not registry.is_in(written):
        yield f"{CANARIES} has more than a registry, or other words"


def _export_faults(release: RunFolder, statement: Statement, weights: str | None) -> Iterator[str]:
    """An export that is not whole, or of another model or statement by its manifest."""
    folder, card, stated = release.path / ONNX, Card.from_json(release.read_card()), release.read_statement()
    manifest = read_manifest(folder)
    words, privacy = manifest["vocabulary"], manifest["privacy"]
    if (statement.files or {}).get(words["file"]) != words["sha256"]:
        yield f"{ONNX}/{words['file']} is not the vocabulary of the model"
    if (words["fingerprint"], words["size"]) != (statement.vocabulary.fingerprint, card.vocabulary):
        yield f"{_EXPORT} describes another vocabulary"
    if weights is not None and manifest["of"] != weights:
        yield f"{_EXPORT} is of other weights"
    if card.kind is not None and manifest["model"]["kind"] != card.kind:
        yield f"{_EXPORT} is of another kind of model"
    other = [name for name in _OF_EXPORTS if privacy[name] != stated[name]]
    other += [shown(name) for name in sorted(privacy.keys() - set(_OF_EXPORTS))]
    if other:
        yield f"{_EXPORT} says other than the statement: {', '.join(other)}"
    planted, listed = folder / CANARIES, release.registry_file
    if planted.is_file() and not (listed.is_file() and sha256_of(planted) == sha256_of(listed)):
        yield f"{ONNX}/{CANARIES} is not {CANARIES}"
