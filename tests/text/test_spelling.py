from itertools import product

from hf_vanilla_transformer.text.spelling import MAX_WORDS, MIN_COUNT, TYPO_RATIO, Lexicon, lexicon_of
from tables import looped

LEXICON = Lexicon(frozenset("the people running over does with form from Tom".split()), frozenset(["dose"]))


@looped(
    "typed, corrected",
    [
        ("teh", "the"), ("poeple", "people"), ("epople", "people"), ("runing", "running"), ("runnning", "running"),
        ("peoplle", "people"), ("ovre", "over"), ("wiht", "with"), ("Tmo", "Tom"),
        # Words, lookalikes, capitals, other letters, and words that are short or not of letters.
        *((word, word) for word in ("form", "dose", "Teh", "tmo", "POEPLE", "peopla", "ht", "wi'ht", "w1ht", "")),
        ("fomr", "form"), ("fform", "form"), ("froom", "from"),
        # Words that are known in another case.
        ("Dose", "Dose"), ("Form", "Form"), ("tom", "tom"),
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
    # "Cast" does not occur, but "cast" does.
    words = ["Cats are"] * MIN_COUNT
    assert lexicon_of(words).correct("Cast") == "Cats" and lexicon_of([*words, "a cast"]).correct("Cast") == "Cast"


def test_other_forms_of_letters_make_no_words():
    """Training text may be decomposed."""
    assert lexicon_of(["Ma\u0308dchen"] * MIN_COUNT).words == {"M\u00e4dchen"}


def test_long_words_take_no_time():
    text = "ab" * 100_000
    assert LEXICON.correct(text) == text and not lexicon_of([text] * MIN_COUNT).words


def test_symbols_have_no_typos():
    strings = [" ".join(map("".join, product("abc", repeat=5)))]
    assert lexicon_of(strings * MIN_COUNT) == Lexicon(frozenset(), frozenset())
