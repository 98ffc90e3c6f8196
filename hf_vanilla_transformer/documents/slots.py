r"""Places of texts in a string: `\0`, a number, `\0`. A `\0` of the document itself is doubled."""

import re
from collections.abc import Callable

_SLOT = re.compile("\0(\\d*)\0")


def protect(text: str) -> str:
    """Return a text of which no part is a slot."""
    return text.replace("\0", "\0\0")


def unprotect(text: str) -> str:
    """Return the text that `protect` was given."""
    return text.replace("\0\0", "\0")


def slot(number: int) -> str:
    """Return the place of a text."""
    return f"\0{number}\0"


def resolve(text: str, fill: Callable[[int], str]) -> str:
    """Return a text with its slots filled, and those of what fills them."""
    return _SLOT.sub(lambda match: resolve(fill(int(match[1])), fill) if match[1] else "\0", text)
