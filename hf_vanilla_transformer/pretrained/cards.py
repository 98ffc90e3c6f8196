"""Model cards: their example sentences, and the cards of models made from other models."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from huggingface_hub import ModelCard, ModelCardData, metadata_load, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

MAX_EXAMPLES = 5

CARD = "README.md"

# The Hub shows a code example by library and task. That of transformers asks for a version before 5 to translate, so
# models have a library of their own, and the code example is in their card.
LIBRARY = "hf_vanilla_transformer"

# Metadata that a model has from the models that it is made from, if they agree; each row stands or falls together.
_INHERITED = (("language",), ("license", "license_name", "license_link"), ("datasets",), ("pipeline_tag",))

_DERIVED = """---
{metadata}
---

# {title}

{made}.
"""

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
        found += _strings(_read(name)[1].get("base_model")) if Path(name).exists() else [name]
    return list(dict.fromkeys(found))


def add_base_models(card: str | Path, names: Iterable[str | Path]) -> None:
    """Name the models that a model learned from, such as its teachers, in the metadata of its card."""
    if bases := base_models(names):
        content = ModelCard.load(card)
        content.data["base_model"] = list(dict.fromkeys([*_strings(content.data.get("base_model")), *bases]))
        content.save(card)


def write_derived_card(
    folder: Path,
    title: str,
    made: str,
    sources: Sequence[str | Path],
    use: str | None,
    library: str = LIBRARY,
    relation: str | None = None,
) -> None:
    """Write the card of a model made from others, with the metadata that their cards agree on.

    Args:
        folder: Folder of the model.
        title: Name of the model.
        made: How it was made, a sentence in which `$sources` stands for the names of the other models.
        sources: The other models: folders, files, or names on the Hub, whose cards are read only from its cache.
        use: How to use it, Markdown; None if that is unknown.
        library: Library that loads the model.
        relation: The Hub's `base_model_relation` to the sources, such as "quantized"; by default the Hub guesses it.
    """
    bases = base_models(sources)
    metadata = ModelCardData(
        **_agreed([_read(str(source))[1] for source in sources]),
        library_name=library,
        base_model=bases if len(bases) > 1 else next(iter(bases), None),
        # Not that to the models that folders were made from.
        base_model_relation=relation if bases and bases == [*map(str, sources)] else None,
    )
    text = _DERIVED.format(
        metadata=metadata.to_yaml(),
        title=title,
        made=Template(made).substitute(sources=", ".join(map(_link, sources))),
    )
    Path(folder, CARD).write_text(text + (f"\n## Use\n\n{use}" if use else ""), encoding="utf-8")


def _agreed(cards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the metadata to inherit that all cards have in common."""
    if not cards:
        return {}
    first, *others = cards
    shared = {
        field: first.get(field)
        for fields in _INHERITED
        if all(card.get(field) == first.get(field) for field in fields for card in others)
        for field in fields
    }
    # A file is not inherited.
    if not str(shared.get("license_link")).startswith("http"):
        shared["license_link"] = None
    # YAML 1.1 takes Norwegian for a Boolean.
    if isinstance(languages := shared.get("language"), bool | list):
        languages = languages if isinstance(languages, list) else [languages]
        shared["language"] = ["no" if language is False else language for language in languages]
    return shared


def pipeline_use(title: str, direction: tuple[str, str] | None = None) -> str:
    """Return how to use a translation model of this package; `direction` is one of several that it translates."""
    languages = ", src_lang={!r}, tgt_lang={!r}".format(*direction) if direction else ""
    return f"""```python
import hf_vanilla_transformer  # registers the model with the Auto classes
from transformers import pipeline

translate = pipeline("translation", model={json.dumps(title, ensure_ascii=False)})
print(translate("..."{languages}))
```
"""


def encoder_use(title: str) -> str:
    """Return how to use an encoder of this package."""
    return f"""```python
import hf_vanilla_transformer  # registers the model with the Auto classes
from transformers import AutoModelForTextEncoding

encoder = AutoModelForTextEncoding.from_pretrained({json.dumps(title, ensure_ascii=False)})
```
"""


def _link(source: str | Path) -> str:
    return (
        f"`{Path(source).resolve().name}`" if Path(source).exists() else f"[{source}](https://huggingface.co/{source})"
    )


def _strings(value: Any) -> list[str]:
    """Return a field's strings, of which there may be one or a list."""
    return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)]


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
    if Path(name).exists():
        folder = Path(name) if Path(name).is_dir() else Path(name).parent
        return path if (path := folder / CARD).is_file() else None
    try:
        cached = try_to_load_from_cache(name, CARD)
    except HFValidationError:
        return None
    return Path(cached) if isinstance(cached, str) else None
