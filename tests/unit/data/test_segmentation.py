"""Words without spaces: found by ICU, whose package is named where it is missing."""

import pytest

from sottovoce.data.segmentation import WITHOUT_SPACES, segments


def test_a_run_is_cut_into_its_words() -> None:
    assert segments("ภาษาไทย") == ("ภาษา", "ไทย")
    assert segments("iphone手机") == ("iphone", "手机")


@pytest.mark.parametrize(("text", "found"), [("ไทย", True), ("日", True), ("カ", True), ("ខ", True), ("한", False)])
def test_which_scripts_have_no_spaces(text: str, found: bool) -> None:
    assert bool(WITHOUT_SPACES.search(text)) == found
