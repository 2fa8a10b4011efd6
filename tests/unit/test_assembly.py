from __future__ import annotations

from sottovoce import assembly
from sottovoce.assembly import assemble
from sottovoce.kernels.lstm_users import PLAIN
from sottovoce.recipe import Recipe


def test_whether_kernels_were_found_is_in_the_fingerprint(store, monkeypatch):
    """A machine may lose its compiler between two processes: another program, another sum, so other noise."""
    recipe = Recipe().replace(
        model={"embedding": 4, "hidden": 5}, local={"batch": 2, "unroll": 4},
        privacy={"users": 13, "cohort": 4, "noise_multiplier": 1.0, "delta": 1e-3},
    )  # fmt: skip
    general = assemble(recipe, store)
    assert assemble(recipe, store).fingerprint == general.fingerprint
    monkeypatch.setattr(assembly.cuda, "products", lambda update, model: PLAIN)
    with_kernels = assemble(recipe, store)
    assert with_kernels.sum_updates.products is PLAIN
    assert with_kernels.fingerprint != general.fingerprint
    off = assemble(recipe.replace(run={"kernels": "off"}), store)
    assert off.sum_updates.products is None
