"""`vanilla-transformer average`: averaged weights, copied files, refusals."""

from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
    train_tokenizer,
)
from hf_vanilla_transformer.cli.main import main

STEPS = (20, 100, 90)


@pytest.fixture
def run_dir(tmp_path):
    """A run with three checkpoints, saved out of order, that differ in weights and settings."""
    folder = tmp_path / "run"
    pair = [train_tokenizer([text], algorithm="word") for text in ("a cat", "eine Katze schläft")]
    tokenizer = VanillaTransformerTokenizer.from_pair(*pair)
    config = VanillaTransformerConfig(
        vocab_size=len(tokenizer), decoder_vocab_size=tokenizer.target_vocab_size, d_model=8, encoder_layers=1,
        decoder_layers=1, encoder_attention_heads=1, decoder_attention_heads=1, encoder_ffn_dim=8, decoder_ffn_dim=8,
        share_encoder_decoder_embeddings=False,
    )  # fmt: skip  # one field a line would fill the screen
    for step in STEPS:
        model = VanillaTransformerForConditionalGeneration(config)
        model.generation_config.update(max_length=step)
        model.save_pretrained(folder / f"checkpoint-{step}")
        tokenizer.save_pretrained(folder / f"checkpoint-{step}")
    return folder


def weights_of(folder):
    return load_file(folder / "model.safetensors")


@pytest.fixture
def fail(refusal):
    return partial(refusal, "average")


@pytest.mark.parametrize("by_name", [True, False])
def test_mean_of_the_weights_and_all_that_belongs_to_it(run_dir, tmp_path, capsys, by_name):
    chosen = [run_dir / "checkpoint-90", run_dir / "checkpoint-100"]
    which = ["--checkpoints", *map(str, chosen)] if by_name else ["--run_dir", str(run_dir), "--last", "2"]
    output = tmp_path / "averaged"
    output.mkdir()
    main(["average", *which, "--output_dir", str(output)])
    assert capsys.readouterr().out == f"{output}: the average of {chosen[0]}, {chosen[1]}\n"
    averaged, first, second = map(weights_of, [output, *chosen])
    assert averaged.keys() == first.keys()
    for name, value in averaged.items():
        torch.testing.assert_close(value, (first[name] + second[name]) / 2)
    assert not torch.equal(first["model.decoder.layers.0.fc1.weight"], second["model.decoder.layers.0.fc1.weight"])
    assert AutoModelForSeq2SeqLM.from_pretrained(output).generation_config.max_length == 100
    tokenizer = AutoTokenizer.from_pretrained(output)
    assert tokenizer("a cat", text_target="Katze")["labels"] == tokenizer.target_tokenizer("Katze")["input_ids"]
    assert not list(output.glob("*.bin"))
    made = "`checkpoint-90`, `checkpoint-100`" if by_name else f"2 checkpoints of `{run_dir.name}`"
    assert f"The average of {made}." in (output / "README.md").read_text(encoding="utf-8")


def test_as_many_as_there_are_and_the_tokenizer_of_the_run(run_dir, tmp_path, capsys):
    AutoTokenizer.from_pretrained(run_dir / "checkpoint-90").save_pretrained(run_dir)
    for step in STEPS:
        for file in (run_dir / f"checkpoint-{step}").glob("*token*"):
            file.unlink()
    main(["average", "--run_dir", str(run_dir), "--output_dir", str(tmp_path / "averaged")])
    assert capsys.readouterr().out.count("checkpoint-") == 3
    assert AutoTokenizer.from_pretrained(tmp_path / "averaged").target_vocab_size == 7


def test_what_it_refuses(run_dir, tmp_path, fail):
    output, one = tmp_path / "averaged", run_dir / "checkpoint-20"
    assert "either --checkpoints or --run_dir" in fail("--output_dir", output)
    assert "either" in fail("--checkpoints", one, "--run_dir", run_dir, "--output_dir", output)
    assert "--last is 0" in fail("--run_dir", run_dir, "--last", 0, "--output_dir", output)
    assert "holds no checkpoint-" in fail("--run_dir", tmp_path, "--output_dir", output)
    message = fail("--run_dir", run_dir, "--output_dir", run_dir)
    assert f"--output_dir {run_dir} exists and is not an empty folder" in message
    missing = tmp_path / "missing"
    assert f"{missing} holds no model.safetensors" in fail("--checkpoints", one, missing, "--output_dir", output)
    weights = one / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert f"{weights} is damaged" in fail("--checkpoints", one, "--output_dir", output)
    weights.rename(one / "pytorch_model.bin")
    assert "only safetensors checkpoints" in fail("--checkpoints", one, "--output_dir", output)
    last = run_dir / "checkpoint-100"
    (last / "tokenizer_config.json").unlink()
    assert f"neither {last} nor its run holds tokenizer_config.json" in fail(
        "--checkpoints", last, "--output_dir", output
    )
    assert not output.exists()


def test_checkpoints_of_two_models(run_dir, tmp_path, fail):
    config = VanillaTransformerConfig.from_pretrained(run_dir / "checkpoint-20", decoder_ffn_dim=4)
    VanillaTransformerForConditionalGeneration(config).save_pretrained(tmp_path / "other")
    both = (tmp_path / "other", run_dir / "checkpoint-20")
    message = fail("--checkpoints", *both, "--output_dir", tmp_path / "averaged")
    assert f"{tmp_path / 'other'} " in message and "decoder.layers.0.fc1" in message
    assert not (tmp_path / "averaged").exists()
