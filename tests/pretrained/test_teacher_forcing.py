import pytest
import torch

from hf_vanilla_transformer.pretrained.teacher_forcing import cross_attentions, eager_attention
from tiny import close
from translators import build

KINDS = ("shared", "pair", "marian")
PAIRS = [([4, 5, 6, 2], [7, 8, 2]), ([4, 2], [5, 2]), ([9, 8, 7, 6, 5, 2], [4, 4, 5, 6, 2])]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=KINDS)
def translator(request):
    return build(request.param)


def test_weights_do_not_depend_on_the_batch(translator):
    model, _ = translator
    config = model.config
    together = cross_attentions(model, PAIRS)
    for weights, (source, target) in zip(together, PAIRS, strict=True):
        assert weights.shape == (
            config.decoder_layers,
            config.decoder_attention_heads,
            len(target),
            len(source),
        )
        close(weights.sum(-1), torch.ones(weights.shape[:-1], device="cpu"))
        (alone,) = cross_attentions(model, [(source, target)])
        close(weights, alone)


def test_rows_are_those_of_the_steps_that_predict_the_tokens(translator):
    model, _ = translator
    source = [4, 5, 6, 7, 2]
    with eager_attention(model):
        output = model.generate(
            torch.tensor([source]), max_new_tokens=6, num_beams=1, output_attentions=True, return_dict_in_generate=True
        )
    target = output.sequences[0, 1:].tolist()
    (weights,) = cross_attentions(model, [(source, target)])
    for step, layers in enumerate(output.cross_attentions):
        close(weights[:, :, step], torch.stack(layers)[:, 0, :, 0].cpu())


def test_the_implementation_of_attention_is_restored_after_an_error():
    model, _ = build("shared")
    before = model.config._attn_implementation
    assert before != "eager"
    model.generation_config.decoder_start_token_id = model.generation_config.bos_token_id = None
    with pytest.raises(ValueError, match="no decoder_start_token_id; set it"):
        cross_attentions(model, PAIRS)
    assert model.config._attn_implementation == before
