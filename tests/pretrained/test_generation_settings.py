"""Unusable saved settings of `generate()` are refused by name."""

import json

import pytest
from transformers import GenerationConfig

from hf_vanilla_transformer.pretrained.generation_settings import RULES, check_generation_settings
from hf_vanilla_transformer.pretrained.loading import load_model
from tables import looped
from translators import save_translator

UNUSABLE = {
    "num_beams": (0, -1, 10**9, 2.0, "4", True),
    "max_length": (-1, "20", 10**20),
    "length_penalty": ("1", True, float("nan"), float("inf"), 10**20, 6, -5.5),
    "do_sample": (0, "no", None.__class__),
    "pad_token_id": ("<pad>", 1.0, -2, [0]),
    "eos_token_id": ([None], {"a": 1}, [2, "3"], []),
    "bad_words_ids": ([5], [[]], "x", [["a"]]),
    "early_stopping": ("always", 2),
    "alignment_heads": ([[0]], [["a", 0]], [0, 1], "0-1", [[-1, 0]], [[0.5, 0]]),
}


@looped("name", UNUSABLE)
def test_unusable_values(name):
    for value in UNUSABLE[name]:
        settings = GenerationConfig()
        setattr(settings, name, value)
        with pytest.raises(ValueError, match=rf"^here: `{name}` is .*; it must be "):
            check_generation_settings(settings, "here")


def test_usable_values():
    settings = {
        "num_beams": 5, "max_length": 200, "length_penalty": -1.5, "do_sample": True, "pad_token_id": -1,
        "eos_token_id": [2, 3], "bad_words_ids": [[5], [6, 7]], "early_stopping": "never", "temperature": 1,
    }  # fmt: skip  # a table, not an expression
    check_generation_settings(GenerationConfig(**settings), "here")
    check_generation_settings(GenerationConfig(), "here")


def test_every_checked_setting_exists():
    known = GenerationConfig().to_dict()
    checked = [name for names, _, _ in RULES for name in names]
    assert len(checked) == len({*checked})
    # Settings come and go with releases of transformers, but most must exist.
    assert len([name for name in checked if name in known]) > 0.8 * len(checked)


def test_ids_beyond_the_vocabulary():
    for name, value in {
        "decoder_start_token_id": 40,
        "bad_words_ids": [[5], [6, 40]],
        "forced_eos_token_id": -1,
    }.items():
        with pytest.raises(ValueError, match=rf"^here: `{name}` is .* but ids go from 0 to 39; save it again"):
            check_generation_settings(GenerationConfig(**{name: value}), "here", vocab_size=40)


@pytest.mark.parametrize("kind", ["shared", "marian"])
def test_a_model_with_such_a_setting_is_not_loaded(tmp_path, kind):
    save_translator(kind, tmp_path)
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "decoder_start_token_id": 1001}))
    with pytest.raises(ValueError, match=f"^{file}: `decoder_start_token_id` is 1001, but ids go from 0 to"):
        load_model(tmp_path)


def test_other_families_may_have_ids_that_no_search_looks_up(tmp_path):
    save_translator("marian", tmp_path, bos_token_id=1001, suppress_tokens=[-1])
    assert load_model(tmp_path).generation_config.bos_token_id == 1001
