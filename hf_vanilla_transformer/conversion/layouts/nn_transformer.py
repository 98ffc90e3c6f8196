"""`torch.nn.Transformer` between embeddings and an output projection, as tutorials wrap it."""

from collections.abc import Callable, Iterator, Mapping
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
    position_rules,
    position_table,
    special_ids,
    stacked_attention_rules,
    sublayer_names,
)


def _rules(embeddings: Mapping[str, str], output: str) -> Iterator[Rule]:
    """Yield the rules of all but positions, with or without biases, from the keys of embeddings and output."""
    attentions = {"self_attn": "self_attn", "encoder_attn": "multihead_attn"}
    for stack in STACKS:
        yield Rule(f"{embeddings[stack]}.weight", (EMBEDDING_NAMES[stack],))
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
    yield from linear_rules(output, "lm_head", optional_bias=True)


# Arguments of `torch.nn.Transformer` as fields of our configuration.
_SETTING_FIELDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "nhead": lambda heads: dict.fromkeys(HEAD_FIELDS, heads),
    "norm_first": lambda first: {"norm_position": "pre" if boolean_setting("norm_first", first) else "post"},
    "activation": lambda name: {"activation_function": name},
    "layer_norm_eps": lambda eps: {"layer_norm_eps": eps},
    "dropout": lambda probability: {"dropout": probability},
}

# Its stacks end in a norm wherever the other norms stand; `<unk>` 0, `<pad>` 1, start 2, end 3.
_DEFAULTS = {
    "norm_position": "post",
    "final_layer_norm": True,
    "layer_norm_eps": 1e-5,
    **special_ids(pad=1, bos=2, eos=3),
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
    rules=(
        *_rules({"encoder": "src_tok_emb.embedding", "decoder": "tgt_tok_emb.embedding"}, "generator"),
        Rule("positional_encoding.pos_embedding", tuple(POSITION_NAMES.values()), position_table, optional=True),
    ),
    defaults=_DEFAULTS,
    example="seq2seq.pt --config encoder_attention_heads=8 norm_position=post",
    setting_fields=_SETTING_FIELDS,
    source_prefix=("bos",),
)

ALADDINPERSSON = Layout(
    name="aladdinpersson",
    description="torch.nn.Transformer with learned positions of each side, as in aladdinpersson's seq2seq_transformer",
    signature=(
        "transformer.encoder.layers.{i}.self_attn.in_proj_weight",
        "transformer.decoder.layers.{i}.multihead_attn.in_proj_weight",
        "src_word_embedding.weight",
        "fc_out.weight",
    ),
    rules=(
        *_rules({"encoder": "src_word_embedding", "decoder": "trg_word_embedding"}, "fc_out"),
        *position_rules({"encoder": "src_position_embedding.weight", "decoder": "trg_position_embedding.weight"}),
    ),
    defaults={**_DEFAULTS, "scale_embedding": False, "position_embedding_type": "learned"},
    example="my_checkpoint.pth.tar --config encoder_attention_heads=8",
    setting_fields=_SETTING_FIELDS,
    notes=(
        "the original's decoder attends to the padding of a batch's sources, which depends on the other sentences; "
        "converted, every sentence gets the logits that the original computes for it alone",
    ),
    source_prefix=("bos",),
)

__all__ = ["ALADDINPERSSON", "NN_TRANSFORMER"]
