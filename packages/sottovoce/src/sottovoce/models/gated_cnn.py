"""The gated convolutional model of Schultz 2019, section 3.1.1, after Dauphin et al. 2016.

The paper does not say whether the output is tied to the embedding. The code that it builds on has a separate table, so
untied is the default. With the paper's sizes (10,000 words, embedding 300, one block, kernel 4, bottleneck 15) that is
6,020,460 parameters, and 3,020,460 tied.
"""

from __future__ import annotations

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from sottovoce.models.head import Tables, check_tied, multiply, tied_logits, unit_rows

Past = Float[Array, "before bottleneck"]  # what a wide convolution still needs: its last kernel - 1 inputs


class Branch(eqx.Module):
    """Convolutions of widths 1, k and 1 through a bottleneck: down, across time, up."""

    down: Float[Array, "bottleneck inputs"]
    down_bias: Float[Array, " bottleneck"]
    across: Float[Array, "kernel bottleneck bottleneck"]  # the oldest time step first
    across_bias: Float[Array, " bottleneck"]
    up: Float[Array, "outputs bottleneck"]
    up_bias: Float[Array, " outputs"]

    def __init__(
        self, inputs: int, outputs: int, kernel: int, bottleneck: int, *, scale: float = 1.0, key: PRNGKeyArray
    ):
        # Every convolution keeps the variance of its input, times `scale` for the last.
        keys = jax.random.split(key, 3)
        self.down = jax.random.normal(keys[0], (bottleneck, inputs)) * inputs**-0.5
        self.down_bias = jnp.zeros((bottleneck,))
        self.across = jax.random.normal(keys[1], (kernel, bottleneck, bottleneck)) * (kernel * bottleneck) ** -0.5
        self.across_bias = jnp.zeros((bottleneck,))
        self.up = jax.random.normal(keys[2], (outputs, bottleneck)) * scale * bottleneck**-0.5
        self.up_bias = jnp.zeros((outputs,))

    def initial_state(self) -> Past:
        """The zeros that pad the first word on the left."""
        return jnp.zeros((self.across.shape[0] - 1, self.across.shape[1]))

    def __call__(self, inputs: Float[Array, "time inputs"], past: Past) -> tuple[Float[Array, "time outputs"], Past]:
        time, kernel = len(inputs), len(self.across)
        narrow = jnp.concatenate([past, multiply(inputs, self.down) + self.down_bias])
        windows = jnp.stack([narrow[step : step + time] for step in range(kernel)], axis=1)
        wide = jnp.einsum("tki,koi->to", windows, self.across) + self.across_bias
        return multiply(wide, self.up) + self.up_bias, narrow[time:]


class Block(eqx.Module):
    """H₃ ⊗ σ(G₃) plus what came in, projected without a bias where the sizes differ."""

    value: Branch
    gate: Branch
    residual: Float[Array, "outputs inputs"] | None

    def __init__(self, inputs: int, outputs: int, kernel: int, bottleneck: int, *, scale: float, key: PRNGKeyArray):
        keys = jax.random.split(key, 3)
        self.value = Branch(inputs, outputs, kernel, bottleneck, scale=scale, key=keys[0])
        self.gate = Branch(inputs, outputs, kernel, bottleneck, key=keys[1])
        self.residual = None
        if inputs != outputs:
            self.residual = jax.random.normal(keys[2], (outputs, inputs)) * inputs**-0.5

    def initial_state(self) -> tuple[Past, Past]:
        return self.value.initial_state(), self.gate.initial_state()

    def __call__(
        self, inputs: Float[Array, "time inputs"], past: tuple[Past, Past]
    ) -> tuple[Float[Array, "time outputs"], tuple[Past, Past]]:
        value, value_past = self.value(inputs, past[0])
        gate, gate_past = self.gate(inputs, past[1])
        residual = inputs if self.residual is None else multiply(inputs, self.residual)
        return residual + value * jax.nn.sigmoid(gate), (value_past, gate_past)


class GatedCNN(eqx.Module):
    """Embedding, gated blocks, softmax. A word sees itself and the `layers · (kernel - 1)` words before it.

    Blocks add to their input. Each starts with 1/layers of the variance that one block would add.
    """

    adaptable: ClassVar = (
        "blocks*.value.down",
        "blocks*.value.up",
        "blocks*.gate.down",
        "blocks*.gate.up",
        "blocks*.residual",
        "output",
    )

    embedding: Float[Array, "vocabulary size"]
    blocks: tuple[Block, ...]
    output: Float[Array, "vocabulary hidden"] | None  # None: tied to the embedding

    def __init__(
        self,
        vocabulary: int,
        *,
        embedding: int = 300,
        hidden: int | None = None,
        layers: int = 1,
        kernel: int = 4,
        bottleneck: int = 15,
        tied: bool = False,
        key: PRNGKeyArray,
    ):
        hidden = hidden or embedding
        if tied:
            check_tied(embedding, hidden)
        first, last, *keys = jax.random.split(key, 2 + layers)
        words = jax.random.normal(first, (vocabulary, embedding))
        # Tied rows are held at norm 1 in the forward pass: see `head`. Free ones begin at about √size.
        self.embedding = unit_rows(words) if tied else words
        sizes = [embedding, *[hidden] * layers]
        self.blocks = tuple(
            Block(before, after, kernel, bottleneck, scale=layers**-0.5, key=each)
            for before, after, each in zip(sizes[:-1], sizes[1:], keys, strict=True)
        )
        self.output = None if tied else jax.random.normal(last, (vocabulary, hidden)) * 0.1 * hidden**-0.5

    def initial_state(self) -> tuple[tuple[Past, Past], ...]:
        return tuple(block.initial_state() for block in self.blocks)

    def read(
        self, tokens: Int[Array, " time"], state: tuple[tuple[Past, Past], ...], key: PRNGKeyArray | None = None
    ) -> tuple[Float[Array, "time hidden"], tuple[tuple[Past, Past], ...]]:
        return self.read_rows(self.embedding[tokens], state, key)

    def read_rows(
        self,
        rows: Float[Array, "time size"],
        state: tuple[tuple[Past, Past], ...],
        key: PRNGKeyArray | None = None,
    ) -> tuple[Float[Array, "time hidden"], tuple[tuple[Past, Past], ...]]:
        words, pasts = unit_rows(rows) if self.output is None else rows, []
        for block, past in zip(self.blocks, state, strict=True):
            words, past = block(words, past)
            pasts.append(past)
        return words, tuple(pasts)

    def logits(self, outputs: Float[Array, "*any hidden"]) -> Float[Array, "*any vocabulary"]:
        return tied_logits(outputs, self.embedding) if self.output is None else outputs @ self.output.T

    def tables(self) -> Tables:
        return Tables("embedding", "embedding", unit=True) if self.output is None else Tables("embedding", "output")
