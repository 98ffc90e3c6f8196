"""Named model shapes: every row of the paper's Table 3, and small ones for laptops."""

from dataclasses import dataclass, field
from typing import Any

from huggingface_hub.errors import StrictDataclassFieldValidationError

from .errors import did_you_mean, one_line, short_errors
from .model.configuration_vanilla_transformer import VanillaTransformerConfig


@dataclass(frozen=True)
class Preset:
    """A named model shape.

    Attributes:
        description: What the row varies, in the paper's notation.
        config: Fields that differ from the defaults of `VanillaTransformerConfig`, the paper's base model.
        label_smoothing: Epsilon of section 5.4 used to train the row.
    """

    description: str
    config: dict[str, Any] = field(default_factory=dict)
    label_smoothing: float = 0.1


def _both_sides(**sizes: int) -> dict[str, int]:
    return {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()}


# Choose the preset by corpus size (`training.auto_preset`).
AUTO_PRESET = "auto"

_SMALL = {"d_model": 256, **_both_sides(layers=3, ffn_dim=1024, attention_heads=4)}
_DEEP_ENCODER = _SMALL | {"encoder_layers": 6, "decoder_layers": 2, "norm_position": "pre"}

PRESETS: dict[str, Preset] = {
    "base": Preset("the base model: N=6, d_model=512, d_ff=2048, h=8"),
    "table3-a-h1": Preset("row A: h=1, d_k=d_v=512", _both_sides(attention_heads=1)),
    "table3-a-h4": Preset("row A: h=4, d_k=d_v=128", _both_sides(attention_heads=4)),
    "table3-a-h16": Preset("row A: h=16, d_k=d_v=32", _both_sides(attention_heads=16)),
    "table3-a-h32": Preset("row A: h=32, d_k=d_v=16", _both_sides(attention_heads=32)),
    "table3-b-dk16": Preset("row B: d_k=16", {"head_dim": 16}),
    "table3-b-dk32": Preset("row B: d_k=32", {"head_dim": 32}),
    "table3-c-n2": Preset("row C: N=2", _both_sides(layers=2)),
    "table3-c-n4": Preset("row C: N=4", _both_sides(layers=4)),
    "table3-c-n8": Preset("row C: N=8", _both_sides(layers=8)),
    "table3-c-d256": Preset("row C: d_model=256, d_k=d_v=32", {"d_model": 256, "head_dim": 32, "value_head_dim": 32}),
    "table3-c-d1024": Preset(
        "row C: d_model=1024, d_k=d_v=128", {"d_model": 1024, "head_dim": 128, "value_head_dim": 128}
    ),
    "table3-c-ff1024": Preset("row C: d_ff=1024", _both_sides(ffn_dim=1024)),
    "table3-c-ff4096": Preset("row C: d_ff=4096", _both_sides(ffn_dim=4096)),
    "table3-d-dropout0.0": Preset("row D: P_drop=0.0", {"dropout": 0.0}),
    "table3-d-dropout0.2": Preset("row D: P_drop=0.2", {"dropout": 0.2}),
    "table3-d-smoothing0.0": Preset("row D: label smoothing 0.0", label_smoothing=0.0),
    "table3-d-smoothing0.2": Preset("row D: label smoothing 0.2", label_smoothing=0.2),
    "table3-e-learned": Preset("row E: learned positions", {"position_embedding_type": "learned"}),
    "big": Preset(
        "the big model: d_model=1024, d_ff=4096, h=16, P_drop=0.3",
        {"d_model": 1024, "dropout": 0.3, **_both_sides(ffn_dim=4096, attention_heads=16)},
    ),
    "small": Preset(
        "for laptops and tens of thousands of pairs: N=3, d_model=256, d_ff=1024, h=4",
        _SMALL,
    ),
    "deep-encoder": Preset(
        "as small, pre-norm, with N=6 in the encoder and N=2 in the decoder: d_model=256, d_ff=512, h=4",
        _DEEP_ENCODER | _both_sides(ffn_dim=512),
    ),
    "student": Preset(
        "for distillation: as small, with N=6 in the encoder and N=2 in the decoder, pre-norm",
        _DEEP_ENCODER,
    ),
    "student-12-1": Preset(
        "for distillation: as small, with N=12 in the encoder and N=1 in the decoder, pre-norm",
        _SMALL | {"encoder_layers": 12, "decoder_layers": 1, "norm_position": "pre"},
    ),
    "tiny": Preset(
        "for tests and toy corpora: N=2, d_model=128, d_ff=512, h=4",
        {"d_model": 128, **_both_sides(layers=2, ffn_dim=512, attention_heads=4)},
    ),
}


@short_errors()
def get_preset(name: str) -> Preset:
    """Look up a preset by name.

    Raises:
        ValueError: Unknown name; the message suggests the closest one, or lists all.
    """
    if name not in PRESETS:
        advice = did_you_mean(name, PRESETS) or f"; use one of {', '.join(PRESETS)}"
        raise ValueError(f"unknown preset {name!r}{advice}")
    return PRESETS[name]


@short_errors()
def preset_config(name: str, **overrides: Any) -> VanillaTransformerConfig:
    """Build the configuration of a preset with `overrides` applied.

    Raises:
        ValueError: Unknown preset or invalid configuration.

    Example:
        ```python
        config = preset_config("small", vocab_size=8000, dropout=0.3)
        ```
    """
    try:
        return VanillaTransformerConfig(**{**get_preset(name).config, **overrides})
    except StrictDataclassFieldValidationError as error:
        # From fields that transformers 5.17 itself checks first.
        raise ValueError(one_line(error)) from error
