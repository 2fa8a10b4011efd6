from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from examples import examples
from sottovoce.privacy.clipping import CLIPS, FlatClip, NoClip, PerLayerClip, finite_or_zero, norm
from sottovoce_evidence.bounds import joint_norm
from sottovoce_evidence.errors import SottoError

finite = st.floats(-1e6, 1e6, width=32, allow_subnormal=False)  # the device flushes subnormal numbers to zero
trees = st.tuples(arrays(np.float32, (3, 4), elements=finite), arrays(np.float32, (5,), elements=finite))


def exact_norm(tree) -> float:
    return float(np.sqrt(sum(np.sum(np.asarray(leaf, np.float64) ** 2) for leaf in jax.tree.leaves(tree))))


@pytest.mark.parametrize("clip", [FlatClip(1.5), PerLayerClip.even(1.5, 2)], ids=["flat", "per layer"])
@given(tree=trees)
@examples(60)
def test_a_clipped_update_is_within_the_bound_and_keeps_its_direction(clip, tree):
    clipped, cut = clip.clip(tree, np.float32(clip.clip_norms))
    assert exact_norm(clipped) <= joint_norm(clip.clip_norms)
    for before, after in zip(tree, jax.tree.leaves(clipped), strict=True):
        # Each layer is scaled by one number from 0 to 1.
        scale = exact_norm([after]) / max(exact_norm([before]), 1e-30)
        assert scale <= 1 + 1e-6
        np.testing.assert_allclose(after, before * np.float32(scale), rtol=1e-4, atol=1e-6)
    if not cut.any():
        for before, after in zip(tree, jax.tree.leaves(clipped), strict=True):
            np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("name", [name for name, kind in CLIPS.items() if kind.bounded])
@pytest.mark.parametrize("length", [0.0, 1e-20, 1e-3, 1.5, 7.0, 1e30])
def test_every_clip_there_is_keeps_its_bound(name, length):
    clip = CLIPS.build(name, clip_norm=1.5, clip_norms=PerLayerClip.even(1.5, 2).clip_norms)
    assert joint_norm(clip.clip_norms) == pytest.approx(1.5)  # S bounds the whole update, whatever its parts
    tree = (np.float32(length) * np.ones((3, 4), np.float32), -np.float32(length) * np.ones(5, np.float32))
    update, _ = finite_or_zero(clip.clip(tree, np.float32(clip.clip_norms)).update)
    assert exact_norm(update) <= 1.5


def test_a_clipped_update_is_never_longer_than_the_clip_norm():
    # The sizes of the paper's model; a few large numbers among many small ones are the hard case for a float32 sum.
    shapes = [(10_000, 96), (256, 352), (256,), (96, 256)]
    clip = jax.jit(FlatClip(15.0).clip)
    for seed, tail in enumerate([1.0, 0.3, 3.0, 1e-3]):
        generator = np.random.default_rng(seed)
        tree = [generator.standard_t(2.5, size=shape).astype(np.float32) * np.float32(tail) for shape in shapes]
        tree[2][0] = 40.0
        clipped, cut = clip(tree, np.float32([15.0]))
        assert cut.all()
        assert 15.0 * (1 - 1e-4) < exact_norm(clipped) <= 15.0


def test_per_layer_bounds_each_layer_by_s_over_root_m():
    tree = (jnp.full((4,), 10.0), jnp.full((2,), 0.01))
    clipped, _ = PerLayerClip.even(2.0, 2).clip(tree, np.full(2, np.float32(2 / np.sqrt(2))))
    np.testing.assert_allclose(exact_norm([clipped[0]]), 2.0 / np.sqrt(2), rtol=1e-4)
    np.testing.assert_array_equal(clipped[1], tree[1])  # small layers are left alone


def test_per_layer_refuses_an_update_with_another_number_of_layers():
    with pytest.raises(ValueError, match="3 layers"):
        PerLayerClip.even(1.0, 2).clip((jnp.ones(1), jnp.ones(1), jnp.ones(1)), np.ones(2))


def test_a_layer_of_several_arrays_is_clipped_as_one():
    """The two arrays of an adapter: together they are no longer than the clip norm of their layer."""
    clip = PerLayerClip((0.5, 2.0), arrays=(2, 1))
    tree = (jnp.full((3,), 4.0), jnp.full((2, 2), -3.0), jnp.full((2,), 9.0))
    clipped, cut = clip.clip(tree, np.float32(clip.clip_norms))
    assert exact_norm(clipped[:2]) <= 0.5
    assert exact_norm(clipped[2:]) <= 2.0
    assert exact_norm(clipped) == pytest.approx(np.hypot(0.5, 2.0), rel=1e-4)
    np.testing.assert_allclose(clipped[0][0] / clipped[1][0, 0], -4 / 3, rtol=1e-6)  # one scale for both
    assert cut.tolist() == [True, True]
    assert clip.normalised() == PerLayerClip((1.0, 1.0), arrays=(2, 1))
    with pytest.raises(ValueError, match="3 clip norms were given for 2 layers"):
        PerLayerClip((1.0, 1.0, 1.0), arrays=(2, 1))


def test_a_zero_update_stays_zero():
    for clip in (FlatClip(1.0), PerLayerClip.even(1.0, 1), NoClip()):
        clipped, cut = clip.clip((jnp.zeros(3),), np.float32(clip.clip_norms))
        np.testing.assert_array_equal(clipped[0], 0)
        assert not cut.any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30], ids=str)
def test_an_update_that_is_not_finite_contributes_zero(bad):
    # 1e30 is finite but its square is not: it may be clipped or dropped, but never pass.
    clipped, _ = FlatClip(1.0).clip((jnp.array([1.0, bad]), jnp.ones(2)), np.ones(1, np.float32))
    safe, sound = finite_or_zero(clipped)
    assert exact_norm(safe) <= 1.0
    assert float(sound) == (0.0 if not np.isfinite(exact_norm(clipped)) else 1.0)
    if not np.isfinite(bad):
        assert float(sound) == 0.0
        assert exact_norm(safe) == 0.0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_a_clip_makes_not_finite_is_zero_and_what_was_not_finite_before_it_has_no_weight(bad):
    clipped = {"one": np.float32([bad, 0.25]), "two": np.float32([0.5])}
    safe, sound = finite_or_zero(clipped, np.float32(1.0))
    np.testing.assert_array_equal(safe["one"], [0.0, 0.25])
    assert float(sound) == 1.0
    safe, sound = finite_or_zero(clipped, np.float32(bad))
    assert not any(np.any(leaf) for leaf in safe.values())
    assert float(sound) == 0.0


def test_norm_is_of_all_leaves_together():
    assert float(norm({"a": jnp.array([3.0]), "b": jnp.array([[4.0]])})) == pytest.approx(5.0)


def test_a_clip_gets_the_settings_that_its_constructor_takes():
    settings = {"clip_norm": 2.0, "clip_norms": (1.0, 3.0)}
    assert CLIPS.build("flat", **settings) == FlatClip(2.0)
    assert CLIPS.build("per_layer", **settings) == PerLayerClip((1.0, 3.0))
    assert CLIPS.build("none", **settings) == NoClip()
    assert (FlatClip.bounded, PerLayerClip.bounded, NoClip.bounded) == (True, True, False)
    with pytest.raises(SottoError, match=f"must be one of {', '.join(CLIPS)}; did you mean"):
        CLIPS.build("flatt", **settings)


def test_a_normalised_clip_has_norms_of_one_and_is_else_the_same():
    assert FlatClip(7.0).normalised() == FlatClip(1.0)
    assert PerLayerClip((2.0, 3.0)).normalised() == PerLayerClip((1.0, 1.0))
    assert NoClip().normalised() == NoClip()


def test_parts_are_all_leaves_in_order_one_group_for_each_norm():
    leaves = ["a", "b", "c"]
    for clip in (FlatClip(1.0), PerLayerClip((1.0, 2.0, 3.0)), NoClip()):
        parts = clip.parts(leaves)
        assert len(parts) == len(clip.clip_norms)
        assert [leaf for part in parts for leaf in part] == leaves
