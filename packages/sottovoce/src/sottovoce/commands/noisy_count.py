"""The number of a store's users with noise, so that it may be public. It is charged to the store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sottovoce.commands.paid_answer import one_at_a_time, pay_and_keep
from sottovoce.data.store import Store
from sottovoce.privacy.histogram import NoisyCount
from sottovoce.runs.ledger import COUNT, StoreLedger
from sottovoce.runs.payments import store_folder, store_ledger
from sottovoce_evidence import accounting
from sottovoce_evidence.errors import DamagedRun, SettingError, plain_number
from sottovoce_evidence.files import Facts, read_sealed

EPSILON, DELTA, MOST_EPSILON = 0.1, 1e-6, 10.0
FILE = "noisy_count.json"


@dataclass(frozen=True)
class NoisyUsers(Facts):
    """A noisy number of users to train on, at least 1, and what it cost."""

    users: int
    epsilon: float
    delta: float
    noise_std: float


def count_users(store: Store, epsilon: float = EPSILON) -> NoisyUsers:
    """The number of a store's users to train on, with noise for ε at δ = 1e-6.

    Guarantee: the charge is in the store's ledger before the noise is drawn, and the number has its room on disk before
    the charge. The number is kept with the store; to ask
    again gives the same number and charges nothing. A number that was lost is charged again.
    """
    if not 0 < epsilon <= MOST_EPSILON:
        text = f"{{noisy_count:g}} must be above 0 and at most {MOST_EPSILON:g}: it is an ε, often 0.1"
        raise SettingError(text, noisy_count=epsilon)
    path, ledger = store_folder(store) / FILE, store_ledger(store)
    with one_at_a_time(path.parent):
        if path.exists():
            return _kept(path, ledger)
        mechanism = NoisyCount(accounting.calibrate([(NoisyCount(1.0).event(), 1)], epsilon, DELTA))
        return pay_and_keep(
            path,
            f"ε = {epsilon:g} at δ = {plain_number(DELTA)}",
            lambda: ledger.charge(COUNT, "noisy count of users", mechanism.event(), 1),
            lambda: NoisyUsers(max(1, mechanism.draw(store.users)), epsilon, DELTA, mechanism.noise_std),
        )


def _kept(path: Path, ledger: StoreLedger) -> NoisyUsers:
    if not ledger.spent(COUNT):
        raise DamagedRun(f"{ledger.path} has no charge for {path.name}; put the ledger back that belongs to this store")
    try:
        return NoisyUsers.from_json(read_sealed(path))
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedRun(f"cannot read {path} ({error}); delete it: the next count is charged again") from None
