"""Arguments: the paper's defaults, derived values, and mutually exclusive options."""

from importlib.util import find_spec

import pytest
import torch
from transformers import HfArgumentParser

from hf_vanilla_transformer import training
from hf_vanilla_transformer.training.arguments import (
    PRESET_DEFAULTS,
    ModelArguments,
    VanillaTransformerTrainingArguments,
    bf16_is_fast,
    parse_overrides,
    peak_learning_rate,
    with_fields,
)
from tables import looped


class TestTrainingArguments:
    @pytest.mark.parametrize("name", PRESET_DEFAULTS)
    def test_a_given_default_is_distinguished_from_what_is_not_given(self, tmp_path, name):
        args = VanillaTransformerTrainingArguments(str(tmp_path), **{name: PRESET_DEFAULTS[name]})
        assert args.not_given == PRESET_DEFAULTS.keys() - {name}
        assert {name: getattr(args, name) for name in PRESET_DEFAULTS} == PRESET_DEFAULTS

    def test_a_given_zero_stays(self, tmp_path):
        args = VanillaTransformerTrainingArguments(str(tmp_path), label_smoothing_factor=0.0, max_tokens=0)
        assert (args.label_smoothing_factor, args.max_tokens) == (0, 0)
        assert not args.not_given & {"label_smoothing_factor", "max_tokens"}

    def test_a_switch_that_is_given_is_distinguished_too(self, tmp_path):
        parser = HfArgumentParser(VanillaTransformerTrainingArguments)
        for words, muon in (([], False), (["--muon"], True), (["--muon", "false"], False)):
            (args,) = parser.parse_args_into_dataclasses(["--output_dir", str(tmp_path), *words])
            assert args.muon is muon and ("muon" in args.not_given) == (not words)

    def test_a_copy_with_other_values_keeps_the_rest(self, tmp_path):
        args = VanillaTransformerTrainingArguments(str(tmp_path), hub_token="hf_secret", max_tokens=9)
        copied = with_fields(args, seed=7)
        assert (copied.seed, copied.hub_token, copied.not_given) == (7, "hf_secret", args.not_given)
        assert args.seed == 42 and type(copied) is type(args)

    def test_what_is_pickled_holds_no_token(self, tmp_path):
        args = VanillaTransformerTrainingArguments(str(tmp_path), hub_token="hf_secret", seed=7)
        torch.save(args, tmp_path / "training_args.bin")
        assert args.hub_token == "hf_secret" and b"hf_secret" not in (tmp_path / "training_args.bin").read_bytes()
        copy = torch.load(tmp_path / "training_args.bin", weights_only=False)
        assert copy.hub_token is None and copy.seed == 7

    def test_other_defaults(self, tmp_path):
        args = VanillaTransformerTrainingArguments(str(tmp_path))
        assert (args.warmup_steps, args.label_smoothing_factor, args.max_grad_norm) == (4000, 0.1, 0)
        assert (args.average_last_checkpoints, args.save_total_limit, args.load_best_model_at_end) == (5, 6, True)
        assert not args.logging_nan_inf_filter

    @pytest.mark.parametrize(
        ("fast", "fp16", "bf16"), [(True, False, True), (True, True, False), (False, False, False)]
    )
    def test_bf16_if_fast(self, tmp_path, monkeypatch, fast, fp16, bf16):
        monkeypatch.setattr("hf_vanilla_transformer.training.arguments.bf16_is_fast", lambda: fast)
        # As with a GPU: a CPU has no fp16.
        monkeypatch.setattr(torch.accelerator, "is_available", lambda: fp16)
        args = VanillaTransformerTrainingArguments(str(tmp_path), bf16_if_fast=True, fp16=fp16)
        assert (args.bf16, args.fp16) == (bf16, fp16)
        assert not VanillaTransformerTrainingArguments(str(tmp_path)).bf16

    @pytest.mark.parametrize("launched", [False, True])
    def test_a_cpu_does_not_pretend_to_compute_in_fp16(self, tmp_path, monkeypatch, launched):
        options = {} if launched else {"fp16": True}
        if launched:
            monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
        with pytest.raises(ValueError, match="^`fp16` needs a GPU: .*; use `bf16`$"):
            VanillaTransformerTrainingArguments(str(tmp_path), use_cpu=True, **options)
        assert VanillaTransformerTrainingArguments(str(tmp_path), use_cpu=True, bf16=True).bf16

    def test_batches_are_copied_to_a_gpu_while_it_works(self, tmp_path):
        options = {"dataloader_pin_memory": True}
        args = VanillaTransformerTrainingArguments(str(tmp_path), **options)
        assert args.accelerator_config.non_blocking
        args = VanillaTransformerTrainingArguments(
            str(tmp_path), accelerator_config={"split_batches": True}, **options
        )
        assert args.accelerator_config.split_batches and not args.accelerator_config.non_blocking
        args = VanillaTransformerTrainingArguments(str(tmp_path), dataloader_pin_memory=False)
        assert not args.accelerator_config.non_blocking

    @looped(
        ("options", "strategy", "steps"),
        [
            ({"eval_strategy": "epoch"}, "epoch", 500),
            ({"eval_strategy": "steps", "eval_steps": 7}, "steps", 7),
            ({"eval_strategy": "steps", "eval_steps": 7, "save_steps": 14}, "steps", 14),
            ({"eval_strategy": "no"}, "epoch", 500),
            ({"eval_strategy": "no", "save_strategy": "steps"}, "steps", 500),
            ({"eval_strategy": "epoch", "save_strategy": "no"}, "no", 500),
        ],
    )
    def test_saving_follows_evaluation(self, tmp_path, options, strategy, steps):
        args = VanillaTransformerTrainingArguments(str(tmp_path), **options)
        assert (args.save_strategy, args.save_steps) == (strategy, steps)
        assert args.load_best_model_at_end == (options["eval_strategy"] != "no" != strategy)

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("warmup_steps", float("nan"), "`warmup_steps` is nan; it must be "),
            ("average_last_checkpoints", -1, "`average_last_checkpoints` is -1; it must be "),
            ("label_smoothing_factor", 1.5, "`label_smoothing_factor` is 1.5; it must be "),
            ("ema_decay", 1.0, "`ema_decay` is 1; it must be "),
            ("generation_max_length", 0, "`generation_max_length` is 0; it must be "),
            ("on_nonfinite", "ignore", "^`on_nonfinite` ignore is unknown; use stop or skip$"),
            ("warmup_steps", 0.1, "`warmup_steps` 0.1 gives no learning rate"),
            pytest.param(
                *("optim", "adamw_8bit", "`optim` adamw_8bit cannot be used: .*bitsandbytes"),
                marks=pytest.mark.skipif(find_spec("bitsandbytes") is not None, reason="needs that it is missing"),
            ),
        ],
    )
    def test_faults(self, tmp_path, name, value, message):
        with pytest.raises(ValueError, match=message):
            VanillaTransformerTrainingArguments(str(tmp_path), **{name: value})

    @looped(
        ("d_model", "warmup_steps", "rate"),
        [
            # The paper's base and big models, and the small one of the README.
            (512, 4000, 7e-4),
            (1024, 4000, 4.9e-4),
            (256, 1000, 1.98e-3),
            # A short warm-up: the rate of 1000 steps, at which the tiny model learns most in 120 steps.
            (128, 20, 2.8e-3),
            (128, 1, 2.8e-3),
        ],
    )
    def test_the_peak_learning_rate(self, d_model, warmup_steps, rate):
        assert peak_learning_rate(d_model, warmup_steps) == pytest.approx(rate, rel=0.01)


@pytest.mark.parametrize(
    ("capabilities", "fast"),
    [
        ({"cpu_name": "AMD EPYC", "avx512_bf16": True}, True),
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": True}, True),
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True}, False),
        ({"cpu_name": "AMD EPYC", "avx2": True}, False),
        # A GPU that only emulates bf16.
        (None, False),
    ],
)
def test_what_is_fast_in_bfloat16(monkeypatch, capabilities, fast):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: capabilities is None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert bf16_is_fast() == fast


class TestModelArguments:
    TOKENIZER = {
        "tokenizer_algorithm": "bpe",
        "vocab_size": 8000,
        "min_frequency": 2,
        "separate_vocabularies": True,
        "lowercase": True,
        "normalization": "NFC",
    }

    def test_defaults(self):
        args = ModelArguments()
        assert (args.preset, args.tokenizer_algorithm, args.vocab_size) == ("base", "bpe", 8000)
        assert ModelArguments(model_name_or_path="there", attn_implementation="eager").attn_implementation == "eager"

    @looped("name", ["model_name_or_path", "tokenizer_name_or_path"])
    @looped("option", TOKENIZER)
    def test_options_without_effect_on_a_tokenizer(self, option, name):
        with pytest.raises(ValueError, match=f"`{name}` brings its own .*; leave `{option}` out"):
            ModelArguments(**{name: "there", option: self.TOKENIZER[option]})

    @pytest.mark.parametrize(
        "given", [{"preset": "base"}, {"config_overrides": "d_model=8"}, {"tokenizer_name_or_path": "there"}], ids=str
    )
    def test_options_without_effect_on_a_model(self, given):
        with pytest.raises(ValueError, match=f"own tokenizer and configuration; leave `{[*given][0]}` out"):
            ModelArguments(model_name_or_path="there", **given)

    @looped(
        ("options", "message"),
        [
            ({"preset": ""}, "preset.* is empty; give a value or leave it out"),
            ({"model_name_or_path": ""}, "model_name_or_path.* is empty; give a value or leave it out"),
            ({"preset": "smal"}, "unknown preset 'smal'; .*small"),
            ({"config_overrides": "d_model"}, "'d_model' does not set a configuration field; write field=value"),
            ({"config_overrides": "d_modle=8"}, "did you mean d_model?"),
            ({"config_overrides": "from_pretrained=8"}, "'from_pretrained=8' does not set a configuration field"),
            ({"config_overrides": "d_model=wide"}, "d_model=wide has the wrong type; d_model takes int"),
            ({"config_overrides": "d_model=8,d_model=9"}, "`config_overrides` sets d_model twice; remove one of them"),
            ({"config_overrides": "d_model=" + "9" * 5000}, r"d_model=9+ \[...\] 9+ has the wrong type"),
            ({"config_overrides": "dropout=" + "[" * 20_000}, r"dropout=\[+ \[...\] \[+ has the wrong type"),
        ],
    )
    def test_faults(self, options, message):
        with pytest.raises(ValueError, match=message):
            ModelArguments(**options)


def test_names_of_the_package():
    assert all(hasattr(training, name) for name in training.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'train_translations'"):
        training.train_translations  # noqa: B018 - the access is what fails


def test_overrides():
    text = "d_model=256, norm_position=pre,dropout=0,layer_norm_eps=1e-6,head_dim=None,attention_bias=True"
    assert parse_overrides(text) == {
        "d_model": 256,
        "norm_position": "pre",
        "dropout": 0,
        "layer_norm_eps": 1e-6,
        "head_dim": None,
        "attention_bias": True,
    }
    assert parse_overrides(None) == parse_overrides("") == {}
