"""Strategies and checks for the fuzz tests."""

from typing import Any

from hypothesis import strategies as st

# Characters that end lines or words in some programs, spell markup or special tokens, or combine with others.
AWKWARD = [
    "\t", "\r", "\v", "\f", "\0", "\x1c", "\x85", "\xa0", "\u2028", "\u2029", "\u2581", "\ufeff", "\ufffd",
    "\U0010ffff", "e\u0301", "\u200d", "\u202e", "İ", "ß", "ﬁ", "漢", "🙂", "'", '"', ",", "\\", "{", "[", "#", "Ġ",
    "</s>", "<pad>", "<s>", "<unk>", "<", " ",
]  # fmt: skip  # one character a line would fill the screen


def texts(without: str = "", max_size: int = 8) -> st.SearchStrategy[str]:
    """Texts of common and awkward characters, without line feeds and the characters in `without`."""
    excluded = "\n" + without
    awkward = [each for each in AWKWARD if not set(each) & set(excluded)]
    characters = st.characters(exclude_categories=["Cs"], exclude_characters=excluded)
    return st.lists(st.one_of(st.sampled_from("ab c."), st.sampled_from(awkward), characters), max_size=max_size).map(
        "".join
    )


def one_line(error: BaseException) -> str:
    """Return an error's message after checking that it is one line of reasonable length."""
    message = str(error)
    assert message and "\n" not in message and len(message) < 2000, message
    return message


# Any value of a JSON file.
JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 40),
        st.integers(),
        st.floats(),
        st.text(max_size=6),
        st.sampled_from(["8", "0.1", "relu", "post", "learned", "10" * 40, 10**20, -(10**20), 1e308]),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=4,
)
