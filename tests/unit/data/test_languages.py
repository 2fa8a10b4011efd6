"""Languages by their codes; near names; which have a public list."""

import pytest

from sottovoce.data.languages import NAMES, SEGMENTED, Language, find_language
from sottovoce_evidence.errors import SottoError


def test_a_region_is_left_out() -> None:
    assert find_language("pt-BR") == find_language("pt_PT") == find_language("PT")
    assert find_language("tr").letters
    assert find_language("en") == Language("en")
    assert all(find_language(code).name == name for code, name in NAMES.items())
    assert [code for code in NAMES if find_language(code).segmented] == sorted(SEGMENTED)


@pytest.mark.parametrize(
    ("code", "near"), [("thai", "th (Thai)"), ("japanes", "ja (Japanese)"), ("Germn", "de (German)"), ("", "ISO")]
)
def test_an_unknown_language_names_near_ones(code: str, near: str) -> None:
    with pytest.raises(SottoError) as caught:
        find_language(code)
    assert near in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_language_without_a_list_says_how_to_make_one() -> None:
    assert find_language("th").listed is None
    with pytest.raises(SottoError, match=r"Thai .*sotto base train TEXT --language th"):
        next(find_language("th").public_words(10))
