"""The samplers, clips and estimators that draw, by the name that a recipe uses. Own code adds its own to these."""

from __future__ import annotations

from sottovoce.privacy.clipping import CLIPS
from sottovoce.privacy.estimators import ESTIMATORS
from sottovoce.privacy.sampling import SAMPLERS
from sottovoce_evidence.mechanism import Kinds

KINDS = Kinds(SAMPLERS, CLIPS, ESTIMATORS)
