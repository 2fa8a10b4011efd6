"""What is known of a writer, such as the language of a device: each declared value has a token that begins a text.

The token stands in the place of BOS, and is never a target. Its row in the embedding table is what the model learns of
such writers: it is trained, clipped and noised as all else. The values are declared by hand; who has which is private.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from sottovoce.data.tokenizer import TokenColumn, Tokenizer
from sottovoce_evidence.errors import SettingError, SottoError, did_you_mean

_LONGEST = 60  # letters of a value
_MARKUP = re.compile(r"<[A-Za-z/!]|[`|\[\]\\]")
_TOKEN = re.compile(r"<context:(\S+)>")


def token_of(value: str) -> str:
    """The name of the token that begins a text of a writer with this value."""
    return f"<context:{value}>"


def value_of(token: str) -> str | None:
    """The value whose token has this name; None for all other tokens."""
    found = _TOKEN.fullmatch(token)
    return found[1] if found else None


def last_values(tokens: Sequence[str]) -> tuple[str, ...]:
    """The values whose tokens are the last ones of a vocabulary."""
    values: list[str] = []
    for token in reversed(tokens):
        if (value := value_of(token)) is None:
            break
        values.append(value)
    return tuple(reversed(values))


def declare(tokenizer: Tokenizer, values: Sequence[str]) -> Tokenizer:
    """The tokenizer with a begin token for each value, after all others: other ids stay as they are."""
    if not values or tuple(values) == tokenizer.contexts:
        _checked(tokenizer.contexts)  # which the file of somebody else may have named
        return tokenizer
    if tokenizer.contexts:
        declared = " ".join(tokenizer.contexts)
        text = f"{{context_values}}, and the tokenizer has tokens for {declared}; leave {{context_values.name}} out"
        raise SettingError(text, context_values=" ".join(values))
    return tokenizer.with_contexts(_checked(values))


def begin_token(tokenizer: Tokenizer, value: str | None) -> int:
    """The token that begins a text of a writer with this value; BOS without one."""
    if value is None:
        return tokenizer.specials.bos
    if value not in tokenizer.contexts:
        known = f"the model knows {', '.join(tokenizer.contexts)}{did_you_mean(value, tokenizer.contexts)}"
        raise SettingError(
            f"{{context!r}}: {known if tokenizer.contexts else 'the model was trained without contexts; leave it out'}",
            context=value,
        )
    return tokenizer.specials.contexts[tokenizer.contexts.index(value)]


def begun_with(column: TokenColumn, values: Iterable[str | None], tokenizer: Tokenizer) -> TokenColumn:
    """Texts whose first token is that of their writer's value; BOS where the value is missing or was not declared."""
    known: dict[str | None, int] = dict(zip(tokenizer.contexts, tokenizer.specials.contexts, strict=True))
    tokens = column.tokens.copy()
    firsts = np.cumsum(column.lengths) - column.lengths
    tokens[firsts] = [known.get(value, tokenizer.specials.bos) for value in values]
    return TokenColumn(tokens, column.lengths)


def _checked(values: Sequence[str]) -> Sequence[str]:
    for value in values:
        if value.split() != [value]:
            raise SottoError(f"the context value {value!r} has a space; write it without, in the corpus too")
        if not value.isprintable() or len(value) > _LONGEST or _MARKUP.search(value):
            raise SottoError(
                f"the context value {value[:_LONGEST]!a} is not plain, and would be in your statement; use up to "
                f"{_LONGEST} letters, digits and signs such as - and _, in the corpus too"
            )
    if len(set(values)) < len(values):
        raise SottoError("a context value is named twice; name each once")
    return values
