"""Translators in folders, as `save_pretrained` leaves them."""

from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from translators import build


def save_translator(kind: str, folder: Path, **settings: Any) -> tuple[Any, Any]:
    """Save a model with its tokenizer and these generation settings besides its own, and return both."""
    model, tokenizer = build(kind)
    model.generation_config = GenerationConfig.from_model_config(model.config)
    model.generation_config.update(**settings)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer
