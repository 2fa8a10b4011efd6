"""The card of a run's model (model/card.json): what it is, and how it was trained."""

from __future__ import annotations

from dataclasses import dataclass

from sottovoce.files import Facts, Json

_RECIPES = "of the recipe"  # so cards described a model that the recipe builds, before `own_model` said it


@dataclass(frozen=True)
class Card(Facts):
    """The facts of a card, without the statement, which the file holds too."""

    name: str = "sottovoce language model"
    code: str = ""  # model and objective, in words
    own_model: bool = False  # a model of the caller's, which the recipe does not describe
    kind: str | None = None  # of model, where the recipe names it
    model: Json | None = None  # of a release: the settings of its kind
    trained_on: str | None = None  # "public" or "people"; None in cards of before
    parameters: int = 0
    trained_parameters: int | None = None  # where a part is frozen, fewer; None in cards of before
    adapter: Json | None = None  # rank, scale, matrices and what is trained besides
    frozen: str | None = None  # a hash of what is not trained
    vocabulary: int = 0
    rounds: int = 0
    bytes: dict[str, float] | None = None  # to a device, from it, in a round, in all

    @classmethod
    def from_json(cls, values: Json) -> Card:
        """Read a card. Those of earlier versions say `own_model` in their `code`, and have no frozen parameters."""
        earlier = {
            "own_model": _RECIPES not in values.get("code", ""),
            "trained_parameters": values.get("parameters", 0),
        }
        return super().from_json(earlier | values)
