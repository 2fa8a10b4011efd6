from __future__ import annotations

import pytest

from sottovoce.runs.card import Card


def test_a_card_is_read_as_it_was_written():
    card = Card(code="the lstm of the recipe", own_model=True, parameters=7, bytes={"up": 1.0})
    assert Card.from_json({**card.to_json(), "privacy": {}, "checksum": "00"}) == card


@pytest.mark.parametrize(
    ("code", "own"),
    [
        ("the lstm of the recipe and the plain objective", False),
        ("the lstm of the recipe and mine of the caller", False),
        ("Tiny of the caller and the plain objective", True),
    ],
)
def test_of_a_card_of_version_0_1_the_fact_is_in_its_code(code, own):
    assert Card.from_json({"code": code, "bytes": None}).own_model is own
