"""A store whose vocabulary is found in the users' own text, and paid for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce import accounting
from sottovoce.accounting import SampledGaussian
from sottovoce.data.grouping import Grouping
from sottovoce.data.prepare import PreparationSummary, new_store, write_store
from sottovoce.data.private_vocabulary import count_users
from sottovoce.data.vocabulary import FRAME, Vocabulary
from sottovoce.errors import SottoError
from sottovoce.privacy.histogram import MOST_NAMES, NoisyHistogram
from sottovoce.runs.ledger import PREPARATION, StoreLedger

# Measured on Reddit and blog users cut to 1,600 tokens (docs/log.md): about as many as a user has to bring.
WORDS_PER_USER, NEW_WORDS_PER_USER = 400, 25
_LARGEST_DELTA, _SMALLEST_DELTA, _LARGEST_EPSILON = 1e-2, 1e-30, 100.0
# Beyond about this share, the public words that make room are worth more than the words found.
_SHARE_OF_NEW = 4


@dataclass(frozen=True)
class PrivateVocabulary:
    """What may be spent on a vocabulary, and how.

    `words_per_user` bounds what a user brings. With `extend_public` the public list is known already: users bring only
    words that it lacks, and those found take the places of its rarest, up to a quarter of them.
    """

    epsilon: float
    delta: float
    words_per_user: int | None = None
    size: int = 10_000
    extend_public: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= _LARGEST_EPSILON:
            raise SottoError(
                f"epsilon={self.epsilon:g} must be above 0 and at most {_LARGEST_EPSILON:g}; it is what the vocabulary "
                "may cost, often 0.5 to 4"
            )
        if not _SMALLEST_DELTA <= self.delta < _LARGEST_DELTA:
            raise SottoError(
                f"delta={self.delta:g} must be below {_LARGEST_DELTA:g}, and at least {_SMALLEST_DELTA:g}; "
                "half of it is the chance that a word of one user alone is shown: take well below 1/users"
            )
        if self._epsilon_of_counts <= 0:
            raise SottoError(
                f"epsilon={self.epsilon:g} must be above {-math.log1p(-self.delta / 2):.4g}, which hiding the words of "
                f"one user alone costs by itself at delta={self.delta:g}; take a larger epsilon or a smaller delta"
            )
        if self.words_per_user is not None and not 1 <= self.words_per_user <= MOST_NAMES:
            raise SottoError(
                f"words_per_user={self.words_per_user} must be in [1, {MOST_NAMES}]; it is how many a user brings"
            )
        Vocabulary.from_words((), self.size)  # it refuses a size that leaves no place for a word

    def histogram(self) -> NoisyHistogram:
        """Half of δ pays for the noise and half for the threshold; the threshold depends little on its half."""
        words = self.words_per_user or (NEW_WORDS_PER_USER if self.extend_public else WORDS_PER_USER)
        try:
            noise_multiplier = _noise_multiplier(self._epsilon_of_counts, self.delta / 2)
        except SottoError as error:
            raise SottoError(
                f"no noise keeps a vocabulary within epsilon={self.epsilon:g} at delta={self.delta:g}: "
                f"{self._epsilon_of_counts:.4g} of it is left for the counts of words; take a larger epsilon"
            ) from error
        return NoisyHistogram(words, noise_multiplier, self.delta / 2)

    @property
    def _epsilon_of_counts(self) -> float:
        """ε less what the threshold's half of δ is charged in ε (docs/explanation/guarantees.md, "Histograms")."""
        return self.epsilon + math.log1p(-self.delta / 2)


def prepare_privately(
    paths: str | Path | Iterable[str | Path],
    out: str | Path,
    wanted: PrivateVocabulary,
    grouping: Grouping | None = None,
    tell: Callable[[str], None] = lambda stage: None,
) -> tuple[PreparationSummary, dict[str, Any]]:
    """Write the store of a corpus with a vocabulary found in it; the facts of the vocabulary are as in `store.json`.

    The charge is in the store's ledger before the draw, and the store gets its name after it: there is never one
    without the other. This holds for a draw that shows no word, too. Its outcome ("no word is shared by enough users")
    is a release like any other, so it becomes a store that knows marks only, with its charge; an error would leave the
    charge nowhere. After any other failure there is no store, and nothing of the draw was shown.
    """
    grouping = grouping or Grouping()
    if grouping.plain_text:
        raise SottoError("plain text has no users whose words could be hidden; leave --private-vocabulary out")
    files = grouping.files(paths)
    with new_store(Path(out)) as folder:
        tell("finding the noise for ε")
        histogram = wanted.histogram()
        base = Vocabulary.public(wanted.size) if wanted.extend_public else Vocabulary(FRAME)
        tell("counting the users of every word")
        counts = count_users(folder.parent / "words", files, grouping, histogram.names_per_user, base.words)
        tell("drawing noise")
        StoreLedger(folder / "ledger.jsonl").charge(PREPARATION, "private vocabulary", histogram.event(), 1)
        places = wanted.size - len(FRAME)
        found = histogram.release(counts)[: places // _SHARE_OF_NEW if wanted.extend_public else places]
        del counts  # exact, and large
        facts = {
            "source": "private",
            "epsilon": wanted.epsilon,
            "delta": wanted.delta,
            "words_per_user": histogram.names_per_user,
            "noise_multiplier": histogram.noise_multiplier,
            "noise_std": histogram.noise_std,
            "threshold": histogram.threshold,
            "words_found": len(found),
            "extends": "public" if wanted.extend_public else "nothing",
        }
        tell("writing the store")
        listed = base.words[len(FRAME) : wanted.size - len(found)]
        summary = write_store(folder, files, grouping, Vocabulary.from_words((*listed, *found), wanted.size), facts)
    return summary, facts


def _noise_multiplier(epsilon: float, delta: float) -> float:
    """The least with which one Gaussian over all users stays within (ε, δ)."""
    return accounting.calibrate([(SampledGaussian(1.0, "poisson", user_rate=1.0), 1)], epsilon, delta)
