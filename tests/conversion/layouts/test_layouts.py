"""Models converted from every tutorial layout compute and decode the same as the originals."""

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

import source_models
from conversions import (
    CASES,
    TOLERANCE,
    assert_same_logits,
    batch,
    build,
    convert,
    converted_logits,
    greedy,
    normalized,
    refused,
)
from hf_vanilla_transformer.conversion import LAYOUTS
from tables import looped

# Ends of the keys of position tables.
TABLES = (".pe", "pos_embedding", "position_embedding.weight", "pos_embedding.weight", "encodings_table")


@pytest.fixture(scope="module", params=CASES)
def converted(request):
    """The layout's name, the original and the conversion."""
    torch.manual_seed(3)
    layout, model, options = build(request.param)
    return layout, model, convert(model.state_dict(), **options)


def test_logits(converted):
    layout, model, conversion = converted
    assert conversion.layout.name == layout
    source, target, source_mask, target_mask = batch(model)
    found = normalized(converted_logits(conversion.model(), source, target, source_mask, target_mask))
    with torch.no_grad():
        expected = normalized(model(source, target, source_mask, target_mask))
        torch.testing.assert_close(found[target_mask], expected[target_mask], atol=TOLERANCE, rtol=0)
        assert expected.std() > 0.05, "logits that hardly differ would prove nothing"
        # A padded batch equals each sentence alone, without padding.
        for row, (length, target_length) in enumerate(zip(source_mask.sum(1), target_mask.sum(1), strict=True)):
            alone = normalized(model(source[row : row + 1, :length], target[row : row + 1, :target_length]))
            torch.testing.assert_close(found[row, :target_length], alone[0], atol=TOLERANCE, rtol=0)


def test_greedy_translations(converted, tmp_path):
    _, model, conversion = converted
    loaded = AutoModelForSeq2SeqLM.from_pretrained(conversion.save(tmp_path / "out")).eval()
    start, end = loaded.config.decoder_start_token_id, loaded.config.eos_token_id
    lengths = set()
    for row in batch(model)[0]:
        expected = greedy(model, row[None], start, end, 9)
        # Without a mask, the padding token is a token like any other.
        mask = torch.ones_like(row[None])
        found = loaded.generate(row[None], attention_mask=mask, do_sample=False, num_beams=1, max_new_tokens=9)
        assert found[0].tolist() == expected
        lengths.add(len(expected))
    assert max(lengths) > 2


@pytest.mark.parametrize("name", CASES)
def test_algebra_in_float64(name):
    """Only the place of epsilon and the rounding of sinusoids differ."""
    _, model, options = build(name)
    for norm in [each for each in model.modules() if getattr(each, "unbiased", False)]:
        norm.eps = 1e-15
        options = {**options, "layer_norm_eps": 1e-30}
    source, target, *_ = batch(model)
    model = model.double()
    if any(key.endswith(TABLES) for key in model.state_dict()):
        options = {**options, "position_embedding_type": "learned"}
    converted = convert(model.state_dict(), **options).model()
    assert converted.dtype == torch.float64
    with torch.no_grad():
        expected = normalized(model(source, target))
    found = normalized(converted_logits(converted, source, target))
    # Sinusoids are computed in float32 where no table is stored.
    tolerance = 1e-12 if "position_embedding_type" in options else 1e-6
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=0)


def test_there_is_a_case_for_each_tutorial_layout():
    assert {layout for layout, *_ in CASES.values()} == LAYOUTS.keys() - {
        "marian", "fsmt", "fairseq", "bart", "mbart", "m2m100", "sockeye", "plain"
    }  # fmt: skip  # a set, not a block


def test_depth_and_width_of_the_paper():
    """Rounding adds up over six layers of width 512, and stays within the tolerance."""
    model = source_models.annotated(500, 600, width=512, heads=8, inner=2048, layers=6).eval()
    converted = convert(model.state_dict(), encoder_attention_heads=8).model()
    assert_same_logits(model, converted, length=11)


@looped("name", ["scalar-norm", "shared-heads", "samlynnevans"])
@looped(("missing", "message"), [(2, "the weights have no position table"), (1, "1 missing")])
def test_nonstandard_sinusoids_must_be_stored(name, missing, message):
    _, model, options = build(name)
    tables = [key for key in model.state_dict() if key.endswith("pe")]
    assert len(tables) == 2
    state = {key: tensor for key, tensor in model.state_dict().items() if key not in tables[:missing]}
    refused(message, state, **options)


@pytest.mark.parametrize("shape", [(3, 3), (0, 4), ()], ids=str)
def test_a_shared_projection_of_the_wrong_shape(shape):
    state = source_models.shared_heads().state_dict()
    key = "encoder.layers.1.attention.query_matrix.weight"
    refused(f" mismatched: {key}", {**state, key: torch.zeros(shape)}, patched=True)


def test_projections_of_the_whole_width_show_no_heads():
    model = source_models.shared_heads(heads=(1, 1)).eval()
    asked = r"\(one number of heads is enough if both .* code: `encoder_attention_heads=8` `decoder_attention_heads=8`"
    refused(asked, model.state_dict(), patched=True)
    assert_same_logits(model, convert(model.state_dict(), patched=True, encoder_attention_heads=1).model())
