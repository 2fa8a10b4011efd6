from __future__ import annotations

import math

import numpy as np

from made_audits import made
from sottovoce.audit.membership import evaluate_attack
from sottovoce.audit.results import CanariesResult, ExposurePoint, OtherCurve
from sottovoce.audit.tails import fit_tail
from sottovoce.reporting.draw.audits import draw_exposure, draw_roc, draw_tail

CURVE = (ExposurePoint(1, 2, 0.5, 1.0, 2.0, 0), ExposurePoint(4, 2, 3.0, 5.0, 9.0, 1))


def is_png(drawn: bytes | None) -> bool:
    return drawn is not None and drawn.startswith(b"\x89PNG")


def test_a_tail_is_drawn():
    log_ratios = np.random.default_rng(0).exponential(size=1000)
    assert is_png(draw_tail(log_ratios, fit_tail(log_ratios)))


def test_attacks_are_drawn():
    generator = np.random.default_rng(0)
    attacks = [
        evaluate_attack(name, generator.normal(shift, size=50), generator.normal(size=40))
        for name, shift in (("loss threshold", 0.0), ("references, offline", 1.0))
    ]
    assert is_png(draw_roc(attacks))


def test_exposure_is_drawn_against_holders_and_with_other_runs_against_epsilon():
    alone = made(CanariesResult, claimed=math.inf, curve=CURVE)
    assert is_png(draw_exposure(alone))
    others = (OtherCurve("a", 2.0, CURVE), OtherCurve("b", 8.0, CURVE[:1]))
    both = draw_exposure(made(CanariesResult, claimed=math.inf, curve=CURVE, beside=others))
    assert is_png(both)
    assert len(both or b"") > len(draw_exposure(alone) or b"")
