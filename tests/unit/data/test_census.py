"""Users whose ids look alike, users who are nobody: counted in constant memory."""

from __future__ import annotations

import pytest

from sottovoce.data import census as census_module
from sottovoce.data.census import Census, form_of, plain_form
from sottovoce.data.grouping import Grouping

name = Grouping().name
UNSEEN = (
    "\x00\x1f\x7f\x85\u00ad\u034f\u115f\u180b\u180e\u200b\u200d\u200e\u202a\u202c\u2060\u2800\u3164\ufe0f\U000e0100"
)


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
        *(("ann", f"a{unseen}nn") for unseen in UNSEEN),
        ("ann 7", "ann\t7"),
        ("caf\u00e9", "cafe\u034f\u0301"),
        ("anna", "\u0430nna"),
        ("OTTO", "\u041e\u0422\u0422\u041e"),
        ("otto", "\u03bftt\u03bf"),
    ],
)
def test_ids_that_one_person_may_have(one: str, other: str) -> None:
    assert plain_form(one) == plain_form(other)
    assert census_of(one, other, one, other).look_alikes == 1


def test_other_ids_are_other_people() -> None:
    assert census_of("u1", "u2", "u1", "u10", "1.5", "15", "@", "ann@").look_alikes == 0
    assert census_of("анна", "иван", "ирина", "wanda", "Άννα", "สมชาย", "สมศรี", "👩", "👨").look_alikes == 0


def test_records_of_nobody_are_counted_one_by_one() -> None:
    assert census_of("null", "null", "NaN", "ann", "null", "anna", "[deleted]").nameless == 5


def test_of_very_many_users_the_look_alikes_are_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census_module, "MOST_FORMS", 2_000)
    census = census_of(*(f"user{number}" for number in range(20_000)), *(f"User{number}" for number in range(5_000)))
    assert len(census._first) + len(census._alike) <= 2_000
    assert 4_000 < census.look_alikes < 6_000
