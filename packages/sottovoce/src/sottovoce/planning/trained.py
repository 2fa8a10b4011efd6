"""How noise and traffic depend on how much of a model is trained: all of it, or an adapter."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from sottovoce_evidence.errors import SettingError
from sottovoce_evidence.files import Facts

BYTES_PER_PARAMETER = 4  # float32


class Sizes(NamedTuple):
    """The parameters of a model: of all of it without adapters, of what is trained, and of what is frozen beside it."""

    whole: int
    trained: int
    frozen: int


@dataclass(frozen=True)
class TrainedPart(Facts):
    """What it costs to train some parameters of a model. The noise on a coordinate does not depend on how many."""

    part: str  # "all" or "adapter"
    parameters: int
    noise_std: float | None  # σ on each coordinate; None where it is not known, or not the same in every round
    noise_norm_over_clip: float | None  # σ √parameters / S: the length of the noise over that of an update
    bytes_a_round: int  # to a device and from it
    bytes_once: int  # to a device, before its first round: what is not trained


def compare_parts(sizes: Sizes, noise_std: float | None, clip_norm: float | None) -> list[TrainedPart]:
    """To train all of a model, and to train a part of it, at the same clip norm and the same noise.

    The length of the noise shrinks by √(trained / whole), and what is sent in a round by trained / whole.
    """
    if not 0 < sizes.trained <= sizes.whole:
        text = "{trained_parameters:,} must be from 1 to {parameters:,}, all that the model has"
        raise SettingError(text, trained_parameters=sizes.trained, parameters=sizes.whole)
    parts = []
    for name, trained, frozen in (("all", sizes.whole, 0), ("adapter", sizes.trained, sizes.frozen)):
        length = None
        if noise_std is not None and clip_norm is not None:
            length = noise_std * math.sqrt(trained) / clip_norm
        a_round, once = 2 * BYTES_PER_PARAMETER * trained, BYTES_PER_PARAMETER * frozen
        parts.append(TrainedPart(name, trained, noise_std, length, a_round, once))
    return parts
