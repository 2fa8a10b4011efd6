"""Who is a user, who is held out, and which settings have no meaning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sottovoce.data.grouping import Grouping, Spill
from sottovoce_evidence.errors import SottoError


def test_the_share_held_out_is_about_the_one_asked_for_and_follows_the_key() -> None:
    names = [f"user {number}" for number in range(4000)]
    held = {key: [g.holds_out(g.name(n)) for n in names] for key in ("a", "b") for g in [Grouping(split_key=key)]}
    assert all(abs(np.mean(out) - 0.1) < 0.02 for out in held.values())
    assert held["a"] != held["b"]


@pytest.mark.parametrize("when", ["2026-11-{:02d}", "{}.11.2026", "11/{}/26", "2026-11-{:02d}T18:30:05Z", "18:{:02d}"])
def test_dates_in_place_of_people_are_refused(when: str) -> None:
    days = [(when.format(1 + number % 28), "hello") for number in range(120)]
    grouping = Grouping()
    with pytest.raises(SottoError, match="dates or times, not people"):
        list(grouping.records(grouping.sources(days)))
    people = [(f"ann-{number % 28}", "hello") for number in range(120)]
    assert len(list(grouping.records(grouping.sources([*days[:12], *people])))) == 132


def test_spilt_records_come_back_by_user_in_the_order_they_were_added(tmp_path: Path) -> None:
    spill, grouping = Spill(tmp_path / "spill", 7, wide=False), Grouping()
    texts: dict[bytes, list[int]] = {}
    for number in range(200):
        name, ids = grouping.name(f"user {number % 31}"), [number, number + 1]
        spill.add(name, ids)
        texts.setdefault(name, []).extend(ids)
    found = {name: (total, tokens.tolist()) for name, total, tokens in spill.users(9)}
    assert list(found) == sorted(texts)
    assert found == {name: (len(ids), ids[:9]) for name, ids in texts.items()}
    assert not list((tmp_path / "spill").iterdir())
