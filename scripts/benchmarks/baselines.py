"""Other implementations of the same model, at the same sizes and, where shapes allow, with the same weights.

Legend: B batch, S source length, T target length, d width, V vocabulary.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import BartConfig, BartForConditionalGeneration, MarianConfig, MarianMTModel

from hf_vanilla_transformer.conversion import Conversion, convert_checkpoint
from hf_vanilla_transformer.export.ctranslate2 import vocabularies, write_ctranslate2
from hf_vanilla_transformer.marian_fields import HEAD_FIELDS, MARIAN_FIELDS
from hf_vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.presets import preset_config

from .agreement import loss_and_gradients
from .ctranslate2_worker import ExportedModel, decode_in_worker
from .measure import OURS

# Marian and BART


def our_model(preset: str, **fields: Any) -> Any:
    """Build our model with Marian's sinusoid layout, so that it can share weights with Marian."""
    config = preset_config(preset, **{"sinusoidal_layout": "concatenated", **fields})
    return VanillaTransformerForConditionalGeneration(config)


def baseline_fields(config: VanillaTransformerConfig) -> dict[str, Any]:
    """Return the configuration fields of Marian and BART for these sizes; raises ValueError for other shapes."""
    if config.norm_position != "post" or config.final_layer_norm or config.position_embedding_type != "sinusoidal":
        raise ValueError("Marian supports only post-norm layers and sinusoidal positions; choose a preset with both")
    heads = (config.encoder_attention_heads, config.decoder_attention_heads)
    if any(number * width != config.d_model for number in heads for width in config.attention_dims(number)):
        raise ValueError("Marian's heads have width d_model / heads; choose a preset without a head_dim")
    return {**{name: getattr(config, name) for name in MARIAN_FIELDS}, "forced_eos_token_id": None}


def marian_like(model: Any) -> Any:
    """Build a `MarianMTModel` with our weights, and zeros for biases that ours does not have."""
    marian = MarianMTModel(MarianConfig(**baseline_fields(model.config)))
    loaded = marian.load_state_dict(model.state_dict(), strict=False)
    if unexpected := [name for name in loaded.unexpected_keys if "embed_positions" not in name]:
        raise ValueError(f"Marian has no parameter for {', '.join(unexpected)}")
    for name, parameter in marian.named_parameters():
        if name in loaded.missing_keys and name.endswith("_proj.bias"):
            nn.init.zeros_(parameter)
    return marian


def bart_like(model: Any) -> Any:
    """Build a `BartForConditionalGeneration` of our sizes, with its own weights since its positions are learned."""
    return BartForConditionalGeneration(BartConfig(**baseline_fields(model.config)))


def training_options(name: str) -> dict[str, Any]:
    """Return an implementation's forward options in training: ours skips logits, as in our Trainer."""
    return {"skip_logits": True} if name == OURS else {}


def random_batch(
    config: VanillaTransformerConfig, rows: int, source_length: int, target_length: int, device: str
) -> dict[str, Tensor]:
    """Draw random pairs without padding: sources (rows, S), their mask, and labels (rows, T)."""
    source, target = (
        torch.randint(4, config.vocab_size, (rows, length), device=device) for length in (source_length, target_length)
    )
    for ids in (source, target):
        ids[:, -1] = cast(int, config.eos_token_id)
    return {"input_ids": source, "attention_mask": torch.ones_like(source), "labels": target}


# The tutorials' nn.Transformer


class TutorialTransformer(nn.Module):
    """`torch.nn.Transformer` as tutorials use it: with embeddings, sinusoids, an output layer, and stored logits.

    Embeddings and output layer are untied, and each stack ends with a layer norm.
    """

    def __init__(self, config: VanillaTransformerConfig, length: int):
        super().__init__()
        self.config, self.length = config, length
        d, vocabulary = config.d_model, config.decoder_vocab_size
        # Named as in PyTorch's translation tutorial, whose checkpoints we convert.
        self.src_tok_emb = nn.ModuleDict({"embedding": nn.Embedding(config.vocab_size, d)})
        self.tgt_tok_emb = nn.ModuleDict({"embedding": nn.Embedding(vocabulary, d)})
        self.transformer = nn.Transformer(
            d,
            config.encoder_attention_heads,
            config.encoder_layers,
            config.decoder_layers,
            config.encoder_ffn_dim,
            config.dropout,
            batch_first=True,
        )
        self.generator = nn.Linear(d, vocabulary)
        self.dropout = nn.Dropout(config.dropout)
        # Section 3.5 with interleaved sines and cosines.
        angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], -1).flatten(1), persistent=False)
        self.register_buffer("causal", torch.ones(length, length, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss over the labels (B, T) that are not padding; all inputs are `length` long."""
        pad = cast(int, self.config.pad_token_id)
        source_padding, target_padding = input_ids == pad, decoder_input_ids == pad
        scale = self.config.d_model**0.5
        states = self.transformer(
            self.dropout(self.src_tok_emb["embedding"](input_ids) * scale + self.positions),
            self.dropout(self.tgt_tok_emb["embedding"](decoder_input_ids) * scale + self.positions),
            tgt_mask=self.causal,
            src_key_padding_mask=source_padding,
            tgt_key_padding_mask=target_padding,
            memory_key_padding_mask=source_padding,
        )
        return nn.functional.cross_entropy(self.generator(states).flatten(0, 1), labels.flatten(), ignore_index=pad)

    def collate(self, rows: list[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Batch rows with `input_ids` and `labels`, each sentence padded or truncated to `length`."""
        config = self.config
        columns = {
            "input_ids": [row["input_ids"] for row in rows],
            "decoder_input_ids": [[config.decoder_start_token_id, *row["labels"][:-1]] for row in rows],
            "labels": [row["labels"] for row in rows],
        }
        return {
            name: torch.tensor([(list(ids) + [config.pad_token_id] * self.length)[: self.length] for ids in column])
            for name, column in columns.items()
        }

    def as_ours(self, tensors: Mapping[str, Tensor]) -> Conversion:
        """Convert the parameters, or tensors of the same names and shapes, such as gradients."""
        known = (*HEAD_FIELDS, "dropout", "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
        fields = {name: getattr(self.config, name) for name in known}
        return convert_checkpoint(tensors, None, dry_run=True, **fields)

    def loss_and_gradients(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Compute the loss, and the gradients under our parameter names; dropout is off."""
        gradients = loss_and_gradients(self, batch)
        return {"loss": gradients.pop("loss"), **self.as_ours(gradients).weights}


def tutorial_like(config: VanillaTransformerConfig, length: int) -> tuple[Any, TutorialTransformer]:
    tutorial = TutorialTransformer(config, length)
    ours = tutorial.as_ours({name: parameter.detach() for name, parameter in tutorial.named_parameters()}).model()
    return ours, tutorial


# CTranslate2


def ctranslate2_like(
    model: Any, folder: Path, device: str, quantization: str = "float32"
) -> Callable[[Tensor, int, int], Callable[[], Tensor]]:
    """Export our model to CTranslate2, unless the folder already has it, for decoding in the worker process.

    Returns a function of source ids (B, S), number of beams and number of new tokens T. Its result is a function that
    decodes to ids (B, 1 + T), as `generate()` does.
    """
    if not any(folder.iterdir()):
        write_ctranslate2(model, folder, quantization=quantization)
    config = model.config
    source_tokens, target_tokens = vocabularies(config, None)
    target_ids = {token: index for index, token in enumerate(target_tokens)}
    exported = ExportedModel(str(folder), device, quantization, torch.get_num_threads())

    def decoder(ids: Tensor, num_beams: int, new_tokens: int) -> Callable[[], Tensor]:
        sources = [[source_tokens[index] for index in row] for row in ids.tolist()]

        def decode() -> Tensor:
            outputs = decode_in_worker(exported, sources, num_beams, new_tokens)
            rows = [[config.decoder_start_token_id, *(target_ids[word] for word in tokens)] for tokens in outputs]
            width = 1 + new_tokens
            return torch.tensor([(row + [config.pad_token_id] * width)[:width] for row in rows])

        return decode

    return decoder
