from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.gpu import on_device


@pytest.mark.parametrize(("numbers", "kind"), [(2.0**-40 / 3, np.float64), ([0.1, 0.2], np.float32), (7, np.int32)])
def test_the_same_numbers_are_sent_once(numbers, kind):
    sent = on_device(numbers, kind)
    assert sent.dtype == kind
    np.testing.assert_array_equal(sent, np.asarray(numbers, kind))
    assert on_device(np.array(numbers), kind) is sent


def test_numbers_that_differ_in_kind_or_shape_are_not_taken_for_each_other():
    kinds = [on_device(*given) for given in ((0, np.int32), (0, np.float32), ([0], np.int32), (-0.0, np.float32))]
    assert len({id(each) for each in kinds}) == 4
    assert bool(jnp.signbit(kinds[3]))
