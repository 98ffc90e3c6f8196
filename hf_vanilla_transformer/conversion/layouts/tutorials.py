"""Repositories that teach the Transformer by writing it from scratch, by the names of their authors.

torchtext, where they use it, numbers `<unk>` 0, `<pad>` 1, and then, if the field adds them, start 2 and end 3.
"""

import re

from torch import Tensor

from ..rules import STACKS, Defect, Layout, Settings, Weights, fold_unbiased_std, special_ids, unchanged
from .annotated_transformer import RESIDUAL_CONNECTION_KEYS, STD_EPS
from .stack_keys import StackKeys, numbered_sublayers

_IDS = special_ids(pad=1, bos=2, eos=3)

HKPROJ = Layout(
    name="hkproj",
    description="hkproj/pytorch-transformer, with a weight for each feature of a norm, or the older one for all",
    signature=(
        "encoder.layers.{i}.self_attention_block.w_q.weight",
        "encoder.layers.{i}.feed_forward_block.linear_1.weight",
        "encoder.norm.alpha",
        "projection_layer.proj.weight",
    ),
    rules=tuple(
        # Until August 2023 its attentions had biases.
        RESIDUAL_CONNECTION_KEYS._replace(feed_forward="feed_forward_block.linear_{n}", optional_biases=True).rules()
    ),
    # Its tokenizer trainer gets `[UNK]` 0, `[PAD]` 1, `[SOS]` 2, `[EOS]` 3.
    defaults={"norm_position": "pre", "layer_norm_eps": STD_EPS, **_IDS},
    example="tmodel_19.pt --config encoder_attention_heads=8",
    source_prefix=("bos",),
)

HYUNWOONGKO = Layout(
    name="hyunwoongko",
    description="hyunwoongko/transformer, trained with its code of 8 December 2022 or later",
    signature=(
        "encoder.emb.tok_emb.weight",
        "encoder.layers.{i}.attention.w_concat.weight",
        "decoder.layers.{i}.enc_dec_attention.w_concat.weight",
        "decoder.linear.weight",
    ),
    rules=tuple(
        StackKeys(
            embedding="{stack}.emb.tok_emb",
            positions="",
            norms=numbered_sublayers("norm{n}", start=1),
            attentions={"encoder": ("attention",), "decoder": ("self_attention", "enc_dec_attention")},
            projections=("w_q", "w_k", "w_v", "w_concat"),
            feed_forward="ffn.linear{n}",
            output="decoder.linear",
            final_norm="",
            norm_parts=("gamma", "beta"),
        ).rules()
    ),
    defaults={"norm_position": "post", "scale_embedding": False, "layer_norm_eps": 1e-12, **_IDS},
    example="model-2.8.pt --patched --config encoder_attention_heads=8",
    # The keys are the same in all of its versions.
    defects=(
        Defect(
            STACKS,
            "attention sets masked scores to -1e-12, which hides nothing, in its code before 8 December 2022",
            "set them to -10000, as its later code does",
        ),
    ),
    source_prefix=("bos",),
)


_BENTREVETT_NORMS = {
    "encoder": ("self_attn_layer_norm", "ff_layer_norm"),
    "decoder": ("self_attn_layer_norm", "enc_attn_layer_norm", "ff_layer_norm"),
}


def _separate_norms(weights: Weights, settings: Settings) -> dict[str, Tensor]:
    """Return the weights with a norm for each sub-layer, also where all of a layer share one."""
    separate: dict[str, Tensor] = {}
    for key, tensor in weights.items():
        shared = re.fullmatch(r"((encoder|decoder)\.layers\.\d+)\.layer_norm\.(\w+)", key)
        keys = [f"{shared[1]}.{norm}.{shared[3]}" for norm in _BENTREVETT_NORMS[shared[2]]] if shared else []
        # Beside separate norms, a shared one is unexpected.
        separate |= dict.fromkeys([key] if weights.keys() & {*keys} else keys or [key], tensor)
    return separate


BENTREVETT = Layout(
    name="bentrevett",
    description="bentrevett/pytorch-seq2seq, notebook 6, Attention is All You Need, of 2020 or later",
    signature=(
        "encoder.tok_embedding.weight",
        "encoder.layers.{i}.self_attention.fc_q.weight",
        "decoder.layers.{i}.encoder_attention.fc_q.weight",
        "decoder.fc_out.weight",
    ),
    rules=tuple(
        StackKeys(
            embedding="{stack}.tok_embedding",
            positions="{stack}.pos_embedding.weight",
            norms=_BENTREVETT_NORMS,
            attentions={"encoder": ("self_attention",), "decoder": ("self_attention", "encoder_attention")},
            projections=("fc_q", "fc_k", "fc_v", "fc_o"),
            feed_forward="positionwise_feedforward.fc_{n}",
            output="decoder.fc_out",
            final_norm="",
        ).rules()
    ),
    defaults={"norm_position": "post", "layer_norm_eps": 1e-5, "position_embedding_type": "learned", **_IDS},
    example="tut6-model.pt --config encoder_attention_heads=8",
    # Until April 2020 a layer had one norm.
    preprocess=_separate_norms,
    source_prefix=("bos",),
)

SAMLYNNEVANS = Layout(
    name="samlynnevans",
    description="SamLynnEvans/Transformer",
    signature=(
        "encoder.embed.embed.weight",
        "encoder.layers.{i}.attn.q_linear.weight",
        "decoder.layers.{i}.attn_2.q_linear.weight",
        "encoder.norm.alpha",
        "out.weight",
    ),
    rules=tuple(
        StackKeys(
            embedding="{stack}.embed.embed",
            positions="{stack}.pe.pe",
            norms=numbered_sublayers("norm_{n}", start=1),
            attentions={"encoder": ("attn",), "decoder": ("attn_1", "attn_2")},
            projections=("q_linear", "k_linear", "v_linear", "out"),
            feed_forward="ff.linear_{n}",
            output="out",
            norm_parts=("alpha", "bias"),
            norm_transforms=(fold_unbiased_std, unchanged),
        ).rules()
    ),
    defaults={"norm_position": "pre", "layer_norm_eps": STD_EPS, **_IDS},
    example="weights/model_weights --config encoder_attention_heads=8",
    # The exponents are twice the paper's.
    nonstandard_sinusoids=True,
    source_suffix=(),
)

GORDICALEKSA = Layout(
    name="gordicaleksa",
    description="gordicaleksa/pytorch-original-transformer",
    signature=(
        "src_embedding.embeddings_table.weight",
        "encoder.encoder_layers.{i}.multi_headed_attention.qkv_nets.0.weight",
        "decoder.decoder_layers.{i}.src_multi_headed_attention.qkv_nets.0.weight",
        "decoder_generator.linear.weight",
    ),
    rules=tuple(
        StackKeys(
            embedding="{side}_embedding.embeddings_table",
            positions="{side}_pos_embedding.positional_encodings_table",
            norms=numbered_sublayers("sublayers.{n}.norm", start=0),
            attentions={
                "encoder": ("multi_headed_attention",),
                "decoder": ("trg_multi_headed_attention", "src_multi_headed_attention"),
            },
            projections=("qkv_nets.0", "qkv_nets.1", "qkv_nets.2", "out_projection_net"),
            feed_forward="pointwise_net.linear{n}",
            output="decoder_generator.linear",
            sides=("src", "trg"),
            layers="{stack}.{stack}_layers",
        ).rules()
    ),
    defaults={"norm_position": "pre", "layer_norm_eps": 1e-5, **_IDS},
    example="transformer_000000.pth --config encoder_attention_heads=8",
    source_suffix=(),
)

__all__ = ["BENTREVETT", "GORDICALEKSA", "HKPROJ", "HYUNWOONGKO", "SAMLYNNEVANS"]
