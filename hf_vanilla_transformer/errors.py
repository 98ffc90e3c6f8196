"""Errors in user input, and helpers for error messages."""

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
# Shorter values are not secrets and occur in ordinary words.
_MIN_SECRET = 8

# Secrets recognized by form: a JSON entry, a Hub token, credentials or a parameter in a URL.
_SECRET_ENTRY = re.compile(rf'("{_SECRET_NAME}"\s*:\s*)"[^"]*"', re.IGNORECASE)
HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}")
_SECRET_FORMS = re.compile(
    rf"{HUB_TOKEN.pattern}|(?:(?<=://)|(?<=:/))[^/\s]+(?=@)|(?<=[?&]){_SECRET_NAME}=[^&\s]+", re.IGNORECASE
)

# Maximum characters of a message: room for a file path, a value and a remedy.
MAX_MESSAGE = 1000


class DataError(ValueError):
    """The data or the arguments that name it are unusable; the message is one line and includes a remedy."""


def one_line(error: BaseException) -> str:
    """Return an error's message on one line, shortened if very long, or the name of its type if it has none.

    A final period is removed, as a remedy may follow.
    """
    text = " ".join(str(error).split())
    return shorten(text if text.endswith("..") else text.removesuffix(".")) or type(error).__name__


def shorten(text: str, limit: int = MAX_MESSAGE) -> str:
    """Cut the middle out of a text longer than `limit` characters, keeping the end, which may be a remedy."""
    if len(text) <= limit:
        return text
    end = limit // 3
    return f"{text[: limit - end]} [...] {text[-end:]}"


@contextmanager
def as_value_errors(what: str) -> Iterator[None]:
    """Turn any error into a one-line ValueError prefixed with `what`: damaged files raise errors of many kinds."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    # A panic in the tokenizers library is not an Exception.
    except BaseException as error:
        raise ValueError(f"{what}{one_line(error)}") from error


@contextmanager
def unknown_words(tokenizer: Any, sources: Iterable[str], targets: Iterable[str] = ()) -> Iterator[None]:
    """If a tokenizer without an unknown token rejects a word, raise a ValueError that quotes the first such text."""
    try:
        yield
    except Exception as error:
        # The tokenizers library raises plain Exceptions.
        if type(error) is not Exception:
            raise
        sides = {"text": sources, "text_target": targets}
        refused = (text for side, texts in sides.items() for text in texts if _refuses(tokenizer, side, text))
        raise ValueError(
            f"{shorten(repr(next(refused, '')), 200)} has a word outside the vocabulary, and the tokenizer has no "
            f"unknown token ({one_line(error)}); add an `unk_token` to the tokenizer, or change the text"
        ) from error


def _refuses(tokenizer: Any, side: str, text: str) -> bool:
    try:
        tokenizer(**{side: text})
    except Exception:
        return True
    return False


def not_downloaded(error: URLError) -> str:
    """Return "cannot be downloaded", the server's answer or else the reason, and a remedy."""
    answer = f"{error.code} {error.reason} from {urlsplit(error.url).netloc}" if isinstance(error, HTTPError) else ""
    remedy = "try again later" if answer else "run the command once while online"
    return f"cannot be downloaded ({answer or error.reason}); {remedy}"


@contextmanager
def short_errors() -> Iterator[None]:
    """Shorten to one line the message of a ValueError that quotes long or multi-line values."""
    try:
        yield
    except ValueError as error:
        if (message := one_line(error)) == str(error):
            raise
        raise ValueError(message) from error


def lone_surrogate(text: str) -> str | None:
    """Describe the first lone surrogate, which cannot be encoded, by code point and position, or return None."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"a lone surrogate, U+{ord(text[error.start]):04X}, at position {error.start}"
    return None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the known name closest to `name`, ignoring case, or "" if none is close."""
    by_lower = {choice.lower(): choice for choice in known}
    near = get_close_matches(name.lower(), by_lower, n=1)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""


def without_secrets(words: Sequence[str], secret: str | None = None) -> list[str]:
    """Mask the values of options such as `--hub_token` in a command line, and `secret` anywhere."""
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
    """Mask secrets: the given ones, environment variables such as HF_TOKEN, Hub tokens, and credentials in URLs."""
    named = [value for name, value in os.environ.items() if _SECRET_VARIABLE.fullmatch(name)]
    known = {value for value in (*secrets, *named) if value and (value in secrets or len(value) >= _MIN_SECRET)}
    # Longest first: one may contain another.
    for value in sorted(known, key=len, reverse=True):
        text = text.replace(value, "<secret>")
    return _SECRET_FORMS.sub("<secret>", text)
