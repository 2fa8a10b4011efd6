"""Which recipes can be trained across devices, and what a device sees of one."""

from __future__ import annotations

from typing import Any

from sottovoce.build import rules
from sottovoce.errors import SottoError
from sottovoce.recipe import Recipe


def check_scope(recipe: Recipe) -> None:
    """Refuse what devices cannot do, and what would differ from a simulated run."""
    rules.check(rules.device_rules(recipe))


def check_frozen(frozen: Any) -> None:
    """Refuse a model with a frozen part: tasks carry `params` alone, and devices do not get the seed of the rest."""
    if frozen is not None:
        raise SottoError(
            "the model has a frozen part, which devices cannot build from the recipe and which is not sent to them; "
            "train all of it across devices, or train this model in a simulated run"
        )


def for_devices(recipe: Recipe) -> Recipe:
    """The recipe that devices receive: without the paths of the server's machine, and without its seed.

    A device gets the weights and the key of its randomness with every task. The seed could reveal more.
    """
    return recipe.replace(data={"store": ""}, model={"initial": None}, local={"public": None}, run={"seed": 0})
