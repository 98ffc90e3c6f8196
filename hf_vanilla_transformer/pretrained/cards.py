"""Model cards: their example sentences, and the cards of models made from other models."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from huggingface_hub import ModelCardData, metadata_load, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

MAX_EXAMPLES = 5

CARD = "README.md"

# The Hub shows a code example by library and task. That of transformers asks for a version before 5 to translate, so
# models have a library of their own, and the code example is in their card.
LIBRARY = "hf_vanilla_transformer"

# How to use a sequence-to-sequence model of this package.
USE = """```python
import hf_vanilla_transformer  # registers the model with the Auto classes
from transformers import pipeline

translate = pipeline("translation", model="$model")
print(translate("..."))
```
"""

# The same of an encoder.
USE_ENCODER = """```python
import hf_vanilla_transformer  # registers the model with the Auto classes
from transformers import AutoModelForTextEncoding

encoder = AutoModelForTextEncoding.from_pretrained("$model")
```
"""

# Metadata that a model has from the models that it is made from, if they agree.
_INHERITED = ("language", "license", "license_name", "license_link", "datasets", "pipeline_tag")

_DERIVED = """---
{metadata}
---

# {title}

{made}.

## Use

{use}"""

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
    text, metadata = _read(str(getattr(model, "folder", "") or getattr(model, "name_or_path", "")))
    widget = metadata.get("widget")
    entries = [entry.get("text") for entry in widget if isinstance(entry, dict)] if isinstance(widget, list) else []
    examples = [Example(entry) for entry in entries if isinstance(entry, str)]
    examples = examples or [Example(match[3], match[1], match[2]) for match in SAMPLE.finditer(text)]
    stripped = (example._replace(text=example.text.strip(" \n")) for example in examples)
    return list(dict.fromkeys(example for example in stripped if example.text))[:MAX_EXAMPLES]


def base_models(names: Iterable[str | Path]) -> list[str]:
    """Return names on the Hub: of these models, or for a folder, of the base models that its card names."""
    found: list[str] = []
    for name in map(str, names):
        bases = _read(name)[1].get("base_model") or [] if Path(name).exists() else name
        found += [bases] if isinstance(bases, str) else bases
    return list(dict.fromkeys(found))


def write_derived_card(
    folder: Path,
    title: str,
    made: str,
    sources: Sequence[str | Path],
    use: str,
    library: str = LIBRARY,
    relation: str | None = None,
) -> None:
    """Write the card of a model made from others, with the metadata that their cards agree on.

    Args:
        folder: Folder of the model.
        title: Name of the model.
        made: How it was made, a sentence in which `$sources` stands for the names of the other models.
        sources: The other models: folders, files, or names on the Hub, whose cards are read only from its cache.
        use: Markdown, in which `$model` stands for the model's name.
        library: Library that loads the model.
        relation: The Hub's `base_model_relation`, such as "quantized"; by default it is the Hub's guess.
    """
    first, *others = [_read(str(source))[1] for source in sources] or [{}]
    shared = {
        field: first[field]
        for field in _INHERITED
        if field in first and all(card.get(field) == first[field] for card in others)
    }
    bases = base_models(sources)
    metadata = ModelCardData(
        **shared,
        library_name=library,
        base_model=bases if len(bases) > 1 else next(iter(bases), None),
        base_model_relation=relation if bases else None,
    )
    text = _DERIVED.format(
        metadata=metadata.to_yaml(),
        title=title,
        made=Template(made).substitute(sources=", ".join(map(_link, sources))),
        use=Template(use).substitute(model=title),
    )
    Path(folder, CARD).write_text(text, encoding="utf-8")


def _link(source: str | Path) -> str:
    return f"`{Path(source).name}`" if Path(source).exists() else f"[{source}](https://huggingface.co/{source})"


def _read(name: str) -> tuple[str, dict[str, Any]]:
    """Return text and metadata of a model's card; both are empty without a readable card on this machine."""
    path = _card(name)
    if path is None:
        return "", {}
    try:
        text, metadata = path.read_text(encoding="utf-8"), metadata_load(path)
    # The card may be arbitrarily malformed.
    except Exception:
        return "", {}
    return text, metadata if isinstance(metadata, dict) else {}


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
