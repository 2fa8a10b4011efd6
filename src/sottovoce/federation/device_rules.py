"""Which recipes can be trained across devices, and what a device sees of one."""

from __future__ import annotations

from sottovoce.build import rules
from sottovoce.build.rules import Case, Scope
from sottovoce.recipe import Recipe


def check_scope(recipe: Recipe) -> None:
    """Refuse what devices cannot do, and what would differ from a simulated run."""
    rules.check(Scope.DEVICES, Case(recipe))


def for_devices(recipe: Recipe) -> Recipe:
    """The recipe that devices receive: without the paths of the server's machine, and without its seed.

    A device gets the weights and the key of its randomness with every task. The seed could reveal more.
    """
    return recipe.replace(data={"store": ""}, model={"initial": None}, local={"public": None}, run={"seed": 0})
