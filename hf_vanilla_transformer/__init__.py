"""The Transformer of *Attention Is All You Need* as a Hugging Face model plugin.

Importing this package registers configuration, models and tokenizers with the Auto classes, and the translation
pipeline. This package's own commands defer that until they start work, so that their help appears at once.
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .data.tokenizer_training import train_tokenizer
    from .inference.ensemble import VanillaTransformerEnsemble
    from .inference.pipeline import TranslationPipeline
    from .inference.scoring import Score, score
    from .model.configuration_vanilla_transformer import VanillaTransformerConfig
    from .model.modeling_vanilla_transformer import (
        VanillaTransformerDecoder,
        VanillaTransformerEncoder,
        VanillaTransformerEncoderModel,
        VanillaTransformerForConditionalGeneration,
        VanillaTransformerForSequenceClassification,
        VanillaTransformerModel,
        VanillaTransformerPreTrainedModel,
    )
    from .model.multilingual_vanilla_transformer import VanillaTransformerMultilingualTokenizer
    from .model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
    from .presets import PRESETS, preset_config

__version__ = "0.1.0"

# Imported on first access; all other names are in `_MODELS`. The imports above mirror this for type checkers.
_MODULES = {
    "PRESETS": "presets",
    "Score": "inference.scoring",
    "TranslationPipeline": "inference.pipeline",
    "VanillaTransformerConfig": "model.configuration_vanilla_transformer",
    "VanillaTransformerEnsemble": "inference.ensemble",
    "VanillaTransformerMultilingualTokenizer": "model.multilingual_vanilla_transformer",
    "VanillaTransformerTokenizer": "model.tokenization_vanilla_transformer",
    "preset_config": "presets",
    "score": "inference.scoring",
    "train_tokenizer": "data.tokenizer_training",
}
_MODELS = "model.modeling_vanilla_transformer"


def _register() -> None:
    from .registration import register

    register()


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    _register()
    value = globals()[name] = getattr(import_module(f".{_MODULES.get(name, _MODELS)}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _is_command() -> bool:
    """Whether this process runs a command of this package. False if in doubt: that only slows a command's help."""
    program = (getattr(sys, "argv", None) or [""])[0]
    if program == "-m":
        # Python is still locating the module to run; its own options come first.
        words = sys.orig_argv
        return words[words.index("-m") + 1 :][:1] == [__name__] if "-m" in words else False
    if os.path.basename(program) in ("vanilla-transformer", "vanilla-transformer.exe"):
        # The script that pip installed next to Python, not another program of the same name.
        folders = (os.path.dirname(path) for path in (os.path.realpath(program), os.path.abspath(sys.executable)))
        return len({os.path.realpath(folder) for folder in folders}) == 1
    # The programs in scripts/ set this flag.
    return getattr(sys.modules.get("__main__"), "IS_VANILLA_TRANSFORMER_COMMAND", False)


if not _is_command():
    _register()

__all__ = [
    "PRESETS",
    "Score",
    "TranslationPipeline",
    "VanillaTransformerConfig",
    "VanillaTransformerDecoder",
    "VanillaTransformerEncoder",
    "VanillaTransformerEncoderModel",
    "VanillaTransformerEnsemble",
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerForSequenceClassification",
    "VanillaTransformerModel",
    "VanillaTransformerMultilingualTokenizer",
    "VanillaTransformerPreTrainedModel",
    "VanillaTransformerTokenizer",
    "preset_config",
    "score",
    "train_tokenizer",
]
