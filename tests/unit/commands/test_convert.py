"""A model as a function of arrays, and how a graph is compared with it. Real graphs are in `tests/browser`."""

from __future__ import annotations

import sys
from functools import cache

import jax
import numpy as np
import pytest

from family import of_family
from sottovoce.commands import convert
from sottovoce_evidence.errors import SottoError


@cache
def compiled():
    return jax.jit(convert.program_of(of_family("gru"))[0])


class Graph:
    """A session of onnxruntime that runs JAX, with an error in the output at one place: 0 is the logits."""

    def __init__(self, place: int = 0, error: float = 0.0):
        self.read, self.place, self.error = compiled(), place, error

    def run(self, outputs, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
        tokens = inputs.pop("tokens")
        given = [np.array(each) for each in self.read(tokens, *(inputs[name] for name in sorted(inputs)))]
        given[self.place] += self.error
        return given


def test_onnxruntime_reports_nothing_to_its_makers(tmp_path, monkeypatch):
    """It asks as it is imported, so a library of that name notes what it is told then."""
    (tmp_path / "onnxruntime.py").write_text(
        "import os\n"
        "told = [os.environ['ORT_DISABLE_TELEMETRY']]\n"
        "def disable_telemetry_events(): told.append('no events')\n"
    )
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    assert convert.onnxruntime().told == ["1", "no events"]
    monkeypatch.delitem(sys.modules, "onnxruntime")


def test_tokens_read_at_once_or_one_by_one_give_the_same():
    model, tokens = of_family("gated_cnn"), np.arange(7)
    whole, start = convert.program_of(model)
    looped, again = convert.program_of(model, one_by_one=True)
    assert [leaf.tolist() for leaf in start] == [leaf.tolist() for leaf in again]
    for given, right in zip(jax.jit(looped)(tokens, *start), jax.jit(whole)(tokens, *start), strict=True):
        np.testing.assert_allclose(given, right, atol=1e-5)


def test_a_batch_reads_each_text_for_itself():
    model = of_family("gru")
    read, start = convert.program_of(model)
    read = jax.jit(read)
    (_, *one), (_, *two) = (read(np.array([token]), *start) for token in (3, 4))
    states = [np.stack(pair) for pair in zip(one, two, strict=True)]
    together = jax.jit(convert.batch_of(convert.program_of(model)[0]))(np.array([5, 6]), *states)
    for row, (token, state) in enumerate(((5, one), (6, two))):
        logits, *after = read(np.array([token]), *state)
        for given, right in zip(together, [logits[0], *after], strict=True):
            np.testing.assert_allclose(given[row], right, atol=1e-5)


def test_arrays_of_the_state_are_named_in_order():
    before, after = convert.state_names(2)
    assert (before, after) == (["state_0", "state_1"], ["next_state_0", "next_state_1"])
    seen = {}

    class Session:
        def run(self, outputs, inputs):
            seen.update(inputs)

    convert.run_session(Session(), np.array([3, 4]), [np.zeros(2), np.ones(2)])
    assert [*seen] == ["tokens", "state_0", "state_1"]
    assert seen["tokens"].dtype == np.int32
    assert seen["state_1"].tolist() == [1, 1]


def test_a_difference_in_the_logits_or_in_the_state_is_found():
    model = of_family("gru")
    assert convert.largest_difference(model, "step", Graph(), 60) < 1e-6
    for place in (0, 1):
        found = convert.largest_difference(model, "step", Graph(place, 0.01), 60)
        assert 0.001 < found <= 0.0101
    assert convert.largest_difference(model, "step", Graph(0, np.nan), 60) == np.inf


def test_a_graph_beyond_the_bound_is_refused(monkeypatch):
    model = of_family("gru")
    monkeypatch.setattr(convert, "open_session", lambda error: Graph(0, error))
    assert convert.check_parity(model, "step", convert.BOUND / 100, 60) < convert.BOUND
    with pytest.raises(SottoError, match=r"the step in ONNX differs from JAX by .*, more than 0.0001: nothing is"):
        convert.check_parity(model, "step", 100 * convert.BOUND, 60)


def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(SottoError, match=r"export needs onnxruntime; `pip install 'sottovoce\[export\]'`"):
        convert.convert(of_family("gru"), "step")
