"""Conversion of jadore801120/attention-is-all-you-need-pytorch: its arguments and its scaling."""

import json
from argparse import Namespace

import torch

from conversions import HEADS, STATED, assert_same_logits, convert, refused
from source_models import normed_embeddings
from tables import looped

# The training options that its train.py stores.
OPTIONS = {
    "n_head": 2, "d_k": 4, "d_v": 4, "d_model": 8, "dropout": 0.2, "src_pad_idx": 1, "trg_pad_idx": 1, "cuda": True,
    "scale_emb_or_prj": "prj", "embs_share_weight": False, "proj_share_weight": False, "epoch": 10, "seed": None,
}  # fmt: skip  # one option a line would fill the screen


def checkpoint(model, **changes):
    return {"epoch": 3, "settings": Namespace(**{**OPTIONS, **changes}), "model": model.state_dict()}


@looped("scale", ["emb", "prj", "none"])
@looped(
    ("tied", "shared"), [(True, True), (True, False), (False, True), (False, False)],
)  # fmt: skip  # one case after the other
def test_shared_matrices_and_their_scale(tied, shared, scale, tmp_path):
    torch.manual_seed(0)
    model = normed_embeddings(source_vocabulary=17, tied=tied, shared=shared, scale=scale).eval()
    options = {"scale_emb_or_prj": scale, "embs_share_weight": shared, "proj_share_weight": tied}
    torch.save(checkpoint(model, **options), tmp_path / "model.chkpt")
    conversion = convert(tmp_path)
    config = conversion.config
    assert conversion.layout.name == "attention-is-all-you-need-pytorch"
    assert (config.tie_word_embeddings, config.share_encoder_decoder_embeddings) == (tied, shared)
    assert config.scale_embedding == (tied and scale != "none")
    assert_same_logits(model, conversion.model())


def test_arguments_beside_the_weights():
    model = normed_embeddings(widths=(3, 5)).eval()
    conversion = convert(checkpoint(model, d_k=3, d_v=5, src_pad_idx=4, trg_pad_idx=4))
    config = conversion.config
    assert (config.head_dim, config.value_head_dim, config.encoder_attention_heads) == (3, 5, 2)
    assert (config.dropout, config.attention_dropout, config.pad_token_id) == (0.2, 0.1, 4)
    assert (config.norm_position, config.embedding_layer_norm, config.final_layer_norm) == ("post", True, False)
    assert (config.position_embedding_type, config.attention_bias, config.lm_head_bias) == ("sinusoidal", False, False)
    assert config.layer_norm_eps == 1e-6
    assert_same_logits(model, conversion.model())
    rows = convert(checkpoint(normed_embeddings(tied=True))).describe()
    assert "decoder.trg_word_emb.weight of logits / sqrt(d) 17x8" in rows and "divide by root of width" in rows


def test_two_padding_ids():
    message = "source and target are padded with 1 and 3, which our configuration cannot"
    refused(message, checkpoint(normed_embeddings(), trg_pad_idx=3))


def test_lost_arguments(tmp_path):
    """Early releases have the same keys, normalize the queries before an attention, and store no scale."""
    apart = normed_embeddings().state_dict()
    refused(r"code: `encoder_attention_heads=8` .*`norm_position=post\|pre`$", apart, first_position=0)
    refused(
        r"`norm_position=pre` does not describe .* the queries .*, but not its keys",
        apart, first_position=0, norm_position="pre", **HEADS,
    )  # fmt: skip  # one call
    # After renaming, the code may be another, so the caller's word counts.
    output = apart.pop("trg_word_prj.weight")
    stated = {**STATED, **HEADS, "norm_position": "pre", "final_layer_norm": False, "rename": ["out.=trg_word_prj."]}
    assert convert({**apart, "out.weight": output}, **stated).config.norm_position == "pre"
    tied = normed_embeddings(tied=True).eval()
    refused(r'were scaled; .* config\.json beside them: \{"scale_emb_or_prj": "prj"\}', tied.state_dict(), **HEADS)
    torch.save(tied.state_dict(), tmp_path / "weights.pt")
    (tmp_path / "config.json").write_text(json.dumps({"scale_emb_or_prj": "prj", "n_head": 2}))
    assert_same_logits(tied, convert(tmp_path).model())
