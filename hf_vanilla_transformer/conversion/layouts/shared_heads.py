"""aladdinpersson's transformer_from_scratch, whose heads share small projections, and a notebook like it."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from ...marian_fields import HEAD_FIELDS
from ..rules import (
    EMBEDDING_NAMES,
    PROJECTIONS,
    STACKS,
    Defect,
    Layout,
    Rule,
    Settings,
    Transform,
    Weights,
    block_diagonal,
    block_diagonal_query,
    linear_rules,
    position_rules,
    special_ids,
)


class _Keys(NamedTuple):
    """Keys within a stack or an attention, and the transform of queries."""

    embeddings: tuple[str, str]
    positions: tuple[str, str]
    projections: tuple[str, str, str, str]
    query: Transform

    def rules(self) -> Iterator[Rule]:
        for stack, embedding, positions in zip(STACKS, self.embeddings, self.positions, strict=True):
            yield Rule(f"{stack}.{embedding}.weight", (EMBEDDING_NAMES[stack],))
            yield from position_rules({stack: f"{stack}.{positions}"})
            layer, name = f"{stack}.layers.{{i}}", f"model.{stack}.layers.{{i}}"
            block, attention = (
                (layer, "self_attn") if stack == "encoder" else (f"{layer}.transformer_block", "encoder_attn")
            )
            if stack == "decoder":
                yield from self._attention_rules(f"{layer}.attention", f"{name}.self_attn")
            yield from self._attention_rules(f"{block}.attention", f"{name}.{attention}")
            if stack == "decoder":
                yield from linear_rules(f"{layer}.norm", f"{name}.self_attn_layer_norm")
            yield from linear_rules(f"{block}.norm1", f"{name}.{attention}_layer_norm")
            yield from linear_rules(f"{block}.norm2", f"{name}.final_layer_norm")
            yield from linear_rules(f"{block}.feed_forward.0", f"{name}.fc1")
            yield from linear_rules(f"{block}.feed_forward.2", f"{name}.fc2")
        yield from linear_rules("decoder.fc_out", "lm_head")

    def _attention_rules(self, key: str, name: str) -> Iterator[Rule]:
        *shared, output = self.projections
        transforms = (self.query, block_diagonal, block_diagonal)
        for theirs, ours, transform in zip(shared, PROJECTIONS, transforms, strict=False):
            yield Rule(f"{key}.{theirs}.weight", (f"{name}.{ours}.weight",), transform)
        yield from linear_rules(f"{key}.{output}", f"{name}.out_proj")

    def infer_heads(self, weights: Weights, settings: Settings) -> dict[str, Any]:
        """Return the heads: the ratio of the output projection's width to the shared one's, unless they are equal."""
        heads = {}
        for stack, field in zip(STACKS, HEAD_FIELDS, strict=True):
            names = (self.projections[0], self.projections[-1])
            shared, whole = (weights.get(f"{stack}.layers.0.attention.{name}.weight") for name in names)
            if shared is None or whole is None or not shared.numel() or not shared.dim() == whole.dim() == 2:
                continue
            # Projections of the whole width may belong to any number of heads.
            if shared.shape[0] != whole.shape[0]:
                heads[field] = whole.shape[0] // shared.shape[0]
        return heads


_NOTEBOOK_KEYS = _Keys(
    embeddings=("embedding_layer", "word_embedding"),
    positions=("positional_encoder.pe", "position_embedding.pe"),
    projections=("query_matrix", "key_matrix", "value_matrix", "out"),
    query=block_diagonal,
)
_FROM_SCRATCH_KEYS = _Keys(
    embeddings=("word_embedding", "word_embedding"),
    positions=("position_embedding.weight", "position_embedding.weight"),
    projections=("queries", "keys", "values", "fc_out"),
    query=block_diagonal_query,
)
_FIELDS = {"norm_position": "post", "scale_embedding": False, "layer_norm_eps": 1e-5}
_FILLERS = {r"[qkv]_proj\.bias": torch.zeros}

SHARED_HEADS = Layout(
    name="shared-heads",
    description="the notebook whose heads share one small projection (query_matrix, key_matrix, value_matrix)",
    signature=("encoder.embedding_layer.weight", "encoder.layers.{i}.attention.query_matrix.weight"),
    rules=tuple(_NOTEBOOK_KEYS.rules()),
    # Sequences start with 0 and end with 1; without a padding token, 1 serves.
    defaults={**_FIELDS, **special_ids(pad=1, bos=0, eos=1)},
    example="from_scratch.pt --patched",
    fillers=_FILLERS,
    infer_fields=_NOTEBOOK_KEYS.infer_heads,
    defects=(
        Defect(
            ("decoder",),
            "masked self-attention reads the encoder's output instead of the target, and its output serves as the "
            "values and the residual of the attention after it",
            "attend from the target to itself, add the target, then attend from that to the encoder's output",
        ),
        Defect(("decoder",), "softmax runs over the sentences of a batch", "take it over the vocabulary, or omit it"),
    ),
    nonstandard_sinusoids=True,
    source_prefix=("bos",),
)

ALADDINPERSSON_FROM_SCRATCH = Layout(
    name="aladdinpersson-from-scratch",
    description="aladdinpersson's transformer_from_scratch, whose heads share small projections",
    signature=(
        "encoder.word_embedding.weight",
        "encoder.layers.{i}.attention.queries.weight",
        "decoder.layers.{i}.transformer_block.attention.queries.weight",
    ),
    rules=tuple(_FROM_SCRATCH_KEYS.rules()),
    # Its example pads with 0, starts with 1 and ends with 2.
    defaults={**_FIELDS, "position_embedding_type": "learned", **special_ids(pad=0, bos=1, eos=2)},
    example="model.pt",
    fillers=_FILLERS,
    infer_fields=_FROM_SCRATCH_KEYS.infer_heads,
    source_prefix=("bos",),
)

__all__ = ["ALADDINPERSSON_FROM_SCRATCH", "SHARED_HEADS"]
