"""`sotto federate`: train across devices or silos; the text stays on them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cyclopts
from cyclopts import Parameter

from sottovoce.cli.display import gentle_stop, print_json, print_table, progress_of_rounds
from sottovoce.cli.options import Flag
from sottovoce.cli.train import print_result
from sottovoce.errors import LostProcess, SottoError

if TYPE_CHECKING:
    from sottovoce.commands.federate import Serving
    from sottovoce.federation.limits import Limits

app = cyclopts.App(name="federate", help="Train across devices or silos; the text stays on them.")


@Parameter(name="*")
@dataclass(frozen=True)
class Creation:
    """Options of a new federation."""

    host: str = "127.0.0.1"
    "Name or address at which devices find the server."
    port: int = 8443
    "Port of the server."
    vocabulary: Path | None = None
    "A public word list, one word a line, most frequent first; without it, the most frequent English words."
    vocabulary_size: int = 10_000
    "Number of tokens in the vocabulary."
    tokens_per_user: int = 1600
    "Length to which every user's text is cut."
    held_out: Path | None = None
    "A store whose held-out users the server evaluates on; they are not protected."


@Parameter(name="*")
@dataclass(frozen=True)
class ServingOptions:
    """Options of a server."""

    seconds: float = 120.0
    "How long a round waits for devices; those that are later contribute nothing."
    at_least: int = 1
    "Devices that must be connected before a round begins."
    bind: str | None = None
    "Address to listen on, if not the federation's host."
    state: Path | None = None
    "A folder in memory (tmpfs) where the link keeps its state, so that rounds survive if the SuperLink is killed."

    def serving(self) -> Serving:
        from sottovoce.commands.federate import Serving

        return Serving(**vars(self), notify=_notify)


DEFAULT_CREATION, DEFAULT_SERVING = Creation(), ServingOptions()


@app.command
def init(
    federation: Path,
    *,
    devices: Annotated[list[str], Parameter(name="--device", negative=())],
    creation: Creation = DEFAULT_CREATION,
    allow_not_private: Flag = False,
    json: Flag = False,
) -> None:
    """Create a federation: certificates, keys, the roster, and a folder to carry to each device.

    Parameters
    ----------
    federation
        Folder of the new federation, which stays at the server.
    devices
        A device and its number of users: NAME=USERS, or NAME for one user. Give the option once for each device.
    allow_not_private
        Let devices take part in runs without a privacy guarantee (written to their limits.toml).
    json
        One JSON object, and nothing else.
    """
    from sottovoce.commands.federate import FederationSettings, create_federation
    from sottovoce.data.vocabulary import Vocabulary

    file, size = creation.vocabulary, creation.vocabulary_size
    words = Vocabulary.from_file(file, size) if file else Vocabulary.public(size)
    settings = FederationSettings(words, creation.tokens_per_user, creation.host, creation.port, creation.held_out)
    shares = [_device(text) for text in devices]
    roster = create_federation(federation, shares, settings, _limits(allow_not_private))
    bundles = {member.name: str(roster.bundle(member.name)) for member in roster.members}
    if json:
        return print_json({"federation": str(federation), "id": roster.federation, "devices": bundles})
    rows = {"devices": str(len(bundles)), "users": f"{roster.users:,}", "server": roster.server}
    print_table(f"Federation {federation}", rows)
    print("carry each of these to its device, and remove it here; it holds the device's key:")
    for name, path in bundles.items():
        print(f"  {name}: {path}")
    print(f"next: sotto federate server RECIPE --federation {federation} --out RUN")
    return None


@app.command
def enrol(federation: Path, device: str, *, allow_not_private: Flag = False) -> None:
    """Register one more device.

    Parameters
    ----------
    federation
        Folder of the federation.
    device
        NAME=USERS, or NAME for one user.
    allow_not_private
        Let it take part in runs without a privacy guarantee.
    """
    from sottovoce.commands import federate

    name, users = _device(device)
    path = federate.enrol(federation, name, users, _limits(allow_not_private))
    print(f"carry {path} to the device, and remove it here; the server knows it from its next start on")


@app.command
def renew(federation: Path) -> None:
    """Make new certificates, before the old ones end. Users keep their places, and devices their keys.

    Parameters
    ----------
    federation
        Folder of the federation.
    """
    from sottovoce.commands import federate

    path = federate.renew(federation)
    print(f"carry {path} to every device, into its folder, and start the server again; devices need not be")


@app.command
def server(
    recipe: str,
    *,
    federation: Path,
    out: Path,
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    options: ServingOptions = DEFAULT_SERVING,
    json: Flag = False,
) -> None:
    """Train the model of a recipe with the devices of a federation.

    Parameters
    ----------
    recipe
        A TOML file, or the name of a shipped recipe.
    federation
        Folder of the federation.
    out
        Folder of the new run.
    settings
        Change one value of the recipe: section.key=value. May be given many times.
    json
        One JSON object at the end, no progress.
    """
    from sottovoce.commands.federate import serve
    from sottovoce.recipe import Recipe

    _log()
    chosen, serving = Recipe.load(recipe).with_settings(settings or ()), options.serving()
    with _how_to_go_on(out), gentle_stop() as stop, progress_of_rounds(out.name, quiet=json) as observer:
        result = serve(chosen, federation, out, serving, observer=observer, stop=stop)
    return print_result(result, json=json, again="sotto federate resume")


@app.command
def resume(run: Path, *, options: ServingOptions = DEFAULT_SERVING, json: Flag = False) -> None:
    """Go on with a run over devices that was stopped or killed.

    Parameters
    ----------
    run
        Folder of the run.
    json
        One JSON object at the end, no progress.
    """
    from sottovoce.commands.federate import serve_again

    _log()
    serving = options.serving()
    with _how_to_go_on(run), gentle_stop() as stop, progress_of_rounds(run.name, quiet=json) as observer:
        result = serve_again(run, serving, observer=observer, stop=stop)
    return print_result(result, json=json, again="sotto federate resume")


@app.command
def device(bundle: Path, *, data: Path, server: str | None = None) -> None:
    """Be a device: stay connected, and train for every round that draws one of its users. Ctrl-C ends it.

    Parameters
    ----------
    bundle
        The device's folder, made by `sotto federate init` or `enrol`.
    data
        A store of the device's users, made by `sotto prepare` with the federation's vocabulary.
    server
        HOST:PORT of the server, if not as in the folder.
    """
    from sottovoce.commands.federate import run_device

    _log()
    with gentle_stop("finishing this answer; once more stops at once") as stop:
        run_device(bundle, data, server=server, stop=stop, notify=_notify)


@app.command
def demo(*, out: Path = Path("federation-demo"), users: int = 2000) -> None:
    """Train a private model with a server and two silos, three processes of this machine, on a synthetic population.

    Parameters
    ----------
    out
        Folder for all of it.
    users
        Users in both silos together.
    """
    from sottovoce.commands.federate_demo import run_federation_demo

    if users < 40:
        raise SottoError(f"--users {users} must be 40 or more, to share out over two silos")
    _log()
    with gentle_stop() as stop:
        result = run_federation_demo(out, users=users, notify=_notify, progress=progress_of_rounds, stop=stop)
    if result.ended == "stopped":
        return print(f"stopped after round {result.round}; delete {out} and run `sotto federate demo` again")
    print_result(result, json=False, next_step=f"report: {result.path / 'report.html'}")
    return None


@contextmanager
def _how_to_go_on(run: Path) -> Iterator[None]:
    """Print how to resume a run whose server was stopped while it waited for devices, or lost its link."""
    try:
        yield
    except (KeyboardInterrupt, LostProcess):
        if (run / "recipe.toml").exists():
            _notify(f"stopped; go on with: sotto federate resume {run}")
        raise


def _device(text: str) -> tuple[str, int]:
    name, equals, users = text.partition("=")
    if equals and not users.isdecimal():
        raise SottoError(f"the device {text!r} must be NAME=USERS, for example clinic=250, or NAME for one user")
    return name, int(users) if equals else 1


def _limits(allow_not_private: bool) -> Limits:
    from sottovoce.federation.limits import Limits

    return Limits(private_only=not allow_not_private)


def _log() -> None:
    logging.basicConfig(stream=sys.stderr, format="%(message)s", level=logging.WARNING)
    for name in ("httpx", "flwr"):  # Flower's processes have logs of their own
        logging.getLogger(name).setLevel(logging.ERROR)


def _notify(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
