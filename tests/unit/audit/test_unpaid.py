from __future__ import annotations

from sottovoce.accounting import NonPrivate
from sottovoce.audit.unpaid import UnpaidRounds
from sottovoce.runs.secrets import Secrets

SECRETS = Secrets.seeded(1, "a test")


def noise(rounds: UnpaidRounds, number: int) -> bytes:
    return rounds.spend(number, NonPrivate(), None)


def test_rounds_have_noise_of_their_own_and_other_uses_another() -> None:
    rounds = UnpaidRounds(SECRETS, "an audit")
    assert noise(rounds, 1) == noise(rounds, 1)
    assert len({noise(rounds, 1), noise(rounds, 2), noise(UnpaidRounds(SECRETS, "another"), 1)}) == 3
    assert rounds.keys(1) != rounds.keys(2)


def test_a_first_round_can_be_played_with_the_keys_of_another() -> None:
    third = UnpaidRounds(SECRETS, "an audit", number=3)
    assert noise(third, 1) == noise(UnpaidRounds(SECRETS, "an audit"), 3)
    assert third.keys(1) == UnpaidRounds(SECRETS, "an audit").keys(3)
