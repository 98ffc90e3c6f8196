from itertools import product

import pytest

from hf_vanilla_transformer.text.spelling import MAX_WORDS, MIN_COUNT, TYPO_RATIO, Lexicon, lexicon_of

LEXICON = Lexicon(frozenset("the people running over does with form from Tom".split()), frozenset(["dose"]))


@pytest.mark.parametrize(
    "typed, corrected",
    [
        ("teh", "the"), ("poeple", "people"), ("epople", "people"), ("runing", "running"), ("runnning", "running"),
        ("peoplle", "people"), ("ovre", "over"), ("wiht", "with"), ("Tmo", "Tom"),
        # Words, lookalikes, capitals, other letters, and words that are short or not of letters.
        *((word, word) for word in ("form", "dose", "Teh", "tmo", "POEPLE", "peopla", "ht", "wi'ht", "w1ht", "")),
        ("fomr", "form"), ("fform", "form"), ("froom", "from"),
    ],
)  # fmt: skip  # one a line would say no more
def test_typos(typed, corrected):
    assert LEXICON.correct(typed) == corrected


def test_typos_of_two_words_stay():
    assert Lexicon(frozenset(["trial", "trails"]), frozenset()).correct("triasl") == "triasl"
    assert Lexicon(frozenset(["abcd", "bacde"]), frozenset()).correct("bacd") == "abcd"
    assert Lexicon(frozenset(["abdc", "bacd"]), frozenset()).correct("abcd") == "abcd"


def test_lexicon_of_a_text():
    """Of 2,000 words."""
    others = ["z{}y{}x{}".format(*letters) for letters in product("abcdefghijklm", repeat=3)][: MAX_WORDS - 4]
    sentences = [*["Brian does it for people."] * TYPO_RATIO, *[" ".join(others)] * MIN_COUNT]
    lexicon = lexicon_of([*sentences, "a dose", "fro poeple", "brian", "people"])
    assert lexicon.words == {"Brian", "does", "for", "people", *others}
    # "people" is more than a thousand times as frequent as "poeple".
    assert lexicon.lookalikes == {"dose", "fro"}


def test_symbols_have_no_typos():
    strings = [" ".join(map("".join, product("abc", repeat=5)))]
    assert lexicon_of(strings * MIN_COUNT) == Lexicon(frozenset(), frozenset())
