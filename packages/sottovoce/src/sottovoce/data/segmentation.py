"""Words in scripts without spaces, as ICU's dictionaries find them: Thai, Chinese, Japanese, Khmer, Lao, Burmese."""

from __future__ import annotations

import re
from functools import lru_cache

from sottovoce_evidence.errors import SottoError

# Thai and Lao, Burmese, Khmer, kana, Han.
WITHOUT_SPACES = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)

# On which a page checks that its browser cuts alike.
SAMPLES = {
    "ja": "私は毎日友達に手紙を書きます。今日は天気がいいですね。",
    "km": "ខ្ញុំសរសេរសំបុត្រទៅមិត្តភក្តិរាល់ថ្ងៃ",
    "lo": "ຂ້ອຍຂຽນຈົດໝາຍຫາໝູ່ທຸກມື້",
    "my": "ကျွန်တော်သည်နေ့တိုင်းသူငယ်ချင်းထံစာရေးသည်။",
    "th": "ฉันเขียนจดหมายถึงเพื่อนทุกวัน วันนี้อากาศดีมาก",
    "yue": "我每日都寫信畀朋友，今日天氣好好。",
    "zh": "我每天给朋友写信，今天天气很好。",
}


@lru_cache(2**16)
def segments(run: str) -> tuple[str, ...]:
    """The words of a run of letters. Alone, one of them may be cut otherwise: whoever needs words cuts them again."""
    return tuple(_breaker()(run, "root"))


def _breaker() -> type:
    try:
        from icu4py.breakers import WordBreaker
    except ImportError:
        raise SottoError(
            "words without spaces between them are found by ICU; `pip install 'sottovoce[segmentation]'`"
        ) from None
    return WordBreaker
