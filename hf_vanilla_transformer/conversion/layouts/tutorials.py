"""Layouts of tutorials and notebooks that implement the Transformer from scratch or around `torch.nn.Transformer`.

In torchtext's vocabularies, which many use, `<unk>` is 0, `<pad>` 1 and, if the field adds them, start 2 and end 3.
"""

from collections.abc import Mapping
from typing import Any

import torch

from ...marian_fields import HEAD_FIELDS
from ..rules import STACKS, Defect, Layout, ModelKeys, SettingFields, numbered_norms, special_ids
from ..settings import boolean_setting
from ..transforms import block_diagonal, block_diagonal_query, expand_scalar, fold_unbiased_std, identity

_IDS = special_ids(pad=1, bos=2, eos=3)
# Epsilon that norms add to the standard deviation: see `fold_unbiased_std`.
_STD_EPS = 1e-6
_SINGLE_HEADS = dict.fromkeys(HEAD_FIELDS, 1)

_ANNOTATED = ModelKeys(
    embedding="{side}_embed.0.lut",
    positions=("{side}_embed.1.pe",),
    norms=numbered_norms("sublayer.{n}.norm", start=0),
    attentions=(("self_attn",), ("self_attn", "src_attn")),
    projections=("linears.0", "linears.1", "linears.2", "linears.3"),
    feed_forward=("feed_forward.w_1", "feed_forward.w_2"),
    final_norm="{stack}.norm",
    output="generator.proj",
    sides=("src", "tgt"),
    norm_parts=("a_2", "b_2"),
    transforms={"norm.weight": fold_unbiased_std},
)

_ANNOTATED_FIELDS = {"norm_position": "pre", "activation_function": "relu", "layer_norm_eps": _STD_EPS}

ANNOTATED_TRANSFORMER = Layout(
    name="annotated-transformer",
    description="EncoderDecoder of The Annotated Transformer (Harvard NLP), 2018 or 2022",
    keys=(_ANNOTATED,),
    # Special tokens in the order of its vocabularies: `<s>` 0, `</s>` 1, `<blank>` 2, `<unk>` 3.
    defaults={**_ANNOTATED_FIELDS, **special_ids(pad=2, bos=0, eos=1)},
    example="multi30k_model_final.pt --config encoder_attention_heads=8",
    source_prefix=("bos",),
)

SIMPLE_TRANSFORMERS = Layout(
    name="simple-transformers",
    description="the Annotated Transformer with norms named gamma and beta, as in the notebook Simple_Transformers",
    keys=(_ANNOTATED._replace(embedding="{side}_embed.0.embedding", norm_parts=("gamma", "beta")),),
    # Its copy task pads with 0 and starts every sequence with 1; sequences have no end token.
    defaults={**_ANNOTATED_FIELDS, **special_ids(pad=0, bos=1, eos=None)},
    example="copy_task.pt --config encoder_attention_heads=8",
    source_prefix=("bos",),
    source_suffix=(),
)

_HKPROJ = ModelKeys(
    embedding="{side}_embed.embedding",
    positions=("{side}_pos.pe",),
    norms=numbered_norms("residual_connections.{n}.norm", start=0),
    attentions=(("self_attention_block",), ("self_attention_block", "cross_attention_block")),
    projections=("w_q", "w_k", "w_v", "w_o"),
    feed_forward=("feed_forward_block.linear_1", "feed_forward_block.linear_2"),
    final_norm="{stack}.norm",
    output="projection_layer.proj",
    sides=("src", "tgt"),
    norm_parts=("alpha", "bias"),
    # Weight and bias of a norm may each be a scalar.
    transforms={"norm.weight": fold_unbiased_std, "norm.bias": expand_scalar},
    # Attentions had biases until August 2023.
    optional=("_proj.bias",),
)

HKPROJ = Layout(
    name="hkproj",
    description="hkproj/pytorch-transformer, with vector norms or the scalar norms of older versions",
    keys=(_HKPROJ,),
    own_signature=_HKPROJ.signature(".fc1.weight"),
    # Special tokens of its tokenizer trainer: `[UNK]` 0, `[PAD]` 1, `[SOS]` 2, `[EOS]` 3.
    defaults={"norm_position": "pre", "layer_norm_eps": _STD_EPS, **_IDS},
    example="tmodel_19.pt --config encoder_attention_heads=8",
    source_prefix=("bos",),
)

_SCALAR_NORM = _HKPROJ._replace(feed_forward=("feed_forward_block.linear1", "feed_forward_block.linear2"), optional=())

SCALAR_NORM = Layout(
    name="scalar-norm",
    description="the post-norm notebook with w_q ... w_o and scalar norm weights and biases",
    keys=(_SCALAR_NORM,),
    own_signature=_SCALAR_NORM.signature(".fc1.weight"),
    # Special tokens of its tokenizer trainer: `[UNK]` 0, `[PAD]` 1, `[SOS]` 2, `EOS` 3.
    defaults={"norm_position": "post", "final_layer_norm": True, "layer_norm_eps": _STD_EPS, **_IDS},
    example="opus_books.pt --config encoder_attention_heads=8",
    nonstandard_sinusoids=True,
    source_prefix=("bos",),
)

HYUNWOONGKO = Layout(
    name="hyunwoongko",
    description="hyunwoongko/transformer, trained with its code of 8 December 2022 or later",
    keys=(
        ModelKeys(
            embedding="{stack}.emb.tok_emb",
            norms=numbered_norms("norm{n}", start=1),
            attentions=(("attention",), ("self_attention", "enc_dec_attention")),
            projections=("w_q", "w_k", "w_v", "w_concat"),
            feed_forward=("ffn.linear1", "ffn.linear2"),
            output="decoder.linear",
            norm_parts=("gamma", "beta"),
        ),
    ),
    defaults={"norm_position": "post", "scale_embedding": False, "layer_norm_eps": 1e-12, **_IDS},
    example="model-2.8.pt --patched --config encoder_attention_heads=8",
    # The keys are the same in all versions.
    defects=(
        Defect(
            STACKS,
            "attention sets masked scores to -1e-12, which masks nothing, in code before 8 December 2022",
            "set them to -10000, as later code does",
        ),
    ),
    source_prefix=("bos",),
)

_BENTREVETT = ModelKeys(
    embedding="{stack}.tok_embedding",
    positions=("{stack}.pos_embedding.weight",),
    norms=(
        ("self_attn_layer_norm", "ff_layer_norm"),
        ("self_attn_layer_norm", "enc_attn_layer_norm", "ff_layer_norm"),
    ),
    attentions=(("self_attention",), ("self_attention", "encoder_attention")),
    projections=("fc_q", "fc_k", "fc_v", "fc_o"),
    feed_forward=("positionwise_feedforward.fc_1", "positionwise_feedforward.fc_2"),
    output="decoder.fc_out",
)

BENTREVETT = Layout(
    name="bentrevett",
    description="bentrevett/pytorch-seq2seq, notebook 6, Attention is All You Need, of 2020 or later",
    # Until April 2020, all sub-layers of a layer shared one norm.
    keys=(_BENTREVETT, _BENTREVETT._replace(norms=(("layer_norm",) * 2, ("layer_norm",) * 3))),
    defaults={"norm_position": "post", "layer_norm_eps": 1e-5, "position_embedding_type": "learned", **_IDS},
    example="tut6-model.pt --config encoder_attention_heads=8",
    source_prefix=("bos",),
)

SAMLYNNEVANS = Layout(
    name="samlynnevans",
    description="SamLynnEvans/Transformer",
    keys=(
        ModelKeys(
            embedding="{stack}.embed.embed",
            positions=("{stack}.pe.pe",),
            norms=numbered_norms("norm_{n}", start=1),
            attentions=(("attn",), ("attn_1", "attn_2")),
            projections=("q_linear", "k_linear", "v_linear", "out"),
            feed_forward=("ff.linear_1", "ff.linear_2"),
            final_norm="{stack}.norm",
            output="out",
            norm_parts=("alpha", "bias"),
            transforms={"norm.weight": fold_unbiased_std},
        ),
    ),
    defaults={"norm_position": "pre", "layer_norm_eps": _STD_EPS, **_IDS},
    example="weights/model_weights --config encoder_attention_heads=8",
    # The exponents of its sinusoids are twice the paper's.
    nonstandard_sinusoids=True,
    source_suffix=(),
)

GORDICALEKSA = Layout(
    name="gordicaleksa",
    description="gordicaleksa/pytorch-original-transformer",
    keys=(
        ModelKeys(
            embedding="{side}_embedding.embeddings_table",
            positions=("{side}_pos_embedding.positional_encodings_table",),
            layers="{stack}.{stack}_layers.{i}",
            norms=numbered_norms("sublayers.{n}.norm", start=0),
            attentions=(("multi_headed_attention",), ("trg_multi_headed_attention", "src_multi_headed_attention")),
            projections=("qkv_nets.0", "qkv_nets.1", "qkv_nets.2", "out_projection_net"),
            feed_forward=("pointwise_net.linear1", "pointwise_net.linear2"),
            final_norm="{stack}.norm",
            output="decoder_generator.linear",
            sides=("src", "trg"),
        ),
    ),
    defaults={"norm_position": "pre", "layer_norm_eps": 1e-5, **_IDS},
    example="transformer_000000.pth --config encoder_attention_heads=8",
    source_suffix=(),
)

_NN_TRANSFORMER = ModelKeys(
    embedding="{side}_tok_emb.embedding",
    positions=("positional_encoding.pos_embedding",),
    layers="transformer.{stack}.layers.{i}",
    norms=numbered_norms("norm{n}", start=1),
    attentions=(("self_attn",), ("self_attn", "multihead_attn")),
    projections=("in_proj_", "in_proj_", "in_proj_", "out_proj"),
    feed_forward=("linear1", "linear2"),
    final_norm="transformer.{stack}.norm",
    output="generator",
    sides=("src", "tgt"),
    optional=(".bias",),
)


def _norm_position(norm_first: Any) -> dict[str, Any]:
    return {"norm_position": "pre" if boolean_setting("norm_first", norm_first) else "post"}


# Arguments of `torch.nn.Transformer`.
_NN_SETTINGS: Mapping[str, SettingFields] = {
    "nhead": HEAD_FIELDS,
    "norm_first": _norm_position,
    "activation": ("activation_function",),
    "layer_norm_eps": ("layer_norm_eps",),
    "dropout": ("dropout",),
}
# Its stacks end in a norm, whether pre- or post-norm.
_NN_FIELDS = {"norm_position": "post", "final_layer_norm": True, "layer_norm_eps": 1e-5, **_IDS}

NN_TRANSFORMER = Layout(
    name="torch-nn-transformer",
    description="torch.nn.Transformer with embeddings and a generator, as in PyTorch's translation tutorial",
    keys=(_NN_TRANSFORMER,),
    defaults=_NN_FIELDS,
    example="seq2seq.pt --config encoder_attention_heads=8 norm_position=post",
    setting_fields=_NN_SETTINGS,
    source_prefix=("bos",),
)

ALADDINPERSSON = Layout(
    name="aladdinpersson",
    description="torch.nn.Transformer with learned positions per side, as in aladdinpersson's seq2seq_transformer",
    keys=(
        _NN_TRANSFORMER._replace(
            embedding="{side}_word_embedding",
            positions=("{side}_position_embedding.weight",),
            output="fc_out",
            sides=("src", "trg"),
        ),
    ),
    defaults={**_NN_FIELDS, "scale_embedding": False, "position_embedding_type": "learned"},
    example="my_checkpoint.pth.tar --config encoder_attention_heads=8",
    setting_fields=_NN_SETTINGS,
    notes=(
        "the original decoder attends to the padding of sources, so its logits depend on the other sentences of a "
        "batch; the converted model gives every sentence the logits that the original computes for it alone",
    ),
    source_prefix=("bos",),
)

STATQUEST = Layout(
    name="statquest",
    description="the StatQuest notebook: one layer, one head, no norms, no feed-forward, no output projection",
    keys=(
        ModelKeys(
            embedding="{stack}.we",
            positions=("{stack}.pe.pe",),
            layers="{stack}",
            attentions=(("self_attention",), ("self_attention", "enc_dec_attention")),
            projections=("W_q", "W_k", "W_v"),
            output="decoder.fc_layer",
            optional=("_proj.bias",),
        ),
    ),
    defaults={
        "norm_position": "none",
        "scale_embedding": False,
        **_SINGLE_HEADS,
        # It has no padding token; padding in a batch is masked, so any id serves.
        **special_ids(pad=4, bos=0, eos=4),
    },
    example="statquest.pt",
    fillers={r"out_proj\.weight": identity},
    source_prefix=("bos",),
    source_suffix=(),
)

LIGHTNING_PHRASES = Layout(
    name="lightning-phrases",
    description="the Lightning notebook of eight phrases: one layer in each stack, a linear layer as feed-forward",
    keys=(
        ModelKeys(
            embedding="{stack}_block.we",
            positions=("{stack}_block.pe.pe",),
            layers="{stack}_block",
            attentions=(("attention",), ("decoder_attention", "encoder_decoder_attention")),
            projections=("W_q", "W_k", "W_v"),
            norms=numbered_norms("layer_norm{n}", start=1),
            feed_forward=("linear_layer",),
            output="linear_layer",
            optional=("_proj.bias",),
        ),
    ),
    defaults={
        "activation_function": "linear",
        "norm_position": "post",
        "scale_embedding": False,
        "layer_norm_eps": 1e-5,
        **_SINGLE_HEADS,
        **special_ids(pad=15, bos=0, eos=14),
    },
    example="phrases.ckpt --patched",
    ignored_keys=("decoder_block.decoder_attention.mask",),
    # One linear layer equals two, the second being the identity.
    fillers={r"out_proj\.weight": identity, r"fc2\.weight": identity, r"fc2\.bias": torch.zeros},
    defects=(
        Defect(
            STACKS,
            "residual around self-attention skips the position encoding",
            "add the input of the attention, position encoding included, to its output",
        ),
    ),
    source_prefix=("bos",),
)

_SHARED_HEADS = ModelKeys(
    embedding="{stack}.{side[0]}",
    positions=("{stack}.{side[1]}.pe",),
    norms=(("norm1", "norm2"), ("norm", "transformer_block.norm1", "transformer_block.norm2")),
    attentions=(("attention",), ("attention", "transformer_block.attention")),
    projections=("query_matrix", "key_matrix", "value_matrix", "out"),
    feed_forward=("{side[2]}feed_forward.0", "{side[2]}feed_forward.2"),
    output="decoder.fc_out",
    sides=(
        ("embedding_layer", "positional_encoder", ""),
        ("word_embedding", "position_embedding", "transformer_block."),
    ),
    transforms=dict.fromkeys(("q_proj.weight", "k_proj.weight", "v_proj.weight"), block_diagonal),
    optional=("q_proj.bias", "k_proj.bias", "v_proj.bias"),
)

_SHARED_HEADS_FIELDS = {"norm_position": "post", "scale_embedding": False, "layer_norm_eps": 1e-5}

SHARED_HEADS = Layout(
    name="shared-heads",
    description="the notebook whose heads share one small projection (query_matrix, key_matrix, value_matrix)",
    keys=(_SHARED_HEADS,),
    # Sequences start with 0 and end with 1, which also serves as the missing padding token.
    defaults={**_SHARED_HEADS_FIELDS, **special_ids(pad=1, bos=0, eos=1)},
    example="from_scratch.pt --patched",
    defects=(
        Defect(
            ("decoder",),
            "masked self-attention reads the encoder's output instead of the target, and its output becomes the "
            "values and the residual of the next attention",
            "attend from the target to itself, add the target, then attend from that to the encoder's output",
        ),
        Defect(("decoder",), "softmax runs over the batch axis", "apply it over the vocabulary, or omit it"),
    ),
    nonstandard_sinusoids=True,
    source_prefix=("bos",),
)

ALADDINPERSSON_FROM_SCRATCH = Layout(
    name="aladdinpersson-from-scratch",
    description="aladdinpersson's transformer_from_scratch, whose heads share small projections",
    keys=(
        _SHARED_HEADS._replace(
            embedding="{stack}.word_embedding",
            positions=("{stack}.position_embedding.weight",),
            projections=("queries", "keys", "values", "fc_out"),
            transforms={**_SHARED_HEADS.transforms, "q_proj.weight": block_diagonal_query},
        ),
    ),
    # Its example pads with 0, starts with 1 and ends with 2.
    defaults={**_SHARED_HEADS_FIELDS, "position_embedding_type": "learned", **special_ids(pad=0, bos=1, eos=2)},
    example="model.pt",
    source_prefix=("bos",),
)

TUTORIALS = (
    ANNOTATED_TRANSFORMER,
    SIMPLE_TRANSFORMERS,
    NN_TRANSFORMER,
    ALADDINPERSSON,
    HKPROJ,
    HYUNWOONGKO,
    BENTREVETT,
    SAMLYNNEVANS,
    GORDICALEKSA,
    SCALAR_NORM,
    STATQUEST,
    LIGHTNING_PHRASES,
    SHARED_HEADS,
    ALADDINPERSSON_FROM_SCRATCH,
)
