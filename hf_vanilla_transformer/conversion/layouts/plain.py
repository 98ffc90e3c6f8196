"""Our own names, for any model whose weights a table of renames brings to them."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..rules import (
    POSITION_NAMES,
    Layout,
    Rule,
    embedding_norm_rules,
    final_norm_rules,
    layers_with_our_names,
    linear_rules,
    position_rules,
    special_ids,
)


def _rules() -> Iterator[Rule]:
    yield from layers_with_our_names("model.")
    yield from embedding_norm_rules("model.")
    yield from final_norm_rules("model.")
    yield from linear_rules("lm_head", "lm_head")


def _field(name: str, value: Any) -> dict[str, Any]:
    return {name: value}


PLAIN = Layout(
    name="plain",
    description="our own names, after --rename or as they are, with a configuration: any model that it expresses",
    signature=("model.encoder.embed_tokens.weight", "model.decoder.layers.{i}.encoder_attn.q_proj.weight"),
    rules=(
        *(replace(rule, optional=rule.key.endswith(".bias")) for rule in _rules()),
        *position_rules(POSITION_NAMES),
    ),
    # All of them are asked for; these are the values that a message proposes.
    defaults={"norm_position": "post", "layer_norm_eps": 1e-5, **special_ids(pad=1, bos=2, eos=3)},
    example="mine.pt --layout plain --rename names.txt --config encoder_attention_heads=8",
    setting_fields={name: partial(_field, name) for name in VanillaTransformerConfig.__annotations__},
    needs_name=True,
)

__all__ = ["PLAIN"]
