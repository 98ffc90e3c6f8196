"""Errors in the user's input, and helpers for their messages."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

SECRET_OPTION = re.compile(r"--?(.*[_-])?(token|key|password|secret)", re.IGNORECASE)


class DataError(ValueError):
    """The data, or the arguments that name it, cannot be used; the message is one line and names a remedy."""


def one_line(error: BaseException) -> str:
    """Return the message of an error on one line, or the name of its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def lone_surrogate(text: str) -> str | None:
    """Return code point and position of the first lone surrogate, which no encoding has, or None."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"a lone surrogate, U+{ord(text[error.start]):04X}, at position {error.start}"
    return None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the known name nearest to `name`, ignoring case; "" if none is near."""
    by_lower = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""


def without_secrets(words: Sequence[str], secret: str | None = None) -> list[str]:
    """Replace the values of options such as `--hub_token` by placeholders.

    Args:
        words: A command line.
        secret: A value to hide wherever it occurs, since options can be abbreviated.
    """
    hidden, secret_follows = [], False
    for word in words:
        option, equals, _ = word.partition("=")
        named = SECRET_OPTION.fullmatch(option) is not None
        secret_follows = secret_follows and not option.startswith("--")
        if secret_follows or (named and equals) or (secret and secret in word):
            word = f"{option}=<secret>" if equals and option.startswith("--") else "<secret>"
        hidden.append(word)
        secret_follows = secret_follows or (named and not equals)
    return hidden


__all__ = ["SECRET_OPTION", "DataError", "did_you_mean", "lone_surrogate", "one_line", "without_secrets"]
