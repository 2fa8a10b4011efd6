"""Text by user to a store; its vocabulary is public, or found in the users' text, and charged."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sottovoce.data.corpus import Corpus, InMemory
from sottovoce.data.grouping import Grouping, Progress
from sottovoce.data.languages import DEFAULT, find_language
from sottovoce.data.prepare import PreparationSummary, new_store, write_store
from sottovoce.data.prepare import prepare as write_new_store
from sottovoce.data.private_vocabulary import count_users
from sottovoce.data.store import DECLARED, PUBLIC_LIST
from sottovoce.data.tokenizer import Tokenizer
from sottovoce.data.vocabulary import Vocabulary
from sottovoce.privacy.histogram import MOST_NAMES, NoisyHistogram
from sottovoce.runs.ledger import PREPARATION, StoreLedger
from sottovoce_evidence import accounting
from sottovoce_evidence.accounting import SampledGaussian
from sottovoce_evidence.errors import SettingError, SottoError

# Measured on Reddit and blog users cut to 1,600 tokens (docs/log.md): about as many as a user has.
WORDS_PER_USER, NEW_WORDS_PER_USER = 400, 25
_LARGEST_DELTA, _SMALLEST_DELTA, _LARGEST_EPSILON = 1e-2, 1e-30, 100.0
# Above this share, the public words that are replaced are worth more than the words found.
_SHARE_OF_NEW = 4


@dataclass(frozen=True)
class PrivateVocabulary:
    """The budget of a vocabulary, and how it is spent.

    `words_per_user` bounds the words that a user brings; the rules of `language` cut them. With `extend_public` users
    bring only words that the public list lacks; the words found replace its rarest, up to a quarter of the list.
    """

    epsilon: float
    delta: float
    words_per_user: int | None = None
    size: int = 10_000
    extend_public: bool = False
    language: str = DEFAULT

    def __post_init__(self) -> None:
        budget = {"epsilon": self.epsilon, "delta": self.delta}
        if not 0 < self.epsilon <= _LARGEST_EPSILON:
            raise SettingError(f"{{epsilon:g}} must be in (0, {_LARGEST_EPSILON:g}], often 0.5 to 4", **budget)
        if not _SMALLEST_DELTA <= self.delta < _LARGEST_DELTA:
            limits = f"[{_SMALLEST_DELTA:g}, {_LARGEST_DELTA:g})"
            raise SettingError(f"{{delta:g}} must be in {limits}, and should be well below 1/users", **budget)
        if self._epsilon_of_counts <= 0:
            least = f"{-math.log1p(-self.delta / 2):.4g}"
            text = (
                f"{{epsilon:g}} must be above {least}, the cost of the threshold at {{delta:g}}; take a larger epsilon"
            )
            raise SettingError(text, **budget)
        words = self.words_per_user
        if words is not None and not 1 <= words <= MOST_NAMES:
            raise SettingError(f"{{words_per_user}} must be in [1, {MOST_NAMES}]", words_per_user=words)
        Vocabulary.from_words((), self.size, self.language)  # it refuses a size that leaves no place for a word

    def histogram(self) -> NoisyHistogram:
        """Half of δ pays for the noise and half for the threshold; the threshold depends little on its half."""
        words = self.words_per_user or (NEW_WORDS_PER_USER if self.extend_public else WORDS_PER_USER)
        try:
            gaussian = SampledGaussian(1.0, "poisson", user_rate=1.0)  # one release over all users
            noise_multiplier = accounting.calibrate([(gaussian, 1)], self._epsilon_of_counts, self.delta / 2)
        except SottoError as error:
            text = "no noise keeps a vocabulary within {epsilon:g} at {delta:g}; take a larger epsilon"
            raise SettingError(text, epsilon=self.epsilon, delta=self.delta) from error
        return NoisyHistogram(words, noise_multiplier, self.delta / 2)

    @property
    def _epsilon_of_counts(self) -> float:
        """ε less what the threshold's half of δ is charged in ε (docs/explanation/guarantees.md, "Histograms")."""
        return self.epsilon + math.log1p(-self.delta / 2)


def prepare(
    corpus: Corpus,
    out: str | Path,
    vocabulary: Tokenizer | PrivateVocabulary | None = None,
    grouping: Grouping | None = None,
    progress: Progress | None = None,
) -> PreparationSummary:
    """Turn text by user into a store to train on, and warn of what its owner should look at.

    A user is one user in any number of records and files. Who is held out, and the order of the users, follow from a
    keyed hash of the user's id: neither the order of the input nor one person joining moves any other user.

    Args:
        corpus: paths, folders or patterns of files; a table of pandas, polars, pyarrow or datasets; or records, as
            pairs (user, text) or mappings.
        out: the folder of the store. It must be new.
        vocabulary: a public one, or another tokenizer, by default 10,000 frequent English words; or what a private
            vocabulary may cost.
        grouping: which fields, who is kept, who is held out.
        progress: is called with the number of records read, and of bytes of their files.
    """
    if isinstance(vocabulary, PrivateVocabulary):
        summary, _ = prepare_privately(corpus, out, vocabulary, grouping, progress=progress)
    else:
        source = PUBLIC_LIST if vocabulary is None else DECLARED
        summary = write_new_store(corpus, out, vocabulary or Vocabulary.public(), grouping, source, progress)
    public = grouping is not None and grouping.plain_text
    for text in summary.warnings_of_public_text if public else summary.warnings:
        warnings.warn(text, stacklevel=2)
    return summary


def prepare_privately(
    corpus: Corpus,
    out: str | Path,
    wanted: PrivateVocabulary,
    grouping: Grouping | None = None,
    log: Callable[[str], None] = lambda stage: None,
    progress: Progress | None = None,
) -> tuple[PreparationSummary, dict[str, Any]]:
    """Write the store of a corpus with a vocabulary found in it; the facts of the vocabulary are as in `store.json`.

    Guarantee: a store with such a vocabulary has its charge. The charge is in the store's ledger before the draw, and
    the store gets its name after it. A draw that finds no word is a release too: it becomes a store without words, with
    its charge. After any other failure there is no store, and nothing of the draw was shown.

    Args:
        corpus: as for `prepare`; it is read twice.
        out: the folder of the store. It must be new.
        wanted: the budget of the vocabulary, and how it is spent.
        grouping: which fields, who is kept, who is held out.
        log: takes a line about each step.
        progress: as for `prepare`; both times that the corpus is read.
    """
    grouping = grouping or Grouping()
    if grouping.plain_text:
        raise SottoError("plain text has no users whose words could be hidden; leave --private-vocabulary out")
    sources = grouping.sources(corpus)
    if any(isinstance(source, InMemory) and source.once for source in sources):
        raise SottoError("a private vocabulary reads the corpus twice, and this one can be read once; give a list")
    with new_store(Path(out)) as folder:
        log("finding the noise for ε")
        histogram = wanted.histogram()
        base = Vocabulary.from_words(find_language(wanted.language).marks, wanted.size, wanted.language)
        if wanted.extend_public:
            base = Vocabulary.public(wanted.size, wanted.language)
        grouping.with_contexts(base)  # refuses values that cannot be used, before anything is paid for
        log("counting the users of every word")
        counts = count_users(folder.parent / "words", sources, grouping, histogram.names_per_user, base, progress)
        refuse_hopeless(histogram.threshold, counts.users)
        log("drawing noise")
        StoreLedger(folder / "ledger.jsonl").charge(PREPARATION, "private vocabulary", histogram.event(), 1)
        places = wanted.size - base.size
        if wanted.extend_public:
            places = (wanted.size - Vocabulary.frame_size) // _SHARE_OF_NEW
        words = histogram.release(counts.by_word)[:places]
        del counts  # exact, and large
        facts = {
            "source": "private",
            "epsilon": wanted.epsilon,
            "delta": wanted.delta,
            "words_per_user": histogram.names_per_user,
            "noise_multiplier": histogram.noise_multiplier,
            "noise_std": histogram.noise_std,
            "threshold": histogram.threshold,
            "words_found": len(words),
            "extends": "public" if wanted.extend_public else "nothing",
        }
        log("writing the store")
        listed = base.words[Vocabulary.frame_size : wanted.size - len(words)]
        vocabulary = Vocabulary.from_words((*listed, *words), wanted.size, wanted.language)
        summary = write_store(folder, sources, grouping, vocabulary, facts, progress)
    return summary, facts


def refuse_hopeless(threshold: int, users: int) -> None:
    """Refuse a draw that can show no word, before it is paid for.

    The rule looks at the number of users alone, rounded up to two digits: at no word, and hardly at one person. Its
    answer is the owner's, as the counts are, and leaves no file.
    """
    unit = 10 ** max(len(str(users)) - 2, 0)
    if -(-users // unit) * unit < threshold:
        raise SettingError(
            f"nothing would be found: a word is shown if about {threshold:,} users bring it, and there are not so many "
            "to train on. Nothing was charged. Raise {epsilon.name} or {delta.name}, lower {words_per_user.name}, or "
            "take a public list",
            epsilon=None,
            delta=None,
            words_per_user=None,
        )
