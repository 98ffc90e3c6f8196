"""A batch of integers through an untrained encoder-decoder: shapes, and decoding with the whole history."""

import math
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, set_seed

from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.presets import preset_config

from .common import UNTIED, TutorialArguments, TutorialResult, greedy

ENCODER_DECODER_SOURCE = ((0, 2, 5, 6, 4, 3, 9, 5, 2, 9, 10, 1), (0, 2, 8, 7, 3, 4, 5, 6, 7, 2, 10, 1))
ENCODER_DECODER_TARGET = ((0, 1, 7, 4, 3, 5, 9, 2, 8, 10, 9, 1), (0, 1, 5, 6, 2, 4, 7, 6, 2, 8, 10, 1))
# 0 starts a sequence, 1 ends it, and there is no padding.
ENCODER_DECODER_CONFIG: dict[str, Any] = {
    **UNTIED,
    "vocab_size": 11,
    "pad_token_id": None,
    "bos_token_id": 0,
    "decoder_start_token_id": 0,
    "eos_token_id": 1,
}


@torch.no_grad()
def reproduce_encoder_decoder(args: TutorialArguments, data_args: DataArguments) -> TutorialResult:
    """Run a batch of integers through an untrained base model, and decode with and without a key-value cache."""
    set_seed(0)
    model = VanillaTransformerForConditionalGeneration(preset_config("base", **ENCODER_DECODER_CONFIG)).eval()
    source, target = torch.tensor(ENCODER_DECODER_SOURCE), torch.tensor(ENCODER_DECODER_TARGET)
    logits = model(input_ids=source, decoder_input_ids=target).logits
    off = float((logits.softmax(-1).sum(-1) - 1).abs().max())
    steps = source.shape[1]
    ids, cached = greedy(model, source, steps)
    expected_ids, expected = greedy_without_cache(model, source, steps)
    difference = float((cached - expected).abs().max())
    holds = tuple(logits.shape) == (2, 12, 11) and max(off, difference) < 1e-5 and torch.equal(ids, expected_ids)
    return TutorialResult(
        "encoder_decoder",
        "a 2 x 12 batch of integers through N=6, d_model=512; a greedy loop that forgets all but the last token",
        f"logits {tuple(logits.shape)} whose softmax sums to 1 within {off:.0e}; greedy decoding keeps its history: "
        f"over {steps} steps the logits are within {difference:.0e} of those decoded without a cache",
        {
            "shape": list(logits.shape),
            "largest_error_of_sum": off,
            "generated": ids.tolist(),
            "largest_difference_of_logits": difference,
        },
        holds,
    )


def greedy_without_cache(model: PreTrainedModel, source: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Compute the same as `greedy`, reprocessing the whole history at every step."""
    config: Any = model.config
    decoded, logits = torch.full((len(source), 1), config.decoder_start_token_id), []
    for _ in range(steps):
        logits.append(model(input_ids=source, decoder_input_ids=decoded, use_cache=False).logits[:, -1])
        # Mask the end token, so that no row ends early.
        choice = logits[-1].index_fill(-1, torch.tensor(config.eos_token_id), -math.inf).argmax(-1, keepdim=True)
        decoded = torch.cat([decoded, choice], dim=1)
    return decoded, torch.stack(logits, dim=1)
