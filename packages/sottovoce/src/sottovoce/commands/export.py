"""The model of a run, a release or a base as a folder for other programs: ONNX graphs, tokenizer and manifest.

Where words have several tokens there are two more files: the graph `batch`, and `pieces.json`, which says what each
token is in a text, so that another program can search whole words (`evaluation/whole_words.py`).
"""

from __future__ import annotations

import atexit
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from sottovoce.commands import convert
from sottovoce.commands.convert import BOUND
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.commands.stores import held_out_users
from sottovoce.data.tokenizer import PLACEHOLDERS, Tokenizer
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.evaluation.figures import coarse_count
from sottovoce.evaluation.pieces import pieces_of
from sottovoce.evaluation.suggestions import writes_small
from sottovoce.evaluation.whole_words import WIDTH
from sottovoce.files import check_empty, made_aside, write_aside
from sottovoce.models.contract import LanguageModel, parameter_count
from sottovoce.runs.exported import BATCH, CANARIES, GRAPHS, MANIFEST, PIECES, read_manifest
from sottovoce.runs.folder import ONNX
from sottovoce_evidence.errors import DamagedRun, SettingError, SottoError
from sottovoce_evidence.files import as_json, pretty, sealed
from sottovoce_evidence.statement import Statement
from sottovoce_evidence.statement_text import prose

WEIGHTS = ("float32", "8bit")
_USERS = 50  # held-out users on whom 8-bit weights are compared with the others


def export_run(
    path: str | Path, out: str | Path, *, weights: str = "float32", statement: Statement | None = None
) -> dict[str, Any]:
    """Write the model of a run, a release or a base as ONNX into a new folder, and return the manifest.

    Adapters are merged: the graphs hold plain matrices. Where the model is for its owner alone, so is the export.

    Guarantee: all graphs in float32 agree with JAX to `BOUND`; otherwise nothing is written.

    Args:
        path: the folder of a run, a release or a base; or one of Hugging Face, with its tokenizer.json.
        out: the folder to make.
        weights: "float32" or "8bit".
        statement: of a release, in place of the run's.
    """
    if weights not in WEIGHTS:
        raise SettingError(f"{{weights!r}} must be {' or '.join(WEIGHTS)}", weights=weights)
    source, out = ModelFolder.open(path), Path(out)
    model, vocabulary, alone = source.merged, source.tokenizer, _is_for_owner_alone(source)
    check_empty(out)
    names = GRAPHS if vocabulary.is_words else (*GRAPHS, BATCH)
    pieces = None if vocabulary.is_words else _pieces(vocabulary)
    planted = source.run.registry_file if source.run else None  # public: what was planted, and not who was in
    canaries = planted.read_bytes() if planted and planted.is_file() and not planted.is_symlink() else None
    graphs = {graph: convert.convert(model, graph) for graph in names}
    differences = {graph: convert.check_parity(model, graph, graphs[graph], vocabulary.size) for graph in names}
    smaller = None
    if weights == "8bit":
        plain, graphs = graphs, {graph: convert.to_eight_bits(graphs[graph]) for graph in names}
        smaller = {
            "bytes_float32": {graph: len(plain[graph]) for graph in names},
            "largest_difference": max(
                convert.largest_difference(model, graph, convert.open_session(graphs[graph]), vocabulary.size)
                for graph in names
            ),
            **_accuracy(source, {"top1": graphs["sequence"], "top1_float32": plain["sequence"]}),
        }
    manifest = sealed(
        {
            "export": 1,
            "name": source.name,
            "model": {"kind": source.recipe.model.kind, "parameters": parameter_count(model), "weights": weights},
            "graphs": {graph: _file(f"{graph}.onnx", graphs[graph]) for graph in names},
            "vocabulary": _file(
                vocabulary.file_name,
                vocabulary.contents,
                size=vocabulary.size,
                fingerprint=vocabulary.fingerprint,
                kind=vocabulary.kind,
                language=vocabulary.language,
                **({"rules": vocabulary.page_rules} if isinstance(vocabulary, Vocabulary) else {}),
            ),
            "pieces": _file(PIECES, pieces) if pieces else None,
            "canaries": _file(CANARIES, canaries) if canaries else None,
            "special_tokens": {
                f"<{name}>": token
                for name, token in zip(("bos", "eos", "unk"), vocabulary.specials, strict=False)
                if token is not None
            },
            "contexts": dict(zip(vocabulary.contexts, vocabulary.specials.contexts, strict=True)),
            "inputs": {"tokens": "int32", "state": "float32"},
            "state": _states(model),
            "parity": {"largest_difference": differences, "bound": BOUND},
            "eight_bits": smaller,
            "of": source.digest,
            "privacy": _privacy(source) if statement is None else stated(statement),
            "for_owner_alone": alone,
        }
    )
    files = {f"{graph}.onnx": graphs[graph] for graph in names}
    files |= {vocabulary.file_name: vocabulary.contents, PIECES: pieces, CANARIES: canaries, MANIFEST: pretty(manifest)}
    with made_aside(out, private=alone) as draft:
        for name, contents in files.items():
            if contents:
                write_aside(draft / name, contents, private=alone)
    return manifest


def _privacy(source: ModelFolder) -> dict[str, Any]:
    """What a manifest says of the people a model was trained on."""
    if source.statement:
        return stated(source.statement)
    if source.base:
        text = f"Trained on public text: {source.base.text}."
        return {"private": False, "trained_on": source.base.trained_on, "prose": text}
    return {"private": False, "prose": "Weights of Hugging Face: it is not known here what they were trained on."}


def stated(statement: Statement) -> dict[str, Any]:
    """What a manifest says of the guarantee."""
    told = {name: getattr(statement, name) for name in ("private", "epsilon", "delta")}
    return {**as_json(told), "unit": "user", "prose": prose(statement)}


def _is_for_owner_alone(source: ModelFolder) -> bool:
    """Are the files of its model? They are of people's text where no guarantee holds (`new_run.is_for_owner_alone`)."""
    promised = source.statement is not None and source.statement.private and not source.statement.is_seeded
    return not promised and not source.is_public


def find_export(path: str | Path, log: Callable[[str], None] = lambda line: None) -> Path:
    """The export at a path: the folder itself, or that of a run, a release or a base, made if there is none of it."""
    folder = Path(path)
    if (folder / MANIFEST).is_file():
        return folder
    source = ModelFolder.open(path)
    if (run := source.run) is None:  # in the package, signed, or not ours: nothing is added to it
        kept = _temporary()
        log(f"exporting {source.title}; it can take half a minute")
        export_run(path, kept)
        return kept
    kept = run.path / ONNX
    if run.is_release and kept.is_symlink():
        raise DamagedRun(f"{kept} is a link, and leads out of the release; get the release again")
    if run.is_release and not (kept / MANIFEST).is_file():  # it is signed: nothing is added to it
        kept = _temporary()
    if (kept / MANIFEST).is_file():
        manifest = read_manifest(kept)
        if manifest["of"] == source.digest:
            return kept
        if run.is_release:
            raise DamagedRun(f"{kept} is of other weights than the release; get the release again")
        shutil.rmtree(kept)  # the run was trained further since
    log(f"exporting {run.path}; it can take half a minute")
    export_run(run.path, kept)
    return kept


def _temporary() -> Path:
    """A place for an export that is gone when the program ends."""
    folder = Path(mkdtemp(prefix="sotto-onnx-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder / "onnx"


def _file(name: str, contents: bytes, **more: object) -> dict[str, Any]:
    return {"file": name, "bytes": len(contents), "sha256": hashlib.sha256(contents).hexdigest(), **more}


def _pieces(tokenizer: Tokenizer) -> bytes:
    """What a search of whole words asks of tokens. Each character of `bytes` is a byte; masks have a digit a token."""
    pieces = pieces_of(tokenizer)
    masks = {"starts": pieces.starts, "joins": pieces.joins, "opens": pieces.opens}
    facts = {
        "width": WIDTH,
        "most": pieces.most,
        "small": writes_small(tokenizer),
        "placeholders": PLACEHOLDERS,
        "bytes": [tokenizer.bytes_of(token).decode("latin-1") for token in range(tokenizer.size)],
        **{name: "".join("01"[each] for each in mask.astype(int)) for name, mask in masks.items()},
    }
    return (json.dumps(facts, ensure_ascii=False) + "\n").encode()


def _states(model: LanguageModel) -> list[dict[str, Any]]:
    """The name, shape and initial value of each array of the hidden state: one number where all values are equal."""
    _, start = convert.program_of(model)
    states = []
    for before, after, leaf in zip(*convert.state_names(len(start)), start, strict=True):
        values = np.asarray(leaf).ravel().tolist()
        initial = values[0] if len(set(values)) == 1 else values
        states.append({"input": before, "output": after, "shape": list(leaf.shape), "start": initial})
    return states


def _accuracy(source: ModelFolder, graphs: dict[str, bytes]) -> dict[str, Any]:
    """The accuracy of graphs on some held-out users, by name.

    None where no store is at hand, or where they were declared private.
    """
    unknown = {"users": 0, **dict.fromkeys(graphs)}
    run, vocabulary = source.run, source.tokenizer
    if run is None:
        return unknown
    try:
        users = held_out_users(source.recipe, run)
    except (SottoError, OSError):
        return unknown
    if users is None or users.vocabulary.fingerprint != vocabulary.fingerprint:
        return unknown
    rows = [users[row] for row in range(min(_USERS, users.users))]
    bos, unk, begins = vocabulary.specials.bos, vocabulary.specials.unk, vocabulary.specials.begins
    targets = sum(int(np.sum(~np.isin(row, begins))) for row in rows)
    if not targets:
        return unknown
    start = [np.asarray(leaf) for leaf in convert.program_of(source.merged)[1]]

    def top1(graph: bytes) -> float:
        session, hits = convert.open_session(graph), 0
        for row in rows:
            best = np.argmax(convert.run_session(session, np.array([bos, *row[:-1]]), start)[0], axis=-1)
            hits += int(np.sum((best == row) & ~np.isin(row, begins) & (row != unk)))
        return round(hits / targets, 4)

    return {"users": coarse_count(len(rows)), **{name: top1(graph) for name, graph in graphs.items()}}
