"""The search for strategy matrices: better than what is known without it, kept on disk, and refused in one line."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from sottovoce.privacy import matrix_search
from sottovoce.privacy.matrix_search import cache_folder, find_matrix, loss
from sottovoce_evidence.accounting.matrices import Banded, Blt, Identity, Participation
from sottovoce_evidence.errors import SottoError

JOINING = Participation(rounds=40, min_separation=8, participations=5)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    matrix_search._find.cache_clear()
    yield
    matrix_search._find.cache_clear()


def root(bands: int) -> Banded:
    return Banded(tuple(np.cumprod([1.0] + [(2 * j - 1) / (2 * j) for j in range(1, bands)])))


@pytest.mark.slow
def test_a_banded_matrix_is_better_than_the_square_root_cut_to_its_bands():
    pytest.importorskip("jax_privacy")
    found = find_matrix("banded", JOINING)
    assert isinstance(found, Banded)
    assert len(found.bands) == 8
    assert loss(found, JOINING) < 0.995 * loss(root(8), JOINING) < loss(Identity(), JOINING)


@pytest.mark.slow
def test_a_blt_has_at_most_as_many_buffers_and_nearly_the_error_of_a_banded_matrix():
    pytest.importorskip("jax_privacy")
    found, banded = find_matrix("blt", JOINING, buffers=3), find_matrix("banded", JOINING)
    assert isinstance(found, Blt)
    assert found.buffers(40) <= 3
    assert loss(banded, JOINING) * 0.999 < loss(found, JOINING) < 1.15 * loss(banded, JOINING)


@pytest.mark.slow
def test_more_bands_than_the_separation_bring_nothing_to_who_joins_all_the_time_but_hurt_nothing():
    pytest.importorskip("jax_privacy")
    assert loss(find_matrix("banded", JOINING, bands=20), JOINING) == pytest.approx(
        loss(find_matrix("banded", JOINING), JOINING), rel=2e-3
    )


def test_independent_noise_needs_no_search(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax_privacy", None)
    assert find_matrix("independent", JOINING) == Identity()
    assert find_matrix("banded", JOINING, bands=1) == Banded((1.0,))


@pytest.mark.parametrize("noise", ["banded", "blt"])
def test_without_the_extra_the_error_names_it(noise, monkeypatch):
    for module in [name for name in sys.modules if name.startswith("jax_privacy")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "jax_privacy", None)
    with pytest.raises(SottoError, match=r"pip install 'sottovoce\[correlated\]'") as refused:
        find_matrix(noise, JOINING)
    assert "\n" not in str(refused.value)


def test_an_unknown_noise_is_refused():
    with pytest.raises(SottoError, match="did you mean 'banded'"):
        find_matrix("bands", JOINING)


def test_a_matrix_is_kept_by_its_settings(monkeypatch):
    searched = []

    def search(participation, size):
        searched.append((participation, size))
        return [Banded((1.0,)), root(size)]

    monkeypatch.setattr(matrix_search, "_banded", search)
    found = find_matrix("banded", JOINING)
    assert found == root(8)  # the best of the candidates
    matrix_search._find.cache_clear()
    assert find_matrix("banded", Participation(40, 8, 99)) == found  # no more than 5 fit
    assert searched == [(JOINING, 8)]
    (kept,) = cache_folder().iterdir()
    assert json.loads(kept.read_text()) == found.to_json()
    find_matrix("banded", JOINING, bands=4)
    assert [size for _, size in searched] == [8, 4]
    # What does not read as a matrix is searched for again.
    for text in ("{", json.dumps({"noise": "banded", "bands": [1.0, 2.0]}), json.dumps({"noise": "independent"})):
        kept.write_text(text)
        matrix_search._find.cache_clear()
        assert find_matrix("banded", JOINING) == found
    assert len(searched) == 5


def test_a_folder_that_cannot_be_written_only_costs_time(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(matrix_search, "_banded", lambda participation, size: [root(size)])
    assert find_matrix("banded", JOINING) == root(8)


@pytest.mark.parametrize(
    ("joining", "bands"),
    [(Participation(500, 200, 2), 64), (Participation(500, 27, 19), 27), (Participation(20, 3, 1), 20)],
)
def test_bands_by_default_are_the_separation_and_not_too_many(monkeypatch, joining, bands):
    monkeypatch.setattr(matrix_search, "_banded", lambda participation, size: [root(size)])
    assert len(find_matrix("banded", joining).bands) == bands


def test_buffers_that_bring_nothing_are_left_out():
    twice = Blt((0.2, 0.2, 0.0), (0.9, 0.9, 0.3))
    assert matrix_search._simplest(twice, JOINING) == Blt((0.4,), (0.9,))
    both = Blt((0.1411, 0.3259), (0.9937, 0.789))  # near the best for this
    assert matrix_search._simplest(both, Participation(2052, 342, 6)).buffers(2052) == 2


def test_what_a_search_proposes_is_made_to_fit():
    fitted = matrix_search._allowed(np.array([0.9, 0.3, -1e-9]), np.array([1.0000001, 0.5, 0.1]))
    assert sum(fitted.scales) <= 1
    assert fitted.decays == (1.0, 0.5, 0.1)
    assert fitted.scales[2] == 0
