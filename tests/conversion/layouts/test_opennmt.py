"""Conversion of OpenNMT-py checkpoints: weights in two places, options, vocabularies, and what is refused."""

import sys
from argparse import Namespace
from types import ModuleType

import pytest
import torch
from transformers import AutoTokenizer

from conversions import TOLERANCE, assert_same_logits, convert, converted_logits, refused
from hf_vanilla_transformer.conversion import convert_checkpoint
from source_models import opennmt

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = ["a", "cat", "dog", "sleeps", "runs", "the", "small", "big", "and"]
SPECIAL = ["<unk>", "<blank>", "<s>", "</s>"]
SOURCE, TARGET = [*SPECIAL, *WORDS], [*SPECIAL, *(word.upper() for word in WORDS), "!", "?", ",", "."]
OPTIONS = {
    "heads": 2, "pos_ffn_activation_fn": "relu", "dropout": [0.2], "attention_dropout": [0.1], "layers": 2,
    "position_encoding": True, "max_relative_positions": 0, "copy_attn": False, "encoder_type": "transformer",
}  # fmt: skip  # one option a line would fill the screen


def checkpoint(model=None, release=3, vocabularies=True, options_as=Namespace, **options):
    """Return the content of a checkpoint as OpenNMT-py writes it."""
    torch.manual_seed(0)
    weights = (model or opennmt()).state_dict()
    output = {name: weights.pop(name) for name in list(weights) if name.startswith("generator")}
    prefix = "generator." if release == 3 else "generator"
    replacement = "" if release == 3 else "0"
    content = {
        "model": weights,
        "generator": {name.replace(prefix, replacement): tensor for name, tensor in output.items()},
        "opt": options_as(**{**OPTIONS, **options}),
        "optim": {"training_step": 7, "decay_step": 7},
    }
    if vocabularies:
        content["vocab"] = {"src": SOURCE, "tgt": TARGET, "data_task": "seq2seq", "decoder_start_token": "<s>"}
    return content


@pytest.mark.parametrize("release", [2, 3])
@pytest.mark.parametrize("options_as", [Namespace, dict])
def test_a_checkpoint_says_all(tmp_path, release, options_as):
    torch.manual_seed(0)
    model = opennmt(attention_bias=release == 2).eval()
    torch.save(checkpoint(model, release, options_as=options_as), tmp_path / "model_step_7.pt")
    conversion = convert(tmp_path / "model_step_7.pt")
    assert conversion.layout.name == "opennmt-py"
    config = conversion.config
    assert (config.norm_position, config.final_layer_norm, config.layer_norm_eps) == ("pre", True, 1e-6)
    assert (config.encoder_attention_heads, config.dropout, config.attention_dropout) == (2, 0.2, 0.1)
    assert config.attention_bias == (release == 2)
    assert_same_logits(model, conversion.model())


def test_vocabularies_become_the_tokenizer(tmp_path):
    torch.save(checkpoint(), tmp_path / "model.pt")
    convert_checkpoint(tmp_path / "model.pt", tmp_path / "ours")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "ours")
    # A source has no end.
    assert tokenizer("the zebra sleeps")["input_ids"] == [9, 0, 7]
    assert tokenizer(text_target="CAT !")["input_ids"] == [5, 13, 3]


def test_a_source_of_release_2_has_no_start_and_no_end():
    """Its words with their ids move, and texts are encoded to the same states."""
    torch.manual_seed(0)
    model = opennmt(source_vocabulary=11).eval()
    content = checkpoint(model, release=2)
    content["vocab"]["src"] = [*SPECIAL[:2], *WORDS]
    conversion = convert(content)
    assert conversion.config.vocab_size == 13 and any("renumbered" in note for note in conversion.notes)
    ids = conversion.tokenizer("a zebra runs the cat", return_tensors="pt")["input_ids"]
    target = torch.tensor([[2, 5, 6]])
    with torch.no_grad():
        expected = model(torch.tensor([[2, 0, 6, 7, 3]]), target)
    torch.testing.assert_close(converted_logits(conversion.model(), ids, target), expected, atol=TOLERANCE, rtol=0)


def test_special_tokens_are_found_in_the_vocabulary():
    content = checkpoint()
    content["vocab"]["tgt"] = [*TARGET[4:], "</s>", "<blank>", "<unk>", "<s>"]
    content["vocab"]["decoder_start_token"] = content["opt"].decoder_start_token = "</s>"
    config = convert(content).config
    assert (config.pad_token_id, config.bos_token_id, config.eos_token_id) == (14, 16, 13)
    assert config.decoder_start_token_id == 13


def test_without_options_they_are_required():
    content = checkpoint()
    del content["opt"]
    refused(r"code: `encoder_attention_heads=8` .*`activation_function=relu\|", content)
    assert convert(content, encoder_attention_heads=2, activation_function="relu").config.scale_embedding


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_relative_positions": 20}, "OpenNMT-py's max_relative_positions: 20, which our configuration"),
        ({"pos_ffn_activation_fn": "gated-gelu"}, "pos_ffn_activation_fn: gated-gelu"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_that_cannot_be_expressed(options, message):
    refused(message, checkpoint(**options))


def test_weights_that_cannot_be_expressed():
    content = checkpoint()
    gate = "encoder.transformer.0.feed_forward.w_3.weight"
    refused("gated feed-forward sub-layers", {**content, "model": {**content["model"], gate: torch.ones(16, 8)}})
    weights = {key: tensor for key, tensor in content["model"].items() if not key.endswith("pe")}
    refused("no sinusoidal positions", {**content, "model": weights})


def test_other_sinusoids_are_kept():
    """Those of `position_encoding_type: SinusoidalConcat` have other wavelengths than the paper's."""
    model = opennmt().eval()
    for table in model.buffers():
        table.normal_()
    conversion = convert(checkpoint(model))
    assert conversion.config.position_embedding_type == "learned"
    assert_same_logits(model, conversion.model())


def test_objects_of_release_2_are_no_lists(tmp_path, monkeypatch):
    module = ModuleType("onmt.inputters")
    module.TextMultiField = type("TextMultiField", (), {"__module__": module.__name__})
    monkeypatch.setitem(sys.modules, "onmt", ModuleType("onmt"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    torch.save({**checkpoint(release=2), "vocab": {"src": module.TextMultiField()}}, tmp_path / "model.pt")
    refused(r"onmt\.inputters\.TextMultiField, which is not run; where OpenNMT-py 2 is", tmp_path / "model.pt")


# onmt and configargparse use what newer releases of Python and PyTorch deprecate.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::SyntaxWarning")
@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--add_qkvbias"], ["--pos_ffn_activation_fn", "gelu", "--share_embeddings",
                                                             "--share_decoder_embeddings"]],
                         ids=["defaults", "biases", "gelu, tied"])  # fmt: skip  # one table
def test_the_original(tmp_path, options):
    """OpenNMT-py's own classes, options and checkpoint, where it is installed."""
    reason = "needs OpenNMT-py, which is no dependency of ours"
    builder = pytest.importorskip("onmt.model_builder", reason=reason, exc_type=ImportError)
    from onmt import opts
    from onmt.inputters.inputter import dict_to_vocabs, vocabs_to_dict
    from onmt.utils.parse import ArgumentParser

    tied = "--share_embeddings" in options
    vocabularies = dict_to_vocabs({"src": TARGET if tied else SOURCE, "tgt": TARGET, "data_task": "seq2seq"})
    parser = ArgumentParser()
    opts.train_opts(parser)
    sizes = {"layers": 2, "hidden_size": 16, "word_vec_size": 16, "transformer_ff": 32, "heads": 4}
    arguments = [text for name, size in sizes.items() for text in (f"--{name}", str(size))]
    kinds = ["--encoder_type", "transformer", "--decoder_type", "transformer", "--position_encoding"]
    opt = parser.parse_args(["--data", "{}", "--src_vocab", "none", *arguments, *kinds, "--add_ffnbias", *options])
    ArgumentParser.update_model_opts(opt)
    torch.manual_seed(0)
    model = builder.build_base_model(opt, vocabularies).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(1.0 if "norm" in name and "weight" in name else 0.0, 0.3)
    weights = {name: tensor for name, tensor in model.state_dict().items() if "generator" not in name}
    content = {"model": weights, "generator": model.generator.state_dict(), "vocab": vocabs_to_dict(vocabularies),
               "opt": opt, "optim": {}}  # fmt: skip  # one dict
    torch.save(content, tmp_path / "model_step_1.pt")
    conversion = convert(tmp_path / "model_step_1.pt")
    assert conversion.config.share_encoder_decoder_embeddings == conversion.config.tie_word_embeddings == tied
    source, target = torch.randint(4, 13, (3, 6)), torch.randint(4, 13, (3, 5))
    lengths = torch.tensor([6, 4, 2])
    mask = torch.arange(6) < lengths[:, None]
    source = source.masked_fill(~mask, 1)
    with torch.no_grad():
        # The last token of a target is only predicted.
        states, _ = model(source[..., None], torch.nn.functional.pad(target, (0, 1))[..., None], lengths)
        expected = model.generator(states)
    found = converted_logits(conversion.model(), source, target, mask)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
    assert expected.std() > 0.05
