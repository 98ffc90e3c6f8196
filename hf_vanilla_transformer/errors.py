"""Errors in the user's input, and helpers for their messages."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

_SECRET_NAME = r"(?:[\w-]*[_-])?(?:token|key|password|secret)"
SECRET_OPTION = re.compile(rf"--?{_SECRET_NAME}", re.IGNORECASE)
_SECRET_VARIABLE = re.compile(_SECRET_NAME, re.IGNORECASE)
# Shorter values are no secrets, and occur in ordinary words.
_MIN_SECRET = 8

# Secrets by their form: a JSON entry, a token of the Hub, user and password or a parameter in a URL.
_SECRET_ENTRY = re.compile(rf'("{_SECRET_NAME}"\s*:\s*)"[^"]*"', re.IGNORECASE)
HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}")
_SECRET_FORMS = re.compile(
    rf"{HUB_TOKEN.pattern}|(?:(?<=://)|(?<=:/))[^/\s]+(?=@)|(?<=[?&]){_SECRET_NAME}=[^&\s]+", re.IGNORECASE
)

# Characters of a message: room for the path of a file, a value and a remedy.
MAX_MESSAGE = 1000


class DataError(ValueError):
    """The data, or the arguments that name it, cannot be used; the message is one line and names a remedy."""


def one_line(error: BaseException) -> str:
    """Return the message of an error on one line, cut if it is very long, or the name of its type if it has none.

    Without the period of libraries that end messages in one: a remedy may follow.
    """
    text = " ".join(str(error).split())
    return shorten(text if text.endswith("..") else text.removesuffix(".")) or type(error).__name__


def shorten(text: str, limit: int = MAX_MESSAGE) -> str:
    """Return the text with its middle left out if it is longer than `limit` characters: its end may be a remedy."""
    if len(text) <= limit:
        return text
    end = limit // 3
    return f"{text[: limit - end]} [...] {text[-end:]}"


@contextmanager
def as_value_errors(what: str) -> Iterator[None]:
    """Turn any error into a ValueError of one line after `what`: damaged files raise errors of many kinds."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    # A panic of the tokenizers library is no Exception.
    except BaseException as error:
        raise ValueError(f"{what}{one_line(error)}") from error


@contextmanager
def unknown_words(tokenizer: Any, sources: Iterable[str], targets: Iterable[str] = ()) -> Iterator[None]:
    """Name the first text with a word that a tokenizer without an unknown token refuses, as a ValueError."""
    try:
        yield
    except Exception as error:
        # The tokenizers library has no class of its own.
        if type(error) is not Exception:
            raise
        sides = {"text": sources, "text_target": targets}
        refused = (text for side, texts in sides.items() for text in texts if _refuses(tokenizer, side, text))
        raise ValueError(
            f"{shorten(repr(next(refused, '')), 200)} has a word that the tokenizer does not know, and it has no "
            f"unknown token ({one_line(error)}); add an `unk_token` to the tokenizer, or change the text"
        ) from error


def _refuses(tokenizer: Any, side: str, text: str) -> bool:
    try:
        tokenizer(**{side: text})
    except Exception:
        return True
    return False


def not_downloaded(error: URLError) -> str:
    """Return "cannot be downloaded", why, and a remedy; the server's answer where there is one."""
    answer = f"{error.code} {error.reason} from {urlsplit(error.url).netloc}" if isinstance(error, HTTPError) else ""
    remedy = "try again later" if answer else "run the command once while online"
    return f"cannot be downloaded ({answer or error.reason}); {remedy}"


@contextmanager
def short_errors() -> Iterator[None]:
    """Cut the message of a ValueError that quotes long values, or text of several lines."""
    try:
        yield
    except ValueError as error:
        if (message := one_line(error)) == str(error):
            raise
        raise ValueError(message) from error


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
    """Replace the values of options such as `--hub_token` in a command line, and `secret` wherever it occurs."""
    hidden, secret_follows = [], False
    for word in words:
        option, equals, _ = word.partition("=")
        named = SECRET_OPTION.fullmatch(option) is not None
        secret_follows = secret_follows and not option.startswith("--")
        if secret_follows or (named and equals) or (secret and secret in word):
            word = f"{option}=<secret>" if equals and option.startswith("--") else "<secret>"
        hidden.append(_SECRET_ENTRY.sub(r'\1"<secret>"', word))
        secret_follows = secret_follows or (named and not equals)
    return hidden


def redacted(text: str, *secrets: str | None) -> str:
    """Replace secrets: these, values of variables such as HF_TOKEN, tokens of the Hub, and what a URL logs in with."""
    named = [value for name, value in os.environ.items() if _SECRET_VARIABLE.fullmatch(name)]
    known = {value for value in (*secrets, *named) if value and (value in secrets or len(value) >= _MIN_SECRET)}
    # The longest first: one may be a part of another.
    for value in sorted(known, key=len, reverse=True):
        text = text.replace(value, "<secret>")
    return _SECRET_FORMS.sub("<secret>", text)
