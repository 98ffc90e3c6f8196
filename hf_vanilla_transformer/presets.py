"""Model shapes by name: every row of the paper's Table 3, and small ones for laptops.

Each preset is data: what differs from `VanillaTransformerConfig`'s defaults (the paper's base model), the label
smoothing its row was trained with, and the number of parameters the paper gives, in millions.
"""

import difflib
from dataclasses import dataclass, field
from typing import Any

from .model.configuration_vanilla_transformer import VanillaTransformerConfig


@dataclass(frozen=True)
class Preset:
    """A named model shape.

    Attributes:
        description: What the row varies, in the paper's symbols.
        config: Fields of `VanillaTransformerConfig` that differ from its defaults.
        label_smoothing: Epsilon of section 5.4 that the row was trained with.
        paper_parameters: Parameters in millions by Table 3; None for a shape that is not in the paper. Rows that
            leave the number blank have that of the base model.
    """

    description: str
    config: dict[str, Any] = field(default_factory=dict)
    label_smoothing: float = 0.1
    paper_parameters: int | None = 65


def _heads(heads: int) -> dict[str, int]:
    return {"encoder_attention_heads": heads, "decoder_attention_heads": heads}


def _layers(layers: int) -> dict[str, int]:
    return {"encoder_layers": layers, "decoder_layers": layers}


def _ffn(width: int) -> dict[str, int]:
    return {"encoder_ffn_dim": width, "decoder_ffn_dim": width}


PRESETS: dict[str, Preset] = {
    "base": Preset("the base model: N=6, d_model=512, d_ff=2048, h=8"),
    "table3-a-h1": Preset("row A: h=1, d_k=d_v=512", _heads(1)),
    "table3-a-h4": Preset("row A: h=4, d_k=d_v=128", _heads(4)),
    "table3-a-h16": Preset("row A: h=16, d_k=d_v=32", _heads(16)),
    "table3-a-h32": Preset("row A: h=32, d_k=d_v=16", _heads(32)),
    "table3-b-dk16": Preset("row B: d_k=16", {"head_dim": 16}, paper_parameters=58),
    "table3-b-dk32": Preset("row B: d_k=32", {"head_dim": 32}, paper_parameters=60),
    "table3-c-n2": Preset("row C: N=2", _layers(2), paper_parameters=36),
    "table3-c-n4": Preset("row C: N=4", _layers(4), paper_parameters=50),
    "table3-c-n8": Preset("row C: N=8", _layers(8), paper_parameters=80),
    "table3-c-d256": Preset(
        "row C: d_model=256, d_k=d_v=32", {"d_model": 256, "head_dim": 32, "value_head_dim": 32}, paper_parameters=28
    ),
    "table3-c-d1024": Preset(
        "row C: d_model=1024, d_k=d_v=128",
        {"d_model": 1024, "head_dim": 128, "value_head_dim": 128},
        paper_parameters=168,
    ),
    "table3-c-ff1024": Preset("row C: d_ff=1024", _ffn(1024), paper_parameters=53),
    "table3-c-ff4096": Preset("row C: d_ff=4096", _ffn(4096), paper_parameters=90),
    "table3-d-dropout0.0": Preset("row D: P_drop=0.0", {"dropout": 0.0}),
    "table3-d-dropout0.2": Preset("row D: P_drop=0.2", {"dropout": 0.2}),
    "table3-d-smoothing0.0": Preset("row D: label smoothing 0.0", label_smoothing=0.0),
    "table3-d-smoothing0.2": Preset("row D: label smoothing 0.2", label_smoothing=0.2),
    "table3-e-learned": Preset("row E: learned positions", {"position_embedding_type": "learned"}),
    "big": Preset(
        "the big model: d_model=1024, d_ff=4096, h=16, P_drop=0.3",
        {"d_model": 1024, "dropout": 0.3, **_ffn(4096), **_heads(16)},
        paper_parameters=213,
    ),
    "small": Preset(
        "for laptops and tens of thousands of pairs: N=3, d_model=256, d_ff=1024, h=4",
        {"d_model": 256, **_layers(3), **_ffn(1024), **_heads(4)},
        paper_parameters=None,
    ),
    "tiny": Preset(
        "for tests and toy corpora: N=2, d_model=128, d_ff=512, h=4",
        {"d_model": 128, **_layers(2), **_ffn(512), **_heads(4)},
        paper_parameters=None,
    ),
}


def get_preset(name: str) -> Preset:
    """Return a preset by name.

    Raises:
        ValueError: There is no such preset; names the nearest ones.
    """
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=3, cutoff=0.4) or PRESETS
        raise ValueError(f"unknown preset {name!r}; use one of {', '.join(near)}")
    return PRESETS[name]


def preset_config(name: str, **overrides: Any) -> VanillaTransformerConfig:
    """Return the configuration of a preset, with `overrides` on top.

    Example:
        ```python
        config = preset_config("small", vocab_size=8000, dropout=0.3)
        ```

    Raises:
        ValueError: There is no such preset, or the configuration is impossible.
    """
    return VanillaTransformerConfig(**{**get_preset(name).config, **overrides})


__all__ = ["PRESETS", "Preset", "get_preset", "preset_config"]
