"""The code that travels with a shared model, so that who has not this package loads it with `trust_remote_code=True`.

Code goes along when something is pushed to the Hub, and only then: a checkpoint of a training run holds none.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

MODEL_TYPE = "vanilla_transformer"

# What each Auto class loads, as `module.class`: an entry of config.json.
MODEL_AUTO_MAP = {
    "AutoConfig": "configuration_vanilla_transformer.VanillaTransformerConfig",
    "AutoModel": "modeling_vanilla_transformer.VanillaTransformerModel",
    "AutoModelForSeq2SeqLM": "modeling_vanilla_transformer.VanillaTransformerForConditionalGeneration",
    "AutoModelForSequenceClassification": "modeling_vanilla_transformer.VanillaTransformerForSequenceClassification",
    "AutoModelForTextEncoding": "modeling_vanilla_transformer.VanillaTransformerEncoderModel",
}

# The same of tokenizer_config.json, for a slow and for a fast tokenizer.
TOKENIZER_AUTO_MAP = {"AutoTokenizer": [None, "tokenization_vanilla_transformer.VanillaTransformerTokenizer"]}

CODE_FILES = "*_vanilla_transformer.py"


def code_files() -> list[Path]:
    """Return the files that travel: this one, and those beside it with the same ending."""
    return sorted(Path(__file__).parent.glob(CODE_FILES))


def with_auto_map(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a file, with what the Auto classes are to load where that is a class of this package.

    Args:
        name: Name of the file.
        settings: What it holds.
    """
    if name == "config.json" and settings.get("model_type") == MODEL_TYPE:
        return settings | {"auto_map": MODEL_AUTO_MAP}
    if name == "tokenizer_config.json" and settings.get("tokenizer_class") == "VanillaTransformerTokenizer":
        return settings | {"auto_map": TOKENIZER_AUTO_MAP}
    return settings


def add_code(folder: str | os.PathLike[str]) -> None:
    """Put the code into a saved folder, and name it in the configuration files that are there."""
    for file in code_files():
        shutil.copyfile(file, Path(folder) / file.name)
    for name in ("config.json", "tokenizer_config.json"):
        path = Path(folder) / name
        if path.is_file():
            settings = with_auto_map(name, json.loads(path.read_text(encoding="utf-8")))
            path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


class HubCodeMixin:
    """Makes `push_to_hub` of a configuration, a model or a tokenizer take the code along."""

    def _upload_modified_files(self, working_dir: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
        """Add the code to what is about to be uploaded, then upload it."""
        add_code(working_dir)
        parent: Any = super()
        return parent._upload_modified_files(working_dir, *args, **kwargs)


__all__ = ["MODEL_TYPE", "HubCodeMixin", "add_code", "code_files", "with_auto_map"]
