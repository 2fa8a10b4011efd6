"""The cost of a federated round on one machine: seconds, bytes, memory and CPU time. Prints one JSON object.

`trainer`: a server and one silo (or several, `--silos`) in real processes. The process that trains stays alive. With
`--per-message` there is a new process for each message, as in plain Flower: its SuperExec starts one, which reads the
store, imports jax and compiles again. Memory and CPU time are of a device: its training process and its SuperNode.

`messages`: one SuperLink with its proxy, and connections of many devices that answer without training. It measures the
load of the link. The devices are threads of one process, so their own memory is not counted.

Needs the extra: pip install -e '.[federation]'.
"""

import argparse
import json
import logging
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from sottovoce.commands import federate
from sottovoce.commands.stores import DEMO_TOKENS_PER_USER, prepare_demo
from sottovoce.data.demo import demo_vocabulary
from sottovoce.federation import keys
from sottovoce.federation.flower import payload, serverapp
from sottovoce.federation.flower.line_client import LineClient
from sottovoce.federation.flower.run_at_socket import SOON
from sottovoce.federation.flower.subprocesses import Child, free_port
from sottovoce.federation.messages import Contribution, Task, digest, read_request
from sottovoce.runs.record import Lines
from sottovoce_evidence.recipe import Recipe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("trainer", "messages"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--devices", type=int, default=50)
    parser.add_argument("--silos", type=int, default=1, help="real device processes (trainer)")
    parser.add_argument("--users", type=int, default=200, help="of a silo (trainer)")
    parser.add_argument("--embedding", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--per-message", action="store_true")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # connections log long errors when the server ends
    with tempfile.TemporaryDirectory(prefix="sotto-") as folder:
        measure = measure_trainer if arguments.what == "trainer" else measure_messages
        print(json.dumps({"measured": vars(arguments), **measure(Path(folder), arguments)}))


def make_recipe(arguments: argparse.Namespace, users: int) -> Recipe:
    return Recipe.load("demo").replace(
        model={"embedding": arguments.embedding, "hidden": arguments.hidden},
        privacy={"users": users, "cohort": users / 2, "delta": 1e-4, "epsilon": None, "noise_multiplier": 1.0},
        run={"rounds": arguments.rounds, "evaluate_every": 0},
    )


def create(folder: Path, devices: list[tuple[str, int]]) -> Path:
    settings = federate.FederationSettings(demo_vocabulary(), DEMO_TOKENS_PER_USER, "127.0.0.1", free_port())
    federate.create_federation(folder / "federation", devices, settings)
    return folder / "federation"


def measure_trainer(folder: Path, arguments: argparse.Namespace) -> dict:
    names = [f"silo-{number}" for number in range(arguments.silos)]
    users = [prepare_demo(folder / name, arguments.users, seed=seed).train_users for seed, name in enumerate(names)]
    federation = create(folder, list(zip(names, users, strict=True)))
    with ExitStack() as stack:
        for name in names:
            bundle = federation / "devices" / name
            if arguments.per_message:
                device = per_message(federation, bundle, folder / name)
            else:
                sotto = [sys.executable, "-m", "sottovoce.cli.main", "federate", "device", bundle]
                device = Child(name, [*sotto, "--data", folder / name], folder)
            device.start()
            stack.callback(device.stop)
        with watching(dict.fromkeys(names, "device")) as watched:
            run = serve(federation, folder, make_recipe(arguments, sum(users)), arguments.silos)
    return rounds_of(run) | watched


COMMANDS = Path(sys.executable).parent  # Flower's own
CLIENT = b"""
from pathlib import Path
from flwr.app import Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client, server = ClientApp(), ServerApp()


@client.train("sottovoce")
def answer(message, context):
    from sottovoce.federation.flower.payload import pack, unpack
    from sottovoce.commands.federate import open_device

    device = open_device(Path(context.node_config["bundle"]), Path(context.node_config["data"]))
    return Message(pack(device.answer(unpack(message))), reply_to=message)
"""


def per_message(federation: Path, bundle: Path, store: Path) -> Child:
    """A SuperNode started by Flower, with an app that trains in a process of Flower."""
    serverapp._APP["sottovoce_app/__init__.py"] = CLIENT
    os.environ["PATH"] = f"{COMMANDS}{os.pathsep}{os.environ['PATH']}"  # where Flower looks for its own commands
    server = json.loads((bundle / "device.json").read_text())["server"]
    return Child(
        "supernode",
        [
            COMMANDS / "flower-supernode",
            "--superlink",
            server,
            "--root-certificates",
            bundle / keys.AUTHORITY,
            "--auth-supernode-private-key",
            bundle / keys.NODE_KEY,
            "--host",
            "127.0.0.1",
            "--port",
            str(free_port()),
            "--node-config",
            f'bundle="{bundle}" data="{store}"',
        ],
        federation,
    )


def serve(federation: Path, folder: Path, recipe: Recipe, at_least: int) -> Path:
    serving = federate.Serving(seconds=600, at_least=at_least)
    federate.serve_federation(recipe, federation, folder / "run", serving)
    return folder / "run"


def rounds_of(run: Path) -> dict:
    lines = Lines(run / "diagnostics.jsonl").read()
    seconds = [line["seconds"] for line in lines]
    return {
        "seconds": [round(each, 2) for each in seconds],
        "median_after_the_first": round(float(np.median(seconds[1:])), 2),
        "task_bytes": lines[-1]["task_bytes"],
        "answer_bytes": lines[-1]["answer_bytes"],
        "answers": [line["answers"] for line in lines],
    }


def measure_messages(folder: Path, arguments: argparse.Namespace) -> dict:
    names = [f"d{number}" for number in range(arguments.devices)]
    federation = create(folder, [(name, 1) for name in names])
    over = threading.Event()
    recipe = make_recipe(arguments, arguments.devices)
    with watching({"flower-superlink": "superlink", "flower.proxy": "proxy"}) as watched:
        for number, name in enumerate(names):
            given = federation / "devices" / name, Random(number), over
            threading.Thread(target=connect_device, args=given, daemon=True).start()
        run = serve(federation, folder, recipe, arguments.devices)
        over.set()
    return rounds_of(run) | watched | {"server_and_devices_cpu_s": round(time.process_time(), 1)}


def connect_device(bundle: Path, answer: Callable[[bytes], bytes], over: threading.Event) -> None:
    """The connection of one device, by Flower's own calls, in a thread, and its line. It looks for messages as a
    SuperNode does."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.app import Message
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        iterate_object_tree,
        no_object_id_recompute,
    )
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.supernode.fleet_http_connection import http_request_response

    key = load_ssh_private_key((bundle / keys.NODE_KEY).read_bytes(), None)
    server = json.loads((bundle / "device.json").read_text())["server"]
    authority = (bundle / keys.AUTHORITY).read_bytes()
    connection = http_request_response(server, False, authority, (key, key.public_key()), None, None)
    rung = threading.Event()
    with ExitStack() as stack:
        # One at a time, once the server listens. The server refuses a call that is repeated after a timeout, and Flower
        # then ends the process, which is that of all devices here.
        with _CONNECTING:
            _wait_for(server)
            node, receive, send, _, _, pull_object, push_object, confirm = stack.enter_context(connection)
            stack.enter_context(LineClient(bundle, server, answer, rung.set).open())
        wait = SOON
        while not over.is_set():
            if (received := receive()) is None:
                wait = SOON if rung.wait(wait) else min(2 * wait, 3.0)
                rung.clear()
                continue
            wait = SOON
            message, tree = received
            run, identity = message.metadata.run_id, message.metadata.message_id
            wanted = [each.object_id for each in iterate_object_tree(tree)]
            contents = pull_objects(wanted, pull_object_fn=lambda each, run=run: pull_object(run, each))
            confirm(run, identity)
            answered = payload.pack(answer(payload.unpack(inflate_object_from_contents(identity, contents))))
            with _ANSWERING:  # Flower keeps these per process, and threads share them
                TaskIdentity.run_id, TaskIdentity.node_id = run, node
                reply = Message(answered, reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = node
            reply.metadata.__dict__["_message_id"] = reply.object_id
            with no_object_id_recompute():
                missing, session = send(reply, get_object_tree(reply), 0.0)
                for each, part in get_all_nested_objects(reply).items():
                    if each in missing:
                        push_object(run, session, each, part.deflate())


_CONNECTING, _ANSWERING = threading.Lock(), threading.Lock()


def _wait_for(server: str) -> None:
    host, _, port = server.rpartition(":")
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            time.sleep(0.5)
        else:
            return


class Random:
    """A device that joins a round with probability 1/2 and sends random updates."""

    def __init__(self, seed: int):
        self._generator = np.random.default_rng(seed)

    def __call__(self, message: bytes) -> bytes:
        task, joins = read_request(message), int(self._generator.random() < 0.5)
        assert isinstance(task, Task)
        leaves = [joins * self._generator.integers(-1000, 1000, leaf.shape) for leaf in task.leaves]
        return Contribution(digest(message), joins, joins * 2**24, np.array([joins]), leaves).to_bytes()


@contextmanager
def watching(kinds: dict[str, str]) -> Iterator[dict[str, float]]:
    """Peak memory and CPU time of the processes that this one started, by a part of their command line.

    Each figure includes all descendants; of several processes of a kind, it is the largest.
    """
    seen: dict[str, float] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(1.0):
            for line, memory, seconds in started():
                for kind in (kind for text, kind in kinds.items() if text in line):
                    seen[f"{kind}_mib"] = round(max(memory, seen.get(f"{kind}_mib", 0)))
                    seen[f"{kind}_cpu_s"] = round(max(seconds, seen.get(f"{kind}_cpu_s", 0)), 1)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def started() -> list[tuple[str, float, float]]:
    """Command, memory in MiB and CPU seconds of each child process, with all its descendants."""
    page, tick = os.sysconf("SC_PAGE_SIZE"), os.sysconf("SC_CLK_TCK")
    processes: dict[int, tuple[int, str, float, float]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            facts = (folder / "stat").read_text().rpartition(")")[2].split()
            size = int((folder / "statm").read_text().split()[1]) * page / 2**20
            line = (folder / "cmdline").read_text()
        except (OSError, ValueError):  # it has just ended
            continue
        processes[int(folder.name)] = (int(facts[1]), line, size, sum(map(int, facts[11:15])) / tick)

    def tree(number: int) -> list[int]:
        return [number, *(each for other, facts in processes.items() if facts[0] == number for each in tree(other))]

    trees = [tree(number) for number, facts in processes.items() if facts[0] == os.getpid()]
    return [
        (processes[tree[0]][1], sum(processes[each][2] for each in tree), sum(processes[each][3] for each in tree))
        for tree in trees
    ]


if __name__ == "__main__":
    main()
