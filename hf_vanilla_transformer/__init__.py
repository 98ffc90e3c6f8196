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

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .modeling_vanilla_transformer import (
    VanillaTransformerDecoder,
    VanillaTransformerEncoder,
    VanillaTransformerEncoderModel,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerModel,
    VanillaTransformerPreTrainedModel,
)
from .pipeline import TranslationPipeline
from .pipeline import register as _register_pipeline
from .presets import PRESETS, preset_config
from .scoring import Score, score
from .tokenization_vanilla_transformer import VanillaTransformerTokenizer, train_tokenizer

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
