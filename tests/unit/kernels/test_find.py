from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from sottovoce.kernels import cpu
from sottovoce.kernels.any_users import Softmax
from sottovoce.kernels.find import find_program
from sottovoce.kernels.narrow import Narrow
from sottovoce.kernels.one_gradient import OneGradient
from sottovoce.local.update import FedAvg, FedSGD
from sottovoce.models.registry import build
from sottovoce.privacy.clipping import FlatClip, NoClip

FEDAVG = FedAvg(FlatClip(1.0), True)


@pytest.fixture
def lstm():
    return build("lstm", 20, {"embedding": 4, "hidden": 4}, jax.random.key(0))


def test_a_cpu_has_a_program_for_one_user_of_the_lstm(lstm):
    assert find_program("auto", FEDAVG, lstm, 1) is cpu.ONE_USER
    assert find_program("auto", FEDAVG, lstm, 2) is None
    assert find_program("any_model", FEDAVG, lstm, 1) is None
    assert find_program("off", FEDAVG, lstm, 1) is None


def test_a_gpu_has_one_for_any_model_with_tables_and_one_for_all(lstm, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert find_program("auto", FEDAVG, lstm, 32) is None  # its updates were not compared on a GPU
    wide = build("gru", 20, {"embedding": 16, "hidden": 4}, jax.random.key(0))
    assert getattr(find_program("any_model", FEDAVG, wide, 32), "written", None) == "Pallas"
    found = find_program("any_model", FEDAVG, lstm, 32)
    assert isinstance(found, Softmax)
    assert (found.kind, found.stored) == (jnp.bfloat16, jnp.float16)
    unbounded = find_program("any_model", FedAvg(NoClip(), True), lstm, 32)
    assert isinstance(unbounded, Softmax)
    assert unbounded.stored == jnp.float32
    assert isinstance(find_program("auto", FedSGD(FlatClip(1.0)), lstm, 32), OneGradient)
    assert isinstance(find_program("auto", FedAvg(FlatClip(1.0), True, gradient_clip=1.0), lstm, 32), Narrow)
    assert find_program("off", FEDAVG, lstm, 32) is None
