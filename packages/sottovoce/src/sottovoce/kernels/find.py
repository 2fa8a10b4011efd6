"""Which program computes the users of a block on this device: the fastest that fits the model and the update."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from sottovoce.gpu import is_hopper
from sottovoce.kernels import any_users, cpu, lstm_cuda, lstm_users, one_gradient, one_table, recurrence, table_cuda
from sottovoce.kernels.any_users import Softmax, plain_softmax
from sottovoce.kernels.cpu import OneUser
from sottovoce.kernels.general import Narrow
from sottovoce.kernels.lstm_users import Products
from sottovoce.kernels.one_gradient import OneGradient
from sottovoce.local.objective import plain
from sottovoce.local.update import FedAvg, UserUpdate
from sottovoce.models.gated_cnn import GatedCNN
from sottovoce.models.gru import GRU
from sottovoce.models.head import tables_of
from sottovoce.models.lstm import LSTM
from sottovoce.models.stacked_lstm import StackedLSTM
from sottovoce.models.transformer import Transformer

Program = Products | OneUser | Softmax | OneGradient | Narrow
COMPARED = (LSTM, GRU, StackedLSTM, GatedCNN, Transformer)


def find_program(kernels: str, update: UserUpdate, model: Any, block: int) -> Program | None:
    """A program written for the model, or else for any model with tables, or else for any. None: `jax.vmap` alone.

    Args:
        kernels: "auto", "any_model" (on a GPU the program for any model with tables, also where it was not compared
            with the general one), or "off".
        update: what each user computes.
        model: that is trained.
        block: users computed at once.
    """
    if kernels == "off":
        return None
    written = kernels == "auto" and lstm_users.fits(update, model)
    if jax.default_backend() == "cpu":
        return cpu.ONE_USER if written and block == 1 else None
    found = lstm_cuda.products(update, model) if written and isinstance(update, FedAvg) else None
    if found is not None:
        return found
    if isinstance(update, FedAvg) and any_users.fits(update, model):
        if kernels != "any_model" and not _was_compared(update, model):
            return None
        return _find_softmax(update, model)._replace(recurrence=recurrence.find_recurrence(update.batch, update.unroll))
    return _find_gradient(update, model) if one_gradient.fits(update, model) else Narrow()


def _find_gradient(update: UserUpdate, model: Any) -> OneGradient:
    tables = tables_of(model)
    assert tables is not None
    size = getattr(model, tables.output).shape[1]
    softmax = one_table.find_one_table(update.batch * update.unroll, size, tables.bias is not None)
    return OneGradient(jnp.bfloat16, softmax=softmax)


def _was_compared(update: FedAvg, model: Any) -> bool:
    """Were updates and accuracy compared with the general program's on such a GPU, and is it faster there?

    By `benchmarks/compare_programs.py` and `benchmarks/workloads.py`, on an H200: see docs/results/speed.md.
    """
    if not is_hopper():
        return False
    models = COMPARED if update.objective is plain else (LSTM,)
    return type(model) in models and _is_bounded(update)


def _is_bounded(update: FedAvg) -> bool:
    """Has Δ a bound after every step?"""
    return update.clip_every_step and update.clipping.bounded


def _find_softmax(update: FedAvg, model: Any) -> Softmax:
    """How to compute with the table of logits.

    Updates that are clipped after every step are kept in float16 between steps. Others have no bound: in float32.
    """
    from sottovoce.kernels import table  # Pallas takes a while to import

    tables = tables_of(model)
    assert tables is not None
    stored = jnp.float16 if _is_bounded(update) else jnp.float32
    tokens, size = update.batch * update.unroll, getattr(model, tables.output).shape[1]
    biased, compared = tables.bias is not None, update.objective is not plain
    written = lstm_cuda.softmax(tokens, size, stored) if tables.unit and not biased and not compared else None
    if written is None:
        padded = size + -size % table_cuda.ALIGNED
        shape = table_cuda.Shape(tokens, padded, tables.unit, biased, compared, jnp.dtype(stored).name)
        written = table_cuda.softmax(shape)
        if written is not None and compared and one_table.find_one_table(tokens, padded, biased) is not None:
            written = written._replace(level=one_table.level_of)
    if written is not None:
        return written
    return table.softmax(stored) if table.fits(tokens, size) else plain_softmax(jnp.bfloat16, stored)
