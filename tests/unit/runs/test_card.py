from __future__ import annotations

from sottovoce.runs.card import Card


def test_a_card_is_read_as_it_was_written():
    card = Card(code="the lstm of the recipe", own_model=True, parameters=7, bytes={"up": 1.0})
    assert Card.from_json({**card.to_json(), "privacy": {}, "checksum": "00"}) == card
