"""The code that `push_to_hub` uploads with a model, so that `trust_remote_code=True` loads it without this package.

Only uploads carry code; `save_pretrained` and training checkpoints do not.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

MODEL_TYPE = "vanilla_transformer"

# `auto_map` of config.json: the class that each Auto class loads, as `module.class`.
MODEL_AUTO_MAP = {
    "AutoConfig": "configuration_vanilla_transformer.VanillaTransformerConfig",
    "AutoModel": "modeling_vanilla_transformer.VanillaTransformerModel",
    "AutoModelForSeq2SeqLM": "modeling_vanilla_transformer.VanillaTransformerForConditionalGeneration",
    "AutoModelForSequenceClassification": "modeling_vanilla_transformer.VanillaTransformerForSequenceClassification",
    "AutoModelForTextEncoding": "modeling_vanilla_transformer.VanillaTransformerEncoderModel",
}

# Tokenizer classes that tokenizer_config.json may name, and their modules.
TOKENIZERS = {
    "VanillaTransformerMultilingualTokenizer": "multilingual_vanilla_transformer",
    "VanillaTransformerSharedTokenizer": "tokenization_vanilla_transformer",
    "VanillaTransformerTokenizer": "tokenization_vanilla_transformer",
}


def code_files() -> list[Path]:
    """Return the files to upload."""
    return sorted(Path(__file__).parent.glob("*_vanilla_transformer.py"))


def with_auto_map(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings in config.json or tokenizer_config.json with our `auto_map`, those in others unchanged."""
    if name == "config.json" and settings.get("model_type") == MODEL_TYPE:
        encoder = MODEL_AUTO_MAP["AutoModelForTextEncoding"]
        is_encoder = settings.get("architectures") == [encoder.rpartition(".")[2]]
        return settings | {"auto_map": MODEL_AUTO_MAP | ({"AutoModel": encoder} if is_encoder else {})}
    if name == "tokenizer_config.json" and (tokenizer := settings.get("tokenizer_class")) in TOKENIZERS:
        # Slow and fast tokenizer.
        return settings | {"auto_map": {"AutoTokenizer": [None, f"{TOKENIZERS[tokenizer]}.{tokenizer}"]}}
    return settings


def add_code(folder: str | os.PathLike[str]) -> None:
    """Copy the code into a saved folder and add `auto_map` to the configuration files there."""
    for file in code_files():
        shutil.copyfile(file, Path(folder) / file.name)
    for name in ("config.json", "tokenizer_config.json"):
        path = Path(folder) / name
        if path.is_file():
            settings = with_auto_map(name, json.loads(path.read_text(encoding="utf-8")))
            path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


class HubCodeMixin:
    """Uploads the code with every `push_to_hub` of a configuration, model or tokenizer."""

    def _upload_modified_files(self, working_dir: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
        add_code(working_dir)
        base: Any = super()
        return base._upload_modified_files(working_dir, *args, **kwargs)
