"""Example sentences from a model's card."""

import re
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import metadata_load, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

MAX_EXAMPLES = 5

CARD = "README.md"

# Format of sample pairs in the cards of this package.
SAMPLE = re.compile(r"^(?:direction: +(\S+) to (\S+)\n)?source: +(.+)$", re.MULTILINE)


class Example(NamedTuple):
    """A sentence to translate, and its languages if the card gives them."""

    text: str
    source_lang: str | None = None
    target_lang: str | None = None


def card_examples(model: Any) -> list[Example]:
    """Return example sentences from the card of a loaded model: its `widget` texts, or else its sample pairs.

    Nothing is downloaded; without a local card, the list is empty.
    """
    path = _card(str(getattr(model, "folder", "") or getattr(model, "name_or_path", "")))
    if path is None:
        return []
    try:
        text, metadata = path.read_text(encoding="utf-8"), metadata_load(path) or {}
    # The card may be arbitrarily malformed.
    except Exception:
        return []
    widget = metadata.get("widget")
    entries = [entry.get("text") for entry in widget if isinstance(entry, dict)] if isinstance(widget, list) else []
    examples = [Example(entry) for entry in entries if isinstance(entry, str)]
    examples = examples or [Example(match[3], match[1], match[2]) for match in SAMPLE.finditer(text)]
    stripped = (example._replace(text=example.text.strip(" \n")) for example in examples)
    return list(dict.fromkeys(example for example in stripped if example.text))[:MAX_EXAMPLES]


def _card(name: str) -> Path | None:
    """Return the path of a card in the model's folder or the Hub cache."""
    if not name:
        return None
    if Path(name).is_dir():
        return path if (path := Path(name, CARD)).is_file() else None
    try:
        cached = try_to_load_from_cache(name, CARD)
    except HFValidationError:
        return None
    return Path(cached) if isinstance(cached, str) else None
