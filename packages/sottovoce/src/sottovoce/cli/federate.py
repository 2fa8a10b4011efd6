"""`sotto federate`: train across devices or silos; the text stays on them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import cyclopts
from cyclopts import Parameter

from sottovoce.cli.display import Printable, gentle_stop, print_json, print_rows, print_table, progress_of_rounds
from sottovoce.cli.options import ContextValues, Flag, Json, Out, Recipe, Settings, log, option
from sottovoce.cli.train import Yes, confirm, end_declined, end_stopped, print_result, way_on
from sottovoce_evidence.errors import SottoError

if TYPE_CHECKING:
    from sottovoce.commands.train import RunResult

app = cyclopts.App(name="federate", help="Train across devices or silos; the text stays on them.")
Federation = Annotated[Path, option("Folder of the federation.")]
NotPrivate = Annotated[Flag, option("Let devices take part in runs without a privacy guarantee.")]


@Parameter(name="*")
@dataclass(frozen=True)
class Creation:
    """Options of a new federation."""

    host: Annotated[str, option("Name or address at which devices find the server.")] = "127.0.0.1"
    port: Annotated[int, option("Port of the server.")] = 8443
    vocabulary: Annotated[Path | None, option("A public word list, most frequent first (default: English).")] = None
    vocabulary_size: Annotated[int, option("Number of tokens in the vocabulary.")] = 10_000
    language: Annotated[str | None, option("Code of the language of its text, as in `sotto prepare`.")] = None
    tokenizer: Annotated[str | None, option("Not words: a tokenizer.json, bytes or characters.")] = None
    tokens_per_user: Annotated[int, option("Length to which every user's text is cut.")] = 1600
    context_values: ContextValues = ()
    held_out: Annotated[Path | None, option("A store to evaluate on: its held-out users, if declared exact.")] = None


@Parameter(name="*")
@dataclass(frozen=True)
class ServingOptions:
    """Options of a server."""

    seconds: Annotated[float, option("How long a round waits for devices; late ones contribute nothing.")] = 120.0
    at_least: Annotated[int, option("Devices that must be connected before a round begins.")] = 1
    bind: Annotated[str | None, option("Address to listen on, if not the federation's host.")] = None
    state: Annotated[Path | None, option("A tmpfs folder for the SuperLink's state, to survive its end.")] = None


DEFAULT_CREATION, DEFAULT_SERVING = Creation(), ServingOptions()


@app.command
def init(
    federation: Annotated[Path, option("Folder of the new federation, which stays at the server.")],
    *,
    devices: Annotated[
        list[str] | None,
        Parameter(name="--device", negative=(), help="NAME=USERS, or NAME for one user. Once for each device."),
    ] = None,
    creation: Creation = DEFAULT_CREATION,
    allow_not_private: NotPrivate = False,
    json: Json = False,
) -> None:
    """Create a federation: certificates, keys, the roster, and a folder to carry to each device.

    Devices that make their keys themselves (`sotto federate key`) are added with `sotto federate enrol`.

    Examples:
        sotto federate init federation --device hospital=300 --device clinic=120
    """
    from sottovoce.commands.federate import FederationSettings, create_federation
    from sottovoce.commands.tokenizer import TokenizerChoice
    from sottovoce.data.contexts import declare
    from sottovoce.federation.limits import Limits

    chosen = TokenizerChoice(creation.vocabulary_size, creation.vocabulary, creation.language, creation.tokenizer)
    words, _ = chosen.open()
    words = declare(words, creation.context_values)
    settings = FederationSettings(words, creation.tokens_per_user, creation.host, creation.port, creation.held_out)
    shares = [_device(text) for text in devices or ()]
    roster = create_federation(federation, shares, settings, Limits(private_only=not allow_not_private))
    bundles = {member.name: str(roster.bundle(member.name)) for member in roster.members}
    if json:
        print_json({"federation": str(federation), "id": roster.federation, "devices": bundles})
        return
    rows = {"devices": str(len(bundles)), "users": f"{roster.users:,}", "server": roster.server}
    print_table(f"Federation {federation}", rows)
    if not bundles:
        print(f"next: sotto federate enrol {federation} NAME=USERS --public-key FILE, for each device")
        return
    print("carry each of these to its device, and remove it here; it holds the device's key:")
    for name, path in bundles.items():
        print(f"  {name}: {path}")
    print(f"next: sotto federate server RECIPE --federation {federation} --out RUN")


PublicKey = Annotated[Path, option("File with the public key that the device made (`sotto federate key`).")]


@app.command
def key(
    folder: Annotated[Path, option("Folder of the device, which keeps its key.")],
    *,
    json: Json = False,
) -> None:
    """Make a device's key, on the device: then nobody else has it, and the server cannot sign in its name.

    Examples:
        sotto federate key ward
    """
    from sottovoce.commands.federate import make_device_key
    from sottovoce.federation import keys

    public = make_device_key(folder)
    shown = keys.fingerprint(keys.read_public_key(public))
    if json:
        print_json({"public_key": str(public), "fingerprint": shown})
        return
    print(f"the key of this device is {shown}")
    print(f"send {public} to the server: sotto federate enrol FED NAME=USERS --public-key {public.name}")
    print(f"then put the files that the server gives into {folder}, beside {keys.NODE_KEY}, which stays here")


@app.command
def enrol(
    federation: Federation,
    device: Annotated[str, option("NAME=USERS, or NAME for one user.")],
    *,
    public_key: PublicKey | None = None,
    allow_not_private: NotPrivate = False,
) -> None:
    """Register one more device.

    Examples:
        sotto federate enrol federation ward=80
        sotto federate enrol federation ward=80 --public-key node.pub
    """
    from sottovoce.commands import federate
    from sottovoce.federation.limits import Limits

    limits = Limits(private_only=not allow_not_private)
    path = federate.enrol(federation, *_device(device), limits, public_key)
    if public_key is None:
        print(f"carry {path} to the device, and remove it here; the server knows it from its next start on")
    else:
        print(f"send the files of {path} to the device, beside its key; the server knows it from its next start on")
    print(_SHARE.format(federation))


@app.command
def rekey(
    federation: Federation, device: Annotated[str, option("Name of the device.")], *, public_key: PublicKey
) -> None:
    """Register another key of a device, made on the device. Its users keep their places.

    Examples:
        sotto federate rekey federation ward --public-key node.pub
    """
    from sottovoce.commands import federate

    federate.rekey(federation, device, public_key)
    print(f"{device} has another key; the server knows it from its next start on, and the old one is refused")
    print(_SHARE.format(federation))


_SHARE = "copy {}/members.json into the folder of every device: masked sums need the same list at all of them"


@app.command
def members(
    folder: Annotated[Path, option("Folder of the federation, or of a device.")], *, json: Json = False
) -> None:
    """Show who is in a federation, with which keys, and the fingerprint that owners of devices compare.

    Examples:
        sotto federate members federation
    """
    from sottovoce.commands import federate

    found = federate.federation_members(folder)
    shown = found.to_json()
    if json:
        print_json(shown)
        return
    rows = [
        {"device": name, "users": f"{each['users']:,}", "key": each["fingerprint"], "made by": f"the {each['made_by']}"}
        for name, each in shown["members"].items()
    ]
    if not rows:
        raise SottoError(f"{folder} has no devices; register some with `sotto federate enrol`")
    print_rows(f"Federation {found.federation}", rows)
    print(f"the list: {found.fingerprint}")
    print("compare it with the owners of the other devices, not by way of the server")
    if made := found.made_by_server:
        print(f"the server made the keys of {', '.join(made)}, and could sign for them; end that with rekey")


@app.command
def renew(federation: Federation) -> None:
    """Make new certificates, before the old ones end. Users keep their places, and devices their keys.

    Examples:
        sotto federate renew federation
    """
    from sottovoce.commands import federate

    path = federate.renew(federation)
    print(f"carry {path} to every device, into its folder, and start the server again; devices need not be")


@app.command
def server(
    recipe: Recipe,
    *,
    federation: Federation,
    out: Out,
    settings: Settings = None,
    options: ServingOptions = DEFAULT_SERVING,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Train the model of a recipe with the devices of a federation.

    First it shows what the run will charge to the users of the devices, and what does not fit together. On a terminal
    it then asks. Exit status 1 if the answer is no, 130 if Ctrl-C stopped the run.

    Examples:
        sotto federate server mine.toml --federation federation --out run
    """
    from sottovoce.commands.federate import serve_federation
    from sottovoce_evidence import recipe as recipes

    chosen = recipes.Recipe.load(recipe).with_settings(settings or ())
    ask = partial(confirm, yes=yes, json=json)
    _serve(partial(serve_federation, chosen, federation, confirm=ask), out, options, json)


@app.command
def resume(
    run: Annotated[Path, option("Folder of the run.")], *, options: ServingOptions = DEFAULT_SERVING, json: Json = False
) -> None:
    """Go on with a run over devices that was stopped or killed.

    Examples:
        sotto federate resume run
    """
    from sottovoce.commands.federate import resume_federation

    _serve(resume_federation, run, options, json)


def _serve(train: Callable[..., RunResult], run: Path, options: ServingOptions, json: bool) -> None:
    """Train with devices. A server that is stopped while it waits, or loses its link, prints how to resume the run."""
    from sottovoce.commands.federate import Serving
    from sottovoce.commands.forecast import Declined

    _log()
    serving, again = Serving(**vars(options), notify=log), "sotto federate resume"
    with gentle_stop() as stop:
        try:
            with way_on(run, again), progress_of_rounds(run.name, quiet=json) as observer:
                result = train(run, serving, observer=observer, stop=stop)
        except Declined:
            end_declined(stop)
    print_result(result, json=json, again=again)
    end_stopped(result, stop)


@app.command
def device(
    bundle: Annotated[Path, option("The device's folder, made by `sotto federate init` or `enrol`.")],
    *,
    data: Annotated[
        Path | None,
        option("A store of the device's users, in the federation's vocabulary. Without: they have no text."),
    ] = None,
    server: Annotated[str | None, option("HOST:PORT of the server, if not as in the folder.")] = None,
) -> None:
    """Be a device: stay connected, and answer every round, with zeros where none of its users joins. Ctrl-C ends it.

    Examples:
        sotto federate device hospital --data store
    """
    from sottovoce.commands.federate import run_device

    _log()
    with gentle_stop("finishing this answer; once more stops at once") as stop:
        run_device(bundle, data, server=server, stop=stop, notify=log)


@app.command
def demo(
    *,
    out: Annotated[Path, option("Folder for all of it.")] = Path("federation-demo"),
    users: Annotated[int, option("Users in all silos together.")] = 2000,
) -> None:
    """Train a private model with a server and three silos, four processes of this machine, on a synthetic population.

    It shows what the server sees of one silo in a plain round, and in a masked one.

    Examples:
        sotto federate demo --out federation-demo
    """
    from sottovoce.commands.federate_demo import run_federation_demo

    if users < 60:
        raise SottoError(f"--users {users} must be 60 or more, to share out over three silos")
    _log()
    with gentle_stop() as stop:
        result = run_federation_demo(out, users=users, notify=log, progress=progress_of_rounds, stop=stop)
    if result.ended == "stopped":
        print(f"stopped after round {result.round}; delete {out} and run `sotto federate demo` again")
        sys.exit(stop.status)
    print_result(result, json=False, next_step=f"report: {result.path / 'report.html'}")


def _device(text: str) -> tuple[str, int]:
    name, equals, users = text.partition("=")
    if equals and not users.isdecimal():
        raise SottoError(f"the device {text!r} must be NAME=USERS, for example clinic=250, or NAME for one user")
    return name, int(users) if equals else 1


def _log() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Printable())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    for name in ("httpx", "flwr"):  # Flower's processes have logs of their own
        logging.getLogger(name).setLevel(logging.ERROR)
