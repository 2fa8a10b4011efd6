"""A group of processes, on one machine or many, that sum arrays over all of them (all-reduce).

Arrays cross encrypted connections (`links.py`), between the CPUs of the machines, whatever device trains. All messages
are built on sums: a broadcast is an all-reduce with zeros elsewhere. Integer sums are exact in any order.

In a cluster, `jax.distributed` and gloo introduce the processes to one another. Neither authenticates or encrypts: they
carry where the leader is, and proofs of the secret.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets as os_entropy
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sottovoce.multiprocess import rendezvous
from sottovoce.multiprocess.links import Identity, Links, accept_links, open_link
from sottovoce.multiprocess.rendezvous import Address, Connections
from sottovoce_evidence import files
from sottovoce_evidence.errors import LostProcess, SottoError

WAIT = 300.0  # seconds for all processes to connect
_GRACE = 5.0  # seconds for a sum to fail by itself when a process was lost
_STOP = b"stop "
_MUST_MATCH = {
    "store": "another store than process 0; give every process a copy of the same one",
    "program": "another sottovoce, jax or numpy than process 0; install the same versions everywhere",
    "code": "another model or objective than process 0; pass the same ones everywhere",
    "layout": "other devices than process 0; give every process as many of the same kind, or set run.devices",
    "update": "a machine that computes a user's update otherwise than that of process 0, so it would matter who "
    "computes whom; give every process the same kind of machine, with as many cores",
}
_LOST = "process {} is gone, and the run ends with it; start all processes again with `sotto resume`"


@dataclass(frozen=True)
class ProcessFacts:
    """What one process tells the others before the first round. With an `error`, it cannot take part."""

    store: str = ""
    program: str = ""
    code: str = ""
    layout: str = ""
    update: str = ""  # a hash of what a made-up user sends
    error: str = ""

    @staticmethod
    def from_dict(values: dict[str, Any]) -> ProcessFacts:
        """Reads the facts of other versions too: keys that are missing or unknown are not an error."""
        return ProcessFacts(**{name: values[name] for name in ProcessFacts.__dataclass_fields__ if name in values})

    def problem(self, rank: int, leader: ProcessFacts) -> str:
        """Why this process and the leader cannot train together; empty when they can."""
        if self.error:
            return f"process {rank} cannot take part: {self.error}"
        for name, problem in _MUST_MATCH.items():
            if getattr(self, name) != getattr(leader, name):
                return f"process {rank} has {problem}"
        return ""


@cache  # reading all metadata and all code takes half a second
def program() -> str:
    """A hash of the code and of the versions of libraries: the same on machines with the same installation."""
    names = ("jax", "numpy", "randomgen", "equinox", "optax", "nvidia")
    found = ((item.metadata["Name"] or "", item.version) for item in distributions())
    hashed = hashlib.sha256(repr(sorted(each for each in found if each[0].lower().startswith(names))).encode())
    for package in (Path(__file__).parents[1], Path(files.__file__).parent):
        for source in sorted([*package.rglob("*.py"), *package.rglob("*.cu")]):
            hashed.update(source.read_bytes())
    return hashed.hexdigest()[:16]


class Dismissed(Exception):
    """The leader ended the run. The message is its reason, and empty when the run is complete."""


class Sums(Protocol):
    """What carries arrays between the processes."""

    def all_reduce(self, numbers: np.ndarray) -> np.ndarray: ...
    def close(self) -> None: ...


class Group:
    """The processes of a run. Rank 0 is the leader: it alone has the run's folder, and the others compute for it.

    All processes must call the same methods in the same order, because a sum waits for every one of them. When the
    leader leaves the `with` block of the group, the other processes receive the reason.
    """

    def __init__(self, rank: int, count: int, connections: Connections | None, sums: Sums):
        self.rank, self.count = rank, count
        self.facts: list[ProcessFacts] = []  # of every rank, after `agree`
        self._connections, self._sums = connections, sums
        self._over = threading.Event()
        self._uninterruptible = self._stop_requested = False
        self._waits_since: float | None = None  # for the other processes, in a sum

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.dismiss("" if error is None else str(error) or "it was interrupted")

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def all_reduce(self, numbers: np.ndarray) -> np.ndarray:
        """The sum of a vector over all processes; length and dtype are the same in each."""
        self._waits_since = time.monotonic()
        try:
            return self._sums.all_reduce(numbers)
        except (OSError, jax.errors.JaxRuntimeError, ValueError) as error:
            self._over.set()
            lost = self._connections.lost(_GRACE) if self._connections else None
            problem = f"the connections between processes failed: {_first_line(error)}"
            raise LostProcess(problem if lost is None else _LOST.format(lost)) from error
        finally:
            self._waits_since = None

    def broadcast(self, message: bytes = b"") -> bytes:
        """The leader's message, in every process."""
        length = int(self.all_reduce(np.array([len(message) if self.is_leader else 0], np.int32))[0])
        words = np.zeros(-(-length // 4), np.int32)
        if self.is_leader:
            words[:] = np.frombuffer(message.ljust(4 * len(words), b"\0"), np.int32)
        return self.all_reduce(words).tobytes()[:length]

    def all_gather(self, message: bytes) -> list[bytes]:
        """The messages of all processes by rank, in every process."""
        lengths = [int.from_bytes(each, "big") for each in self._all_gather_fixed(len(message).to_bytes(4, "big"))]
        slots = self._all_gather_fixed(message.ljust(-(-max(lengths) // 4) * 4, b"\0"))
        return [slot[:length] for slot, length in zip(slots, lengths, strict=True)]

    def agree(self, facts: ProcessFacts) -> None:
        """Exchange facts. Every process sees the facts of all, so all of them refuse a mismatch together."""
        messages = self.all_gather(json.dumps(asdict(facts)).encode())
        self.facts = [ProcessFacts.from_dict(json.loads(message)) for message in messages]
        problems = [each.problem(rank, self.facts[0]) for rank, each in enumerate(self.facts)]
        if any(problems):
            self.leave()
            raise SottoError("; ".join(filter(None, problems)))

    def check_members(self, secret: bytes) -> None:
        """Refuse a group with a process that does not know the secret. Nothing else is sent before this check.

        Each process sends a nonce, and then an HMAC of all nonces and its rank.
        """
        nonces = b"".join(self._all_gather_fixed(os_entropy.token_bytes(32)))
        proofs = [hmac.digest(secret, b"member %d" % rank + nonces, "sha256") for rank in range(self.count)]
        for rank, shown in enumerate(self._all_gather_fixed(proofs[self.rank])):
            if not hmac.compare_digest(shown, proofs[rank]):
                self.leave()
                raise SottoError(
                    f"process {rank} does not know the secret of this run: it has another --secret, or is a stranger; "
                    f"start all processes again"
                )

    def _all_gather_fixed(self, message: bytes) -> list[bytes]:
        """As `all_gather`, for messages of one length: no process can make the others allocate more memory."""
        words = np.zeros((self.count, len(message) // 4), np.int32)
        words[self.rank] = np.frombuffer(message, np.int32)
        return [row.tobytes() for row in self.all_reduce(words.ravel()).reshape(words.shape)]

    def receive(self) -> bytes:
        """The leader's next message, for the other processes. Raises `Dismissed` at the end of the run."""
        message = self.broadcast()
        if message.startswith(_STOP):
            self.leave()
            raise Dismissed(message.removeprefix(_STOP).decode())
        return message

    @contextmanager
    def uninterruptible(self) -> Iterator[None]:
        """A non-interruptible section: after an exception in it the processes are out of step, and no more is sent."""
        self._uninterruptible = True
        yield
        self._uninterruptible = False

    def request_stop(self, requested: bool = True) -> None:
        self._stop_requested = self._stop_requested or requested

    def stop_requested(self) -> bool:
        """Was any process asked to stop?"""
        return self._stop_requested

    def end_with_others(self) -> None:
        """From now on this process ends when another one ends: its next sum raises `LostProcess`.

        A sum may also wait for ever, for a machine without power. Then the process ends.
        """
        if self._connections:
            self._connections.when_lost(self._end)

    def _end(self, lost: int) -> None:
        while not self._over.is_set():
            begun = self._waits_since
            if begun is not None and time.monotonic() - begun > _GRACE:
                print("error:", _LOST.format(lost), file=sys.stderr, flush=True)
                os._exit(1)  # without unwinding: the main thread waits in C++ for a machine that is lost
            self._over.wait(_GRACE / 20)

    def dismiss(self, reason: str = "") -> None:
        """The leader ends the run for all. Where it cannot send, the others notice the closed connection."""
        if self.is_leader and not self._over.is_set() and not self._uninterruptible:
            with suppress(LostProcess):
                self.broadcast(_STOP + reason.encode())
        self.leave()

    def leave(self) -> None:
        self._over.set()
        if self._connections:
            self._connections.close()
        self._sums.close()


def join(
    coordinator: str,
    processes: int | None,
    process_id: int | None,
    wait: float = WAIT,
    log: Callable[[str], None] = lambda text: None,
    secret: Path | None = None,
) -> Group:
    """Connect to the other processes.

    Args:
        coordinator: HOST:PORT of the leader, or "auto" in a cluster that JAX knows.
        process_id: The rank of this process.
        wait: Seconds for all of them to connect.
        secret: A file that all processes have, and no one else. Without it, the secret is in the environment.
    """
    if coordinator == "auto":
        if processes is not None or process_id is not None:
            raise SottoError("--coordinator auto finds --processes and --process-id by itself; leave them out")
        return _join_cluster(wait, rendezvous.shared_secret(secret))
    address = Address(coordinator)
    if processes is None or process_id is None:
        raise SottoError("--coordinator HOST:PORT needs --processes and --process-id too")
    if processes < 2:
        raise SottoError(f"--processes {processes} must be 2 or more; one process needs no --coordinator")
    if not 0 <= process_id < processes:
        raise SottoError(f"--process-id {process_id} must be from 0 to {processes - 1}, one less than --processes")
    shared = rendezvous.shared_secret(secret)
    if process_id == 0:
        with rendezvous.listen(address.host, address.port) as listener:
            log(f"waiting for {processes - 1} other process{'es' if processes > 2 else ''} at {coordinator}")
            connections, links = _lead(listener, address.host, processes, wait, shared)
    else:
        connections, links = _follow(address, process_id, processes, wait, shared)
    log(f"process {process_id} of {processes}: all are here")
    return Group(process_id, processes, connections, links)


def _lead(listener: socket.socket, host: str, processes: int, wait: float, secret: bytes) -> tuple[Connections, Links]:
    identity = Identity.new()
    with rendezvous.listen(host, 0) as door:
        reply = {"port": door.getsockname()[1], "certificate": identity.certificate}
        connections = rendezvous.accept_all(listener, processes, wait, reply, secret)
        return connections, accept_links(door, identity, processes, wait, secret)


def _follow(address: Address, rank: int, processes: int, wait: float, secret: bytes) -> tuple[Connections, Links]:
    connections, reply = rendezvous.connect(address, rank, processes, wait, secret)
    return connections, open_link(address.host, reply["port"], reply["certificate"], rank, wait, secret)


def _join_cluster(wait: float, secret: bytes) -> Group:
    """Join the processes that JAX finds: Slurm, Open MPI, Kubernetes, TPU pods."""
    _initialise(initialization_timeout=int(wait) + 1)
    group = Group(jax.process_index(), jax.process_count(), None, _Gloo(_mesh()))
    _connect_devices(group, secret)
    if group.count == 1:
        return group
    if group.is_leader:
        with rendezvous.listen("", 0) as listener:
            group.broadcast(f"{socket.gethostname()}:{listener.getsockname()[1]}".encode())
            connections, links = _lead(listener, "", group.count, wait, secret)
    else:
        address = Address(group.broadcast().decode())
        connections, links = _follow(address, group.rank, group.count, wait, secret)
    return Group(group.rank, group.count, connections, links)


def _initialise(**options: Any) -> None:
    try:
        jax.distributed.initialize(**options)
    except (ValueError, RuntimeError, TypeError) as error:
        if "should be defined" in str(error) or "must be defined" in str(error):
            raise SottoError(
                "--coordinator auto: JAX finds no cluster here; give HOST:PORT, --processes and --process-id"
            ) from None
        raise SottoError(f"the processes could not be joined: {_first_line(error)}") from error


def _connect_devices(group: Group, secret: bytes) -> None:
    """Run the first sum, which connects the devices, then shut JAX's coordination service down, and check the members.

    The service is only needed to connect. When a process is lost, it would end all others from C++, without an error
    message and with files open. Neither the service nor gloo authenticates processes: `check_members` does.
    """
    with _no_output():  # gloo prints to standard output, which is for results
        group.all_reduce(np.ones(1, np.int32))
        here = jax.local_devices()
        if len(here) > 1:  # the devices of one process connect through the service too
            alone = Mesh(np.array(here), ("processes",))
            jax.block_until_ready(_sum_of_shards(alone, np.ones((len(here), 1), np.int32)))
    jax.distributed.shutdown()
    group.check_members(secret)


def _mesh() -> Mesh:
    """One device of each process for the sums: a CPU if JAX has one."""
    try:
        devices = jax.devices("cpu")
    except RuntimeError:
        devices = jax.devices()
    first = {device.process_index: device for device in reversed(devices)}
    return Mesh(np.array([first[number] for number in sorted(first)]), ("processes",))


class _Gloo:
    """Sums of XLA over gloo, not encrypted: only what strangers may know crosses it."""

    def __init__(self, mesh: Mesh):
        self._mesh = mesh

    def all_reduce(self, numbers: np.ndarray) -> np.ndarray:
        length = len(numbers)
        padded = np.zeros((1, _padded_length(length)), numbers.dtype)
        padded[0, :length] = numbers
        sharding = NamedSharding(self._mesh, PartitionSpec("processes"))
        shards = jax.make_array_from_process_local_data(sharding, padded)
        return np.asarray(_sum_of_shards(self._mesh, shards))[:length]

    def close(self) -> None:
        pass


@partial(jax.jit, static_argnums=0)
def _sum_of_shards(mesh: Mesh, shards: jax.Array) -> jax.Array:
    def psum(shard: jax.Array) -> jax.Array:
        return jax.lax.psum(shard[0], "processes")

    processes, replicated = PartitionSpec("processes"), PartitionSpec()
    return jax.shard_map(psum, mesh=mesh, in_specs=processes, out_specs=replicated, check_vma=False)(shards)


def _padded_length(length: int) -> int:
    """Round a length up, so that cohorts of similar size share one compiled program."""
    step = max(64, 2 ** (length.bit_length() - 5))
    return max(1, -(-length // step)) * step


@contextmanager
def _no_output() -> Iterator[None]:
    sys.stdout.flush()
    kept = os.dup(1)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
