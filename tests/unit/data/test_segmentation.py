"""Words without spaces: found by ICU, whose package is named where it is missing."""

import sys

import pytest

from sottovoce.data.segmentation import WITHOUT_SPACES, segments
from sottovoce_evidence.errors import SottoError


def test_a_run_is_cut_into_its_words() -> None:
    assert segments("ภาษาไทย") == ("ภาษา", "ไทย")
    assert segments("iphone手机") == ("iphone", "手机")


@pytest.mark.parametrize(("text", "found"), [("ไทย", True), ("日", True), ("カ", True), ("ខ", True), ("한", False)])
def test_which_scripts_have_no_spaces(text: str, found: bool) -> None:
    assert bool(WITHOUT_SPACES.search(text)) == found


def test_the_package_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "icu4py.breakers", None)
    with pytest.raises(SottoError, match=r"sottovoce\[segmentation\]"):
        segments("ไม่มีช่องว่าง")
