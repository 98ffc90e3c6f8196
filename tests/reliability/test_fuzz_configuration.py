"""Configurations with any values: the model builds, saves and runs, or one line names the invalid field.

Presets and overrides: each field gets its value, or one line names the invalid one.
"""

import json
from dataclasses import fields

import pytest
import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import JSON_VALUES, one_line, texts
from hf_vanilla_transformer import (
    PRESETS,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    preset_config,
)
from hf_vanilla_transformer.fast.routines import ROUTINES
from hf_vanilla_transformer.presets import get_preset
from hf_vanilla_transformer.processor import processor
from hf_vanilla_transformer.training.arguments import parse_overrides
from reliability import cases
from tiny import TINY, close

# Only this package's own fields.
OWN = sorted(
    set(VanillaTransformerConfig.__annotations__) & {field.name for field in fields(VanillaTransformerConfig)}
)
SIZES = ("vocab_size", "decoder_vocab_size", "d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads",
         "decoder_attention_heads", "head_dim", "value_head_dim", "encoder_ffn_dim", "decoder_ffn_dim",
         "max_position_embeddings")  # fmt: skip  # a size a line would fill the screen
VALUES = st.one_of(
    JSON_VALUES,
    st.integers(0, 40),
    st.sampled_from([0.0, 0.5, 1.0, -0.1, "pre", "none", "gelu", "linear", "concatenated", [2, 3], [], [None], 1e-30]),
)


def configuration_or_error(path, content):
    """Load a configuration from a file; on an error, check that it names a field and return None."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({"model_type": "vanilla_transformer", **content}))
    try:
        return VanillaTransformerConfig.from_pretrained(path)
    except ValueError as error:
        message = one_line(error)
        assert any(f"`{name}`" in message for name in OWN), message
        return None
    # transformers 5.17 checks some fields itself, before this package does.
    except StrictDataclassFieldValidationError as error:
        assert any(f"'{name}'" in str(error) for name in OWN)
        return None


@pytest.mark.slow
def test_any_value_of_any_field(tmp_path, fuzz):
    built = 0

    @fuzz("configurations with any value in any field", 60, 5000)
    @given(st.dictionaries(st.sampled_from(OWN), VALUES, min_size=1, max_size=2), st.integers(0, 9))
    def check(changes, turn):
        nonlocal built
        config = configuration_or_error(tmp_path, {**TINY, **changes})
        # Only a tenth, since building a model is slow.
        if config is None or turn or max(getattr(config, name) for name in SIZES) > 64:
            return
        built += 1
        model = VanillaTransformerForConditionalGeneration(config).eval()
        model.save_pretrained(tmp_path / "model")
        loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path / "model").eval()
        loaded.save_pretrained(tmp_path / "again")
        contents = [(tmp_path / folder / "config.json").read_text() for folder in ("model", "again")]
        assert contents[0] == contents[1]
        saved = json.loads(contents[0])
        assert all(saved.get(name, getattr(VanillaTransformerConfig(), name)) == vars(config)[name] for name in OWN)
        ids = torch.zeros(1, 1, dtype=torch.long)
        with torch.inference_mode():
            logits, again = (each(ids, decoder_input_ids=ids).logits for each in (model, loaded))
        assert logits.shape == (1, 1, config.decoder_vocab_size) and logits.isfinite().all()
        weights = loaded.state_dict()
        assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())
        close(again, logits, 1e-5)
        # On other processors, MKL's rounding depends on the memory alignment of weights.
        assert torch.equal(logits, again) or processor() not in ROUTINES

    assert built > cases(0, 50)


def test_overrides(fuzz):
    literals = st.one_of(
        VALUES.map(json.dumps),
        texts(max_size=4),
        st.sampled_from(
            ["True", "None", "nan", "Infinity", "1e400", "9" * 5000, "[" * 20_000, "=", " 8 ", "\n8", '"']
        ),
    )
    part = st.one_of(st.tuples(st.sampled_from(OWN), literals).map("=".join), texts(max_size=4))

    @fuzz("overrides of the configuration with any text", 100, 8000)
    @given(st.lists(part, max_size=3))
    def check(parts):
        text = ",".join(parts)
        try:
            overrides = parse_overrides(text)
        except ValueError as error:
            assert one_line(error).startswith("`config_overrides`")
            return
        # All parts are present, each once, and have the same values when spelled as JSON.
        assigned = [part.partition("=")[0].strip() for part in text.split(",") if part]
        assert list(overrides) == assigned
        for name, value in overrides.items():
            if "," not in (spelled := json.dumps(value)):
                assert repr(parse_overrides(f"{name}={spelled}")) == repr({name: value})


def test_presets(fuzz):
    names = st.one_of(
        st.sampled_from(sorted(PRESETS)),
        st.sampled_from(sorted(PRESETS)).flatmap(lambda name: st.sampled_from([name[:-1], name.upper(), f"{name} "])),
        texts(),
        st.text(),
    )

    @fuzz("presets by any name, with any value in any field", 60, 6000)
    @given(names, st.dictionaries(st.sampled_from(OWN), VALUES, max_size=2))
    def check(name, overrides):
        try:
            config = preset_config(name, **overrides)
        except ValueError as error:
            message = one_line(error)
            unknown = name not in PRESETS and message.startswith("unknown preset")
            assert unknown or any(f"`{own}`" in message or f"'{own}'" in message for own in OWN), message
            return
        # None means that other fields determine the value.
        asked = {**get_preset(name).config, **overrides}
        expected = {field: value for field, value in asked.items() if value is not None}
        assert {field: getattr(config, field) for field in expected} == expected
