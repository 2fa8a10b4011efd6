from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np

from sottovoce.data.store import PublicText
from sottovoce.local.update import FedAvg, FedSGD
from sottovoce.privacy.clipping import FlatClip
from sottovoce.training.cohort_sum import SumInBlocks, _seated
from sottovoce.training.types import Task
from sottovoce.training.users import excerpts_for, users_of

KEY = jax.random.key(3)
REHEARSING = FedAvg(FlatClip(1.0), clip_every_step=True, user_share=0.6)


def with_public_text(store):
    text = np.arange(500, dtype=np.int32) % store.vocabulary.size
    return replace(store, public=PublicText(text, store.vocabulary.fingerprint, "text"), first=40)


def test_users_come_in_the_order_of_the_cohort_with_their_rows_and_texts(store):
    store = with_public_text(store)
    cohort = np.array([4, 0, 1])
    found = list(users_of(REHEARSING, store, cohort, KEY))
    assert [row for row, _ in found] == [44, 40, 41]
    for place, (row, user) in zip(cohort, found, strict=True):
        assert user.tokens[: int(user.length)].tolist() == list(store[place])
        np.testing.assert_array_equal(user.public, excerpts_for(REHEARSING, store, np.array([row]), KEY)[0])


def test_only_users_who_rehearse_get_public_text(store):
    with_text = with_public_text(store)
    assert excerpts_for(REHEARSING, store, np.arange(3), KEY) is None
    assert excerpts_for(replace(REHEARSING, user_share=1.0), with_text, np.arange(3), KEY) is None
    assert excerpts_for(FedSGD(FlatClip(1.0)), with_text, np.arange(3), KEY) is None
    assert [user.public for _, user in users_of(REHEARSING, store, np.array([4]), KEY)] == [None]


def test_users_of_a_block_get_the_text_that_they_get_alone(store):
    store, cohort = with_public_text(store), np.array([4, 0, 7])
    users, _ = _seated(SumInBlocks(4), REHEARSING, Task(None, cohort, None, KEY), store, np.arange(3))
    alone = [user.public for _, user in users_of(REHEARSING, store, cohort, KEY)]
    np.testing.assert_array_equal(users.public[:3, 0], np.stack(alone))
