"""Languages by their codes: how each folds letters, whether its words are cut without spaces, and its public word list.

What a browser needs to cut words alike is in `Language.to_json`; the page has no table of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Literal

from sottovoce_evidence.errors import SettingError
from sottovoce_evidence.files import Facts

DEFAULT = "en"
SPACES = "spaces"  # in place of a language: text that is cut already, with a space between two tokens


@dataclass(frozen=True)
class Language(Facts):
    """The rules of a language. `letters` are replaced in turn, before text becomes lower case."""

    code: str
    form: Literal["NFC", "NFKC"] = "NFC"  # of Unicode
    letters: tuple[tuple[str, str], ...] = ()
    drops_marks: bool = False  # vowel signs, which most people do not type
    elides: bool = False  # "l'homme" is two words and an apostrophe
    marks: str = ""  # of its own punctuation, which a vocabulary holds beside that of ASCII
    segmented: bool = False  # words stand without spaces: a dictionary finds them

    @property
    def name(self) -> str:
        return NAMES.get(self.code, "text that is cut at spaces")

    @property
    def is_cut(self) -> bool:
        """Is the text cut already? Then every token is as it stands there."""
        return self.code == SPACES

    @property
    def listed(self) -> str | None:
        """The code of its list in wordfreq; None where that has none."""
        import wordfreq

        code = _LISTED_AS.get(self.code, self.code)
        return code if code in wordfreq.available_languages("best") else None

    def public_words(self, count: int) -> Iterator[str]:
        """The most frequent words of wordfreq's list, as people write them; refused where there is none."""
        import wordfreq

        if self.listed is None:
            raise SettingError(
                f"{{language}} has no list of words in wordfreq: name one for {self.name} with {{vocabulary.name}}, a "
                f"word a line, or let `sotto base train TEXT --language {self.code}` find them in public text",
                language=self.code,
                vocabulary=None,
            )
        for word in wordfreq.top_n_list(self.listed, count):
            # The list masks the digits of longer numbers ("2019" is "0000"), so only single digits are real in it.
            if len(word) > 1 and any(map(str.isdigit, word)):
                continue
            yield from _as_written(word, self.code)


def find_language(code: str) -> Language:
    """The language of a code such as "th" or "pt-BR", whose region is left out."""
    plain = code.replace("_", "-").split("-")[0].lower()
    if plain == SPACES:
        return Language(SPACES)
    if plain not in NAMES:
        known = {name.lower(): each for each, name in NAMES.items()} | {each: each for each in NAMES}
        near = dict.fromkeys(known[name] for name in get_close_matches(code.lower(), known, 3, 0.6))
        meant = ", ".join(f"{each} ({NAMES[each]})" for each in near)
        hint = f"did you mean {meant}?" if meant else "codes are those of ISO 639: de, hi, th, zh"
        raise SettingError(f"{{language!r}} is not the code of a language that is known here; {hint}", language=code)
    return Language(
        plain,
        form="NFKC" if plain in _COMPATIBLE else "NFC",
        letters=_LETTERS.get(plain, ()),
        drops_marks=plain in _WITHOUT_VOWELS,
        elides=plain in _ELIDING,
        marks="" if plain == DEFAULT else _MARKS + _OWN_MARKS.get(plain, ""),
        segmented=plain in SEGMENTED,
    )


def _as_written(word: str, code: str) -> Iterator[str]:
    """The words that an entry stands for: wordfreq folds "ς" to "σ" and "ß" to "ss"."""
    if code == "el" and word.endswith("σ"):
        word = word[:-1] + "ς"
    yield word
    if code == "de" and "ss" in word:  # the list does not say which of them is right
        yield word.replace("ss", "ß")


NAMES: dict[str, str] = {
    entry.split(" ", 1)[0]: entry.split(" ", 1)[1]
    for entry in """
    af Afrikaans, am Amharic, ar Arabic, az Azerbaijani, be Belarusian, bg Bulgarian, bn Bengali, bo Tibetan, bs
    Bosnian, ca Catalan, cs Czech, cy Welsh, da Danish, de German, el Greek, en English, es Spanish, et Estonian, eu
    Basque, fa Persian, fi Finnish, fil Filipino, fr French, ga Irish, gl Galician, gu Gujarati, ha Hausa, he
    Hebrew, hi Hindi, hr Croatian, hu Hungarian, hy Armenian, id Indonesian, ig Igbo, is Icelandic, it Italian, ja
    Japanese, jv Javanese, ka Georgian, kk Kazakh, km Khmer, kn Kannada, ko Korean, ku Kurdish, ky Kyrgyz, lo Lao,
    lt Lithuanian, lv Latvian, mk Macedonian, ml Malayalam, mn Mongolian, mr Marathi, ms Malay, mt Maltese, my
    Burmese, nb Norwegian Bokmål, ne Nepali, nl Dutch, nn Norwegian Nynorsk, no Norwegian, pa Punjabi, pl Polish, ps
    Pashto, pt Portuguese, ro Romanian, ru Russian, sh Serbo-Croatian, si Sinhala, sk Slovak, sl Slovenian, so
    Somali, sq Albanian, sr Serbian, sv Swedish, sw Swahili, ta Tamil, te Telugu, tg Tajik, th Thai, ti Tigrinya, tk
    Turkmen, tl Tagalog, tr Turkish, uk Ukrainian, ur Urdu, uz Uzbek, vi Vietnamese, xh Xhosa, yi Yiddish, yo
    Yoruba, yue Cantonese, zh Chinese, zu Zulu
    """.replace("\n   ", "")
    .strip()
    .split(", ")
}
SEGMENTED = ("ja", "km", "lo", "my", "th", "yue", "zh")
_LISTED_AS = {"bs": "sh", "hr": "sh", "no": "nb", "sr": "sh", "tl": "fil"}
# As wordfreq's lists are written, so that text meets them.
_COMPATIBLE = ("ar", "bn", "fa", "he", "hi", "ja", "ko", "ta", "ur", "yue", "zh")
_MARKS = "…–—“”„«»¿¡"
_OWN_MARKS = {
    **dict.fromkeys(("am", "ti"), "።፣፤፥"),
    **dict.fromkeys(("ar", "fa", "ps", "ur"), "،؛؟"),
    **dict.fromkeys(("bn", "hi", "mr", "ne", "pa"), "।"),
    **dict.fromkeys(("ja", "yue", "zh"), "。、「」『』《》・"),
    "bo": "་།",
    "km": "។៕ៗ",
    "my": "၊။",
}
_ELIDING = ("ca", "fr", "it")
_WITHOUT_VOWELS = ("ar", "fa", "he", "ur")
_TURKISH = (("İ", "i"), ("I", "ı"), ("i\u0307", "i"), ("Ș", "Ş"), ("ș", "ş"), ("Ț", "Ţ"), ("ț", "ţ"))
_LETTERS = {
    "az": _TURKISH,
    "he": (("״", '"'), ("׳", "'")),
    # A dot stays under an accent: Unicode's SpecialCasing for Lithuanian.
    "lt": (
        *(
            (upper + accent, f"{lower}\u0307{accent}")
            for upper, lower in ("Jj", "Įį")
            for accent in "\u0300\u0301\u0303"
        ),
        *(("Ì", "i\u0307\u0300"), ("Í", "i\u0307\u0301"), ("Ĩ", "i\u0307\u0303")),
    ),
    "ro": (("Ş", "Ș"), ("ş", "ș"), ("Ţ", "Ț"), ("ţ", "ț")),
    "tr": _TURKISH,
}
