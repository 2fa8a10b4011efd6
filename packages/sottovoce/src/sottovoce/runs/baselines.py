"""The baselines of a run: what its held-out users get without training on people. Made of public text alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from sottovoce.evaluation.figures import Evaluation
from sottovoce.runs.folder import RunFolder
from sottovoce_evidence.errors import DamagedRun
from sottovoce_evidence.files import Facts, read_sealed

NOTHING = "nothing"
_WORDS = {"<eos>": "end of text"}  # no reader knows how it is written


def token_text(token: str | None) -> str:
    """A token as a reader knows it."""
    return _WORDS.get(token or "", f"“{token}”")


@dataclass(frozen=True)
class Baselines(Facts, sparse=True):
    """How well these predict the held-out users of a run, rounded as their other public figures are.

    `constant` is a keyboard that always suggests the same tokens, frequent ones of public text or of any text.
    """

    start: str = NOTHING  # what the run started from: "base english", "run X"
    start_model: Evaluation | None = None  # before the first round; None where it started from nothing
    frequencies: str | None = None  # the public text that tokens were counted in; None where there is none
    token: str | None = None  # what `constant` suggests first
    constant: Evaluation | None = None
    unigram: Evaluation | None = None

    @classmethod
    def of(cls, run: RunFolder) -> Self | None:
        """Those of a run; None for a release without exact figures."""
        if not run.baselines_file.exists():
            return None
        try:
            return cls.from_json(read_sealed(run.baselines_file))
        except (OSError, ValueError, TypeError) as error:
            raise DamagedRun(f"cannot read {run.baselines_file} ({error}); put it back, or remove it") from None

    @property
    def scores(self) -> dict[str, Evaluation]:
        """Those that were measured, by what a reader calls them."""
        named = {
            f"always {token_text(self.token)}": self.constant,
            "a unigram": self.unigram,
            f"the start, {self.start}": self.start_model,
        }
        return {name: score for name, score in named.items() if score is not None}

    @property
    def short(self) -> str:
        """Their top-1 in a few words, for a line; empty where none was measured."""
        named = {"start": self.start_model, token_text(self.token): self.constant}
        return ", ".join(f"{name} {score.top1:.1%}" for name, score in named.items() if score is not None)

    def no_better(self, measured: Evaluation) -> str | None:
        """A sentence for a model that is no better than a baseline, with what to do; None for one that is.

        Its top-1 over words alone where it was measured, may stand still while punctuation and ends of text gain.
        It is said too where no word is right at all. Shares are compared as they are shown.
        """
        scores, top1 = self.scores.items(), round(measured.top1, 4)
        top1_words = None if measured.top1_words is None else round(measured.top1_words, 4)
        of_all = {name: score.top1 for name, score in scores if top1 <= score.top1}
        of_words = {name: score.top1_words for name, score in scores if score.top1_words is not None}
        of_words = {name: share for name, share in of_words.items() if top1_words is not None and top1_words <= share}
        reached, no_word = of_all or of_words, top1_words == 0
        if not reached and not no_word:
            return None
        if no_word and not any(reached.values()):
            text = "no word that the model suggests first is right: top-1 over words 0.00%"
        else:
            name = max(reached, key=reached.__getitem__)
            text = f"the model is no better than {name}: top-1"
            text = f"{text} {top1:.2%}" if of_all else f"over words alone {text} {top1_words:.2%}"
            text = f"{text} against {reached[name]:.2%}"
            if of_all and no_word:
                text += ", and over words 0.00%"
            elif not of_all and name == f"the start, {self.start}":
                text += "; what it gained is in punctuation, placeholders and ends of text"
        helps = "more users or a larger cohort (`sotto plan` shows what each gives)"
        if self.start == NOTHING:
            # Without public text that has the words, no base in the package has them either.
            base = "`--from english`" if self.frequencies else "`sotto base train` makes one of public text"
            helps = f"a base to start from ({base}), {helps}"
        return f"{text}; what helps: {helps}"
