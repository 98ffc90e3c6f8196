"""The baseline that is available without this package."""

import json

import pytest
from transformers import AutoModelForSeq2SeqLM, MarianMTModel

import marian_baseline
from experiments import write_splits


@pytest.fixture
def recipe(tmp_path):
    shape = "d_model=16,encoder_layers=1,decoder_layers=1,encoder_ffn_dim=32,decoder_ffn_dim=32,dropout=0.25"
    content = {"preset": "tiny", "config_overrides": shape, "vocab_size": 300, "use_cpu": True, "disable_tqdm": True}
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps({name: str(value) for name, value in {**content, **write_splits(tmp_path)}.items()}))
    return str(file)


@pytest.mark.slow
@pytest.mark.parametrize("settings", marian_baseline.SETTINGS)
def test_it_is_trained_for_a_time_and_scored(settings, recipe, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(marian_baseline, "TIMED_STEPS", 2)
    monkeypatch.setattr(marian_baseline, "FIRST_STEPS", 1)
    folder = tmp_path / "marian"
    words = ["--minutes", "0.002", "--settings", settings, "--output_dir", str(folder)]
    marian_baseline.main([recipe, *words, "--", "--final_num_beams", "2"])
    results = json.loads((folder / "results.json").read_text())
    assert results["steps"] >= 1 and results["minutes"] > 0
    assert {"validation_bleu", "test_bleu", "test_chrfpp", "test_ter"} <= results.keys()
    assert f"test_bleu                {results['test_bleu']:g}\n" in capsys.readouterr().out
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert isinstance(model, MarianMTModel) and model.generation_config.num_beams == 2
    assert (model.config.d_model, model.config.dropout, model.config.encoder_layers) == (16, 0.25, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--minutes", "0"], "--minutes is 0; it must be positive"),
        (["--minutes", "1", "--batch_size", "0"], "--batch_size is 0; it must be positive"),
        (["--minutes", "1", "--", "--config_overrides", "norm_position=pre"], "Marian supports only post-norm layers"),
    ],
    ids=["no time", "no sentences", "a shape that Marian does not support"],
)
def test_what_it_refuses(words, message, recipe, tmp_path, refused):
    assert message in refused(marian_baseline.main, [recipe, "--output_dir", str(tmp_path / "marian"), *words])
