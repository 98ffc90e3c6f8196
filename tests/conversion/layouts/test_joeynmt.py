"""Conversion of Joey NMT's model folders: weights, config.yaml, vocabularies, and what is refused."""

import copy
from types import SimpleNamespace

import pytest
import torch
import yaml
from transformers import AutoTokenizer

from conversions import TOLERANCE, assert_same_logits, convert, converted_logits, refused
from hf_vanilla_transformer.conversion import convert_checkpoint
from source_models import joeynmt

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = ["a", "cat", "dog", "sleeps", "runs", "the", "small", "big", "and"]
SPECIAL = ["<unk>", "<pad>", "<s>", "</s>"]
SOURCE, TARGET = [*SPECIAL, *WORDS], [*SPECIAL, *(word.upper() for word in WORDS), "!", "?", ",", "."]
STACK = {
    "type": "transformer", "num_layers": 2, "num_heads": 2, "hidden_size": 8, "ff_size": 16, "dropout": 0.3,
    "embeddings": {"embedding_dim": 8, "scale": True, "dropout": 0.0}, "layer_norm": "pre", "activation": "relu",
}  # fmt: skip  # one setting a line would fill the screen
CONFIG = {
    "name": "words", "data": {"src": {"lang": "de"}, "trg": {"lang": "en"}}, "training": {"batch_size": 4},
    "model": {"tied_softmax": False, "encoder": STACK, "decoder": {**STACK}},
}  # fmt: skip  # as above


def model_folder(folder, model=None, config=CONFIG):
    """Write what Joey NMT writes, and return the checkpoint's file."""
    if config is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    for side, tokens in (("src", SOURCE), ("trg", TARGET)):
        (folder / f"{side}_vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    file = folder / "7.ckpt"
    torch.save({"model_state": (model or joeynmt()).state_dict(), "optimizer_state": {}, "scaler_state": None}, file)
    return file


def changed(side="both", **settings):
    """Return the configuration with other settings of the encoder, the decoder or both."""
    config = copy.deepcopy(CONFIG)
    for stack in ("encoder", "decoder") if side == "both" else (side,):
        config["model"][stack] |= settings
    return config


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_folder_says_all(tmp_path, norm):
    torch.manual_seed(0)
    model = joeynmt(pre=norm == "pre").eval()
    file = model_folder(tmp_path, model, changed(layer_norm=norm))
    conversion = convert(file)
    assert conversion.layout.name == "joeynmt"
    config = conversion.config
    assert (config.norm_position, config.final_layer_norm, config.layer_norm_eps) == (norm, norm == "pre", 1e-6)
    assert (config.encoder_attention_heads, config.decoder_attention_heads, config.dropout) == (2, 2, 0.3)
    assert_same_logits(model, conversion.model())


def test_settings_are_those_of_the_original():
    """What config.yaml leaves out is as Joey NMT's code has it."""
    torch.manual_seed(0)
    model = joeynmt(scale=False, activation=torch.nn.functional.gelu).eval()
    settings = {f"{stack}_num_heads": 2 for stack in ("encoder", "decoder")}
    gelu = {f"{stack}_activation": "gelu" for stack in ("encoder", "decoder")}
    conversion = convert({"model_state": model.state_dict(), "config": {**settings, **gelu}})
    assert not conversion.config.scale_embedding
    assert_same_logits(model, conversion.model())
    assert convert({"model_state": model.state_dict(), "config": settings}).config.activation_function == "relu"


def test_vocabularies_become_the_tokenizer(tmp_path):
    convert_checkpoint(model_folder(tmp_path), tmp_path / "ours")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert tokenizer("the zebra sleeps")["input_ids"] == [9, 0, 7, 3]
    assert tokenizer(text_target="CAT !")["input_ids"] == [5, 13, 3]


def test_special_ids_of_the_configuration(tmp_path):
    config = copy.deepcopy(CONFIG)
    config["data"]["special_symbols"] = {"unk_id": 3, "pad_id": 2, "bos_id": 1, "eos_id": 0}
    found = convert(model_folder(tmp_path, config=config)).config
    assert (found.pad_token_id, found.bos_token_id, found.eos_token_id) == (2, 1, 0)
    assert found.decoder_start_token_id == 1


@pytest.mark.parametrize("pre", [True, False])
def test_without_its_configuration_settings_are_required(tmp_path, pre):
    file = model_folder(tmp_path, joeynmt(pre=pre), config=None)
    # Only pre-norm stacks end in a norm.
    norm = "" if pre else r"`norm_position=post\|pre` "
    refused(rf"code: `enc\S+=8` `dec\S+=8` {norm}`activation_f\S+` `scale_emb\S+`$", file)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (changed("encoder", alpha=1.2), "the encoder weighs residuals by alpha: 1.2, which our configuration"),
        (changed("decoder", activation="gelu"), "differ in activation .'relu' and 'gelu'."),
        (changed("decoder", embeddings={"scale": False}), "differ in embeddings: scale .True and False."),
        (changed("decoder", layer_norm="post"), "differ in layer_norm .'pre' and 'post'."),
        (changed(activation="swoosh"), "swoosh"),
    ],
    ids=["alpha", "activations", "scales", "norms", "unknown activation"],
)
def test_settings_that_cannot_be_expressed(tmp_path, config, message):
    refused(message, model_folder(tmp_path, config=config))


def test_a_norm_at_the_end_of_one_stack(tmp_path):
    state = joeynmt().state_dict()
    for part in ("weight", "bias"):
        del state[f"encoder.layer_norm.{part}"]
    refused(
        "differ in a norm at the end .False and True.",
        {"model_state": state, "config": {f"{stack}_num_heads": 2 for stack in ("encoder", "decoder")}},
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: [", "config.yaml cannot be read"),
        ("- a", "config.yaml is not a mapping"),
        ("!!python/object:os.system {}", "config.yaml cannot be read"),
        ("!ModelConfig [1]", "config.yaml cannot be read"),
    ],
    ids=["no YAML", "a list", "code", "an object of a list"],
)
def test_a_configuration_that_cannot_be_read(tmp_path, text, message):
    file = model_folder(tmp_path)
    (tmp_path / "config.yaml").write_text(text)
    refused(message, file)


@pytest.mark.slow
# Joey NMT uses what newer releases of its dependencies deprecate.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    "config",
    [
        changed(),
        changed(layer_norm="post"),
        changed(activation="gelu", embeddings={"embedding_dim": 8, "scale": False}),
        {**CONFIG, "model": {**CONFIG["model"], "tied_embeddings": True, "tied_softmax": True}},
    ],
    ids=["pre", "post", "gelu, unscaled", "tied"],
)
def test_the_original(tmp_path, config):
    """Joey NMT's own classes and vocabularies, where it is installed."""
    reason = "needs Joey NMT, which is no dependency of ours"
    joey = pytest.importorskip("joeynmt.model", reason=reason, exc_type=ImportError)
    from joeynmt.vocabulary import Vocabulary

    tied = config["model"].get("tied_embeddings", False)
    special = {f"{role}_token": token for role, token in zip(("unk", "pad", "bos", "eos"), SPECIAL, strict=True)}
    numbers = {f"{role}_id": number for number, role in enumerate(("unk", "pad", "bos", "eos"))}
    symbols = SimpleNamespace(**special, **numbers, sep_token=None, sep_id=None, lang_tags=[])
    vocabularies = [Vocabulary(words[4:], symbols) for words in (TARGET if tied else SOURCE, TARGET)]
    torch.manual_seed(0)
    model = joey.build_model(config["model"], *vocabularies).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name and "weight" in name else 0.0, 0.3)
    file = model_folder(tmp_path, model, config)
    for side, vocabulary in zip(("src", "trg"), vocabularies, strict=True):
        vocabulary.to_file(tmp_path / f"{side}_vocab.txt")
    conversion = convert(file)
    assert conversion.config.share_encoder_decoder_embeddings == conversion.config.tie_word_embeddings == tied
    ids, lengths, _ = vocabularies[0].sentences_to_ids(
        [text.split() for text in ("the cat sleeps", "a zebra runs and runs")], bos=False, eos=True
    )
    encoded = conversion.tokenizer(["the cat sleeps", "a zebra runs and runs"], padding=True)
    assert encoded["input_ids"] == ids
    source, target = torch.tensor(ids), torch.randint(4, 13, (2, 5))
    mask = torch.tensor(encoded["attention_mask"]).bool()
    assert mask.sum(1).tolist() == lengths
    seen = torch.ones(2, 1, 5, dtype=torch.bool)
    with torch.no_grad():
        memory, _ = model.encoder(model.src_embed(source), None, mask[:, None])
        expected, *_ = model.decoder(model.trg_embed(target), memory, None, mask[:, None], None, None, seen)
    found = converted_logits(conversion.model(), source, target, mask)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
    assert expected.std() > 0.05
