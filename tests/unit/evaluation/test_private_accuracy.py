"""The figures of a private evaluation say what was charged for them."""

from __future__ import annotations

from sottovoce.accounting import HeldOutSums
from sottovoce.evaluation.private_accuracy import PrivateAccuracy, Terms

TERMS = Terms(2.0, 1e-6, 2.2, 100, 18.4)


def test_the_terms_name_their_charge():
    assert TERMS.event == HeldOutSums(2.2, 100)


def test_what_the_noise_hides_is_said():
    assert "hidden by the noise" in repr(PrivateAccuracy(terms=TERMS, users=3, targets=10))
    found = PrivateAccuracy(terms=TERMS, users=300, targets=10_000, top1=0.1234, top1_within=0.01)
    assert repr(found) == "<PrivateAccuracy: top-1 12.34% ± 1.00, ε = 2 for each held-out user>"
    assert PrivateAccuracy.from_json(found.to_json()) == found
