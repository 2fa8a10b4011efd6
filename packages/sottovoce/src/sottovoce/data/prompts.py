"""Beginnings of sentences to show a model with. Written for this project, or public words; no user's text."""

from __future__ import annotations

from itertools import islice

import numpy as np

from sottovoce.data.languages import DEFAULT, SPACES
from sottovoce.data.tokenizer import Tokenizer

_MOST = 8
_LEAST_KNOWN = 0.5  # of the sentences: with fewer, the words are of another language than they say


def prompts_for(tokenizer: Tokenizer, *, listed: bool) -> tuple[str, ...]:
    """Some in the language of a tokenizer, which can write them; else frequent words, where a public order lists them.

    Empty where neither is known.
    """
    written = _WRITTEN.get(DEFAULT if tokenizer.language == SPACES else tokenizer.language, ())
    known = tuple(prompt for prompt in written if tokenizer.specials.unk not in tokenizer.encode(prompt))
    if known and len(known) >= _LEAST_KNOWN * len(written):
        return known
    if not listed or not tokenizer.is_words:
        return ()
    words = (tokenizer.text_of(token) for token in np.flatnonzero(tokenizer.word_mask).tolist())
    return tuple(islice((word for word in words if not word[0].isdigit()), _MOST))


# The first is also the example in the README of a release.
_WRITTEN = {
    "de": (
        *("wie geht es", "guten morgen ,", "vielen dank für", "wir sehen uns"),
        *("ich gehe in die", "hast du lust", "das wetter ist", "um wie viel"),
    ),
    "en": (
        *("how are", "good morning ,", "thank you so", "see you"),
        *("i am going to the", "do you want to", "the weather is", "what time do"),
    ),
    "es": (
        *("cómo te", "buenos días ,", "muchas gracias por", "nos vemos"),
        *("me voy a la", "quieres ir", "hoy hace mucho", "a qué"),
    ),
    "fr": (
        *("comment vas", "bonjour ,", "merci beaucoup pour", "on se voit"),
        *("je vais à la", "tu veux", "aujourd'hui il fait", "à quelle"),
    ),
    "it": (
        *("come ti", "buongiorno ,", "grazie mille per", "ci vediamo"),
        *("sto andando a", "vuoi venire", "oggi il tempo è", "a che"),
    ),
    "ja": (
        *("お元気", "おはようございます。", "どうもありがとう", "また"),
        *("今から", "一緒に", "今日の天気は", "明日は"),
    ),
    "nl": (
        *("hoe gaat", "goedemorgen ,", "heel erg", "tot"),
        *("ik ga naar", "wil je", "het weer is", "hoe laat"),
    ),
    "pl": (
        *("jak się", "dzień dobry ,", "dziękuję bardzo za", "do"),
        *("idę do", "czy chcesz", "pogoda jest", "o której"),
    ),
    "pt": (
        *("como você", "bom dia ,", "muito obrigado por", "até"),
        *("eu vou para a", "você quer", "hoje o tempo está", "a que"),
    ),
    "ru": (
        *("как у тебя", "доброе утро ,", "большое спасибо за", "до"),
        *("я иду в", "ты хочешь", "погода сегодня", "во сколько"),
    ),
    "sv": (
        *("hur mår", "god morgon ,", "tack så", "vi ses"),
        *("jag ska gå till", "vill du", "vädret är", "vilken tid"),
    ),
    "zh": (
        *("你今天", "早上好，", "非常感谢", "我们明天"),
        *("我要", "你觉得", "今天天气", "现在"),
    ),
}
