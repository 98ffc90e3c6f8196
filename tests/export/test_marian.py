"""Export to Marian: equal logits and translations by `MarianMTModel`, and converted back."""

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, MarianMTModel

from hf_vanilla_transformer.conversion import convert_checkpoint
from hf_vanilla_transformer.export.marian import write_marian
from tables import looped
from tiny import BASELINES_DECODE_CORRECTLY, VOCABULARIES, close, perturbed_model, tiny_model

CASES = {
    "paper": {},
    "Marian's own": {
        "sinusoidal_layout": "concatenated", "attention_bias": True, "lm_head_bias": True,
        "activation_function": "swish",
    },
    "interleaved with biases": {"attention_bias": True, "lm_head_bias": True},
    "unscaled": {"scale_embedding": False, "pad_token_id": 3, "decoder_start_token_id": 3, "bos_token_id": None},
    **{f"vocabularies {name}": changes for name, changes in VOCABULARIES.items() if name != "shared"},
}  # fmt: skip  # one field after the other


def batch(padding):
    source = torch.randint(4, 40, (4, 7))
    mask = (torch.arange(7)[None] < torch.tensor([[7], [4], [2], [5]])).long()
    return {"input_ids": source.masked_fill(mask == 0, padding), "attention_mask": mask}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_computes_and_decodes_the_same_there_and_back(tmp_path, changes):
    model = perturbed_model(0.3, **changes)
    model.generation_config.update(max_length=12, num_beams=3, length_penalty=0.6)
    source, target = batch(model.config.pad_token_id), torch.randint(4, 40, (4, 5))
    write_marian(model, tmp_path / "marian")
    convert_checkpoint(tmp_path / "marian", tmp_path / "back")
    marian = MarianMTModel.from_pretrained(tmp_path / "marian")
    back = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "back")
    with torch.no_grad():
        expected = model(**source, decoder_input_ids=target).logits
        for other in (marian, back):
            close(other(**source, decoder_input_ids=target).logits, expected)
    for options in ({}, {"num_beams": 1}):
        tokens = model.generate(**source, **options)
        one_size = model.config.vocab_size == model.config.decoder_vocab_size
        if one_size or BASELINES_DECODE_CORRECTLY or options:
            assert torch.equal(marian.generate(**source, **options), tokens)
        assert torch.equal(back.generate(**source, **options), tokens)


@looped(
    ("name", "value"),
    [
        ("norm_position", "pre"), ("norm_position", "none"), ("final_layer_norm", True),
        ("embedding_layer_norm", True), ("position_embedding_type", "learned"), ("layer_norm_eps", 1e-6),
        ("head_dim", 8), ("value_head_dim", 4), ("decoder_ffn_dim", 0), ("pad_token_id", None),
        ("decoder_start_token_id", None),
    ],
)  # fmt: skip  # a table
def test_what_marian_cannot_express_is_named(tmp_path, name, value):
    with pytest.raises(ValueError, match=f"Marian cannot express `{name}={value!r}`"):
        write_marian(tiny_model(**{name: value}), tmp_path / "marian")
    assert not (tmp_path / "marian").exists()


def test_weights_that_marian_would_tie(tmp_path):
    model = tiny_model()
    model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    with pytest.raises(
        ValueError, match="cannot express `tie_word_embeddings=True` .*: it ties .*embed_tokens.weight"
    ):
        write_marian(model, tmp_path / "marian")
    assert not (tmp_path / "marian").exists()
