"""The sums of a device as one vector, and back."""

from __future__ import annotations

import numpy as np

from masked_fleets import some_sums
from sottovoce.federation.masking.vector import layout_of
from sottovoce_evidence.recipe import Federation


def test_a_vector_holds_all_sums_and_gives_them_back():
    sums = some_sums(np.random.default_rng(0))
    layout = layout_of(sums, Federation())
    vector = layout.flatten(sums)
    assert vector.shape == (layout.size,) == (17 + 2 + 1,)
    back = layout.restore(vector, sums.task)
    assert [leaf.tolist() for leaf in back.leaves] == [leaf.tolist() for leaf in sums.leaves]
    assert (back.weight, back.users, back.bits.tolist()) == (sums.weight, sums.users, sums.bits.tolist())


def test_where_devices_add_the_noise_no_exact_count_is_in_the_vector():
    sums = some_sums(np.random.default_rng(0))
    layout = layout_of(sums, Federation(noise="devices"))
    vector = layout.flatten(sums)
    assert vector.tolist() == np.concatenate([leaf.ravel() for leaf in sums.leaves]).tolist()
    back = layout.restore(vector, "")
    assert (back.weight, back.users, back.bits.tolist()) == (0, 0, [0])
