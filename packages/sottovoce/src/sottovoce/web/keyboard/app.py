"""`sotto keyboard`: the page and its models, served or as a folder. Typed text stays in the page."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.commands.export import find_export
from sottovoce.commands.model_folder import ModelFolder
from sottovoce.evaluation.keystrokes import SUGGESTIONS
from sottovoce.files import made_aside, write_aside
from sottovoce.runs.exported import CANARIES, PIECES, plain_file, read_manifest
from sottovoce.web.keyboard.vendor import check_vendored
from sottovoce.web.server import STATIC, local_app, missing
from sottovoce_evidence.accounting import rounded_up
from sottovoce_evidence.errors import DamagedRun, SottoError
from sottovoce_evidence.files import LINES, parse_json, pretty, read_plain, sha256_of

MOST_MODELS = 3
_STATIC = Path(__file__).parent / "static"
_OFFLINE = "offline.js"
Log = Callable[[str], None]


def keyboard_app(paths: Sequence[str | Path], log: Log = lambda line: None) -> tuple[Any, str]:
    """A Starlette application for up to three models, and the path of its page: random if one is for its owner alone.

    Args:
        paths: folders of runs, releases or exports, or names of bases.
        log: gets a line for each slow step.
    """
    _refuse(paths)
    try:
        from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
        from starlette.routing import Route
    except ImportError as error:
        raise missing(error) from None
    vendored = check_vendored()
    folders = [find_export(path, log) for path in paths]
    description = describe(paths, folders)

    async def models(request: Any) -> Response:
        return JSONResponse(description)

    async def file(request: Any) -> Response:
        number, name = request.path_params["number"], request.path_params["name"]
        if number >= len(folders) or name not in _served(description["models"][number]):
            return PlainTextResponse("there is no such file", 404)
        return FileResponse(folders[number] / name)

    routes = [Route("/models.json", models), Route("/models/{number:int}/{name}", file)]
    return local_app(routes, {"/vendor": vendored, "/": _STATIC}, private=_are_private(description))


def write_page(paths: Sequence[str | Path], out: Path, log: Log = lambda line: None) -> dict[str, Any]:
    """Write the page with its models into a new folder that any web server can show; what the page is told of them.

    The folder needs nothing else: all its addresses are relative, and it names no other host. It is for its owner alone
    if one of the models is.
    """
    _refuse(paths)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise SottoError(f"{str(out)!r} exists and is not an empty folder; choose another --export")
    vendored = check_vendored()
    folders = [find_export(path, log) for path in paths]
    description: dict[str, Any] = {**describe(paths, folders), "offline": True}
    private = _are_private(description)
    with made_aside(out, private=private) as draft:
        for part in _STATIC.iterdir():
            shutil.copy(part, draft)
        shutil.copytree(STATIC, draft / "base")
        shutil.copytree(vendored, draft / "vendor")
        for number, folder in enumerate(folders):
            (draft / "models" / str(number)).mkdir(parents=True)
            for name in _served(description["models"][number]):
                write_aside(draft / "models" / str(number) / name, (folder / name).read_bytes(), private=private)
        write_aside(draft / "models.json", pretty(description))
        worker, files = draft / _OFFLINE, sorted(path for path in draft.rglob("*") if path.is_file())
        version = hashlib.sha256("".join(sha256_of(path) for path in files).encode()).hexdigest()
        names = [path.relative_to(draft).as_posix() for path in files if path != worker]
        filled = f"const VERSION = {json.dumps(version)}, FILES = {json.dumps(names)};"
        text = worker.read_text(encoding="utf-8").replace('const VERSION = "", FILES = [];', filled)
        write_aside(worker, text.encode())
    return description


def _served(manifest: dict[str, Any]) -> tuple[str, ...]:
    """The files of an export that the page loads; where words have several tokens, it reads several texts at once."""
    tokens = manifest["vocabulary"]["file"]
    return ("batch.onnx", tokens, PIECES) if manifest["pieces"] else ("step.onnx", tokens)


def _are_private(description: dict[str, Any]) -> bool:
    return any(manifest["for_owner_alone"] for manifest in description["models"])


def _refuse(paths: Sequence[str | Path]) -> None:
    if not 1 <= len(paths) <= MOST_MODELS:
        raise SottoError(f"{len(paths)} runs were named; a keyboard shows one to {MOST_MODELS}, side by side")
    for path in paths:
        if not Path(path).exists():
            ModelFolder.open(path)  # which says that it is not there, before anything is asked for


def describe(paths: Sequence[str | Path], folders: Sequence[Path]) -> dict[str, Any]:
    """What the page needs to know: the manifests, and the planted canaries."""
    manifests = [read_manifest(folder) for folder in folders]
    names = [manifest["name"] for manifest in manifests]
    if len(set(names)) < len(names):  # two runs of one name: `a/private` and `b/private`
        names = [str(Path(*Path(path).resolve().parts[-2:])) for path in paths]
    for manifest, name in zip(manifests, names, strict=True):
        privacy = manifest["privacy"]
        privacy["epsilon_shown"] = rounded_up(privacy["epsilon"]) if privacy["private"] else None
        manifest["name"] = name
    planted = zip(manifests, folders, strict=True)
    canaries = merge_canaries([read_canaries(folder) if one["canaries"] else [] for one, folder in planted])
    return {"suggestions": SUGGESTIONS, "models": manifests, "canaries": canaries}


def merge_canaries(planted: Sequence[Sequence[Secret]]) -> list[dict[str, Any]]:
    """Each secret once, with the number of users who wrote it, for each model; None where it was not planted."""
    merged: dict[tuple[tuple[str, ...], tuple[str, ...]], list[int | None]] = {}
    for number, secrets in enumerate(planted):
        for one in secrets:
            nowhere: list[int | None] = [None] * len(planted)
            merged.setdefault((one.known, one.secret), nowhere)[number] = one.holders
    return [{"known": known, "secret": secret, "holders": holders} for (known, secret), holders in merged.items()]


@dataclass(frozen=True)
class Secret:
    """A planted sequence: the words an attacker knows, the others, and how many users wrote it."""

    known: tuple[str, ...]
    secret: tuple[str, ...]
    holders: int


def read_canaries(folder: Path) -> list[Secret]:
    """The secrets that the registry of an exported run says were planted; none where it has no registry."""
    path = folder / CANARIES
    if not path.is_file():
        return []
    try:
        registry = parse_json(read_plain(plain_file(path), LINES))
        prefix, pairs = int(registry["prefix"]), zip(registry["secrets"], registry["holders"], strict=True)
        return [Secret(tuple(words[:prefix]), tuple(words[prefix:]), int(holders)) for words, holders in pairs]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedRun(f"cannot read canaries in {path} ({type(error).__name__}: {error}); export again") from None
