"""Several processes, on one machine or many, that add up numbers together.

`jax.distributed` makes them one group whose devices know one another; what they say is added up by XLA over gloo,
between the CPUs of the machines, whatever device trains. Everything else is made of sums: process 0 tells something
by adding it to nothing. Whole numbers add up exactly, in any order.
"""

from __future__ import annotations

import hmac
import os
import secrets as os_entropy
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from sottovoce.errors import LostProcess, SottoError
from sottovoce.multiprocess import rendezvous
from sottovoce.multiprocess.rendezvous import Address, Lifelines

WAIT = 300.0  # seconds for all processes to come
_GRACE = 5.0  # seconds for the main thread to notice, and to end in order, that another process is gone
_STOP = b"stop "


class Dismissed(Exception):
    """Process 0 needs the others no longer. What it holds is why, and nothing when all went well."""


class Group:
    """The processes of a run. Process 0 leads: it alone has the run's folder; the others add up what it says.

    All must call the same methods in the same order: a sum waits for every one of them.
    """

    def __init__(self, mine: int, count: int, lines: Lifelines | None, mesh: Mesh):
        self.mine, self.count = mine, count
        self.facts: list[dict[str, Any]] = []  # of every process, once they met
        self._lines, self._mesh = lines, mesh
        self._over = self._busy = self._asked = False

    @property
    def leads(self) -> bool:
        return self.mine == 0

    def add(self, numbers: np.ndarray) -> np.ndarray:
        """The sum over all processes of a vector of one length and kind."""
        length = len(numbers)
        padded = np.zeros((1, _room(length)), numbers.dtype)
        padded[0, :length] = numbers
        try:
            shares = jax.make_array_from_process_local_data(self._apart, padded)
            return np.asarray(_added(self._mesh, shares))[:length]
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            self._over = True
            lost = self._lines.gone(_GRACE) if self._lines else None
            if lost is None:
                raise LostProcess(f"the processes can no longer hear one another: {_first_line(error)}") from error
            raise LostProcess(_farewell(lost)) from error

    @property
    def _apart(self) -> NamedSharding:
        return NamedSharding(self._mesh, PartitionSpec("processes"))

    def tell(self, message: bytes = b"") -> bytes:
        """What process 0 says, to all of them."""
        length = int(self.add(np.array([len(message) if self.leads else 0], np.int32))[0])
        words = np.zeros(-(-length // 4), np.int32)
        if self.leads:
            words[:] = np.frombuffer(message.ljust(4 * len(words), b"\0"), np.int32)
        return self.add(words).tobytes()[:length]

    def gather(self, message: bytes) -> list[bytes]:
        """What each process says, to all of them."""
        lengths = np.zeros(self.count, np.int32)
        lengths[self.mine] = len(message)
        lengths = self.add(lengths)
        slots = np.zeros((self.count, int(lengths.max())), np.int32)
        slots[self.mine, : len(message)] = np.frombuffer(message, np.uint8)
        said = self.add(slots.ravel()).reshape(slots.shape).astype(np.uint8)
        return [row[:length].tobytes() for row, length in zip(said, lengths, strict=True)]

    def check_members(self, secret: bytes) -> None:
        """Refuse a group in which somebody does not know the secret. Nothing else was said to it before."""
        everybody = b"".join(self._each(os_entropy.token_bytes(32)))
        proofs = [hmac.digest(secret, b"member %d" % number + everybody, "sha256") for number in range(self.count)]
        for number, shown in enumerate(self._each(proofs[self.mine])):
            if not hmac.compare_digest(shown, proofs[number]):
                self.leave()
                raise SottoError(
                    f"process {number} does not know the secret of this run: somebody else took its place, or it has "
                    f"another --secret; start all processes again"
                )

    def _each(self, mine: bytes) -> list[bytes]:
        """What each process says, of one length for all: nobody can ask for more memory than that."""
        words = np.zeros((self.count, len(mine) // 4), np.int32)
        words[self.mine] = np.frombuffer(mine, np.int32)
        return [row.tobytes() for row in self.add(words.ravel()).reshape(words.shape)]

    def hear(self) -> bytes:
        """What process 0 says next to the others, or `Dismissed`."""
        message = self.tell()
        if message.startswith(_STOP):
            self.leave()
            raise Dismissed(message.removeprefix(_STOP).decode())
        return message

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Words that belong together: broken off in between, the others would not understand another one."""
        self._busy = True
        yield
        self._busy = False

    def note_asked(self, asked: bool) -> None:
        self._asked = self._asked or asked

    def asked(self) -> bool:
        """Was any process asked to stop?"""
        return self._asked

    def watch(self) -> None:
        """From now on the end of another process ends this one, even while it waits for what will never come."""
        if self._lines:
            self._lines.when_gone(self._end)

    def _end(self, lost: int) -> None:
        time.sleep(_GRACE)
        if not self._over:
            _die(_farewell(lost))

    def dismiss(self, reason: str = "") -> None:
        """Process 0 lets the others go. Where they cannot hear it, they find it gone."""
        if self.leads and not self._over and not self._busy:
            with suppress(LostProcess):  # one that is gone need not be told
                self.tell(_STOP + reason.encode())
        self.leave()

    def leave(self) -> None:
        self._over = True
        if self._lines:
            self._lines.close()


@contextmanager
def joined(
    coordinator: str, processes: int | None, process_id: int | None, wait: float = WAIT,
    say: Callable[[str], None] = lambda text: None, secret: Path | None = None,
) -> Iterator[Group]:  # fmt: skip
    """This process as one of a group; when process 0 leaves the block, it tells the others why."""
    group = join(coordinator, processes, process_id, wait, say, secret)
    reason = ""
    try:
        yield group
    except BaseException as error:
        reason = str(error) or "it was interrupted"
        raise
    finally:
        group.dismiss(reason)


def join(
    coordinator: str, processes: int | None, process_id: int | None, wait: float = WAIT,
    say: Callable[[str], None] = lambda text: None, secret: Path | None = None,
) -> Group:  # fmt: skip
    """Meet the other processes. `coordinator` is HOST:PORT of process 0, or "auto" where JAX knows the cluster.

    `secret` is a file that all of them have, and nobody else; without it the secret is in the environment.
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
            port = _free_port(address.host)
            say(f"waiting for {processes - 1} other process{'es' if processes > 2 else ''} at {coordinator}")
            lines = rendezvous.gather(listener, processes, wait, {"port": port}, shared)
    else:
        lines, reply = rendezvous.reach(address, process_id, processes, wait, shared)
        port = reply["port"]
    host = f"[{address.host}]" if ":" in address.host else address.host
    _initialise(
        coordinator_address=f"{host}:{port}", coordinator_bind_address=f"{host}:{port}", num_processes=processes,
        process_id=process_id, initialization_timeout=int(wait) + 1,
    )  # fmt: skip
    group = Group(process_id, processes, lines, _mesh())
    _settle(group, shared)
    say(f"process {process_id} of {processes}: all are here")
    return group


def _join_cluster(wait: float, secret: bytes) -> Group:
    """As JAX finds them: Slurm, Open MPI, Kubernetes, TPU pods."""
    _initialise(initialization_timeout=int(wait) + 1)
    mine, count = jax.process_index(), jax.process_count()
    group = Group(mine, count, None, _mesh())
    _settle(group, secret)
    if count > 1:
        group._lines = _lifelines_of_cluster(group, wait, secret)
    return group


def _lifelines_of_cluster(group: Group, wait: float, secret: bytes) -> Lifelines:
    if group.leads:
        with rendezvous.listen("", 0) as listener:
            group.tell(f"{socket.gethostname()}:{listener.getsockname()[1]}".encode())
            return rendezvous.gather(listener, group.count, wait, {}, secret)
    return rendezvous.reach(Address(group.tell().decode()), group.mine, group.count, wait, secret)[0]


def _initialise(**options: Any) -> None:
    try:
        jax.distributed.initialize(**options)
    except (ValueError, RuntimeError, TypeError) as error:
        if "should be defined" in str(error) or "must be defined" in str(error):
            raise SottoError(
                "--coordinator auto: JAX finds no cluster here (Slurm, Open MPI, Kubernetes, TPU); say HOST:PORT, "
                "--processes and --process-id"
            ) from None
        raise SottoError(f"the processes could not be joined: {_first_line(error)}") from error


def _settle(group: Group, secret: bytes) -> None:
    """The first sum connects the processes; JAX's service, which only that needed, is then let go.

    It would end every process from C++ when one is gone, before a word could be said or a file closed. It asks nobody
    who they are, and neither does gloo: so the processes show one another, by sums, that they know the secret.
    """
    with _no_output():  # gloo greets on standard output, where only results belong
        group.add(np.ones(1, np.int32))
        here = jax.local_devices()
        if len(here) > 1:  # the devices of a process meet through the service too, once
            alone = Mesh(np.array(here), ("processes",))
            jax.block_until_ready(_added(alone, np.ones((len(here), 1), np.int32)))
    jax.distributed.shutdown()
    group.check_members(secret)


def _mesh() -> Mesh:
    """One device of each process to add up on: a CPU, where there is one besides."""
    try:
        devices = jax.devices("cpu")
    except RuntimeError:
        devices = jax.devices()
    first = {device.process_index: device for device in reversed(devices)}
    return Mesh(np.array([first[number] for number in sorted(first)]), ("processes",))


@partial(jax.jit, static_argnums=0)
def _added(mesh: Mesh, shares: jax.Array) -> jax.Array:
    return jax.shard_map(
        lambda share: jax.lax.psum(share[0], "processes"), mesh=mesh, in_specs=PartitionSpec("processes"),
        out_specs=PartitionSpec(), check_vma=False,
    )(shares)  # fmt: skip


def _room(length: int) -> int:
    """A little more than the length: every shape is compiled once, and cohorts of like size are to share one."""
    step = max(64, 2 ** (length.bit_length() - 5))
    return max(1, -(-length // step)) * step


def _free_port(host: str) -> int:
    with rendezvous.listen(host, 0) as listener:
        return listener.getsockname()[1]


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


def _farewell(lost: int) -> str:
    return (
        f"process {lost} is gone, and the run ends with it; what was saved is whole: start all processes again with "
        f"`sotto resume`"
    )


def _die(message: str) -> NoReturn:
    """Without unwinding: the main thread may be waiting in C++ for a machine that is no longer there."""
    print("error:", message, file=sys.stderr, flush=True)
    os._exit(1)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
