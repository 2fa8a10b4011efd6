"""The noise of a private vocabulary, tested by distribution under a known key; in use the key is fresh every time."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from sottovoce.privacy import histogram as module
from sottovoce.privacy.histogram import NoisyHistogram

DRAWS = 20_000  # of each test, and of the one of a noisy count: they share a program
FAR = 10_000_000  # above any threshold, so that every draw is seen


@pytest.fixture
def known_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "os_entropy", SimpleNamespace(token_bytes=bytes))


def test_every_draw_has_a_key_of_its_own() -> None:
    histogram = NoisyHistogram(names_per_user=16, noise_multiplier=1.5, delta=1e-6)
    counts = {str(number): FAR for number in range(100)}
    assert histogram.draw(counts) != histogram.draw(counts)


@pytest.mark.usefixtures("known_key")
def test_the_noise_of_a_histogram_has_the_declared_scale() -> None:
    histogram = NoisyHistogram(names_per_user=16, noise_multiplier=1.5, delta=1e-6)
    drawn = histogram.draw({str(number): FAR for number in range(DRAWS)})
    assert len(drawn) == DRAWS
    noise = np.array(list(drawn.values())) - FAR
    assert np.issubdtype(noise.dtype, np.integer)
    spread = noise + np.random.default_rng(0).uniform(-0.5, 0.5, len(noise))  # whole numbers to a continuous law
    std = np.sqrt(1.5**2 * 16 + 1 / 12)  # z√M, whatever the histogram says of itself
    assert stats.kstest(spread / std, "norm").pvalue > 1e-6
    assert stats.kstest(spread / (0.8 * std), "norm").pvalue < 1e-9


@pytest.mark.usefixtures("known_key")
def test_a_name_of_one_user_alone_is_shown_with_the_chance_that_is_charged() -> None:
    histogram = NoisyHistogram(names_per_user=1, noise_multiplier=20.0, delta=0.05)
    chance = histogram.chance_to_show(histogram.threshold)
    shown = len(histogram.draw({str(number): 1 for number in range(DRAWS)}))
    assert 0.04 < chance <= 0.05
    assert stats.binomtest(shown, DRAWS, chance).pvalue > 1e-6
    assert stats.binomtest(shown, DRAWS, 0.8 * chance).pvalue < 1e-6
