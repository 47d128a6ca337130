"""Stems of English words for ROUGE: Porter's algorithm as in NLTK.

M. F. Porter, "An algorithm for suffix stripping", Program 14.3, 1980, with the departures that NLTK's `PorterStemmer` makes
by default: a few words of their own, `-ied`, `-alli`, `-fulli`, `-bli`, `-logi`, a short word keeps its `e`, and `y` becomes
`i` only behind a consonant.
"""

from __future__ import annotations

from collections.abc import Callable

IRREGULAR = {
    **dict.fromkeys(("sky", "skies"), "sky"),
    **{"dying": "die", "lying": "lie", "tying": "tie"},
    **dict.fromkeys(("inning", "innings"), "inning"),
    **dict.fromkeys(("outing", "outings"), "outing"),
    **dict.fromkeys(("canning", "cannings"), "canning"),
    **{word: word for word in ("news", "howe", "proceed", "exceed", "succeed")},
}
DOUBLE = (  # step 2: two suffixes in one
    *(("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("bli", "ble")),
    *(("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous"), ("ization", "ize"), ("ation", "ate"), ("ator", "ate")),
    *(("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"), ("iviti", "ive")),
    *(("biliti", "ble"), ("fulli", "ful")),
)
SINGLE = (  # step 3
    *(("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", "")),
)
LAST = (  # step 4
    *("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate", "iti", "ous"),
    *("ive", "ize"),
)


def stem(word: str) -> str:
    """The stem of a word in lower case. Takes time linear in its length."""
    if word in IRREGULAR:
        return IRREGULAR[word]
    if len(word) <= 2:
        return word
    word = _y(_past(_plural(word)))
    word = _ending(_suffix(_double(word), SINGLE, lambda rest: measure(rest) > 0))
    return _final(word)


def measure(text: str) -> int:
    """How often a vowel is followed by a consonant: Porter's m."""
    return shape(text).count("vc")


def shape(text: str) -> str:
    """A `v` for each vowel and a `c` for each consonant; `y` is a vowel behind a consonant."""
    kinds: list[str] = []
    for sign in text:
        vowel = sign in "aeiou" or (sign == "y" and bool(kinds) and kinds[-1] == "c")
        kinds.append("v" if vowel else "c")
    return "".join(kinds)


def _plural(word: str) -> str:
    if word.endswith("ies"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("sses"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past(word: str) -> str:
    """Without -ed and -ing, with the letter that they removed."""
    if word.endswith("ied"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("eed"):
        return word[:-1] if measure(word[:-3]) > 0 else word
    for suffix in ("ed", "ing"):
        rest = word.removesuffix(suffix)
        if rest != word and "v" in shape(rest):
            break
    else:
        return word
    if rest.endswith(("at", "bl", "iz")):
        return rest + "e"
    if _doubled(rest):
        return rest if rest[-1] in "lsz" else rest[:-1]
    return rest + "e" if measure(rest) == 1 and _short(rest) else rest


def _y(word: str) -> str:
    return word[:-1] + "i" if word.endswith("y") and len(word) > 2 and shape(word[:-1])[-1] == "c" else word


def _double(word: str) -> str:
    while word.endswith("alli") and measure(word[:-4]) > 0:
        word = word[:-2]
    if word.endswith("logi"):
        return word[:-1] if measure(word[:-3]) > 0 else word
    return _suffix(word, DOUBLE, lambda rest: measure(rest) > 0)


def _ending(word: str) -> str:
    return _suffix(word, tuple((suffix, "") for suffix in LAST), lambda rest: measure(rest) > 1, ion=True)


def _suffix(word: str, rules: tuple[tuple[str, str], ...], may: Callable[[str], bool], ion: bool = False) -> str:
    """The word after the first rule whose suffix it has; unchanged if that rule doesn't apply."""
    for suffix, other in rules:
        if word.endswith(suffix):
            rest = word[: -len(suffix)]
            behind = not (ion and suffix == "ion") or rest[-1:] in ("s", "t")
            return rest + other if behind and may(rest) else word
    return word


def _final(word: str) -> str:
    """Without a final e, and with one l for two, if the word is long enough."""
    if word.endswith("e"):
        rest = word[:-1]
        if measure(rest) > 1 or (measure(rest) == 1 and not _short(rest)):
            word = rest
    return word[:-1] if word.endswith("ll") and measure(word[:-1]) > 1 else word


def _doubled(text: str) -> bool:
    return len(text) > 1 and text[-1] == text[-2] and shape(text)[-1] == "c"


def _short(text: str) -> bool:
    """It ends with consonant, vowel, consonant, the last none of w, x, y; or is a vowel and a consonant."""
    kinds = shape(text)
    return kinds == "vc" or (kinds.endswith("cvc") and text[-1] not in "wxy")
