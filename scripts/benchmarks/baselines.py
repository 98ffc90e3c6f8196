"""Other implementations of the same model, of the same sizes and, where the shapes allow, of the same weights.

Legend: B batch, S source length, T target length, d width, V vocabulary.
"""

import math
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache, lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import BartConfig, BartForConditionalGeneration, MarianConfig, MarianMTModel, PreTrainedModel

from hf_vanilla_transformer.export.ctranslate2 import vocabularies, write_ctranslate2
from hf_vanilla_transformer.marian_fields import MARIAN_FIELDS
from hf_vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.presets import preset_config

from .benchmark import OURS, Disagreement

# What loss and gradients of contestants with the same weights may differ by, relative to the size of the gradient.
# Sums are taken in another order, which a deep post-norm model magnifies at the start: in float32 some gradients of
# the base model, ours and Marian's alike, are 9e-4 from those in float64, and 2e-3 from each other. bfloat16 keeps 8
# bits.
AGREEMENT = {"float32": 5e-3, "bfloat16": 1e-1}
# Least share of equal tokens in float32; sums in another order may turn a tie.
EQUAL_TOKENS = 0.99


def our_model(preset: str, **fields: Any) -> Any:
    """Return our model with the positions laid out as Marian does, so that it can share Marian's weights."""
    config = preset_config(preset, **{"sinusoidal_layout": "concatenated", **fields})
    return VanillaTransformerForConditionalGeneration(config)


def peer_fields(config: VanillaTransformerConfig) -> dict[str, Any]:
    """Return the fields that name the same sizes in Marian's and BART's configurations.

    Raises:
        ValueError: The shape is none that they can have.
    """
    if config.norm_position != "post" or config.final_layer_norm or config.position_embedding_type != "sinusoidal":
        raise ValueError("Marian has post-norm layers and sinusoids only; choose a preset that has the same")
    sides = (config.encoder_attention_heads, config.decoder_attention_heads)
    if any(heads * width != config.d_model for heads in sides for width in config.attention_dims(heads)):
        raise ValueError("Marian's heads are d_model / heads wide; choose a preset without a head_dim")
    return {**{name: getattr(config, name) for name in MARIAN_FIELDS}, "forced_eos_token_id": None}


def marian_like(model: Any) -> Any:
    """Return a `MarianMTModel` with the weights of ours; the biases that only it has are zero.

    Raises:
        ValueError: Marian has no such shape, or no place for a weight.
    """
    peer = MarianMTModel(MarianConfig(**peer_fields(model.config)))
    loaded = peer.load_state_dict(model.state_dict(), strict=False)
    extra = [name for name in loaded.unexpected_keys if "embed_positions" not in name]
    if extra:
        raise ValueError(f"Marian has no place for {', '.join(extra)}")
    for name, parameter in peer.named_parameters():
        if name in loaded.missing_keys and name.endswith("_proj.bias"):
            nn.init.zeros_(parameter)
    return peer


def bart_like(model: Any) -> Any:
    """Return a `BartForConditionalGeneration` of our sizes; it learns positions, so its weights are its own."""
    return BartForConditionalGeneration(BartConfig(**peer_fields(model.config)))


def training_options(name: str) -> dict[str, Any]:
    """Return the options of a contestant's forward pass in training: ours stores no logits, as in our Trainer."""
    return {"skip_logits": True} if name == OURS else {}


def random_batch(
    config: VanillaTransformerConfig, rows: int, source_length: int, target_length: int, device: str
) -> dict[str, Tensor]:
    """Return pairs of random tokens without padding: sources (rows, S) with their mask, labels (rows, T)."""
    source, target = (
        torch.randint(4, config.vocab_size, (rows, length), device=device) for length in (source_length, target_length)
    )
    for ids in (source, target):
        ids[:, -1] = cast(int, config.eos_token_id)
    return {"input_ids": source, "attention_mask": torch.ones_like(source), "labels": target}


# Whether they agree


def loss_and_gradients(model: PreTrainedModel, batch: Mapping[str, Tensor], **options: Any) -> dict[str, Tensor]:
    """Return the loss by the name "loss", and the gradients by the names of their weights, tied ones by every name.

    Dropout is off; the gradients are taken from the model again.
    """
    training = model.training
    model.eval()
    loss = model(**batch, **options).loss
    loss.backward()
    found = {
        name: parameter.grad.detach()
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter.grad is not None
    }
    model.zero_grad()
    model.train(training)
    return {"loss": loss.detach(), **found}


def check_agreement(ours: Mapping[str, Tensor], peer: Mapping[str, Tensor], name: str, dtype: str) -> None:
    """Make sure that a peer has our loss and our gradient, weight by weight.

    Args:
        ours: What `loss_and_gradients` returns.
        peer: The same; what only one of the two has is left out, as long as all of ours is there.
        name: Of the peer.
        dtype: Of the products.

    Raises:
        Disagreement: Names the weight that differs the most, and by how much.
    """
    missing = [weight for weight in ours if weight not in peer]
    if missing:
        raise Disagreement(f"{name} has no gradient of {missing[0]}, so it is not the same model as ours")
    gradients = [gradient for weight, gradient in ours.items() if weight != "loss"]
    # A gradient that is all but zero is known to the rounding of the others only.
    typical = float(torch.stack([g.float().norm() for g in gradients]).square().mean().sqrt())
    off = {}
    for weight, own in ours.items():
        size = abs(float(own)) if weight == "loss" else max(float(own.float().norm()), 0.1 * typical)
        off[weight] = float((peer[weight].float() - own.float()).norm()) / size
    worst = max(off, key=lambda weight: math.inf if math.isnan(off[weight]) else off[weight])
    if not off[worst] <= AGREEMENT[dtype]:
        what = "loss" if worst == "loss" else f"gradient of {worst}"
        raise Disagreement(
            f"{name} and ours do not compute the same in {dtype}: the {what} differs by {off[worst]:.1e} (allowed "
            f"{AGREEMENT[dtype]:.0e}), so their times cannot be compared"
        )


def equal_share(ours: Any, peer: Any) -> float:
    """Return the share 0..1 of equal tokens of two tensors (B, T); what only one of them has differs."""
    width = max(ours.shape[1], peer.shape[1])
    first, second = (nn.functional.pad(each, (0, width - each.shape[1]), value=-1) for each in (ours, peer))
    return float((first == second).float().mean())


def check_tokens(ours: Any, peer: Any, name: str, dtype: str) -> float:
    """Return the share of equal tokens (B, T).

    Raises:
        Disagreement: In float32, less than `EQUAL_TOKENS` are equal.
    """
    share = equal_share(ours, peer)
    if dtype == "float32" and share < EQUAL_TOKENS:
        raise Disagreement(
            f"{name} and ours decode different tokens in float32: {share:.1%} are equal, {EQUAL_TOKENS:.0%} are "
            "needed, so their times cannot be compared"
        )
    return share


# The tutorials' model


class TutorialTransformer(nn.Module):
    """`torch.nn.Transformer` as tutorials use it: embeddings, sinusoids, a generator, and logits that are stored.

    Embeddings and generator have matrices of their own, and each stack ends with a normalization.
    """

    def __init__(self, config: VanillaTransformerConfig, length: int):
        """Make a model of a configuration's sizes for sentences padded to `length`."""
        super().__init__()
        self.config, self.length = config, length
        d, vocabulary = config.d_model, config.decoder_vocab_size
        self.source_embedding = nn.Embedding(config.vocab_size, d)
        self.target_embedding = nn.Embedding(vocabulary, d)
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
        # Section 3.5, in the layout of the tutorials: sine and cosine in turn.
        angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, d, 2) / d)
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], -1).flatten(1), persistent=False)
        self.register_buffer("causal", torch.ones(length, length, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss over the labels (B, T) that are no padding; all sides are `length` long."""
        pad = cast(int, self.config.pad_token_id)
        source_padding, target_padding = input_ids == pad, decoder_input_ids == pad
        scale = self.config.d_model**0.5
        states = self.transformer(
            self.dropout(self.source_embedding(input_ids) * scale + self.positions),
            self.dropout(self.target_embedding(decoder_input_ids) * scale + self.positions),
            tgt_mask=self.causal,
            src_key_padding_mask=source_padding,
            tgt_key_padding_mask=target_padding,
            memory_key_padding_mask=source_padding,
        )
        return nn.functional.cross_entropy(self.generator(states).flatten(0, 1), labels.flatten(), ignore_index=pad)

    def collate(self, rows: list[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Return a batch of rows with `input_ids` and `labels`, every sentence padded or cut to `length`."""
        config = self.config
        sides = {
            "input_ids": [row["input_ids"] for row in rows],
            "decoder_input_ids": [[config.decoder_start_token_id, *row["labels"][:-1]] for row in rows],
            "labels": [row["labels"] for row in rows],
        }
        return {
            name: torch.tensor([(ids + [config.pad_token_id] * self.length)[: self.length] for ids in map(list, each)])
            for name, each in sides.items()
        }

    def named_as_ours(self, of: Callable[[Any], Tensor]) -> dict[str, Tensor]:
        """Return something of every parameter, such as its gradient, by the name that our model has for it."""
        named = {
            "model.encoder.embed_tokens.weight": of(self.source_embedding.weight),
            "model.decoder.embed_tokens.weight": of(self.target_embedding.weight),
            "lm_head.weight": of(self.generator.weight),
            "lm_head.bias": of(self.generator.bias),
        }
        for side in ("encoder", "decoder"):
            stack: Any = getattr(self.transformer, side)
            norms = {"self_attn_layer_norm": "norm1", "final_layer_norm": "norm2"}
            attentions = {"self_attn": "self_attn"}
            if side == "decoder":
                norms = {
                    "self_attn_layer_norm": "norm1",
                    "encoder_attn_layer_norm": "norm2",
                    "final_layer_norm": "norm3",
                }
                attentions["encoder_attn"] = "multihead_attn"
            for part in ("weight", "bias"):
                named[f"model.{side}.layer_norm.{part}"] = of(getattr(stack.norm, part))
            for number, layer in enumerate(stack.layers):
                path = f"model.{side}.layers.{number}."
                modules = {"fc1": layer.linear1, "fc2": layer.linear2}
                modules |= {ours: getattr(layer, theirs) for ours, theirs in norms.items()}
                for ours, theirs in attentions.items():
                    attention = getattr(layer, theirs)
                    modules[f"{ours}.out_proj"] = attention.out_proj
                    for kind, name in (("in_proj_weight", "weight"), ("in_proj_bias", "bias")):
                        parts = zip("qkv", of(getattr(attention, kind)).chunk(3), strict=True)
                        named |= {f"{path}{ours}.{letter}_proj.{name}": piece for letter, piece in parts}
                for ours, module in modules.items():
                    named |= {f"{path}{ours}.{name}": of(each) for name, each in module.named_parameters()}
        return named

    def loss_and_gradients(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what the function of that name does; dropout off."""
        self.eval()
        loss = self(**batch)
        loss.backward()
        found = self.named_as_ours(lambda parameter: parameter.grad.detach())
        self.zero_grad()
        self.train()
        return {"loss": loss.detach(), **found}


def tutorial_like(config: VanillaTransformerConfig, length: int) -> tuple[Any, TutorialTransformer]:
    """Return a model of ours in the shape of the tutorials, and theirs with the same weights."""
    fields = {name: getattr(config, name) for name in MARIAN_FIELDS}
    fields |= {"final_layer_norm": True, "attention_bias": True, "lm_head_bias": True}
    fields |= {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}
    ours = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**fields))
    peer = TutorialTransformer(config, length)
    weights = dict(ours.named_parameters())
    with torch.no_grad():
        for name, place in peer.named_as_ours(lambda parameter: parameter).items():
            place.copy_(weights[name])
    return ours, peer


# CTranslate2


def ctranslate2_like(
    model: Any, folder: Path, device: str, quantization: str = "float32"
) -> Callable[..., Callable[[], Any]]:
    """Export a model of ours to CTranslate2, and return how to decode with it.

    It decodes in a process of its own: once two libraries have run their OpenMP threads in one process of a small
    machine, those of PyTorch sleep between any two operations, and short ones take three times as long.

    Args:
        model: The model; its weights are written to `folder`.
        folder: An empty folder.
        device: "cpu" or "cuda".
        quantization: Of the weights, and of the products where the device has them.

    Returns:
        A function of source ids (B, S), of the number of beams and of the number of new tokens, which returns a
        function without arguments that decodes, and returns tokens (B, 1 + T) as `generate()` would.
    """
    write_ctranslate2(model, folder, quantization=quantization)
    config = model.config
    sources_of, targets_of = vocabularies(config, None)
    translator = (str(folder), device, quantization, torch.get_num_threads())

    def decoder(ids: Tensor, num_beams: int, new_tokens: int) -> Callable[[], Any]:
        sources = [[sources_of[number] for number in row] for row in ids.tolist()]
        numbers = {token: number for number, token in enumerate(targets_of)}

        def decode() -> Tensor:
            outputs = _other_process().submit(_translate, translator, sources, num_beams, new_tokens).result()
            rows = [[config.decoder_start_token_id, *(numbers[token] for token in each)] for each in outputs]
            width = 1 + new_tokens
            return torch.tensor([(row + [config.pad_token_id] * width)[:width] for row in rows])

        return decode

    return decoder


@cache
def _other_process() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"))


# In the other process; a case of the benchmark has two.
@lru_cache(maxsize=2)
def _translator(folder: str, device: str, compute_type: str, threads: int) -> Any:
    import ctranslate2

    return ctranslate2.Translator(folder, device=device, compute_type=compute_type, intra_threads=threads)


def _translate(
    translator: tuple[str, str, str, int], sources: list[list[str]], num_beams: int, new_tokens: int
) -> list[list[str]]:
    lengths = {"min_decoding_length": new_tokens, "max_decoding_length": new_tokens}
    results = _translator(*translator).translate_batch(sources, beam_size=num_beams, **lengths)
    return [each.hypotheses[0] for each in results]


__all__ = [
    "TutorialTransformer",
    "bart_like",
    "check_agreement",
    "check_tokens",
    "ctranslate2_like",
    "equal_share",
    "loss_and_gradients",
    "marian_like",
    "our_model",
    "random_batch",
    "training_options",
    "tutorial_like",
]
