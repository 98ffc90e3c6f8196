"""`torch.nn.Transformer` between embeddings and a generator, as in PyTorch's translation tutorial."""

from collections.abc import Callable, Iterator
from typing import Any

from ...marian_fields import HEAD_FIELDS
from ..rules import (
    EMBEDDING_NAMES,
    POSITION_NAMES,
    STACKS,
    Layout,
    Rule,
    boolean_setting,
    linear_rules,
    position_table,
    special_ids,
    stacked_attention_rules,
    sublayer_names,
)


def _rules() -> Iterator[Rule]:
    """Yield the rules, with or without biases."""
    attentions = {"self_attn": "self_attn", "encoder_attn": "multihead_attn"}
    for stack, short in zip(STACKS, ("src", "tgt"), strict=True):
        yield Rule(f"{short}_tok_emb.embedding.weight", (EMBEDDING_NAMES[stack],))
        key, name = f"transformer.{stack}.layers.{{i}}", f"model.{stack}.layers.{{i}}"
        for n, (norm, attention) in enumerate(sublayer_names(stack), start=1):
            yield from linear_rules(f"{key}.norm{n}", f"{name}.{norm}", optional_bias=True)
            if attention:
                attention_key, attention_name = f"{key}.{attentions[attention]}", f"{name}.{attention}"
                yield from stacked_attention_rules(attention_key, attention_name, optional_bias=True)
                yield from linear_rules(f"{attention_key}.out_proj", f"{attention_name}.out_proj", optional_bias=True)
        for n in (1, 2):
            yield from linear_rules(f"{key}.linear{n}", f"{name}.fc{n}", optional_bias=True)
        yield from linear_rules(f"transformer.{stack}.norm", f"model.{stack}.layer_norm", optional_bias=True)
    yield from linear_rules("generator", "lm_head", optional_bias=True)
    names = tuple(POSITION_NAMES.values())
    yield Rule("positional_encoding.pos_embedding", names, position_table, optional=True)


# Arguments of `torch.nn.Transformer` as fields of our configuration.
_SETTING_FIELDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "nhead": lambda heads: dict.fromkeys(HEAD_FIELDS, heads),
    "norm_first": lambda first: {"norm_position": "pre" if boolean_setting("norm_first", first) else "post"},
    "activation": lambda name: {"activation_function": name},
    "layer_norm_eps": lambda eps: {"layer_norm_eps": eps},
    "dropout": lambda probability: {"dropout": probability},
}

NN_TRANSFORMER = Layout(
    name="torch-nn-transformer",
    description="torch.nn.Transformer with embeddings and a generator, as in PyTorch's translation tutorial",
    signature=(
        "transformer.encoder.layers.{i}.self_attn.in_proj_weight",
        "transformer.decoder.layers.{i}.multihead_attn.in_proj_weight",
        "src_tok_emb.embedding.weight",
        "generator.weight",
    ),
    rules=tuple(_rules()),
    # Its stacks end in a norm wherever the other norms stand; `<unk>` 0, `<pad>` 1, `<bos>` 2, `<eos>` 3.
    defaults={
        "norm_position": "post",
        "final_layer_norm": True,
        "layer_norm_eps": 1e-5,
        **special_ids(pad=1, bos=2, eos=3),
    },
    example="seq2seq.pt --config encoder_attention_heads=8 norm_position=post",
    setting_fields=_SETTING_FIELDS,
    source_prefix=("bos",),
)

__all__ = ["NN_TRANSFORMER"]
