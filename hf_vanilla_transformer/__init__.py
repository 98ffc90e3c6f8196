"""The Transformer of *Attention Is All You Need* as a Hugging Face model plugin.

Importing this package registers configuration, models and tokenizer with the Auto classes, and the translation
pipeline.
"""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
    AutoTokenizer,
)

from .inference.pipeline import TranslationPipeline
from .inference.pipeline import register as _register_pipeline
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
from .model.tokenization_vanilla_transformer import VanillaTransformerTokenizer, train_tokenizer
from .presets import PRESETS, preset_config

__version__ = "0.1.0"

AutoConfig.register(VanillaTransformerConfig.model_type, VanillaTransformerConfig)
AutoModel.register(VanillaTransformerConfig, VanillaTransformerModel)
AutoModelForSeq2SeqLM.register(VanillaTransformerConfig, VanillaTransformerForConditionalGeneration)
AutoModelForSequenceClassification.register(VanillaTransformerConfig, VanillaTransformerForSequenceClassification)
AutoModelForTextEncoding.register(VanillaTransformerConfig, VanillaTransformerEncoderModel)
AutoTokenizer.register(VanillaTransformerConfig, fast_tokenizer_class=VanillaTransformerTokenizer)
_register_pipeline()

__all__ = [
    "PRESETS",
    "Score",
    "TranslationPipeline",
    "VanillaTransformerConfig",
    "VanillaTransformerDecoder",
    "VanillaTransformerEncoder",
    "VanillaTransformerEncoderModel",
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerForSequenceClassification",
    "VanillaTransformerModel",
    "VanillaTransformerPreTrainedModel",
    "VanillaTransformerTokenizer",
    "preset_config",
    "score",
    "train_tokenizer",
]
