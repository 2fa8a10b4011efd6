"""The ε of the rounds that users joined, where it is known which. It is for the owner alone."""

from __future__ import annotations

from dataclasses import replace

from sottovoce_evidence import accounting
from sottovoce_evidence.accounting.events import CorrelatedGaussian
from sottovoce_evidence.statement import Statement


def realised_epsilon(statement: Statement, sensitivity: float | None) -> float | None:
    """ε of the same charges, had it been planned how often and how close together users joined.

    `sensitivity` is the largest of a user who joined, for the rounds that they joined. The figure follows exactly from
    who takes part, and no noise covers it: it is for the owner alone, and no file that may be released has it.
    """
    if not sensitivity or not any(isinstance(event, CorrelatedGaussian) for event, _ in statement.charged):
        return None
    spent = []
    for event, count in statement.charged:
        if isinstance(event, CorrelatedGaussian):
            smaller = min(sensitivity / event.sensitivity, 1.0)
            event = replace(event, noise_multiplier=event.noise_multiplier / smaller)
        spent.append((event, count))
    return accounting.epsilon(spent, statement.delta, statement.accountant)
