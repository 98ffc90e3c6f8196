import numpy as np
import pytest
import torch

from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration, preset_config
from tutorials.common import greedy
from tutorials.encoder_decoder import ENCODER_DECODER_CONFIG, greedy_without_cache


@pytest.mark.slow
def test_encoder_decoder_gives_the_shape_and_keeps_its_history(run, tmp_path):
    result = run("encoder_decoder", tmp_path)
    figures = result["figures"]
    assert result["reproduced"] and figures["shape"] == [2, 12, 11]
    assert figures["largest_error_of_sum"] < 1e-5 and figures["largest_difference_of_logits"] < 1e-5
    assert np.shape(figures["generated"]) == (2, 13)


@torch.no_grad()
def test_decoding_that_forgets_its_history_has_other_logits():
    torch.manual_seed(0)
    model = VanillaTransformerForConditionalGeneration(preset_config("tiny", **ENCODER_DECODER_CONFIG)).eval()
    source = torch.tensor([[0, 2, 5, 6, 4, 3, 9, 5, 2, 9, 10, 1]])
    ids, logits = greedy_without_cache(model, source, 8)
    ids_of_generate, logits_of_generate = greedy(model, source, 8)
    forgetful = [model(input_ids=source, decoder_input_ids=last).logits for last in ids[:, :-1].T[..., None]]
    assert torch.equal(ids_of_generate, ids)
    torch.testing.assert_close(logits_of_generate, logits, atol=1e-5, rtol=1e-5)
    assert (torch.cat(forgetful)[:, 0] - logits[0])[1:].abs().min(dim=0).values.max() > 1e-2
