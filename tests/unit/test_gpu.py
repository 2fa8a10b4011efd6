from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from sottovoce.gpu import for_host, on_device


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


def test_what_the_host_waits_for_is_written_to_its_memory(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    here, there = jax.jit(lambda numbers: (2 * numbers, for_host(jnp.all(numbers > 0))))(jnp.arange(3.0))
    assert (here.sharding.memory_kind, there.sharding.memory_kind) == ("device", "pinned_host")
    np.testing.assert_array_equal(here, [0.0, 2.0, 4.0])
    assert not bool(there)
