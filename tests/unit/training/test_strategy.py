from __future__ import annotations

from functools import partial

import pytest

from free import AllFree
from sottovoce.runs.secrets import Secrets
from sottovoce.training import strategy
from sottovoce.training.server import ServerState
from sottovoce.training.strategy import FederatedAveraging, Strategy, Work, play_rounds

PAYMENTS = AllFree(lambda number: Secrets.seeded(5).keys(number))


def test_the_rounds_that_are_left_are_played_in_order():
    seen = []

    def play(state, payment):
        seen.append((state.round, payment.round))
        return state.next(state.params + 1, None), "result"

    rounds = list(play_rounds(play, ServerState(2, 0, None), 5, PAYMENTS))
    assert seen == [(2, 3), (3, 4), (4, 5)]
    assert [state.params for state, _ in rounds] == [1, 2, 3]
    assert list(play_rounds(play, ServerState(5, 0, None), 5, PAYMENTS)) == []


def test_federated_averaging_plays_algorithm_1_with_the_work_of_the_run(monkeypatch):
    seen = []
    monkeypatch.setattr(strategy, "play_round", lambda *given: seen.append(given))
    FederatedAveraging().play("algorithm", Work("store", "sum", "observer"), "state", "payment")
    assert seen == [("algorithm", "state", "store", "payment", "sum", "observer")]
    state = ServerState(0, None, None)
    assert FederatedAveraging().start(state) is state
    assert (FederatedAveraging.federated, FederatedAveraging.layout) == (True, None)


def test_a_strategy_must_say_what_a_round_is():
    with pytest.raises(TypeError, match="abstract"):
        partial(Strategy)()
