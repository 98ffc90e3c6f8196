"""Rows of the target that share a source."""

import pytest
import torch

from hf_vanilla_transformer.fast import modules
from tiny import close, tiny_model, tokens


@pytest.mark.parametrize("repeated", [False, True], ids=["one copy", "copies"])
def test_continue_from_a_cache(repeated):
    model, source, target = tiny_model(), tokens(2, 5), tokens(6, 4)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    encoded = model.model.encoder(source, mask)
    given = {"encoder_outputs": encoded, "attention_mask": mask}
    start = torch.ones(2, 1, dtype=torch.long)
    cache = model(**given, decoder_input_ids=start, use_cache=True).past_key_values
    cache.self_attention_cache.batch_repeat_interleave(3)
    if repeated:
        cache.cross_attention_cache.batch_repeat_interleave(3)
    stepped = model(**given, decoder_input_ids=target, past_key_values=cache).logits
    whole = torch.cat([start.repeat_interleave(3, 0), target], 1)
    copied = model(source.repeat_interleave(3, 0), mask.repeat_interleave(3, 0), decoder_input_ids=whole).logits
    close(stepped, copied[:, 1:])


def test_flash_attention_gets_a_source_per_row(monkeypatch):
    """It would apply the source's mask to only one of the queries."""
    model, source, target = tiny_model(), tokens(2, 5), tokens(6, 4)
    expected = model(source.repeat_interleave(3, 0), decoder_input_ids=target).logits
    monkeypatch.setattr(modules, "is_flash_attention_requested", lambda config: True)
    seen = []
    layer = model.model.decoder.layers[0]
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]])
    encoded = model.model.encoder(source)
    close(model(encoder_outputs=encoded, decoder_input_ids=target).logits, expected)
    layer.register_forward_pre_hook(lambda module, args: seen.append((args[2].shape[0], args[3].shape[0])))
    model(encoder_outputs=encoded, attention_mask=mask, decoder_input_ids=target)
    assert seen == [(6, 6)]
