"""Users whose ids look alike, users who are nobody: counted in constant memory."""

from __future__ import annotations

import pytest

from sottovoce.data import census as census_module
from sottovoce.data.census import Census, form_of, plain_form
from sottovoce.data.grouping import Grouping

name = Grouping().name


def census_of(*users: str) -> Census:
    census = Census()
    for user in users:
        form, nobody = form_of(user)
        census.nameless += nobody
        census.meet(form, name(user))
    return census


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("u1", "u1 "),
        ("Ann", "ann"),
        ("ann lee", "AnnLee"),
        ("ann@work.example", "Ann@home.example"),
        ("@ann", "ann"),
        ("7", "7.0"),
        ("ann", "\uff41nn"),
        ("ann", "\ufeffann"),
    ],
)
def test_ids_that_one_person_may_have(one: str, other: str) -> None:
    assert plain_form(one) == plain_form(other)
    assert census_of(one, other, one, other).look_alikes == 1


def test_other_ids_are_other_people() -> None:
    assert census_of("u1", "u2", "u1", "u10", "1.5", "15", "@", "ann@").look_alikes == 0


def test_records_of_nobody_are_counted_one_by_one() -> None:
    assert census_of("null", "null", "NaN", "ann", "null", "anna", "[deleted]").nameless == 5


def test_of_very_many_users_the_look_alikes_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census_module, "MOST_FORMS", 2_000)
    census = census_of(*(f"user{number}" for number in range(20_000)), *(f"User{number}" for number in range(5_000)))
    assert len(census._first) + len(census._alike) <= 2_000
    assert 4_000 < census.look_alikes < 6_000
