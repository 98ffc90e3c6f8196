"""Registration with transformers' Auto classes and pipelines."""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTextEncoding,
    AutoTokenizer,
)

from .inference.pipeline import register as register_pipeline
from .model.configuration_vanilla_transformer import VanillaTransformerConfig
from .model.modeling_vanilla_transformer import (
    VanillaTransformerEncoderModel,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerModel,
)
from .model.multilingual_vanilla_transformer import VanillaTransformerMultilingualTokenizer
from .model.pretrained_vanilla_transformer import POST_INIT_HOOKS
from .model.tokenization_vanilla_transformer import VanillaTransformerSharedTokenizer, VanillaTransformerTokenizer


@cache
def register() -> None:
    """Register configuration, models, tokenizers and the translation pipeline; later calls do nothing."""
    AutoConfig.register(VanillaTransformerConfig.model_type, VanillaTransformerConfig)
    # Checkpoints of the encoder alone load as such, all others as the first class.
    auto_models: Any = (VanillaTransformerModel, VanillaTransformerEncoderModel)
    AutoModel.register(VanillaTransformerConfig, auto_models)
    AutoModelForSeq2SeqLM.register(VanillaTransformerConfig, VanillaTransformerForConditionalGeneration)
    AutoModelForSequenceClassification.register(VanillaTransformerConfig, VanillaTransformerForSequenceClassification)
    AutoModelForTextEncoding.register(VanillaTransformerConfig, VanillaTransformerEncoderModel)
    # The last one becomes the configuration's tokenizer class; the others are found by name.
    tokenizers = (
        VanillaTransformerMultilingualTokenizer,
        VanillaTransformerSharedTokenizer,
        VanillaTransformerTokenizer,
    )
    for tokenizer_class in tokenizers:
        AutoTokenizer.register(VanillaTransformerConfig, fast_tokenizer_class=tokenizer_class, exist_ok=True)
    register_pipeline()
    # The fast package may be deleted: models are then plain.
    if find_spec(f"{__package__}.fast"):
        POST_INIT_HOOKS.append(import_module(".fast", __package__).accelerate)
