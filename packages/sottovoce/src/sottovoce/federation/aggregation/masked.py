"""The server's side of a masked sum: it passes on what devices send one another, and learns the sum of all alone.

Whatever goes wrong, nothing is unmasked: the sum is zero and the round is only noise, as if nobody had answered.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce.federation import keys
from sottovoce.federation.aggregation.phases import JOINED, DeviceSum, Phase, Say, log
from sottovoce.federation.masking import masks, sharing
from sottovoce.federation.masking.context import context_of
from sottovoce.federation.masking.graph import Graph, Terms, graph_of, quorum
from sottovoce.federation.masking.messages import (
    ENTRY,
    Advert,
    Forwarded,
    KeyList,
    Revealed,
    Signatures,
    Survivors,
    commitment,
    largest,
    read_advert,
    read_confirmed,
    read_revealed,
    read_shares,
    read_vector,
)
from sottovoce.federation.masking.participant import pair_mask, self_mask
from sottovoce.federation.masking.vector import Layout, largest_noise
from sottovoce.federation.messages import Code, Contribution, Refused, Task, digest
from sottovoce.models.contract import LanguageModel
from sottovoce.privacy.estimators import WEIGHT_STEP
from sottovoce.privacy.fixed_point import BIT_STEP, BITS, MOST
from sottovoce.privacy.mechanism import Mechanism
from sottovoce_evidence.errors import count_of
from sottovoce_evidence.recipe import Federation

Take = Callable[[str, bytes], None]


@dataclass(frozen=True)
class Asked:
    """Whom a masked round asks: their registered users and public keys."""

    registered: Mapping[str, int]
    public_keys: Mapping[str, str]
    users: int  # registered with all devices, also those not asked: the same in every round, whoever takes part


class MaskedAggregator:
    """The masked aggregation: keys, shares, vectors, signatures, and what removes the masks of the one sum.

    Guarantee: the sum is that of the plain aggregation, to the bit, over the devices whose vectors came; or it is zero.

    Guarantee: a user moves what is released by no more than their contribution, whatever other devices send. The server
    cannot clip what one device sends, and a sum may wrap round. So each number is `folded`, then cut to what all
    registered users can have: both move no two numbers further apart, and neither depends on who takes part.
    """

    def __init__(
        self,
        task: Task,
        asked: Asked,
        federation: Federation,
        mechanism: Mechanism,
        params: LanguageModel,
        say: Say = log.warning,
    ):
        message, self._say = task.to_bytes(), say
        self._asked, self._mechanism, self._clip_norms = asked, mechanism, task.clip_norms
        self._context, self._task_bytes = context_of(task, digest(message)), len(message)
        self._terms = Terms(federation.survivors, federation.colluding)
        leaves, self._structure = jax.tree.flatten(params)
        shapes = tuple(tuple(leaf.shape) for leaf in leaves)
        self._layout = Layout(shapes, len(task.clip_norms), counts=federation.noise == "server")
        self._codes: dict[str, str] = {}
        self._bytes = 0
        self._adverts: dict[str, Advert] = {}
        self._sum: Contribution | None = None
        self._modulus: int | None = None
        self._in_sum: tuple[str, ...] = ()
        self.lacking: list[str] = []
        self.first = _Exchange(self, dict.fromkeys(asked.registered, message), largest(ENTRY), self._take_advert)

    def ask_again(self, devices: Iterable[str]) -> None:
        """The first phase, played again, asks these devices alone."""
        self.first.messages = {device: self.first.messages[device] for device in devices}

    def phases(self) -> Iterator[Phase]:
        yield self.first
        yield from self.rest()

    def rest(self) -> Iterator[Phase]:
        """The phases after the task. They end where too few devices are left."""
        if self._too_few("showed their keys", self._adverts):
            return
        found = self._key_list()
        graph = graph_of(found.names, found.digest, self._terms)
        passing = _Passing(found, graph)
        near = max(map(len, graph.neighbours.values()))
        yield self._ask(dict.fromkeys(found.names, found.to_bytes()), near * sharing.SEALED, passing.take_shares)
        if self._too_few("shared their secrets", passing.sealed):
            return
        noise = largest_noise(self._mechanism, self._clip_norms, self._layout)(len(found.names))
        vectors = _Vectors(masks.Modular(self._layout.size, masks.width_for(found.users, noise)), self._context)
        yield self._ask(passing.forwarded(), vectors.size, vectors.take)
        if self._too_few("sent a vector", vectors.came):
            return
        survivors = Survivors(self._context, tuple(sorted(vectors.came)))
        signing = _Signing(survivors, survivors.claim(found.digest), self._asked.public_keys)
        yield self._ask(dict.fromkeys(survivors.names, survivors.to_bytes()), 0, signing.take)
        needed = quorum(len(found.names), self._terms.colluding)
        if len(signing.signatures) < needed:
            signed = len(signing.signatures)
            return self._fail(f"{count_of(signed, 'device')} signed who survived, and {needed} must")
        names = tuple(sorted(signing.signatures))
        signatures = Signatures(self._context, names, tuple(signing.signatures[name] for name in names))
        opening = _Opening(passing, survivors)
        yield self._ask(dict.fromkeys(names, signatures.to_bytes()), masks.SEED * (near + 1), opening.take)
        try:
            opening.remove_masks(vectors.total)
        except Refused as refused:
            return self._fail(str(refused))
        numbers, self._modulus = vectors.total.signed(), 2 ** (8 * vectors.total.width)
        if self._layout.counts:
            numbers = masks.folded(numbers, vectors.total.width)
        self._sum, self._in_sum = self._layout.restore(numbers, ""), survivors.names

    def total(self) -> DeviceSum:
        """The sums, in float64, which holds them exactly."""
        grid = self._mechanism.grid(self._clip_norms)
        assert grid is not None  # rules.py: masked sums need a clip
        found = self._sum or self._layout.restore(np.zeros(self._layout.size, np.int64), "")
        found = self._bounded(found, grid) if self._layout.counts else found
        total = self._structure.unflatten([leaf.astype(np.float64) * grid for leaf in found.leaves])
        weight, bits = np.float64(found.weight * WEIGHT_STEP), found.bits * BIT_STEP
        lacking = dict.fromkeys(self.lacking, Code.FROZEN.value)
        codes = {**lacking, **self._codes, **dict.fromkeys(self._in_sum, JOINED)}
        # A device that took part and is not in the sum left on the way.
        said = [codes.get(name, Code.AWAY.value) for name in self._asked.registered]
        left = [
            Code.AWAY.value if code == JOINED and name not in self._in_sum else code
            for name, code in zip(self._asked.registered, said, strict=True)
        ]
        sizes = self._task_bytes, self._bytes
        return DeviceSum(total, weight, bits, found.users, Counter(left), sizes, modulus=self._modulus)

    def _bounded(self, found: Contribution, grid: float) -> Contribution:
        """What all registered users can have, number by number; what they can have is not touched."""
        users = self._asked.users
        largest = min(users, MOST) * 2**BITS  # float64 holds it exactly
        leaves = [np.clip(leaf, -largest, largest) for leaf in found.leaves]
        weight = min(max(found.weight, 0), int(users / WEIGHT_STEP))
        bits = np.clip(found.bits, -users, users)
        bounded = Contribution("", min(max(found.users, 0), users), weight, bits, leaves)
        parts = zip(self._mechanism.clipping.parts(leaves), self._clip_norms * users / grid, strict=True)
        longer = any(sum(np.sum(np.square(leaf, dtype=np.float64)) for leaf in part) > most**2 for part, most in parts)
        if longer or (found.users, found.weight) != (bounded.users, weight):
            self._say("the masked sum is larger than honest devices send: a device spoiled the round")
        return bounded

    def _ask(self, messages: Mapping[str, bytes], answer: int, take: Take) -> _Exchange:
        phase = _Exchange(self, messages, largest(answer), take)
        phase.urgent = True
        return phase

    def _too_few(self, did: str, devices: Mapping[str, Any] | set[str]) -> bool:
        needed = max(self._terms.survivors, 2)
        if len(devices) < needed:
            self._fail(f"{count_of(len(devices), 'device')} {did}, fewer than the {needed} declared")
        return len(devices) < needed

    def _fail(self, why: str) -> None:
        self._say(f"nothing is unmasked, and the round is only noise: {why}")

    def _key_list(self) -> KeyList:
        names = tuple(sorted(self._adverts))
        adverts = [self._adverts[name] for name in names]
        entries, signatures = (one.entry for one in adverts), (one.signature for one in adverts)
        here = sum(self._asked.registered[name] for name in names)
        users = self._asked.users if self._layout.counts else here  # noise from devices needs no room for the others
        return KeyList(self._context, names, tuple(entries), tuple(signatures), users)

    def _take_advert(self, device: str, answer: bytes) -> None:
        advert = read_advert(answer, self._context)
        if device in self._adverts:
            raise Refused(Code.TWICE)
        claim = Advert.claim(self._context, device, advert.entry)
        if not _is_signed(self._asked.public_keys.get(device, ""), advert.signature, claim):
            raise Refused(Code.SIGNATURE)
        for key in (advert.mask_key, advert.seal_key):  # one of low order would stop all neighbours
            masks.agreed(X25519PrivateKey.generate(), key, b"")
        taken = {key for one in self._adverts.values() for key in (one.mask_key, one.seal_key)}
        if advert.mask_key == advert.seal_key or {advert.mask_key, advert.seal_key} & taken:
            raise Refused(Code.MALFORMED)
        self._adverts[device] = advert

    def count(self, device: str, answer: bytes, phase: _Exchange) -> str:
        """Count an answer of any phase. A device that is out of the round stays out."""
        self._bytes += len(answer)
        if device not in self._asked.registered:
            return Code.STRANGER.value
        if self._codes.get(device, JOINED) != JOINED:
            return Code.TWICE.value
        try:
            if len(answer) > phase.max_answer_bytes or device not in phase.messages:
                raise Refused(Code.MALFORMED)
            phase.read(device, answer)
            code = JOINED
        except Refused as refused:
            code = refused.code.value
            if refused.code is Code.FROZEN and device not in self.lacking:
                self.lacking.append(device)
                return code
            if refused.code is Code.TWICE and device in self._codes:
                return code  # its first answer counts
        except Exception:  # noqa: BLE001 -- an error that is not foreseen: the other devices go on
            self._say(f"the answer of {device} cannot be counted\n{traceback.format_exc()}")
            code = Code.FAILED.value
        self._codes[device] = code
        return code


class _Exchange:
    """One phase of a masked aggregation."""

    def __init__(self, owner: MaskedAggregator, messages: Mapping[str, bytes], max_answer_bytes: int, read: Take):
        self._owner, self.read = owner, read
        self.urgent = False  # devices have done their work, and wait for a short message
        self.messages, self.max_answer_bytes = messages, max_answer_bytes

    def take(self, device: str, answer: bytes) -> str:
        return self._owner.count(device, answer, self)


class _Passing:
    """Shares on their way from device to device. The server cannot open them."""

    def __init__(self, found: KeyList, graph: Graph):
        self.found, self.graph = found, graph
        self.sealed: dict[str, dict[str, bytes]] = {}  # by sender and receiver

    def take_shares(self, device: str, answer: bytes) -> None:
        near = self.graph.neighbours[device]
        if device in self.sealed:
            raise Refused(Code.TWICE)
        self.sealed[device] = dict(zip(near, read_shares(answer, self.found.context, len(near)), strict=True))

    def senders(self, receiver: str) -> tuple[str, ...]:
        """The neighbours whose shares a device keeps."""
        return tuple(name for name in self.graph.neighbours[receiver] if name in self.sealed)

    def forwarded(self) -> dict[str, bytes]:
        """What goes to each device. One that too few neighbours would hide is not asked."""
        messages = {}
        for receiver in self.sealed:
            senders = self.senders(receiver)
            if len(senders) >= self.graph.threshold:
                sealed = tuple(self.sealed[name][receiver] for name in senders)
                messages[receiver] = Forwarded(self.found.context, senders, sealed).to_bytes()
        return messages


class _Vectors:
    """Masked vectors, added up as they come."""

    def __init__(self, total: masks.Modular, context: str):
        self.total, self._context = total, context
        self.size = total.size * total.width
        self.came: set[str] = set()

    def take(self, device: str, answer: bytes) -> None:
        if device in self.came:
            raise Refused(Code.TWICE)
        self.total.add_bytes(read_vector(answer, self._context, self.size))
        self.came.add(device)


class _Signing:
    """Signatures of the set of survivors."""

    def __init__(self, survivors: Survivors, claim: bytes, public_keys: Mapping[str, str]):
        self._context, self._claim, self._public_keys = survivors.context, claim, public_keys
        self.signatures: dict[str, bytes] = {}

    def take(self, device: str, answer: bytes) -> None:
        signature = read_confirmed(answer, self._context)
        if not _is_signed(self._public_keys.get(device, ""), signature, self._claim):
            raise Refused(Code.SIGNATURE)
        self.signatures.setdefault(device, signature)


class _Opening:
    """What removes the masks of the sum over the survivors."""

    def __init__(self, passing: _Passing, survivors: Survivors):
        self._passing, self._survivors = passing, survivors.names
        self._revealed: dict[str, Revealed] = {}

    def take(self, device: str, answer: bytes) -> None:
        kept = self._passing.senders(device)
        self._revealed.setdefault(device, read_revealed(answer, self._passing.found.context, len(kept)))

    def remove_masks(self, total: masks.Modular) -> None:
        """Take the masks away from the sum of the survivors. Raises `Refused` where too few shares came.

        Guarantee: a secret that a device did not commit to, in what it signed, removes no mask.
        """
        found, graph, alive = self._passing.found, self._passing.graph, set(self._survivors)
        own = [self_mask(self._self_seed(name), found, name) for name in self._survivors]
        added, taken = [], []
        for gone in sorted(set(self._passing.sealed) - alive):
            key = self._mask_key(gone)
            for name in graph.neighbours[gone]:
                if name in alive:  # it masked with the one that is gone: the lesser name added
                    (added if name < gone else taken).append(pair_mask(key, found, (gone, name)))
        total.add_masks([*own, *added], sign=-1)
        total.add_masks(taken)

    def _self_seed(self, name: str) -> bytes:
        """As the device gave it, or else by the shares of its neighbours."""
        if name in self._revealed and self._is_self_seed(name, self._revealed[name].seed):
            return self._revealed[name].seed
        seed = self._combined(name)
        if not self._is_self_seed(name, seed):
            raise Refused(Code.MALFORMED, f"a device gave a wrong share of the self-mask of {name}")
        return seed

    def _is_self_seed(self, name: str, seed: bytes) -> bool:
        found = self._passing.found
        return commitment(seed, found.context, name) == found.entry(name).commitment

    def _mask_key(self, name: str) -> X25519PrivateKey:
        key = masks.key_from_seed(self._combined(name))
        if masks.public_bytes(key) != self._passing.found.entry(name).mask_key:
            raise Refused(Code.MALFORMED, f"a device gave a wrong share of the mask key of {name}")
        return key

    def _combined(self, name: str) -> bytes:
        """A secret of a device, from the shares that its neighbours gave."""
        graph, shares = self._passing.graph, {}
        for place, holder in enumerate(graph.neighbours[name]):
            if holder in self._revealed:
                kept = self._passing.senders(holder)
                shares[place] = self._revealed[holder].shares[kept.index(name)]
        return sharing.combine(shares, graph.threshold)


def _is_signed(public_key: str, signature: bytes, claim: bytes) -> bool:
    return bool(public_key) and keys.is_signed_by(keys.public_key_pem(public_key), signature, claim)
