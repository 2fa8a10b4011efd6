"""Figures as pages write them."""

from __future__ import annotations

from sottovoce.reporting.words import bytes_text


def test_bytes_are_told_in_units_of_a_thousand():
    told = {0: "0 B", 999: "999 B", 1000: "1 kB", 224_352: "224 kB", 999_600: "1,000 kB", 3_663_656_000: "3.66 GB"}
    assert {count: bytes_text(count) for count in told} == told
