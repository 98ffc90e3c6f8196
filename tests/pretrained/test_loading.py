"""Strict loading: complete models load silently, others raise one line that names the fault."""

import json
import re

import peft
import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.utils import _http
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
)

from hf_vanilla_transformer.export import export_model
from hf_vanilla_transformer.inference.translation import load
from hf_vanilla_transformer.pretrained.loading import load_config, load_model, load_tokenizer
from hf_vanilla_transformer.training import average_checkpoints
from translators import ENGLISH, build

WEIGHT = "model.decoder.layers.1.fc1.weight"


def save(folder, kind="shared"):
    model, tokenizer = build(kind)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


def damage(folder, change):
    file = folder / "model.safetensors"
    weights = load_file(file)
    change(weights)
    save_file(weights, file, metadata={"format": "pt"})


def with_value(value):
    def change(weights):
        weights[WEIGHT][3, 5] = value

    return change


def renamed(weights):
    for name in list(weights):
        weights[name.replace("model.decoder.", "transformer.decoder.")] = weights.pop(name)


FAULTS = {
    "NaN": (with_value(float("nan")), f"1 of 512 numbers in {WEIGHT} are NaN or infinite"),
    "infinite": (with_value(float("-inf")), f"1 of 512 numbers in {WEIGHT} are NaN or infinite"),
    "missing": (lambda weights: weights.pop(WEIGHT), f"missing weights: {WEIGHT}; save or fetch it again"),
    "renamed": (renamed, "(but unused ones: transformer.decoder."),
    "wrong shape": (
        lambda weights: weights.update({WEIGHT: torch.zeros(3, 3)}),
        f"{WEIGHT} (3, 3), not (32, 16)",
    ),
    "unused": (
        lambda weights: weights.update({"model.decoder.layers.2.fc1.weight": torch.zeros(32, 16)}),
        "weights that its configuration does not use: model.decoder.layers.2.fc1.weight",
    ),
}
EVERY_FAULT = pytest.mark.parametrize(("change", "message"), FAULTS.values(), ids=FAULTS)


@EVERY_FAULT
def test_a_damaged_model_is_refused_wherever_it_is_loaded(change, message, tmp_path, capsys, caplog):
    save(tmp_path / "model")
    save(tmp_path / "whole")
    damage(tmp_path / "model", change)
    capsys.readouterr()
    uses = {
        "translate": lambda: load(str(tmp_path / "model")),
        "export": lambda: export_model(tmp_path / "model", "marian", tmp_path / "exported"),
        "average": lambda: average_checkpoints([tmp_path / "whole", tmp_path / "model"]),
        "average, the last": lambda: average_checkpoints([tmp_path / "model", tmp_path / "whole"]),
    }
    for name, use in uses.items():
        with pytest.raises(ValueError, match=f"^model {tmp_path / 'model'}") as caught:
            use()
        assert message in str(caught.value) and "\n" not in str(caught.value), name
    assert caplog.text == "" and "REPORT" not in capsys.readouterr().err
    assert not (tmp_path / "exported").exists()


def test_a_buffer_that_is_not_finite(tmp_path):
    """Marian has one, added to its logits."""
    model = save(tmp_path, "marian")
    model.final_logits_bias[0, 3] = float("nan")
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="1 of 34 numbers in final_logits_bias are NaN or infinite"):
        load_model(tmp_path)


def test_weights_that_overflow_the_type_asked_for(tmp_path):
    save(tmp_path)
    damage(tmp_path, with_value(7e4))
    load_model(tmp_path)
    load_model(tmp_path, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="NaN or infinite; use another checkpoint or, .* another dtype than float16"):
        load_model(tmp_path, dtype=torch.float16)


@pytest.mark.parametrize("kind", ["shared", "pair", "learned", "marian", "bart"])
def test_a_whole_model_is_loaded_without_a_word(kind, tmp_path, caplog):
    model = save(tmp_path, kind)
    loaded = load_model(tmp_path)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(loaded.get_parameter(name), weight, rtol=0, atol=0)
    assert caplog.text == ""


def test_a_model_of_others_with_more_weights_is_loaded_and_says_so(tmp_path, caplog):
    save(tmp_path, "bart")
    damage(tmp_path, lambda weights: weights.update({"classification_head.weight": torch.zeros(2, 2)}))
    load_model(tmp_path)
    assert "BartForConditionalGeneration does not use: classification_head.weight" in caplog.text


def test_a_new_head_may_be_missing_and_nothing_else(tmp_path):
    config = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, num_labels=2
    )
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    damage(tmp_path, lambda weights: (weights.pop("classifier.weight"), weights.pop("classifier.bias")))
    options = {"auto_class": AutoModelForSequenceClassification, "new_weights": ("classifier.",)}
    assert load_model(tmp_path, **options).classifier.weight.isfinite().all()
    with pytest.raises(ValueError, match="missing weights: classifier.bias, classifier.weight"):
        load_model(tmp_path, AutoModelForSequenceClassification)
    damage(tmp_path, lambda weights: weights.pop("bert.encoder.layer.0.output.dense.weight"))
    with pytest.raises(ValueError, match="missing weights: bert.encoder.layer.0.output.dense.weight;"):
        load_model(tmp_path, **options)


@pytest.mark.parametrize("use", [load_model, load_tokenizer, load_config])
def test_what_is_no_folder(use, tmp_path, monkeypatch):
    save(tmp_path / "demo")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="demo/config.json cannot be loaded: it is a file; name the folder"):
        use("demo/config.json")
    for name in ("./nope", "../nope", "/nope", "a/b/c", str(tmp_path / "nope"), "~/nope"):
        with pytest.raises(ValueError, match=f"{name} cannot be loaded: there is no such folder; check the path"):
            use(name)


@pytest.mark.parametrize("use", [load_model, load_tokenizer, load_config])
@pytest.mark.parametrize("file", ["checkpoint_best.pt", "model.pth.tar", "params.best"])
def test_weights_of_another_code_base(use, file, tmp_path):
    folder = tmp_path / "a folder"
    folder.mkdir()
    for name in (file, "dict.en.txt"):
        (folder / name).touch()
    command = re.escape(
        f"convert them first: `vanilla-transformer convert --source '{folder}' --output_dir NEW_FOLDER`"
    )
    with pytest.raises(ValueError, match=f"cannot be loaded: it holds {file}, but no config.json; if .*, {command}"):
        use(folder)
    with pytest.raises(ValueError, match=rf"cannot be loaded: it is a file; if .*--source '{folder / file}'"):
        use(folder / file)


def test_a_lone_tokenizer_beside_weights_of_another_code_base(tmp_path):
    """transformers loads a folder with only `tokenizer.model`, such as an original LLaMA checkpoint."""
    sentencepiece = pytest.importorskip("sentencepiece", reason="trains the tokenizer")
    with (tmp_path / "tokenizer.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(ENGLISH * 20), model_writer=file, vocab_size=25, hard_vocab_limit=False,
            minloglevel=9,
        )  # fmt: skip  # one call
    (tmp_path / "consolidated.00.pth").touch()
    assert load_tokenizer(tmp_path).tokenize("a")
    with pytest.raises(ValueError, match=r"it holds consolidated\.00\.pth, but no config\.json"):
        load_model(tmp_path)


@pytest.mark.parametrize("others", [["model.safetensors"], ["tokenizer.json"], []], ids=str)
def test_a_folder_that_lost_its_configuration(others, tmp_path):
    for name in ("optimizer.pt", "rng_state.pth", *others) if others else ("trainer_state.json",):
        (tmp_path / name).touch()
    with pytest.raises(ValueError, match="holds no config.json; save or fetch it again"):
        load_model(tmp_path)


@pytest.fixture
def tries(monkeypatch):
    """Make the Hub unreachable; return the list of delays before retries."""
    waits = []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", "http://127.0.0.1:9/{repo_id}/{revision}/{filename}")
    monkeypatch.setattr(_http.time, "sleep", waits.append)
    return waits


@pytest.mark.parametrize("use", [load_model, load_tokenizer, load_config])
@pytest.mark.parametrize("name", ["nope", "runs/x"])
def test_a_hub_that_cannot_be_reached_is_asked_once(use, name, tries):
    with pytest.raises(ValueError, match=f"{name} cannot be loaded: there is no such folder, and the Hub cannot"):
        use(name)
    assert tries == []


def test_a_cached_model_is_loaded_at_once_where_the_hub_cannot_be_reached(tries, tmp_path, monkeypatch, caplog):
    repository = tmp_path / "models--owner--demo"
    save(repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    load("owner/demo")
    assert tries == []
    assert caplog.text.count("owner/demo: the Hub cannot be reached; using the cached copy") == 1


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
def test_settings_that_cannot_be_read(tmp_path, name):
    """`from_pretrained` would silently use default settings."""
    save(tmp_path)
    assert load_config(tmp_path).to_dict() == AutoConfig.from_pretrained(tmp_path).to_dict()
    (tmp_path / name).write_text('{"num_beams": 4')
    with pytest.raises(ValueError, match=f"^model {tmp_path} cannot be loaded: .*{name}"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("file", "remedy"),
    [("model.bin", "`backend=ctranslate2`"), ("onnx/encoder_model.onnx", r"scripts/onnx_translate\.py")],
)
def test_an_exported_model_names_what_translates_by_it(file, remedy, tmp_path):
    save(tmp_path)
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / "model.safetensors").rename(tmp_path / file)
    with pytest.raises(ValueError, match=f"it was exported to .*{remedy}"):
        load_model(tmp_path)


def test_a_tokenizer_is_saved_as_it_was(tmp_path):
    """Options of loading are not saved."""
    tokenizer = build("shared")[1]
    # Remove the state left by calls in other tests.
    tokenizer.backend_tokenizer.no_padding()
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.save_pretrained(tmp_path / "one")
    load_tokenizer(tmp_path / "one").save_pretrained(tmp_path / "other")
    one, other = ({file.name: file.read_bytes() for file in (tmp_path / each).iterdir()} for each in ("one", "other"))
    assert one == other


def test_a_tokenizer_that_is_not_there_or_damaged(tmp_path):
    save(tmp_path, "bart")
    (tmp_path / "tokenizer_config.json").unlink()
    whole = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").unlink()
    # transformers would infer an empty RoBERTa tokenizer from the model.
    with pytest.raises(ValueError, match="its files are missing"):
        load_tokenizer(tmp_path)
    for text in (whole[:300], json.dumps({**json.loads(whole), "model": {"type": "Nothing"}})):
        (tmp_path / "tokenizer.json").write_text(text)
        with pytest.raises(ValueError, match=f"^tokenizer {tmp_path} cannot be loaded: .") as caught:
            load_tokenizer(tmp_path)
        assert "\n" not in str(caught.value)
    save(tmp_path / "marian", "marian")
    (tmp_path / "marian" / "tokenizer_config.json").unlink()
    with pytest.raises(ValueError, match="tokenizer_config.json is missing: "):
        load_tokenizer(tmp_path / "marian")


def test_a_tokenizer_without_an_unknown_token(tmp_path):
    tokenizer = Tokenizer(WordLevel({"</s>": 0, "1": 1, "2": 2}))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path)("2 1")["input_ids"] == [2, 1]


def test_an_index_of_shards_that_were_not_fetched(tmp_path):
    """As when only one of two weight formats is downloaded."""
    save(tmp_path)
    index = {"metadata": {}, "weight_map": {WEIGHT: "pytorch_model-00001-of-00002.bin"}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    load_model(tmp_path)


# PEFT uses an attribute that transformers has renamed.
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_an_adapter(tmp_path):
    """An adapter is loaded with its base model, whose folder is checked."""
    base, folder = tmp_path / "base", tmp_path / "adapter"
    save(base)
    config = peft.LoraConfig(r=2, target_modules=["q_proj"])
    peft.get_peft_model(load_model(base), config).save_pretrained(folder)
    assert any("lora_A" in name for name, _ in load_model(folder).named_parameters())
    damage(base, with_value(float("nan")))
    with pytest.raises(ValueError, match="NaN or infinite"):
        load_model(folder)
    (base / "config.json").write_text("{")
    with pytest.raises(ValueError, match=f"{base}/config.json cannot be read"):
        load_model(folder)
