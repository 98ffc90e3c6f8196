"""Ensembles: several models that decode as one, by the mean of their probabilities.

Shapes: B sources, N = B * k rows of k beams, S source length, P cached positions, T target length, V target
vocabulary, D sum of the members' widths.
"""

import copy
import json
import math
import os
from collections.abc import Iterator, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any, NoReturn, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput

from ..model.compat_vanilla_transformer import CACHE, cache_argument
from ..model.generation_vanilla_transformer import VanillaTransformerGenerationMixin
from ..model.pretrained_vanilla_transformer import run_post_init_hooks
from ..pretrained.languages import check_direction, only_pair
from ..pretrained.loading import has_tokenizer, load_model, load_tokenizer, tokenizer_sides
from ..pretrained.teacher_forcing import IdPair, decoder_layers, position_limit, start_token_id, tightest_limit
from .alignment import token_attention


class EnsembleEncoder(nn.Module):
    """The encoders of all members, with their states concatenated."""

    def __init__(self, encoders: Sequence[nn.Module]):
        super().__init__()
        # A tuple, so that they are not registered here: the members own their parameters.
        self.encoders = tuple(encoders)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> BaseModelOutput:
        """Encode `input_ids` (B, S) to (B, S, D); `attention_mask` (B, S) is 1 at tokens."""
        _refuse_inner_outputs(output_attentions, output_hidden_states)
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "return_dict": True}
        return BaseModelOutput(torch.cat([encoder(**inputs).last_hidden_state for encoder in self.encoders], -1))


class VanillaTransformerEnsemble(VanillaTransformerGenerationMixin, PreTrainedModel):
    """An ensemble of encoder-decoders, for `generate()`, `translate`, `score` and the pipeline.

    ```python
    ensemble = VanillaTransformerEnsemble.from_pretrained(["runs/seed-1", "runs/seed-2", "runs/seed-3"])
    ensemble.generate(**inputs, num_beams=5)
    ```

    The probability of the next token is the mean over the members. Members may differ in size and class, but not in
    vocabularies and special tokens. They are put into evaluation mode. Settings of `generate()` are those of the first
    member. The "logits" are logarithms of the mean probabilities: a setting that changes logits, such as a
    `repetition_penalty` without beams, changes these.

    Args:
        models: The members; a model may be in several ensembles.

    Raises:
        ValueError: There is no model, a model cannot generate, or they differ in vocabulary or special tokens.
    """

    def __init__(self, models: Sequence[PreTrainedModel]):
        names = [str(model.name_or_path) or f"number {number}" for number, model in enumerate(models, start=1)]
        _check_members(models, names)
        configs: list[Any] = [model.config for model in models]
        self._depths = [decoder_layers(config) for config in configs]
        self._widths = [config.hidden_size for config in configs]
        fields: dict[str, Any] = {
            "is_encoder_decoder": True,
            # One cache holds the layers of all members.
            "num_hidden_layers": sum(self._depths),
            "max_position_embeddings": tightest_limit(*map(position_limit, configs)),
            # Size of the target vocabulary, by which transformers splits flat indices into beam and token.
            "vocab_size": _rows(models[0].get_output_embeddings()),
            # For inferring the padding of sources.
            **{name: getattr(configs[0], name) for name in ("pad_token_id", "eos_token_id")},
            "members": [config.to_diff_dict() for config in configs],
        }
        super().__init__(PreTrainedConfig(**fields))
        self.members = nn.ModuleList(models)
        self.generation_config = copy.deepcopy(models[0].generation_config)
        # Whether each encoded source is passed once for all its hypotheses, which only these classes accept.
        self.shares_sources = all(isinstance(model, VanillaTransformerGenerationMixin) for model in models)
        self.eval()
        run_post_init_hooks(self)

    @classmethod
    def from_pretrained(  # type: ignore[override]  # of several models
        cls, names: Sequence[str | os.PathLike[str]], trust_remote_code: bool = False, **options: Any
    ) -> "VanillaTransformerEnsemble":
        """Load the members.

        Args:
            names: Folders of the models, or their names on the Hub.
            trust_remote_code: Whether to run Python code that comes with a model.
            **options: Further options of `from_pretrained`, such as `dtype`.

        Raises:
            ValueError: A model cannot be loaded, or the models are incompatible. Vocabularies are compared if
                tokenizers are saved with the models.
        """
        if isinstance(names, str | os.PathLike):
            raise ValueError(f"`names` is {names}; pass a list of folders or Hub names")
        models = [load_model(name, trust_remote_code=trust_remote_code, **options) for name in names]
        _check_tokenizers([name for name in names if has_tokenizer(name)], trust_remote_code)
        return cls(models)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse to save an ensemble; its members are saved models."""
        raise ValueError("an ensemble cannot be saved; save each of its `members` in a folder of its own")

    def get_encoder(self, modality: str | None = None) -> EnsembleEncoder:
        return EnsembleEncoder([cast(Any, member).get_encoder() for member in self.members])

    def get_input_embeddings(self) -> nn.Module:
        """Return the source embeddings of the first member."""
        return cast(Any, self.members[0]).get_input_embeddings()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Any, ...] | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        cache: Cache | None = None,
    ) -> Seq2SeqLMOutput:
        """Return log mean probabilities (N, T, V) of the next target token as logits, float32.

        Args:
            input_ids: Source tokens (B, S).
            attention_mask: 1 at source tokens, 0 at padding, (B, S).
            decoder_input_ids: Target tokens (N, T).
            decoder_attention_mask: 1 at target tokens, 0 at padding, (N, P + T).
            encoder_outputs: Output of `get_encoder()`, to skip running it.
            past_key_values: Keys and values of all members, from an earlier call.
            use_cache: Whether to return `past_key_values` (`cache` from transformers 5.24 on).
            output_attentions: Not supported: only the members have attentions.
            output_hidden_states: Not supported, likewise.
            return_dict: Ignored; the result is always a `Seq2SeqLMOutput`.
            cache: Name of `past_key_values` from transformers 5.24 on.

        Raises:
            ValueError: Attentions or hidden states are requested, or the inputs are inconsistent.
        """
        _refuse_inner_outputs(output_attentions, output_hidden_states)
        if encoder_outputs is None:
            encoder_outputs = self.get_encoder()(input_ids, attention_mask)
        cache = cache_argument(past_key_values, cache)
        if use_cache and cache is None:
            cache = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        log_probs = self._log_probs(
            encoder_outputs[0],
            cache,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            use_cache=use_cache,
        )
        outputs: dict[str, Any] = {CACHE: cache}
        # In log space, where small probabilities do not underflow.
        logits: Any = reduce(torch.logaddexp, log_probs) - math.log(len(self.members))
        return Seq2SeqLMOutput(logits=logits, encoder_last_hidden_state=encoder_outputs[0], **outputs)

    def alignment_weights(self, pairs: Sequence[IdPair]) -> Sequence[Tensor]:
        """Return the attention (T, S) from the target to the source tokens of each pair, by the first member."""
        return token_attention(cast(Any, self.members[0]))(pairs)

    def _log_probs(self, states: Tensor, cache: Any, **inputs: Any) -> Iterator[Tensor]:
        """Yield the log-probabilities (N, T, V) of each member, given the states (B, S, D) of all encoders."""
        member: Any
        own = zip(self.members, states.split(self._widths, -1), self._member_caches(cache), strict=True)
        for member, member_states, member_cache in own:
            encoded = BaseModelOutput(cast(Any, member_states.to(member.dtype)))
            outputs = member(encoder_outputs=encoded, return_dict=True, **{CACHE: member_cache}, **inputs)
            yield outputs.logits.log_softmax(-1, dtype=torch.float32)

    def _member_caches(self, cache: Any) -> Iterator[EncoderDecoderCache | None]:
        """Yield the cache of each member, a view of its layers in `cache`."""
        if cache is not None and len(cache) != sum(self._depths):
            raise ValueError(f"`{CACHE}` is not a cache of this ensemble; pass the one that its `forward` returned")
        edges = [sum(self._depths[:i]) for i in range(len(self._depths) + 1)]
        for first, end in pairwise(edges):
            yield None if cache is None else _select_layers(cache, slice(first, end))


def _select_layers(cache: EncoderDecoderCache, layers: slice) -> EncoderDecoderCache:
    parts = [copy.copy(part) for part in (cache.self_attention_cache, cache.cross_attention_cache)]
    for part in parts:
        part.layers = part.layers[layers]
    return EncoderDecoderCache(*parts)


def _refuse_inner_outputs(attentions: bool | None, hidden_states: bool | None) -> None:
    if attentions or hidden_states:
        name = "output_attentions" if attentions else "output_hidden_states"
        raise ValueError(f"`{name}` is set, but an ensemble has no such outputs; call one of its `members`")


def _check_members(models: Sequence[PreTrainedModel], names: Sequence[str]) -> None:
    """Raise a ValueError that names the first model that is incompatible with models[0]."""
    if not models:
        raise ValueError("an ensemble needs at least one model")
    expected: dict[str, Any] = {}
    for model, name in zip(models, names, strict=True):
        config: Any = model.config
        if not (config.is_encoder_decoder and model.can_generate() and hasattr(config, "hidden_size")):
            raise ValueError(
                f"model {name} is of class {type(model).__name__}; an ensemble takes encoder-decoders with "
                "`generate()` and a single configuration for encoder and decoder"
            )
        expected = expected or _properties(model)
        for what, value in _properties(model).items():
            if value != expected[what]:
                raise ValueError(
                    f"model {name} has {value} as its {what}, but model {names[0]} has {expected[what]}; an ensemble "
                    "needs models with equal vocabularies"
                )


def _properties(model: PreTrainedModel) -> dict[str, Any]:
    """Return the properties that the members must share."""
    settings: Any = model.generation_config
    return {
        "number of source tokens": _rows(model.get_input_embeddings()),
        "number of target tokens": _rows(model.get_output_embeddings()),
        "pad_token_id": settings.pad_token_id,
        "eos_token_id": settings.eos_token_id,
        "decoder_start_token_id": start_token_id(model),
        "language_ids": getattr(settings, "language_ids", None),
    }


def _rows(layer: Any) -> int | None:
    """Return the number of rows (tokens) of an embedding or output projection; None if a wrapper hides it."""
    return None if getattr(layer, "weight", None) is None else layer.weight.shape[0]


def _check_tokenizers(names: Sequence[str | os.PathLike[str]], trust_remote_code: bool) -> None:
    """Raise a ValueError that names the first model whose vocabulary or direction differs from names[0]."""
    tokenizers = [load_tokenizer(name, trust_remote_code) for name in names]
    rules = [_token_rules(tokenizer) for tokenizer in tokenizers]
    for name, tokenizer, own in zip(names, tokenizers, rules, strict=True):
        if own != rules[0]:
            raise ValueError(
                f"the vocabulary of model {name} differs from that of model {names[0]}; an ensemble needs models "
                "trained with the same tokenizer (`tokenizer_name_or_path`)"
            )
        check_direction(tokenizer, *only_pair(tokenizers[0]), f"model {name}")


def _token_rules(tokenizer: Any) -> list[Any]:
    """Return the languages, and for each side the rules of tokenization, or the vocabulary of a slow tokenizer."""
    rules: list[Any] = [getattr(tokenizer, "lang_code_to_id", None)]
    for side in tokenizer_sides(tokenizer):
        if side.is_fast:
            parts = json.loads(side.backend_tokenizer.to_str())
            rules.append([parts[name] for name in ("normalizer", "pre_tokenizer", "model")])
        else:
            rules.append(side.get_vocab())
    return rules
