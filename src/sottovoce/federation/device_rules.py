"""Which recipes can be trained across devices."""

from __future__ import annotations

from sottovoce.errors import SottoError
from sottovoce.privacy.sampling import sampler_named
from sottovoce.recipe import Recipe


def check_scope(recipe: Recipe) -> None:
    """Refuse what devices cannot do, or what would be something else than in a simulated run."""
    run, local, privacy = recipe.run, recipe.local, recipe.privacy
    refusals = (
        (run.algorithm == "central", "run.algorithm='central' pools text, and devices keep theirs; use fedavg"),
        (
            recipe.server.update != "average",
            "server.update='transfer' needs everybody's model at the server; across devices use 'average'",
        ),
        (
            not sampler_named(privacy.sampling).independent,
            f"privacy.sampling={privacy.sampling!r} is drawn by one who knows everybody; devices flip their own "
            f"coins: use 'poisson'",
        ),
        (
            privacy.secrets == "seeded" and privacy.mode == "private",
            f"privacy.secrets='seeded' takes the noise from run.seed={run.seed}, which those who share the recipe know "
            f"and others can guess: a device could undo the noise of everybody; use 'entropy', or privacy.mode='none' "
            f"for a run that promises nothing",
        ),
        (
            run.deploy_every != 1 or bool(run.delays),
            "run.deploy_every and run.delays simulate late devices; real ones are late by themselves: remove them",
        ),
        (
            local.objective == "rehearsal" or local.public is not None,
            "local.objective='rehearsal' sends public text along, which devices do not take yet; use "
            "without_forgetting, or plain",
        ),
        (
            recipe.audit.plants,
            "[audit] plants made-up users in a store, and there is none across devices; audit a simulated run",
        ),
        (
            local.compression != "none",
            f"local.compression={local.compression!r} is simulated; devices send exact sums: use none",
        ),
    )
    for wrong, sentence in refusals:
        if wrong:
            raise SottoError(sentence)


def for_devices(recipe: Recipe) -> Recipe:
    """The recipe as it travels: without the paths of the server's machine, and without its seed.

    A device gets its weights and the key of its randomness with every task; the seed might tell it more.
    """
    return recipe.replace(data={"store": ""}, model={"initial": None}, local={"public": None}, run={"seed": 0})
