from __future__ import annotations

from sottovoce import assembly
from sottovoce.assembly import assemble
from sottovoce.kernels.cpu import ONE_USER
from sottovoce.recipe import Recipe


def test_whether_kernels_were_found_is_in_the_fingerprint(store, monkeypatch):
    """A machine may lose its compiler between two processes: another program, another sum, so other noise."""
    recipe = Recipe().replace(
        model={"embedding": 4, "hidden": 5}, local={"batch": 2, "unroll": 4},
        privacy={"users": 13, "cohort": 4, "noise_multiplier": 1.0, "delta": 1e-3},
    )  # fmt: skip
    recipe = recipe.replace(run={"block": 1})
    with_kernels = assemble(recipe, store)
    assert with_kernels.sum_updates.products is ONE_USER
    assert assemble(recipe, store).fingerprint == with_kernels.fingerprint
    with monkeypatch.context() as lost:
        lost.setattr(assembly, "fits", lambda update, model: False)
        general = assemble(recipe, store)
    assert general.sum_updates.products is None
    assert with_kernels.fingerprint != general.fingerprint
    off = assemble(recipe.replace(run={"kernels": "off"}), store)
    assert off.sum_updates.products is None
