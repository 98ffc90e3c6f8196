"""Attention without learning: the weights between hand-made word vectors."""

from pathlib import Path
from typing import Any

import torch

from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerAttention
from hf_vanilla_transformer.training.visualization import plot_attention

from .common import TutorialArguments, TutorialResult

WORD_VECTORS = {
    "the": (1, 0, 0, 0, 0, 0, 0, 0),
    "cat": (0, 1, 0, 0, 0.1, 0.2, 0.3, 0.4),
    "sits": (0, 0.9, 1, 0, 0.2, 0.1, 0.4, 0.3),
    "on": (0, 0, 0, 1, 0, 0, 0, 0),
    "mat": (0, 0.8, 0.6, 0.3, 0, 0.6, 0.3, 0.2),
    "a": (1, 0, 0, 0, 0, 0, 0, 0.1),
    "dog": (0, 0.9, 0.1, 0, 0, 0.3, 0.4, 0.3),
    "lies": (0, 1, 0.8, 0.1, 0.3, 0.1, 0.4, 0.2),
    "rug": (0, 0.9, 0.6, 0.3, 0, 0.5, 0.3, 0.1),
}
# The notebook's two sentences and the attention weights it prints for them, to eight decimals.
ATTENTION_SENTENCES: dict[str, tuple[tuple[float, ...], ...]] = {
    "the cat sits on the mat": (
        (0.20795408, 0.14602296, 0.14602296, 0.14602296, 0.20795408, 0.14602296),
        (0.1320772, 0.20914044, 0.20045296, 0.1320772, 0.1320772, 0.194175),
        (0.11958619, 0.18149541, 0.25215275, 0.11958619, 0.11958619, 0.20759326),
        (0.15299844, 0.15299844, 0.15299844, 0.21788799, 0.15299844, 0.17011824),
        (0.20795408, 0.14602296, 0.14602296, 0.14602296, 0.20795408, 0.14602296),
        (0.12397355, 0.18226132, 0.21520941, 0.13784561, 0.12397355, 0.21673656),
    ),
    "a dog lies on the rug": (
        (0.20789086, 0.14701445, 0.1464956, 0.14546337, 0.20715715, 0.14597857),
        (0.13342497, 0.19895022, 0.20393542, 0.13201726, 0.13201726, 0.19965486),
        (0.12073931, 0.18519945, 0.23888728, 0.12420309, 0.11988857, 0.2110823),
        (0.15216063, 0.15216063, 0.15763656, 0.21669485, 0.15216063, 0.16918669),
        (0.20795408, 0.14602296, 0.14602296, 0.14602296, 0.20795408, 0.14602296),
        (0.12305363, 0.18544201, 0.21589025, 0.13633987, 0.12261934, 0.21665489),
    ),
}
ATTENTION_TOLERANCE = 1e-7


def reproduce_attention(args: TutorialArguments, data_args: DataArguments) -> TutorialResult:
    attention = plain_attention(width=8)
    errors = []
    for sentence, expected in ATTENTION_SENTENCES.items():
        words = sentence.split()
        vectors = torch.tensor([[WORD_VECTORS[word] for word in words]], dtype=torch.float64)
        _, weights = attention(vectors)
        errors.append(float((weights[0, 0] - torch.tensor(expected, dtype=torch.float64)).abs().max()))
        path = Path(args.output_dir, "attention", f"{words[1]}.png")
        title = f"Attention in {sentence!r}"
        plot_attention(weights[0], words, words, path, title=title, limit=0.3, keys="words", queries="words")
    return TutorialResult(
        "attention",
        "two 6 x 6 matrices of attention weights between hand-made word vectors",
        f"the same matrices; largest difference {max(errors):.1e}",
        {"largest_difference": errors},
        max(errors) < ATTENTION_TOLERANCE,
    )


def plain_attention(width: int) -> VanillaTransformerAttention:
    """Return our attention with one head and identity projections, so that queries, keys and values are the inputs."""
    fields: dict[str, Any] = {"d_model": width, "attn_implementation": "eager"}
    config = VanillaTransformerConfig(encoder_attention_heads=1, decoder_attention_heads=1, **fields)
    attention = VanillaTransformerAttention(config, heads=1, layer_idx=0).double().eval()
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj):
        torch.nn.init.eye_(projection.weight)
    return attention.requires_grad_(False)
