"""Conversion of Eole's folders: config.json, vocab.json, weights that files leave out, and what is refused."""

import json

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer

from conversions import TOLERANCE, assert_same_logits, convert, converted_logits, refused
from hf_vanilla_transformer.conversion import convert_checkpoint
from source_models import eole

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = ["a", "cat", "dog", "sleeps", "runs", "the", "small", "big", "and"]
SPECIAL = ["<unk>", "<blank>", "<s>", "</s>"]
SOURCE, TARGET = [*SPECIAL, *WORDS], [*SPECIAL, *(word.upper() for word in WORDS), "!", "?", ",", "."]
VOCABULARY = {
    "src": SOURCE, "tgt": TARGET, "decoder_start_token": "<s>",
    "specials": {"bos_token": "<s>", "pad_token": "<blank>", "eos_token": "</s>", "unk_token": "<unk>"},
}  # fmt: skip  # one table
SIZES = {"layers": 2, "hidden_size": 8, "transformer_ff": 16, "heads": 2}
MODEL = {
    "architecture": "transformer", **SIZES, "embeddings": {"position_encoding_type": "SinusoidalInterleaved"},
    "encoder": {"encoder_type": "transformer", **SIZES}, "decoder": {"decoder_type": "transformer", **SIZES},
}  # fmt: skip  # one table


def folder(path, weights=None, vocabulary=VOCABULARY, **parts):
    """Write what Eole writes; `parts` change parts of the model's settings."""
    model = {**MODEL, **{part: {**MODEL.get(part, {}), **found} if isinstance(found, dict) else found
                         for part, found in parts.items()}}  # fmt: skip  # one dict
    (path / "config.json").write_text(json.dumps({"seed": 1, "training": {"heads": 9}, "model": model}))
    (path / "vocab.json").write_text(json.dumps(vocabulary))
    save_file(weights or eole().state_dict(), path / "model.00.safetensors")
    torch.save({}, path / "optimizer.pt")
    return path


def test_a_folder_says_all(tmp_path):
    torch.manual_seed(0)
    model = eole(activation=torch.nn.functional.silu, attention_bias=False).eval()
    settings = {"mlp_activation_fn": "silu", "norm_eps": 1e-5}
    conversion = convert(folder(tmp_path, model.state_dict(), encoder=settings, decoder=settings))
    assert conversion.layout.name == "eole"
    config = conversion.config
    assert (config.norm_position, config.layer_norm_eps, config.encoder_attention_heads) == ("pre", 1e-5, 2)
    assert_same_logits(model, conversion.model())


def test_shared_weights_are_stored_once(tmp_path):
    torch.manual_seed(0)
    model = eole(source_vocabulary=17, shared=True, tied=True).eval()
    weights = {key: tensor for key, tensor in model.state_dict().items()
               if key not in {"tgt_emb.embeddings.weight", "generator.weight"}}  # fmt: skip  # one dict
    source = folder(tmp_path, weights, {**VOCABULARY, "src": TARGET}, share_embeddings=True,
                    share_decoder_embeddings=True)  # fmt: skip  # one call
    conversion = convert(source)
    assert conversion.config.share_encoder_decoder_embeddings and conversion.config.tie_word_embeddings
    assert_same_logits(model, conversion.model())


def test_vocabularies_become_the_tokenizer(tmp_path):
    (tmp_path / "theirs").mkdir()
    vocabulary = {**VOCABULARY, "tgt": [*TARGET[4:], *SPECIAL], "decoder_start_token": "</s>"}
    convert_checkpoint(folder(tmp_path / "theirs", vocabulary=vocabulary), tmp_path / "ours")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert tokenizer(text_target="CAT !")["input_ids"] == [1, 9, 16]
    assert tokenizer("the zebra sleeps").tokens() == ["the", "<unk>", "sleeps"]
    config = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert (config["pad_token_id"], config["decoder_start_token_id"]) == (14, 16)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"encoder": {"layer_norm": "rms"}}, r"Eole's layer_norm \(encoder\): rms, which our configuration"),
        ({"decoder": {"mlp_activation_fn": "gelu"}}, "differ in mlp_activation_fn .'relu' and 'gelu'."),
        ({"embeddings": {"position_encoding_type": "Rotary"}}, r"position_encoding_type \(embeddings\): Rotary"),
    ],
    ids=["rms", "activations", "rotary"],
)
def test_settings_that_cannot_be_expressed(tmp_path, parts, message):
    refused(message, folder(tmp_path, **parts))


def test_a_vocabulary_that_is_none(tmp_path):
    refused("`source_vocabulary` holds int; write", folder(tmp_path, vocabulary={"src": 5, "tgt": 5}))


def test_without_positions(tmp_path):
    weights = {key: tensor for key, tensor in eole().state_dict().items() if not key.startswith("tgt_emb.pe")}
    refused(r"the decoder adds no positions to its embeddings .tgt_emb\.pe.", folder(tmp_path, weights))


@pytest.mark.slow
# Eole announces what it runs without, and uses what newer releases of its dependencies deprecate.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.filterwarnings("ignore:Could not import:RuntimeWarning")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"add_qkvbias": True, "add_ffnbias": True, "norm_eps": 1e-6},
        {"mlp_activation_fn": "gelu-tanh", "share_embeddings": True, "share_decoder_embeddings": True},
        {"position_encoding_type": "Learned"},
    ],
    ids=["defaults", "biases", "gelu, tied", "learned positions"],
)
def test_the_original(tmp_path, options):
    """Eole's own classes and configuration, where it is installed."""
    reason = "needs Eole, which is no dependency of ours"
    package = pytest.importorskip("eole.models.model", reason=reason, exc_type=ImportError)
    from eole.config import recursive_model_fields_set
    from eole.config.models import TransformerModelConfig
    from eole.inputters.inputter import dict_to_vocabs, vocabs_to_dict

    options = dict(options)
    kind = options.pop("position_encoding_type", "SinusoidalInterleaved")
    config = TransformerModelConfig(
        architecture="transformer", hidden_size=16, layers=2, heads=4, transformer_ff=32, **options,
        embeddings={"word_vec_size": 16, "position_encoding_type": kind, "n_positions": 30},
    )  # fmt: skip  # one call
    tied = "share_embeddings" in options
    vocabularies = dict_to_vocabs({**VOCABULARY, "src": TARGET if tied else SOURCE})
    torch.manual_seed(0)
    model = package.EncoderDecoderModel.build_blocks(config, vocabularies)
    model.build_generator(config, None, vocabularies)
    model.eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name and "weight" in name else 0.0, 0.3)
    left_out = {"tgt_emb.embeddings.weight", "generator.weight"} if tied else set()
    weights = {name: tensor for name, tensor in model.state_dict().items() if name not in left_out}
    save_file(weights, tmp_path / "model.00.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model": recursive_model_fields_set(config)}))
    (tmp_path / "vocab.json").write_text(json.dumps(vocabs_to_dict(vocabularies)))
    conversion = convert(tmp_path)
    assert conversion.config.share_encoder_decoder_embeddings == conversion.config.tie_word_embeddings == tied
    source, target = torch.randint(4, 13, (3, 6)), torch.randint(4, 13, (3, 5))
    mask = torch.arange(6) < torch.tensor([6, 4, 2])[:, None]
    source = source.masked_fill(~mask, 1)
    with torch.no_grad():
        # The last token of a target is only predicted.
        states = model(source, torch.nn.functional.pad(target, (0, 1)), mask.sum(1)).dec_out
        expected = model.generator(states)
    found = converted_logits(conversion.model(), source, target, mask)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
    assert expected.std() > 0.05
