"""A device's part in one masked round. It trusts its own list of members, and nothing that the server says.

The phases: it shows two fresh keys (`advert`), shares its two secrets among its neighbours (`share`), sends its vector
under masks (`mask`), signs who survived (`confirm`), and gives what removes the masks of that one sum (`unmask`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sottovoce.build.rules import MOST_MASKED
from sottovoce.federation.masking import masks, sharing
from sottovoce.federation.masking.context import bind
from sottovoce.federation.masking.graph import Graph, Terms, graph_of, quorum
from sottovoce.federation.masking.messages import (
    Advert,
    Confirmed,
    Forwarded,
    KeyList,
    Masked,
    Request,
    Revealed,
    Shares,
    Signatures,
    Survivors,
    commitment,
)
from sottovoce.federation.members import Membership
from sottovoce.federation.messages import Code, Refused
from sottovoce_evidence.errors import count_of


def no_noise(devices: int) -> int:
    """Of devices that leave the noise to the server."""
    return 0


@dataclass(frozen=True)
class Place:
    """Who a device is, whom it knows, and what is declared of the round."""

    name: str
    membership: Membership
    terms: Terms


class Participant:
    """One masked round.

    Guarantee: one vector leaves, under masks of this round alone; of each device either the share of the mask key or
    that of the self-mask leaves, never both; and nothing that removes masks, unless as many devices signed one set of
    survivors as can sign only one. A message that is repeated gets the same bytes, and another in its place is refused.
    A device whose key the server made counts among those that collude: a round with more than are declared is refused.
    """

    def __init__(self, place: Place, context: str, vector: np.ndarray, noise: Callable[[int], int] = no_noise):
        """`vector`: whole numbers; `noise`: what the noise of so many devices adds to one of them at most."""
        self._place, self.context, self._vector, self._noise = place, context, vector, noise
        self._mask_seed, self._self_seed = masks.new_seed(), masks.new_seed()
        self._mask_key, self._seal_key = masks.key_from_seed(self._mask_seed), X25519PrivateKey.generate()
        self._answers: dict[type, tuple[str, bytes]] = {}  # the digest of what was asked, and the answer
        self._list: KeyList | None = None
        self._graph = Graph({}, 0)
        self._pair_keys: dict[str, bytes] = {}  # of the masks with each neighbour
        self._kept: dict[str, tuple[bytes, bytes]] = {}  # shares of neighbours: of the self-mask, and of the mask key
        self._survivors: Survivors | None = None

    def advert(self) -> Advert:
        mask_key, seal_key = masks.public_bytes(self._mask_key), masks.public_bytes(self._seal_key)
        signature = self._place.membership.sign(Advert.claim(self.context, self._place.name, self.shown))
        return Advert(self.context, mask_key, seal_key, self._commitment, signature)

    def answer(self, request: Request, before_vector: Callable[[str], None]) -> bytes:
        """The answer to a later phase. `before_vector` is called before the vector leaves: it may refuse."""
        if request.context != self.context:
            raise Refused(Code.LOST, "a message is of another round than the one that this device is in")
        asked = sha256(request.to_bytes()).hexdigest()
        if type(request) in self._answers:
            earlier, answer = self._answers[type(request)]
            if earlier != asked:
                raise Refused(Code.TWICE, "the server asks again, with other words; a round is answered once")
            return answer
        match request:
            case KeyList():
                found = self._share(request).to_bytes()
            case Forwarded():
                found = self._mask(request, before_vector).to_bytes()
            case Survivors():
                found = self._confirm(request).to_bytes()
            case Signatures():
                found = self._unmask(request).to_bytes()
        self._answers[type(request)] = asked, found
        return found

    def _share(self, found: KeyList) -> Shares:
        place, own = self._place, self.shown
        if len(found.names) < max(place.terms.survivors, 2):
            here = f"{count_of(len(found.names), 'device is', 'devices are')} in the round"
            raise Refused(Code.FEW, f"{here}, fewer than {place.terms.survivors}")
        if len(found.names) > MOST_MASKED:
            raise Refused(Code.MALFORMED, f"a masked round has at most {MOST_MASKED} devices")
        if strangers := [name for name in found.names if name not in place.membership.members]:
            raise Refused(Code.STRANGER, f"{strangers[0]} is not in members.json; copy that file again from the server")
        if len(made := place.membership.made_by_server(found.names)) > place.terms.colluding:
            many = f"the server made the keys of {count_of(len(made), 'device')} in the round, and colluding ="
            advice = "each counts as one; make keys on devices with `sotto federate key`"
            raise Refused(Code.LIMITS, f"{many} {place.terms.colluding}: {advice}")
        if place.name not in found.names or found.keys[found.names.index(place.name)] != own:
            raise Refused(Code.MALFORMED, "the list of devices has other keys for this device than its own")
        keys = [key for name in found.names for key in (found.entry(name).mask_key, found.entry(name).seal_key)]
        if len(set(keys)) != len(keys):
            raise Refused(Code.MALFORMED, "a key is twice in the list of devices")
        graph = graph_of(found.names, found.digest, place.terms)
        for name in graph.neighbours[place.name]:
            shown = found.entry(name)
            self._check_signature(name, shown.signature, Advert.claim(self.context, name, shown.entry))
        pair_keys = {
            name: pair_mask(self._mask_key, found, (place.name, name)) for name in graph.neighbours[place.name]
        }
        near, threshold = graph.neighbours[place.name], graph.threshold
        pairs = zip(
            sharing.split(self._self_seed, len(near), threshold),
            sharing.split(self._mask_seed, len(near), threshold),
            strict=True,
        )
        sealed = [
            sharing.seal(self._seal(found, name, place.name, name), *pair)
            for name, pair in zip(near, pairs, strict=True)
        ]
        self._list, self._graph, self._pair_keys = found, graph, pair_keys
        return Shares(self.context, tuple(sealed))

    def _mask(self, forwarded: Forwarded, before_vector: Callable[[str], None]) -> Masked:
        found, own = self._known_list(), self._place.name
        if set(forwarded.names) - set(self._graph.neighbours[own]):
            raise Refused(Code.MALFORMED, "shares came of a device that is no neighbour")
        if len(forwarded.names) < self._graph.threshold:
            needed = f"{self._graph.threshold} are needed"
            raise Refused(Code.FEW, f"shares of {len(forwarded.names)} neighbours came, and {needed}")
        kept = {
            name: sharing.unseal(self._seal(found, name, name, own), sealed)
            for name, sealed in zip(forwarded.names, forwarded.sealed, strict=True)
        }
        users = max(found.users, sum(self._place.membership.members[name].users for name in found.names))
        masked = masks.Modular(len(self._vector), masks.width_for(users, self._noise(len(found.names))))
        masked.add(self._vector)
        pair = {name: self._pair_keys[name] for name in kept}
        masked.add_masks([self_mask(self._self_seed, found, own), *(pair[name] for name in pair if own < name)])
        masked.add_masks([pair[name] for name in pair if own > name], sign=-1)
        before_vector(found.digest)
        self._kept, self._vector = kept, np.zeros(0, np.int64)  # it leaves once
        return Masked(self.context, masked.to_bytes())

    def _confirm(self, survivors: Survivors) -> Confirmed:
        found, terms, own = self._known_list(), self._place.terms, self._place.name
        if not self._kept:
            raise Refused(Code.LOST, "survivors are named before this device sent its vector")
        if own not in survivors.names or set(survivors.names) - set(found.names):
            raise Refused(Code.MALFORMED, "the survivors leave this device out, or have one that is not in the round")
        if len(survivors.names) < max(terms.survivors, 2):
            left = f"{count_of(len(survivors.names), 'device')} survived"
            raise Refused(Code.FEW, f"{left}, fewer than {terms.survivors}")
        # Named survivors that never shared with this device may have sent nothing: they do not hide it, nor add noise.
        masking, needed = len(set(survivors.names) & set(self._kept)), max(self._graph.threshold, terms.survivors - 1)
        if masking < needed:
            raise Refused(Code.FEW, f"{masking} of the survivors hide this device, and {needed} must")
        self._survivors = survivors
        return Confirmed(self.context, self._place.membership.sign(survivors.claim(found.digest)))

    def _unmask(self, signed: Signatures) -> Revealed:
        found, survivors, terms = self._known_list(), self._survivors, self._place.terms
        if survivors is None:
            raise Refused(Code.LOST, "masks are to be removed before this device signed the survivors")
        needed = quorum(len(found.names), terms.colluding) - 1  # this device signed too
        others = [name for name in signed.names if name != self._place.name]
        if set(others) - set(survivors.names):
            raise Refused(Code.MALFORMED, "the survivors are signed by a device that is not among them")
        if len(others) < needed:
            signed_by = f"{count_of(len(others), 'other device')} signed the survivors"
            raise Refused(Code.FEW, f"{signed_by}, and {needed} must")
        claim, by = survivors.claim(found.digest), dict(zip(signed.names, signed.signatures, strict=True))
        for name in others[:needed]:
            self._check_signature(name, by[name], claim)
        alive = set(survivors.names)
        shares = [self._kept[name][0 if name in alive else 1] for name in sorted(self._kept)]
        return Revealed(self.context, self._self_seed, tuple(shares))

    @property
    def shown(self) -> bytes:
        """What others see of this device's secrets."""
        return masks.public_bytes(self._mask_key) + masks.public_bytes(self._seal_key) + self._commitment

    @property
    def _commitment(self) -> bytes:
        return commitment(self._self_seed, self.context, self._place.name)

    def _known_list(self) -> KeyList:
        if self._list is None:
            raise Refused(Code.LOST, "a later phase came before the list of devices")
        return self._list

    def _check_signature(self, name: str, signature: bytes, claim: bytes) -> None:
        if not self._place.membership.has_signed(name, signature, claim):
            raise Refused(Code.SIGNATURE, f"what {name} signed is not by its key in members.json")

    def _seal(self, found: KeyList, other: str, sender: str, receiver: str) -> bytes:
        """The key that seals the shares of one device to another: bound to the round, the list and the direction."""
        bound = bind("shares", self.context, found.digest, sender, receiver)
        return masks.agreed(self._seal_key, found.entry(other).seal_key, bound)


def self_mask(seed: bytes, found: KeyList, name: str) -> bytes:
    """The key of a device's own mask, from its seed."""
    return masks.derived(seed, bind("self mask", found.context, found.digest, name))


def pair_mask(key: X25519PrivateKey, found: KeyList, pair: tuple[str, str]) -> bytes:
    """The key of the mask of two devices. The first has the mask key `key`; the one of the lesser name adds it."""
    bound = bind("pair mask", found.context, found.digest, *sorted(pair))
    return masks.agreed(key, found.entry(pair[1]).mask_key, bound)
