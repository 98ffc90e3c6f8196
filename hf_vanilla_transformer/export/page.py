"""Export to a page that translates in the visitor's browser, with no server but one for static files."""

import html
import json
import shutil
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from huggingface_hub import SpaceCardData
from transformers import PreTrainedTokenizerBase

from ..pretrained.cards import base_models, card_examples
from ..pretrained.languages import has_tags, language_pairs
from ..pretrained.text_facts import facts_of
from .transformers_js import write_transformers_js

# The library, and its runtime in WebAssembly, within node_modules.
LIBRARY_FILES = (
    "@huggingface/transformers/dist/transformers.web.min.js",
    "onnxruntime-web/dist/ort.wasm.bundle.min.mjs",
    "onnxruntime-web/dist/ort-wasm-simd-threaded.wasm",
)

README = """---
{card}
---

# {title}

A page that translates in the visitor's browser. Any server of static files shows it:

```sh
python -m http.server --directory .
```
"""


def write_page(
    model: Any,
    folder: Path,
    tokenizer: PreTrainedTokenizerBase | None,
    quantization: str = "int8",
    node_modules: str | Path = "node_modules",
    **options: Any,
) -> None:
    """Write a page with its model and its library: a static Space, or a folder for any server of static files.

    Args:
        model: A `VanillaTransformerForConditionalGeneration`; it is not modified.
        folder: An empty folder.
        tokenizer: Tokenizer of the model.
        quantization: Weight type, "int8" or "float32".
        node_modules: Folder into which npm installed `@huggingface/transformers`.
        **options: Arguments of `write_onnx`.

    Raises:
        ValueError: The library is not installed, or as `write_transformers_js` does.
    """
    library = [Path(node_modules, name) for name in LIBRARY_FILES]
    if missing := [str(file) for file in library if not file.is_file()]:
        raise ValueError(
            f"the page needs transformers.js, but there is no {missing[0]}; run `npm install --ignore-scripts "
            "@huggingface/transformers`, and name its folder as `node_modules` if it is elsewhere"
        )
    (folder / "model").mkdir()
    write_transformers_js(model, folder / "model", tokenizer, quantization, **options)
    (folder / "lib").mkdir()
    for file in library:
        shutil.copyfile(file, folder / "lib" / file.name)
    title = Path(str(model.name_or_path)).name or "Translate"
    settings = json.dumps(_settings(model, tokenizer), ensure_ascii=False).replace("<", "\\u003c")
    page = Template(files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    text = page.substitute(title=html.escape(title), settings=settings)
    (folder / "index.html").write_text(text, encoding="utf-8")
    models = base_models([model.name_or_path]) or None
    card = SpaceCardData(title=title, emoji="🔤", colorFrom="blue", colorTo="indigo", sdk="static", models=models)
    (folder / "README.md").write_text(README.format(card=card.to_yaml(), title=title), encoding="utf-8")


def _settings(model: Any, tokenizer: Any) -> dict[str, Any]:
    """Return what the page's program reads."""
    features = tokenizer.init_kwargs.get("feature_columns")
    # Tags of several columns are typed into one field.
    separator = tokenizer.init_kwargs.get("feature_separator") or (";" if features and features > 1 else None)
    example, *cells = (next((example.text for example in card_examples(model)), "")).split("\t")
    return {
        "isMultilingual": has_tags(tokenizer),
        "directions": language_pairs(tokenizer),
        "cutsSentences": "sentences" in facts_of(model.generation_config, tokenizer).active,
        "hasTags": bool(features),
        "tagSeparator": separator,
        "example": example,
        "exampleTags": (separator or " ").join(cells),
    }
