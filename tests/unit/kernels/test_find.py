from __future__ import annotations

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from sottovoce.kernels import cpu
from sottovoce.kernels.any_users import Softmax
from sottovoce.kernels.find import find_program
from sottovoce.kernels.general import Narrow
from sottovoce.kernels.one_gradient import OneGradient
from sottovoce.local.objective import WithoutForgetting
from sottovoce.local.update import FedAvg, FedSGD
from sottovoce.models.gru import GRU
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
    assert find_program("auto", FEDAVG, lstm, 32) is None  # its updates were not compared on this one
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


KINDS = {
    "lstm": {"embedding": 4, "hidden": 4},
    "gru": {"embedding": 4, "hidden": 4},
    "stacked_lstm": {"embedding": 4},
    "gated_cnn": {"embedding": 4, "bottleneck": 2},
    "transformer": {"embedding": 4, "hidden": 4, "layers": 1, "heads": 1, "kv_heads": 1, "context": 8},
}


@pytest.mark.parametrize("kind", KINDS)
def test_on_hopper_a_model_that_was_compared_has_the_program_for_any_model_by_default(kind, monkeypatch):
    model = build(kind, 20, KINDS[kind], jax.random.key(0))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(compute_capability="9.0")])
    assert isinstance(find_program("auto", FEDAVG, model, 32), Softmax)
    # What was not compared, though the program fits it.
    without_forgetting = FedAvg(FlatClip(1.0), True, objective=WithoutForgetting(0.5))
    assert isinstance(find_program("any_model", without_forgetting, model, 32), Softmax)
    assert isinstance(find_program("auto", without_forgetting, model, 32), Softmax) == (kind == "lstm")
    assert find_program("auto", FedAvg(FlatClip(1.0), False), model, 32) is None
    assert find_program("auto", FedAvg(NoClip(), True), model, 32) is None
    assert find_program("off", FEDAVG, model, 32) is None
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(compute_capability="8.0")])
    assert find_program("auto", FEDAVG, model, 32) is None


def test_a_model_of_ones_own_was_not_compared(monkeypatch):
    class Own(GRU):
        pass

    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(compute_capability="9.0")])
    own = Own(20, embedding=4, hidden=4, key=jax.random.key(0))
    assert find_program("auto", FEDAVG, own, 32) is None
    assert isinstance(find_program("any_model", FEDAVG, own, 32), Softmax)
