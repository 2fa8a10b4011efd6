"""The card of a run's model (model/card.json): what it is, and how it was trained."""

from __future__ import annotations

from dataclasses import dataclass

from sottovoce_evidence.files import Facts, Json


@dataclass(frozen=True)
class Card(Facts):
    """The facts of a card, without the statement, which the file holds too."""

    name: str = "sottovoce language model"
    code: str = ""  # model and objective, in words
    own_model: bool = False  # a model of the caller's, which the recipe does not describe
    kind: str | None = None  # of model, where the recipe names it
    model: Json | None = None  # of a release: the settings of its kind
    trained_on: str | None = None  # "public" or "people"
    parameters: int = 0
    trained_parameters: int | None = None  # where a part is frozen, fewer
    adapter: Json | None = None  # rank, scale, matrices and what is trained besides
    frozen: str | None = None  # a hash of what is not trained
    vocabulary: int = 0
    rounds: int = 0
    bytes: dict[str, float] | None = None  # to a device, from it, in a round, in all
