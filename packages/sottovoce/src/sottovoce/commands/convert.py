"""A language model as ONNX graphs, compared with JAX.

Graphs of the same program: `step` reads one token, `sequence` any number of them. Both take the tokens and the arrays
of the hidden state. They give the logits after each token (output `scores`) and the hidden state after the last.
`batch` reads one token of each of several texts: every input and output has an axis of texts before its others.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from sottovoce.models.contract import LanguageModel
from sottovoce.runs.exported import BATCH
from sottovoce_evidence.errors import SottoError

# Of logits and states, relative to the largest of them where that is above 1. The error of float32 is far below.
BOUND = 1e-4
_LONG = 24  # tokens of the sequences that are compared
_TEXTS = 3  # that `batch` reads where it is compared
_DRAWS = 8
_SMALL = 256  # numbers: below, bytes would save nothing

Session = Any  # of onnxruntime
Program = Callable[..., tuple[Array, ...]]


def onnxruntime() -> Any:
    """The library, told before its import to report nothing of its use to its makers: no message, no id on disk."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime as library

    library.disable_telemetry_events()  # on Windows the variable is not read
    return library


def converter() -> Callable[..., Any]:
    """`jax2onnx.to_onnx`. Its first import takes some seconds, and warns of what is deprecated in its own parts."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            onnxruntime()
            from jax2onnx import to_onnx
        logging.getLogger("onnx_ir").setLevel(logging.ERROR)  # of shapes it does not know; parity is checked
    except ImportError as error:
        raise SottoError(f"export needs {error.name}; `pip install 'sottovoce[export]'`") from None
    return to_onnx


def program_of(model: LanguageModel, one_by_one: bool = False) -> tuple[Program, list[Array]]:
    """`read` and `logits` as one function of arrays, and the arrays of the initial state.

    With `one_by_one`, a loop reads the tokens. Inside the loop all shapes are known, however long the text is: the
    converter loses the length of what is joined to an array of unknown length, as a convolution's past is.
    """
    start, tree = jax.tree.flatten(model.initial_state())

    def step(state: Any, token: Array) -> tuple[Any, Array]:
        outputs, after = model.read(token[None], state)
        # The converter traces with 64 bits, and a loop must end with the types it began with.
        return jax.tree.map(lambda new, old: new.astype(old.dtype), after, state), outputs[0]

    def read(tokens: Array, *leaves: Array) -> tuple[Array, ...]:
        state = jax.tree.unflatten(tree, leaves)
        if one_by_one:
            after, outputs = jax.lax.scan(step, state, tokens)
        else:
            outputs, after = model.read(tokens, state)
        return model.logits(outputs), *jax.tree.leaves(after)

    return read, [jnp.asarray(leaf, jnp.float32) for leaf in start]


def batch_of(read: Program) -> Program:
    """A program that reads one token of each of several texts."""

    def read_each(tokens: Array, *leaves: Array) -> tuple[Array, ...]:
        logits, *after = jax.vmap(read)(tokens[:, None], *leaves)
        return logits[:, 0], *after

    return read_each


def state_names(count: int) -> tuple[list[str], list[str]]:
    """The names of the input and of the output arrays of the state."""
    return [f"state_{place}" for place in range(count)], [f"next_state_{place}" for place in range(count)]


def convert(model: LanguageModel, graph: str) -> bytes:
    """One of the `GRAPHS` of an export, or `BATCH`, in float32."""
    to_onnx = converter()
    read, start = program_of(model, one_by_one=graph == "sequence")
    before, after = state_names(len(start))
    texts = jax.export.symbolic_shape("texts") if graph == BATCH else ()
    time = {"step": (1,), BATCH: texts}.get(graph) or jax.export.symbolic_shape("time")
    read = batch_of(read) if graph == BATCH else read
    states = (jax.ShapeDtypeStruct((*texts, *leaf.shape), leaf.dtype) for leaf in start)
    shapes = [jax.ShapeDtypeStruct(time, jnp.int32), *states]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            names = {"input_names": ["tokens", *before], "output_names": ["scores", *after]}
            return to_onnx(read, shapes, model_name=f"sottovoce_{graph}", **names).SerializeToString()
        except NotImplementedError as error:
            name = type(model).__name__
            raise SottoError(f"jax2onnx cannot convert {name} ({error}); use another model") from None


def open_session(graph: bytes) -> Session:
    library = onnxruntime()
    options = library.SessionOptions()
    options.log_severity_level = 3  # errors: a warning that a constant was folded is of no use here
    options.intra_op_num_threads = 1  # steps are small, and waiting threads would keep the cores busy
    # 8-bit weights become float32 once, not at each step.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    return library.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def run_session(session: Session, tokens: np.ndarray, state: list[np.ndarray]) -> list[np.ndarray]:
    names, _ = state_names(len(state))
    return session.run(None, {"tokens": tokens.astype(np.int32), **dict(zip(names, state, strict=True))})


def largest_difference(model: LanguageModel, graph: str, session: Session, words: int, seed: int = 0) -> float:
    """The largest difference of any logit or state from JAX, over random tokens and states, as `BOUND` has it.

    Half of the draws begin with the initial state. Each goes on from the state that the one before left in ONNX, so
    that errors of a state add up.
    """
    read, start = program_of(model)
    if graph == BATCH:
        read, start = batch_of(read), [jnp.stack([leaf] * _TEXTS) for leaf in start]
    compiled = jax.jit(read)
    generator = np.random.default_rng(seed)
    time = {"step": 1, BATCH: _TEXTS}.get(graph, _LONG)
    largest = 0.0
    for first in ("start", "random"):
        state = [np.asarray(leaf) for leaf in start]
        if first == "random":
            state = [generator.normal(size=leaf.shape).astype(np.float32) for leaf in state]
        for _ in range(_DRAWS):
            tokens = generator.integers(words, size=time).astype(np.int32)
            with jax.default_matmul_precision("highest"):
                expected = compiled(tokens, *state)
            given = run_session(session, tokens, state)
            each = [_difference(one, np.asarray(two)) for one, two in zip(given, expected, strict=True)]
            largest = max(largest, *each)
            state = given[1:]
    return largest


def _difference(given: np.ndarray, expected: np.ndarray) -> float:
    difference = float(np.max(np.abs(given - expected)) / max(1.0, np.max(np.abs(expected))))
    return difference if np.isfinite(difference) else float("inf")


def check_parity(model: LanguageModel, graph: str, contents: bytes, words: int) -> float:
    """The largest difference from JAX; an error where it is above the bound."""
    difference = largest_difference(model, graph, open_session(contents), words)
    if not difference <= BOUND:
        problem = f"the {graph} in ONNX differs from JAX by {difference:.2g}, more than {BOUND:g}"
        raise SottoError(f"{problem}: nothing is exported; is the model finite? Else it is a fault of the converter")
    return difference


def to_eight_bits(contents: bytes) -> bytes:
    """The same graph with its weights kept as bytes, each row with a scale of its own.

    The bytes are those of onnxruntime's quantisation; a standard node turns them into numbers again when the model is
    loaded. Its dynamic quantisation was tried: it passes over `Gemm` and what is read inside a loop, and the file grew.
    """
    onnxruntime()
    import onnx
    from onnxruntime.quantization.quant_utils import quantize_onnx_initializer

    graph = onnx.load_from_string(contents)
    kept, nodes = [], []
    for weight in graph.graph.initializer:
        values = onnx.numpy_helper.to_array(weight)
        if values.dtype != np.float32 or values.ndim < 2 or values.size < _SMALL:
            kept.append(weight)
            continue
        largest = np.max(np.abs(values), axis=tuple(range(1, values.ndim)))
        scales = (np.maximum(largest, np.finfo(np.float32).tiny) / 127).astype(np.float32)
        zeros = np.zeros(len(scales), np.int8)
        names = [f"{weight.name}_{part}" for part in ("bytes", "scale", "zero")]
        kept += [
            quantize_onnx_initializer(weight, onnx.TensorProto.INT8, zeros, scales, 0, names[0]),
            onnx.numpy_helper.from_array(scales, names[1]),
            onnx.numpy_helper.from_array(zeros, names[2]),
        ]
        nodes.append(onnx.helper.make_node("DequantizeLinear", names, [weight.name], axis=0))
    nodes += graph.graph.node
    del graph.graph.initializer[:], graph.graph.node[:]
    graph.graph.initializer.extend(kept)
    graph.graph.node.extend(nodes)
    onnx.checker.check_model(graph)
    return graph.SerializeToString()
