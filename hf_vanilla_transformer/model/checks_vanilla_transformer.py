"""Checks of a model's inputs, with clearer messages than an index error deep inside.

Values are not checked under compilation, export or transforms, nor on accelerators, where reading them would sync.
"""

import inspect
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_in_torch_dispatch_mode
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .compat_vanilla_transformer import CACHE_NAMES, REMEDY, VERSIONS

# Label ignored by the loss; decoder input shifted from labels keeps it as left padding before the start token.
IGNORE_INDEX = -100

USE_THE_TOKENIZER = "use the tokenizer that the model was trained with, or resize the model's vocabulary"
# Keyword arguments that may reach the layers because they or transformers use them.
LAYER_ARGUMENTS = frozenset(
    (
        *CACHE_NAMES,
        # Read or added by decorators of transformers.
        *("output_attentions", "output_hidden_states", "use_cache", "debug_io", "debug_io_dir", "prune_layers"),
        # `FlashAttentionKwargs`, and others passed to every attention function.
        *("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "is_causal"),
        # Arguments of the entry class, which `generate()` also passes to the encoder.
        *("labels", "logits_to_keep", "num_items_in_batch", "smoothing", "skip_logits"),
        # Returned by tokenizers for sentence pairs.
        "token_type_ids",
    )
)

# Arguments of other models, taken if they ask for what this model does anyway, and what that is.
NEUTRAL_ARGUMENTS = {
    "position_ids": "counts positions from the first token in `attention_mask`, cached ones included",
    "cache_position": "appends to the cache",
    **dict.fromkeys(("head_mask", "decoder_head_mask", "cross_attn_head_mask"), "masks no heads"),
}

# Remedies for `IGNORE_INDEX` in the ids of either side.
PAD_SOURCES = "it marks padding in labels only; pad sources with `pad_token_id`, as the tokenizer does"
PASS_LABELS = "it marks padding in labels; pass `labels` too, set `use_cache=False`, or pad on the right"


def can_branch_on(x: Tensor) -> bool:
    """Whether control flow may depend on the values of `x`: reading them neither syncs a device nor breaks a trace."""
    if type(x) not in (Tensor, nn.Parameter) or not x.is_cpu or x.layout is not torch.strided:
        return False
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or is_in_torch_dispatch_mode():
        return False
    try:
        # Tensors within `torch.func` transforms have no storage.
        x.data_ptr()
    except RuntimeError:
        return False
    return True


def check_arguments(arguments: dict[str, Any], known: Collection[str], config: Any) -> None:
    """Reject arguments of `forward`, unless None, that neither layers (`known`) nor the attention function accept."""
    for name in arguments:
        if name in known or arguments[name] is None or torch.compiler.is_compiling():
            continue
        implementation = config._attn_implementation
        attend: Any = ALL_ATTENTION_FUNCTIONS.get(implementation)
        if attend is None or name not in inspect.signature(attend).parameters:
            raise TypeError(
                f"`forward` got an argument `{name}`, which neither this model nor its attention function "
                f"({implementation}) accepts; correct its name or remove it. If a library passed it, its version may "
                f"be incompatible: installed are {VERSIONS}; {REMEDY}."
            )


def check_neutral(arguments: Mapping[str, Any], past: int | Tensor | None, leading_padding: Tensor | None) -> None:
    """Check that `NEUTRAL_ARGUMENTS`, which tools pass to any model, ask for nothing else.

    `past` tokens are cached, None without a cache; `leading_padding` (B, 1) precedes each row's first token.

    Raises:
        ValueError: A value asks for something else, or is no tensor or numbers.
    """
    for name, reason in NEUTRAL_ARGUMENTS.items():
        value = arguments.get(name)
        if value is None or torch.compiler.is_compiling():
            continue
        try:
            values = torch.atleast_1d(torch.as_tensor(value))
            if not all(can_branch_on(x) for x in (values, past, leading_padding) if isinstance(x, Tensor)):
                continue
            expected = _neutral_values(name, values, past, leading_padding)
            # Positions below 0 are those of padding.
            values, expected, wrong = torch.broadcast_tensors(values, expected, values.ne(expected) & expected.ge(0))
        except (TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"`{name}` is unsuitable ({error}), and this model {reason}; leave it out.") from None
        if wrong.any():
            index = tuple(wrong.nonzero()[0].tolist())
            raise ValueError(
                f"`{name}` has {values[index].item()} at {[*index]}, where this model has {expected[index].item()}: "
                f"it {reason}; leave it out."
            )


def _neutral_values(name: str, values: Tensor, past: int | Tensor | None, leading_padding: Tensor | None) -> Tensor:
    """Return what this model uses in place of `values`."""
    if name not in ("position_ids", "cache_position"):
        return torch.ones(1, dtype=torch.long)
    if name == "cache_position" and past is None:
        # Positions in the decoder's cache, which the encoder gets too.
        return values
    positions = torch.arange(values.shape[-1]) + (0 if past is None else past)
    return positions if name == "cache_position" or leading_padding is None else positions - leading_padding


def check_tensor(x: Any, dims: int, name: str, weight: Any = None) -> None:
    """Check ids (B, L) or states (B, L, d): a dense tensor of `dims` dimensions, none of them empty."""
    check_dense(x, name, weight)
    if x.dim() != dims or (not _is_traced() and 0 in x.shape):
        raise ValueError(
            f"{name} has shape {tuple(x.shape)}; use ({', '.join('BLd'[:dims])}) with no empty dimension."
        )


def _is_traced() -> bool:
    """Whether sizes may be symbolic; comparing them would specialize the graph."""
    return torch.jit.is_tracing() or torch.compiler.is_compiling()


def check_dense(x: Any, name: str, like: Any = None) -> None:
    """Check that an input is a dense tensor, and on the meta device only if `like` is."""
    if not isinstance(x, Tensor):
        raise ValueError(f"{name} is of type {type(x).__name__}; pass a tensor.")
    if x.layout is not torch.strided:
        raise ValueError(f"{name} has the layout {x.layout}; pass a dense tensor, as `.to_dense()` returns.")
    if x.is_meta and not getattr(like, "is_meta", True):
        raise ValueError(f"{name} is on the meta device, which has no values; pass a tensor on the model's device.")


def check_states(states: Any, width: int, name: str, weight: Any = None) -> None:
    """Check that embeddings or encoder states are floats (B, L, width)."""
    check_tensor(states, 3, name, weight)
    if not states.is_floating_point() or (not _is_traced() and states.shape[2] != width):
        raise ValueError(
            f"{name} has shape {tuple(states.shape)} and dtype {states.dtype}; use floats of shape (B, L, {width})."
        )


def to_integer_ids(ids: Tensor, name: str) -> Tensor:
    """Convert ids of any integer dtype to one that embeddings accept."""
    if ids.dtype in (torch.int64, torch.int32):
        return ids
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        raise ValueError(f"{name} has dtype {ids.dtype}, but ids are integers; convert it, e.g. with `.long()`.")
    return ids.long()


def check_id_range(
    ids: Tensor, size: int | None, name: str, remedy: str = USE_THE_TOKENIZER, padding_remedy: str = PAD_SOURCES
) -> None:
    """Check that token ids or class labels are from 0 to `size` - 1; skip the check if `size` is None.

    The error ends with `remedy`, or with `padding_remedy` if the id is `IGNORE_INDEX`.
    """
    if size is None or not ids.numel() or not can_branch_on(ids):
        return
    lowest, highest = ids.aminmax()
    if lowest < 0 or highest >= size:
        index = ((ids < 0) | (ids >= size)).nonzero()[0].tolist()
        wrong = ids[tuple(index)].item()
        remedy = padding_remedy if wrong == IGNORE_INDEX else remedy
        raise ValueError(f"{name} has {wrong} at {index}, but ids go from 0 to {size - 1}; {remedy}.")


def check_target(input_ids: Any, inputs_embeds: Any) -> None:
    """Check that the decoder gets exactly one input."""
    if input_ids is None and inputs_embeds is None:
        raise ValueError(
            "there is no target: pass `labels`, `decoder_input_ids` or `decoder_inputs_embeds`; load the encoder "
            "alone with `AutoModelForTextEncoding`. A `Trainer` with `label_smoothing_factor` removes the labels "
            "before it calls the model; pass `model=` to `DataCollatorForSeq2Seq`, so that it adds "
            "`decoder_input_ids`."
        )
    if input_ids is not None and inputs_embeds is not None:
        raise ValueError("pass only one of `decoder_input_ids` and `decoder_inputs_embeds`.")


def check_batch_sizes(rows: int, sources: int) -> None:
    """Check that every source has the same number of target rows."""
    if rows != sources and rows % sources:
        raise ValueError(
            f"the decoder's input has {rows} rows for {sources} encoded sources; pass one row per source, or the same "
            "number for each."
        )


def check_mask(mask: Tensor | None, states: Tensor, past: int | Tensor, name: str, cache: Any = None) -> None:
    """Check that a padding mask (B, L) covers `past` tokens and `states` (B, L, d), or all of a static cache.

    A score mask (B, 1, T, S) may have any size, but must be boolean or additive.
    """
    if mask is None or torch.compiler.is_compiling():
        return
    check_dense(mask, name, states)
    rows, length = states.shape[0], past + states.shape[1]
    if mask.dim() == 4:
        if mask.dtype != torch.bool and not mask.is_floating_point():
            raise ValueError(
                f"{name} has dtype {mask.dtype} and shape {tuple(mask.shape)}, but a 4D mask must be boolean, true at "
                "visible keys, or floating-point, added to the scores; convert it."
            )
        return
    if tuple(mask.shape) == (rows, int(length)):
        return
    if cache is None or tuple(mask.shape) != (rows, cache.get_max_length()):
        raise ValueError(
            f"{name} has shape {tuple(mask.shape)}, but the tokens have {(rows, int(length))}, cached ones included; "
            "use 1 for each token and 0 for padding."
        )
