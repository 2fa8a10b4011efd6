"""What a pass over a corpus met: counts that show its owner mistakes which void the guarantee.

All counts are exact and private: they are the owner's, as the rest of `preparation.json`.
"""

from __future__ import annotations

import unicodedata
from hashlib import blake2b

from sottovoce.data.lines import Position
from sottovoce_evidence.errors import count_of

MOST_FORMS = 2**18
FEW_USERS = 2_000
_NOBODY = {"nan", "none", "null", "n/a", "undefined", "unknown", "anonymous", "[deleted]", "[removed]"}
# Not seen, though their category does not tell: a joiner of graphemes, fillers of Hangul, vowels of Khmer, a blank of
# Braille. Selectors of variants have names.
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
# Small letters that look like a Latin one, as they are or as capitals: Cyrillic, then Greek.
_LATIN = str.maketrans("авекмнорстухіјѕһԁԛԝ" + "αβεζηικμνορτυχ", "abekmhopctyxijshdqw" + "abezhikmnoptyx")


def few_users(users: int) -> list[str]:
    """A sentence where there are few users to train on, as prepared or as declared; else nothing."""
    if users >= FEW_USERS:
        return []
    few = f"{count_of(users, 'user to train on is', 'users to train on are')} few: below about {FEW_USERS:,}"
    return [f"{few}, the noise that hides one person hides most of what can be learned"]


class Census:
    """Counts of one pass, in constant memory.

    `records` are all; `dropped` have too many owners, and `empty` no text. `filtered` are those that a dump leaves out,
    `nameless` those of a user such as "null", `guessed_lines` lines of tables that are not UTF-8, `known` texts that
    begin with a context.
    """

    def __init__(self) -> None:
        self.records = self.dropped = self.empty = self.filtered = self.nameless = self.guessed_lines = self.known = 0
        self.position = Position()
        self._share = 1  # one in so many forms is kept
        self._first: dict[int, bytes] = {}  # the form of an id, and the first name that has it
        self._alike: dict[bytes, int] = {}  # another name of the same form

    @property
    def kept(self) -> int:
        """The records that are in the text of their owners."""
        return self.records - self.dropped - self.empty

    def meet(self, key: int, name: bytes) -> None:
        """A user by the form of the id (`form_of`), once or several times."""
        if key % self._share:
            return
        if self._first.setdefault(key, name) != name:
            self._alike[name] = key
        if len(self._first) + len(self._alike) > MOST_FORMS:  # ids of one form are kept or left out together
            self._share *= 2
            self._first = {key: name for key, name in self._first.items() if key % self._share == 0}
            self._alike = {name: key for name, key in self._alike.items() if key % self._share == 0}

    @property
    def look_alikes(self) -> int:
        """Users whose id differs from another's only in its form; of very many users an estimate."""
        return len(self._alike) * self._share


def form_of(user: str) -> tuple[int, bool]:
    """A hash of an id's plain form, and whether it names nobody."""
    form = plain_form(user)
    key = int.from_bytes(blake2b(form.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
    return key, form in _NOBODY


def plain_form(user: str) -> str:
    """An id without what often differs between two ids of one person.

    That is case, spaces, an address's domain, a final .0, characters that are not seen, and letters of other scripts
    that look like Latin ones.
    """
    if user.isascii() and user.isprintable():  # as most are: then lower case is all
        folded = user.lower()
    else:
        seen = "".join(letter for letter in user if _is_seen(letter))
        folded = unicodedata.normalize("NFKC", seen).casefold().translate(_LATIN)
    bare = "".join(folded.split()).lstrip("@")
    return (bare.partition("@")[0] or bare).removesuffix(".0")


def _is_seen(letter: str) -> bool:
    if letter in _BLANK or unicodedata.category(letter) in ("Cc", "Cf"):
        return False
    return "VARIATION SELECTOR" not in unicodedata.name(letter, "")
