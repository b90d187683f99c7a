"""Texts that tokenizers cut differently when a detail is wrong: the same ones for a seed."""

import random
from unicodedata import ucd_3_2_0

_PIECES = (
    *(" ", "  ", "\t", "\n", "\r\n", "\r", "\n\n\n", " \n ", "\u00a0", "\u2003", "\u3000", "\u200b"),
    *("\u2028", "\u0085"),
    *("a", "Z", "the", "The", "HELLO", "camelCase", "snake_case", "don't", "IT'S"),
    *("we’re", "'s", "'S", "'ll", "'", '"'),
    *("0", "7", "42", "123", "1234567890", "3.14", "1e-10", "½", "²", "٣٤٥", "१२३", "Ⅷ", "１２"),
    *("!", "?!", "...", "--", "//", "/*", "=>", "&&", "$", "€", "%", "#", "_", "("),
    *("]", "{}", "~", "`", "^", "|", "\\"),
    *("é", "e\u0301", "\u0301", "ñ", "ß", "ſ", "İ", "ı", "ﬁ", "Ångström"),
    *("\u0915\u094d\u0937", "\u0e01\u0e33", "ǅ", "ʰ"),
    *("你好", "，", "。", "世界人民", "こんにちは", "カタカナ", "ー", "안녕하세요", "\u1112\u1161\u11ab"),
    *("Привет", "ΣΑΣ", "ა", "مرحبا", "שלום", "\u202e", "\u200f", "שׁ", "ไทย", "தமிழ்"),
    *("🙂", "👍🏽", "👨\u200d👩\u200d👧", "🇩🇪", "❤️", "𝔘𝔫𝔦", "𠀀", "\U000e0041"),
    *("\x00", "\x01", "\x1b[0m", "\x7f", "\x9f", "\ufeff", "\ufffd", "\uffff"),
)
# The characters of Unicode 3.2, because libraries know different versions of Unicode.
_ASSIGNED = [character for character in map(chr, range(0x3000)) if ucd_3_2_0.category(character) != "Cn"]


def nasty_texts(seed: int, count: int = 500) -> list[str]:
    """Mixtures of scripts, digits, spaces, marks and controls, long runs of one of them, and characters at random."""
    choose = random.Random(seed)
    mixed = ["".join(choose.choices(_PIECES, k=choose.randrange(1, 25))) for _ in range(count * 3 // 5)]
    runs = [choose.choice(_PIECES) * choose.randrange(2, 40) + choose.choice(_PIECES) for _ in range(count // 5)]
    odd = ["".join(choose.choices(_ASSIGNED, k=20)) for _ in range(count - len(mixed) - len(runs))]
    return [*mixed, *runs, *odd]
