"""Pairs of unequal lengths as padded and packed batches, and reference attention over packed sequences."""

import inspect
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import varlen
from torch.nn.utils.rnn import pad_sequence

from hf_vanilla_transformer.data.batching import collate_packed
from tiny import VOCABULARY

# Lengths of sources and targets: sequences of one token, on one side and on both, and equal neighbours.
LENGTHS = ([5, 1, 7, 3, 3, 1], [4, 6, 1, 2, 2, 1])
KERNEL = inspect.signature(varlen.varlen_attn)


def token_pairs(lengths: tuple[list[int], list[int]] = LENGTHS) -> list[dict[str, list[int]]]:
    names = ("input_ids", "labels")
    return [
        {name: torch.randint(4, VOCABULARY, (length,)).tolist() for name, length in zip(names, pair, strict=True)}
        for pair in zip(*lengths, strict=True)
    ]


def padded(pairs: list[dict[str, list[int]]], device: Any = "cpu") -> dict[str, Tensor]:
    sources, labels = ([torch.tensor(pair[name]) for pair in pairs] for name in ("input_ids", "labels"))
    batch = {
        "input_ids": pad_sequence(sources, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(source) for source in sources], batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=-100),
    }
    return {name: tensor.to(device) for name, tensor in batch.items()}


def packed(pairs: list[dict[str, list[int]]], device: Any = "cpu") -> dict[str, Any]:
    return send_to_device(collate_packed(pairs), device)


def without_padding(x: Tensor, mask: Tensor) -> Tensor:
    """Return the rows of (B, L, ...) where a mask (B, L) is set, as (1, tokens, ...)."""
    return x[mask.bool()][None]


def attention_by_sequence(
    query: Tensor, key: Tensor, value: Tensor, edges_q: Tensor, edges_k: Tensor, scale: float, causal: bool
) -> Tensor:
    """Attend from packed queries (tokens, h, d_k) to the keys of the same sequence, one sequence at a time."""
    outputs = []
    for i in range(len(edges_q) - 1):
        queries, keys = slice(edges_q[i], edges_q[i + 1]), slice(edges_k[i], edges_k[i + 1])
        parts = (query[queries], key[keys], value[keys])
        parts = (part.transpose(0, 1)[None] for part in parts)
        outputs.append(F.scaled_dot_product_attention(*parts, is_causal=causal, scale=scale)[0].transpose(0, 1))
    return torch.cat(outputs)


def reference_varlen_attn(*args: Any, **kwargs: Any) -> Tensor:
    """Replace `varlen_attn`: check the kernel's requirements, and compute the same result."""
    inputs = KERNEL.bind(*args, **kwargs).arguments
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    assert query.dtype == key.dtype == value.dtype
    assert key.shape == value.shape and query.shape[1:] == key.shape[1:] and query.shape[2] % 8 == 0
    for side, x in (("q", query), ("k", key)):
        edges, longest = inputs[f"cu_seq_{side}"], inputs[f"max_{side}"]
        assert edges.dtype == torch.int32 and edges.dim() == 1 and edges.is_contiguous()
        assert edges[0] == 0 and edges[-1] == len(x)
        assert type(longest) is int and longest == edges.diff().max()
    assert all(x.is_contiguous() for x in (query, key, value))
    assert inputs["window_size"] in ((-1, 0), (-1, -1))
    causal = inputs["window_size"] == (-1, 0)
    return attention_by_sequence(query, key, value, inputs["cu_seq_q"], inputs["cu_seq_k"], inputs["scale"], causal)
