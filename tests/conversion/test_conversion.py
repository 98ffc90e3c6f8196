"""Conversion of foreign checkpoints: the same logits, masks and translations as the original classes; what is refused.

The reference models are those of `source_models`; where ../shared/seeds lies beside the checkout, the notebooks'
own classes are executed too.
"""

import json
import math
import os
import pickle
import re
import runpy
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn
from torch.nn import functional as F
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import source_models
from hf_vanilla_transformer import VanillaTransformerEncoderModel
from hf_vanilla_transformer.conversion import LAYOUTS, convert_checkpoint
from hf_vanilla_transformer.conversion.reading import read_checkpoint
from hf_vanilla_transformer.conversion.rules import FolderContents
from paths import SCRIPTS, SHARED

SCRIPT = SCRIPTS / "convert_checkpoint.py"
main = runpy.run_path(str(SCRIPT))["main"]
TOLERANCE = 1e-5
HEADS = {"encoder_attention_heads": 2}

# nn.Transformer announces, when it is built or masked, which of its own fast paths it takes.
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
]

# What a case is called: the layout, how to build the original, and what the user has to say.
CASES = {
    "annotated": ("annotated-transformer", source_models.Annotated, HEADS),
    "gamma-beta": (
        "simple-transformers",
        partial(source_models.Annotated, embedding="embedding", norm_names=("gamma", "beta")),
        HEADS,
    ),
    "torch-post": ("torch-nn-transformer", source_models.TorchNN, HEADS),
    "torch-pre-batch-first": (
        "torch-nn-transformer",
        partial(source_models.TorchNN, norm_first=True, batch_first=True),
        {**HEADS, "norm_position": "pre"},
    ),
    "torch-gelu-no-bias": (
        "torch-nn-transformer",
        partial(source_models.TorchNN, bias=False, activation="gelu", batch_first=True, layer_norm_eps=1e-3),
        {**HEADS, "activation_function": "gelu", "layer_norm_eps": 1e-3},
    ),
    "scalar-norm": ("scalar-norm", source_models.ScalarNorms, HEADS),
    "statquest": ("statquest", source_models.StatQuest, {}),
    "phrases": ("lightning-phrases", source_models.Phrases, {"patched": True}),
    "shared-heads": ("shared-heads", source_models.SharedHeads, {"patched": True}),
}


def build(name):
    layout, make, options = CASES[name]
    return layout, make().eval(), options


def sizes(model):
    """Return the number of source and of target tokens by the first and second embedding."""
    embeddings = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)]
    return embeddings[0], embeddings[1]


def batch(model, rows=3, length=6):
    """Return random sources and targets and their masks, the last two rows of each side padded on the right."""
    source_size, target_size = sizes(model)
    source, target = torch.randint(0, source_size, (rows, length)), torch.randint(0, target_size, (rows, length - 1))
    masks = [torch.ones(ids.shape, dtype=torch.bool) for ids in (source, target)]
    masks[0][1, 3:], masks[0][2, 5:], masks[1][1, 4:], masks[1][2, 2:] = False, False, False, False
    return source, target, *masks


def normalized(logits):
    """Return log probabilities: some originals end in them, others in logits."""
    return logits.log_softmax(-1)


@torch.no_grad()
def ours(model, source, target, source_mask=None, target_mask=None):
    masks = [None if mask is None else mask.long() for mask in (source_mask, target_mask)]
    return model(
        input_ids=source, attention_mask=masks[0], decoder_input_ids=target, decoder_attention_mask=masks[1]
    ).logits


@torch.no_grad()
def greedy(model, source, start, end, steps):
    """Decode one sentence as the originals do: all over again at every step."""
    ids = torch.tensor([[start]])
    for _ in range(steps):
        ids = torch.cat([ids, model(source, ids)[:, -1].argmax(-1, keepdim=True)], 1)
        if ids[0, -1] == end:
            break
    return ids[0].tolist()


def convert(state, layout=None, **options):
    return convert_checkpoint(state, None, layout, dry_run=True, **options)


@pytest.mark.parametrize("name", CASES)
class TestSameFunction:
    def test_logits(self, name):
        layout, model, options = build(name)
        conversion = convert(model.state_dict(), **options)
        assert conversion.layout.name == layout
        source, target, source_mask, target_mask = batch(model)
        converted = conversion.model()
        with torch.no_grad():
            expected = model(source, target)
        torch.testing.assert_close(
            normalized(ours(converted, source, target)), normalized(expected), atol=TOLERANCE, rtol=0
        )
        assert expected.std() > 0.05, "logits that hardly differ would prove nothing"

    def test_logits_of_padded_batches(self, name):
        _, model, options = build(name)
        converted = convert(model.state_dict(), **options).model()
        source, target, source_mask, target_mask = batch(model)
        got = normalized(ours(converted, source, target, source_mask, target_mask))
        with torch.no_grad():
            expected = normalized(model(source, target, source_mask, target_mask))
            torch.testing.assert_close(got[target_mask], expected[target_mask], atol=TOLERANCE, rtol=0)
            # Each sentence alone, with no padding at all, is what the padded batch must amount to.
            for row, (length, target_length) in enumerate(zip(source_mask.sum(1), target_mask.sum(1), strict=True)):
                alone = normalized(model(source[row : row + 1, :length], target[row : row + 1, :target_length]))
                torch.testing.assert_close(got[row, :target_length], alone[0], atol=TOLERANCE, rtol=0)

    def test_algebra_in_float64(self, name, monkeypatch):
        """Without what cannot be equal, an epsilon elsewhere and the rounding of sinusoids, nothing differs."""
        _, model, options = build(name)
        if "layer_norm_eps" not in options and "torch" not in name and name not in {"phrases", "shared-heads"}:
            monkeypatch.setattr(source_models.DeviationNorm, "eps", 1e-15)
            options = {**options, "layer_norm_eps": 1e-30}
        source, target, *_ = batch(model)
        model = model.double()
        converted = convert(model.state_dict(), position_embedding_type="learned", **options).model()
        # The tables are the originals' own, and float32 there as here.
        assert converted.dtype == torch.float64
        with torch.no_grad():
            expected = normalized(model(source, target))
        torch.testing.assert_close(normalized(ours(converted, source, target)), expected, atol=1e-12, rtol=0)

    def test_greedy_translations(self, name, tmp_path):
        _, model, options = build(name)
        convert_checkpoint(model.state_dict(), tmp_path / "out", **options)
        converted = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
        config = converted.config
        source = batch(model)[0]
        lengths = set()
        for row in range(len(source)):
            expected = greedy(model, source[row : row + 1], config.decoder_start_token_id, config.eos_token_id, 9)
            got = converted.generate(source[row : row + 1], do_sample=False, num_beams=1, max_new_tokens=9)
            assert got[0].tolist() == expected
            lengths.add(len(expected))
        assert max(lengths) > 2


# The notebooks' classes, executed from where they lie; names that only their sessions had are put in here.
LIGHTNING = SimpleNamespace(LightningModule=nn.Module, seed_everything=torch.manual_seed)
SESSION = {"torch": torch, "nn": nn, "F": F, "math": math, "L": LIGHTNING}
# What has to be replaced in a notebook before it runs at all, or before it is free of its defects.
REPAIRS = {
    "002": {"x.shape(1)": "x.shape[1]"},
    "000": {
        "attention_values + word_embeddings": "attention_values + position_encoded",
        "decoder_attention_values + word_embeddings": "decoder_attention_values + decoder_positional_embeddings",
    },
    "004": {
        "layer(enc_out, x, enc_out, mask)": "layer(enc_out, enc_out, x, mask)",
        "self.transformer_block(key, query, value)": "self.transformer_block(key, value, query)",
        "attention_out + value": "attention_out + query",
        "F.softmax(self.fc_out(x))": "F.softmax(self.fc_out(x), dim=-1)",
    },
}


@pytest.fixture(scope="module")
def notebook():
    """Return what executes the classes and functions of a notebook, repaired or not, and gives its names."""

    def execute(number, repairs=(), **names):
        folder = SHARED / "seeds"
        if not folder.is_dir():
            pytest.skip("needs the notebooks of ../shared/seeds, which are not part of the repository")
        (file,) = folder.glob(f"{number}_*")
        text = file.read_text(encoding="utf-8")
        if text.startswith("{"):
            cells = json.loads(text)["cells"]
            text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        # The longest first: one may hold another.
        for old in sorted(repairs, key=len, reverse=True):
            assert old in text
            text = text.replace(old, repairs[old])
        session = {**SESSION, "copy": __import__("copy"), **names}
        for definition in re.findall(r"^(?:class|def) .*\n(?:[ \t].*\n|\).*\n|[ \t]*\n)+", text, re.MULTILINE):
            if definition.startswith("class ") and "(Dataset)" not in definition or "clones" in definition[:20]:
                exec(compile(definition, file.name, "exec"), session)
            elif definition.startswith(("def build_", "def subsequent_", "def causal_")):
                exec(compile(definition, file.name, "exec"), session)
        return session

    return execute


def scatter(model):
    """Move what starts at 0 or 1, where a mistake would not show."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(0.2 * torch.randn_like(weight))
    return model.eval()


def same_by(original, model, options, sizes, length=6, rows=2):
    """Assert equal log probabilities, and equal greedy translations, of a notebook's model and its conversion."""
    converted = convert(model.state_dict(), **options).model()
    source, target = torch.randint(0, sizes[0], (rows, length)), torch.randint(0, sizes[1], (rows, length))
    with torch.no_grad():
        expected = torch.stack([original(source[row], target[row]) for row in range(rows)])
    torch.testing.assert_close(normalized(ours(converted, source, target)), expected, atol=TOLERANCE, rtol=0)
    return converted


class TestNotebooks:
    def test_annotated_style(self, notebook):
        session = notebook("001")
        model = scatter(session["Transformer"](11, 11, N=2, d_model=16, d_ff=32, h=4))
        source, target = torch.randint(1, 11, (3, 7)), torch.randint(1, 11, (3, 5))
        source[1, 4:] = 0
        mask = (source != 0)[:, None]
        causal = session["subsequent_mask"](5)
        converted = convert(model.state_dict(), encoder_attention_heads=4).model()
        with torch.no_grad():
            expected = model.generator(model(source, target, mask, causal))
        got = normalized(ours(converted, source, target, source != 0))
        torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=0)

        def original(ids, prefix):
            seen = torch.ones(1, 1, ids.shape[1])
            return model.generator(model(ids, prefix, seen, session["subsequent_mask"](prefix.shape[1])))

        expected = greedy(original, source[:1], 1, None, 8)
        assert converted.generate(source[:1], num_beams=1, max_new_tokens=8)[0].tolist() == expected

    def test_scalar_norms(self, notebook):
        session = notebook("002", REPAIRS["002"])
        model = scatter(session["build_transformer"](13, 17, 9, 9, d_model=16, N=2, h=4, d_ff=32))
        conversion = convert(model.state_dict(), encoder_attention_heads=4)
        assert conversion.config.position_embedding_type == "learned", "both halves are sines"
        assert conversion.config.max_position_embeddings == 9
        source, target = torch.randint(4, 13, (3, 9)), torch.randint(4, 17, (3, 7))
        source[1, 5:], target[2, 4:] = 1, 1
        seen = (source != 1)[:, None, None]
        causal = (target != 1)[:, None, None] & session["causal_mask"](7)
        with torch.no_grad():
            expected = model.project(model.decode(model.encode(source, seen), seen, target, causal))
        got = normalized(ours(conversion.model(), source, target, source != 1, target != 1))
        torch.testing.assert_close(got[target != 1], expected[target != 1], atol=TOLERANCE, rtol=0)

        def original(ids, prefix):
            return model.project(
                model.decode(model.encode(ids, None), None, prefix, session["causal_mask"](prefix.shape[1]))
            )

        expected = greedy(original, source[:1], 2, 3, 8)
        assert conversion.model().generate(source[:1], num_beams=1, max_new_tokens=8)[0].tolist() == expected

    def test_statquest(self, notebook):
        session = notebook("003", input_vocab=range(4), output_vocab=range(5))
        model = session["Transformer"](4, 5, d_model=2, max_len=8).eval()

        def original(source, target):
            return model(source, target).log_softmax(-1)

        converted = same_by(original, model, {}, (4, 5))
        for phrase in ([0, 1, 3], [0, 2, 3]):
            expected = greedy(lambda ids, prefix: model(ids[0], prefix[0])[None], torch.tensor([phrase]), 0, 4, 5)
            got = converted.generate(torch.tensor([phrase]), num_beams=1, max_new_tokens=5)
            assert got[0].tolist() == expected

    @pytest.mark.parametrize("repaired", [True, False])
    def test_lightning_phrases(self, notebook, repaired):
        session = notebook("000", REPAIRS["000"] if repaired else ())
        model = scatter(session["Transformer"](12, 16, max_len=6))

        def original(source, target):
            return model(source, target).log_softmax(-1)

        if repaired:
            same_by(original, model, {"patched": True}, (12, 16))
            return
        with pytest.raises(ValueError, match="residual around self-attention skips the position encoding"):
            convert(model.state_dict())
        # The refusal is no caution: taken for repaired, the weights compute something else.
        with pytest.raises(AssertionError, match="not close"):
            same_by(original, model, {"patched": True}, (12, 16))

    @pytest.mark.parametrize("repaired", [True, False])
    # What PyTorch says of softmax without an axis, one of the notebook's defects.
    @pytest.mark.filterwarnings("ignore:Implicit dimension choice for softmax:UserWarning")
    def test_shared_heads(self, notebook, repaired):
        session = notebook("004", REPAIRS["004"] if repaired else ())
        model = scatter(session["Transformer"](32, 13, 17, 6, num_layers=2, n_heads=8))

        def original(source, target):
            return model(source[None], target[None])[0].log()

        conversion = convert(model.state_dict(), patched=True)
        assert conversion.config.encoder_attention_heads == conversion.config.decoder_attention_heads == 8
        source = torch.randint(0, 13, (2, 6))
        encoder = convert(model.state_dict(), encoder_only=True).model()
        assert isinstance(encoder, VanillaTransformerEncoderModel)
        with torch.no_grad():
            encoded = encoder(input_ids=source).last_hidden_state
            torch.testing.assert_close(encoded, model.encoder(source), atol=TOLERANCE, rtol=0)
        if repaired:
            same_by(original, model, {"patched": True}, (13, 17))
            return
        with pytest.raises(ValueError, match="masked self-attention reads the encoder's output.*`encoder_only=True`"):
            convert(model.state_dict())
        with pytest.raises(AssertionError, match="not close"):
            same_by(original, model, {"patched": True}, (13, 17))


@pytest.mark.parametrize("make", [source_models.Annotated, source_models.TorchNN, source_models.ScalarNorms])
def test_the_size_of_the_paper(make):
    """Six layers of width 512 add up more rounding, and stay as close."""
    model = make(500, 600, width=512, heads=8, inner=2048, layers=6).eval()
    converted = convert(model.state_dict(), encoder_attention_heads=8).model()
    source, target, source_mask, target_mask = batch(model, length=11)
    with torch.no_grad():
        expected = normalized(model(source, target, source_mask, target_mask))
    got = normalized(ours(converted, source, target, source_mask, target_mask))
    torch.testing.assert_close(got[target_mask], expected[target_mask], atol=TOLERANCE, rtol=0)


# What weights do not tell, as it is where a test does not say otherwise.
SAID = {
    "norm_position": "post", "activation_function": "relu", "scale_embedding": True, "layer_norm_eps": 1e-5,
    "first_position": 0, "unbiased_norms": False,
}  # fmt: skip  # one option a line would fill the screen
IDS = {"pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3, "decoder_start_token_id": 2}


def as_pairs(state, changes):
    """Return the pairs that rename every key that one of these (pattern, replacement) changes."""
    names = {key: key for key in state}
    for old, new in changes:
        names = {key: re.sub(old, new, name) for key, name in names.items()}
    return [f"{key}={name}" for key, name in names.items() if key != name]


# A tutorial with norms of one number before every sub-layer, under other names than the layout's.
SCALAR_PRE = [(r"linear_(\d)", r"linear\1")]
LEARNED = [
    (r"tok_embedding", "embed_tokens"), (r"pos_embedding", "embed_positions"), (r"fc_out", "output_projection"),
    (r"positionwise_feedforward\.fc_", "fc"), (r"self_attention", "self_attn"),
    (r"encoder_attention", "encoder_attn"), (r"enc_attn_layer_norm", "encoder_attn_layer_norm"),
    (r"ff_layer_norm", "final_layer_norm"), (r"fc_([qkv])", r"\1_proj"), (r"fc_o\b", "out_proj"),
]  # fmt: skip  # as above


def json_or_text(value):
    try:
        return json.loads(value)
    except ValueError:
        return value


def same_logits(model, converted):
    source, target, source_mask, target_mask = batch(model)
    with torch.no_grad():
        expected = normalized(model(source, target, source_mask, target_mask))
    got = normalized(ours(converted, source, target, source_mask, target_mask))
    torch.testing.assert_close(got[target_mask], expected[target_mask], atol=TOLERANCE, rtol=0)


class TestRenamed:
    """Under other names, nothing is taken for granted that the weights do not tell."""

    @pytest.fixture
    def scalar(self):
        model = source_models.ScalarNorms(pre=True).eval()
        state = {key.replace(".linear", ".linear_"): tensor for key, tensor in model.state_dict().items()}
        return model, state, as_pairs(state, SCALAR_PRE)

    @pytest.fixture
    def learned(self):
        model = source_models.LearnedPositions().eval()
        return model, as_pairs(model.state_dict(), LEARNED)

    def test_all_that_weights_do_not_tell_is_asked_for_at_once(self, scalar):
        _, state, pairs = scalar
        with pytest.raises(ValueError, match="scalar-norm, under other names, do not determine") as caught:
            convert(state, rename=pairs, norm_position="pre", **HEADS)
        message = str(caught.value)
        for name in ("activation_function=relu|gelu", "scale_embedding=true|false", "layer_norm_eps=1e-06",
                     "eos_token_id=3", "`first_position=0`", "`unbiased_norms=true|false`"):  # fmt: skip  # as above
            assert name in message
        assert "norm_position" not in message and "heads" not in message and "\n" not in message
        with pytest.raises(ValueError, match=r"norm_position=post\|pre` `layer_norm"):
            convert(state, rename=pairs, **HEADS)

    def test_norms_before_the_sublayers(self, scalar):
        model, state, pairs = scalar
        said = {**SAID, **IDS, **HEADS, "layer_norm_eps": 1e-6, "unbiased_norms": True, "rename": pairs}
        same_logits(model, convert(state, **{**said, "norm_position": "pre"}).model())
        with pytest.raises(AssertionError, match="not close"):
            same_logits(model, convert(state, **said).model())

    def test_learned_positions_are_used_from_the_first(self, learned):
        model, pairs = learned
        state = model.state_dict()
        said = {**SAID, **IDS, **HEADS, "rename": pairs}
        with pytest.raises(
            ValueError, match="fairseq, under other names, do not determine how .*code: `first_position=0`$"
        ):
            convert(state, **{**said, "first_position": None})
        conversion = convert(state, **said)
        assert conversion.layout.name == "fairseq" and conversion.config.max_position_embeddings == 20
        source, target = torch.randint(0, 13, (3, 6)), torch.randint(0, 17, (3, 5))
        with torch.no_grad():
            expected = model(source, target)
        torch.testing.assert_close(ours(conversion.model(), source, target), expected, atol=TOLERANCE, rtol=0)
        after = convert(state, **{**said, "first_position": 2})
        assert after.config.max_position_embeddings == 18
        with pytest.raises(ValueError, match="has 20 rows, none of them for a token at row 20; pass `first_position`"):
            convert(state, **{**said, "first_position": 20})

    def test_positions_that_are_not_stored(self, learned):
        model, pairs = learned
        state = {key: tensor for key, tensor in model.state_dict().items() if "pos_embedding" not in key}
        pairs = [pair for pair in pairs if "pos_embedding" not in pair]
        said = {**SAID, **IDS, **HEADS, "rename": pairs, "first_position": None}
        with pytest.raises(ValueError, match=r"code: `sinusoidal_layout=interleaved\|concatenated`$"):
            convert(state, **said)
        kind = {"position_embedding_type": "sinusoidal", "sinusoidal_layout": "interleaved"}
        config = convert(state, **said, **kind).config
        assert (config.position_embedding_type, config.sinusoidal_layout) == ("sinusoidal", "interleaved")
        with pytest.raises(ValueError, match="`first_position` is set, but no position table"):
            convert(state, **{**said, **kind, "first_position": 0})

    @pytest.mark.parametrize("unbiased", [True, False])
    def test_norms_by_the_one_or_the_other_deviation(self, unbiased, monkeypatch):
        """Another copy of the Annotated Transformer may have the same names but one, and divide otherwise."""

        def forward(self, x):
            weight, bias = (getattr(self, name) for name in self.names)
            variance = x.var(-1, keepdim=True, unbiased=unbiased)
            return weight * (x - x.mean(-1, keepdim=True)) / (variance + self.eps).sqrt() + bias

        monkeypatch.setattr(source_models.DeviationNorm, "forward", forward)
        model = source_models.Annotated().eval()
        state = {key.replace("generator.", "head."): tensor for key, tensor in model.state_dict().items()}
        said = {**SAID, **IDS, **HEADS, "norm_position": "pre", "layer_norm_eps": 1e-6, "rename": ["head.=generator."]}
        same_logits(model, convert(state, **{**said, "unbiased_norms": unbiased}).model())
        with pytest.raises(AssertionError, match="not close"):
            same_logits(model, convert(state, **{**said, "unbiased_norms": not unbiased}).model())

    def test_what_is_asked_for_is_all_and_as_offered(self):
        """A user copies the message and takes the first of each choice."""
        for model, options in (
            (source_models.Annotated(), {}), (source_models.TorchNN(), {}), (source_models.ScalarNorms(), {}),
            (source_models.StatQuest(), {}), (source_models.Phrases(), {"patched": True}),
            (source_models.SharedHeads(), {"patched": True}),
            (source_models.Annotated(embedding="embedding", norm_names=("gamma", "beta")), {}),
        ):  # fmt: skip  # as above
            state = model.state_dict()
            computed = {key: tensor for key, tensor in state.items() if not re.search(r"\.(pe|pos_embedding)$", key)}
            for weights in (state, computed):
                last = next(key for key in reversed(weights) if key.endswith("weight") and "norm" not in key)
                changed = {("theirs" if key == last else key): tensor for key, tensor in weights.items()}
                given = {"rename": [f"theirs={last}"], **options}
                with pytest.raises(ValueError, match="values of the original code: `") as caught:
                    convert(changed, **given)
                required = str(caught.value).partition("code: ")[2]
                pairs = dict(text.strip("`").split("=") for text in required.split())
                said = {name: json_or_text(value.partition("|")[0]) for name, value in pairs.items()}
                assert ("norm_position" in said) == (type(model) is not source_models.StatQuest)
                assert ("first_position" in said) == (weights is state) == ("sinusoidal_layout" not in said)
                convert(changed, **given, **{**said, "encoder_attention_heads": 1, "decoder_attention_heads": 1})

    def test_it_is_not_decoded_as_the_layout_s_code_does(self, learned):
        model, pairs = learned
        conversion = convert(model.state_dict(), rename=pairs, **SAID, **IDS, **HEADS)
        assert conversion.layout.name == "fairseq" and conversion.generation == {"max_length": 20}

    def test_cutting_a_prefix_is_no_renaming(self):
        state = {f"ema.{key}": tensor for key, tensor in source_models.Annotated().state_dict().items()}
        assert convert(state, rename=["ema.="], **HEADS).layout.name == "annotated-transformer"

    def test_no_weight_is_renamed_away(self, learned):
        model, pairs = learned
        pairs = [pair for pair in pairs if not pair.startswith("decoder.fc_out.bias")]
        with pytest.raises(ValueError, match="decoder.fc_out.bias the name encoder.version, which is no weight"):
            convert(model.state_dict(), rename=[*pairs, "decoder.fc_out.bias=encoder.version"], **HEADS)

    def test_the_hint_is_given_only_where_shapes_fit(self, scalar, learned):
        _, state, pairs = scalar
        with pytest.raises(ValueError, match="1 missing: .*1 unexpected: .*; if only names differ, pass `rename`"):
            convert(state, rename=pairs[1:], **SAID, **IDS, **HEADS)
        wide = source_models.Annotated().state_dict()
        names = {"src_embed.0.lut": "src_embed.embedding", "norm.a_2": "norm.alpha", "norm.b_2": "norm.bias"}
        for old, new in names.items():
            wide = {key.replace(old, new): tensor for key, tensor in wide.items()}
        with pytest.raises(ValueError, match="nearest is (annotated|simple)-transformer.*pass `rename`"):
            convert(wide)
        with pytest.raises(ValueError, match="not have the layout scalar-norm.*are of another model") as caught:
            convert(wide, "scalar-norm")
        assert "rename" not in str(caught.value)
        deeper = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False)
        with pytest.raises(ValueError, match="shapes are of another model"):
            convert(deeper.state_dict())


class TestSettingsBesideTheWeights:
    SETTINGS = {"nhead": 2, "norm_first": True, "activation": "gelu", "lr": 0.1}

    @pytest.mark.parametrize("key", ["hyper_parameters", "args", "config", "cfg"])
    def test_arguments_of_torch_nn(self, key, tmp_path):
        model = source_models.TorchNN(norm_first=True, activation="gelu", batch_first=True).eval()
        settings = {"cfg": {"seed": 1, "model": self.SETTINGS}, "args": Namespace(**self.SETTINGS)}
        torch.save({"state_dict": model.state_dict(), key: settings.get(key, self.SETTINGS)}, tmp_path / "last.ckpt")
        for source in (tmp_path, tmp_path / "last.ckpt"):
            conversion = convert(source)
            same_logits(model, conversion.model())
            assert any("not read; check that the configuration agrees: lr=0.1" in note for note in conversion.notes)

    def test_a_file_beside_its_config(self, tmp_path):
        model = source_models.TorchNN(norm_first=True, activation="gelu", batch_first=True).eval()
        torch.save(model.state_dict(), tmp_path / "last.pt")
        (tmp_path / "config.json").write_text(json.dumps(self.SETTINGS))
        same_logits(model, convert(tmp_path / "last.pt").model())

    def test_single_values_and_numbers_of_numpy(self):
        model = source_models.TorchNN(norm_first=True, activation="gelu", batch_first=True).eval()
        content = {
            "state_dict": model.state_dict(),
            **self.SETTINGS,
            "nhead": np.int64(2),
            "norm_first": np.bool_(True),
        }
        conversion = convert({**content, "epoch": 3, "hparams": {"epoch": 9, "activation": "gelu", "dropout": None}})
        same_logits(model, conversion.model())
        assert type(conversion.config.encoder_attention_heads) is int and conversion.config.dropout == 0.1
        with pytest.raises(ValueError, match="setting norm_first beside the weights is 'False'; it must be true or f"):
            convert({**content, "norm_first": "False"})

    def test_an_option_that_was_not_used_contradicts_nothing(self):
        both = {"args": {"nhead": None, "list": [np.ones(2)]}, "hparams": {"nhead": 2, "list": [np.ones(2)]}}
        state = source_models.TorchNN().state_dict()
        assert convert({"state_dict": state, **both}).config.encoder_attention_heads == 2

    def test_two_places_that_contradict_each_other(self, tmp_path):
        state = source_models.TorchNN().state_dict()
        torch.save({"state_dict": state, "args": Namespace(**self.SETTINGS)}, tmp_path / "last.ckpt")
        (tmp_path / "config.json").write_text(json.dumps({**self.SETTINGS, "norm_first": False}))
        with pytest.raises(ValueError, match="last.ckpt says norm_first=True, but another place False"):
            convert(tmp_path)
        both = {"state_dict": state, "args": {"nhead": 2}, "hparams": {"nhead": 4}}
        with pytest.raises(ValueError, match="'hparams', says nhead=4, but another place 2"):
            convert(both)

    def test_heads_that_shapes_tell(self):
        state = source_models.SharedHeads().state_dict()
        for source in (state, {"state_dict": state, "config": {"lr": 1}}):
            with pytest.raises(ValueError, match="encoder_attention_heads=4`, but the weights say 2"):
                convert(source, patched=True, encoder_attention_heads=4)


class TestReading:
    """All that a file may be."""

    @pytest.fixture
    def state(self):
        return source_models.Annotated(layers=1).state_dict()

    def test_every_kind_of_file_gives_the_same(self, state, tmp_path):
        names = list(state)
        torch.save(state, tmp_path / "plain.pt")
        torch.save({"epoch": 3, "model_state_dict": state}, tmp_path / "loop.pth")
        torch.save({f"module.{name}": state[name] for name in names}, tmp_path / "parallel.bin")
        torch.save({"state_dict": {f"_orig_mod.model.{n}": state[n] for n in names}}, tmp_path / "lightning.ckpt")
        torch.save(state, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
        save_file(state, tmp_path / "weights.safetensors")
        (tmp_path / "folder").mkdir()
        save_file(state, tmp_path / "folder" / "model.safetensors")
        shards = tmp_path / "shards"
        shards.mkdir()
        for shard in (0, 1):
            save_file({name: state[name] for name in names[shard::2]}, shards / f"model-{shard}.safetensors")
        places = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(names)}
        (shards / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
        expected = convert(state, **HEADS).weights
        sources = ("plain.pt", "loop.pth", "parallel.bin", "lightning.ckpt", "legacy.pt", "weights.safetensors")
        for source in (*sources, "folder", "shards"):
            got = convert(tmp_path / source, **HEADS).weights
            assert got.keys() == expected.keys()
            assert all(torch.equal(got[name], expected[name]) for name in expected), source

    def test_half_precision_stays(self, state):
        model = convert({name: tensor.half() for name, tensor in state.items()}, **HEADS).model()
        assert {weight.dtype for weight in model.parameters()} == {torch.float16}
        assert model.config.position_embedding_type == "sinusoidal", "stored ones are rounded, and recognised"

    def test_the_widest_of_several_types_is_kept(self, state):
        mixed = {name: tensor.half() if "embed" in name else tensor for name, tensor in state.items()}
        assert {weight.dtype for weight in convert(mixed, **HEADS).model().parameters()} == {torch.float32}

    def test_weights_that_are_no_numbers_of_that_kind(self, state):
        name = "encoder.layers.0.feed_forward.w_1.weight"
        with pytest.raises(ValueError, match=f"{name}, which is torch.int32, not floating point"):
            convert({**state, name: state[name].int()}, **HEADS)

    def test_what_is_no_checkpoint(self, state, tmp_path):
        def refused(name, match):
            with pytest.raises(ValueError, match=match) as caught:
                read_checkpoint(tmp_path / name)
            assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)

        whole = tmp_path / "whole.pt"
        torch.save(state, whole)
        (tmp_path / "cut.pt").write_bytes(whole.read_bytes()[:2000])
        torch.save(state, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
        old = (tmp_path / "legacy.pt").read_bytes()
        (tmp_path / "empty.pt").touch()
        (tmp_path / "text.pt").write_text("hello world\n")
        (tmp_path / "noise.pt").write_bytes(bytes(range(256)) * 4)
        torch.save([1, 2], tmp_path / "list.pt")
        torch.save({"lr": 0.1}, tmp_path / "number.pt")
        torch.save({}, tmp_path / "nothing.pt")
        torch.save(nn.Linear(2, 2), tmp_path / "module.pt")
        save_file(state, tmp_path / "cut.safetensors")
        (tmp_path / "cut.safetensors").write_bytes((tmp_path / "cut.safetensors").read_bytes()[:-9])
        refused("missing.pt", "no such file")
        for name in ("cut.pt", "empty.pt", "text.pt"):
            refused(name, "truncated, damaged or no checkpoint")
        for length in range(1, len(old), 97):
            (tmp_path / "legacy.pt").write_bytes(old[:length])
            refused("legacy.pt", "damaged")
        refused("noise.pt", "resave the weights|truncated")
        refused("list.pt", "holds list, not a dict of weights")
        refused("number.pt", "'lr' is float, not a tensor")
        refused("nothing.pt", "holds dict")
        refused("module.pt", r"torch.nn.modules.linear.Linear, which is not run; resave the weights")
        refused("cut.safetensors", "is damaged")
        (tmp_path / "cut.safetensors").unlink()
        (tmp_path / "none").mkdir()
        refused("none", "holds no weights")
        refused("", "several weight files")
        (tmp_path / "none" / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
        refused("none", "holds no gone.safetensors")
        for places in ("null", "[1]", '{"a": 1}'):
            (tmp_path / "none" / "model.safetensors.index.json").write_text(f'{{"weight_map": {places}}}')
            refused("none", "names no file for each weight")

    def shards(self, state, folder):
        parts = [dict(list(state.items())[n::2]) for n in (0, 1)]
        places = {name: f"pytorch_model-{n}.bin" for n, part in enumerate(parts) for name in part}
        folder.mkdir()
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))

        def save():
            for n, part in enumerate(parts):
                torch.save(part, folder / f"pytorch_model-{n}.bin")
            return folder

        return parts, save

    def test_a_weight_in_two_shards(self, state, tmp_path):
        (one, two), save = self.shards(state, tmp_path / "shards")
        name = next(iter(one))
        two[name] = one[name].clone()
        found = read_checkpoint(save()).weights
        assert found.keys() == state.keys() and torch.equal(found[name], state[name])
        two[name] += 1
        with pytest.raises(ValueError, match=f"pytorch_model-1.bin: {re.escape(name)} differs from that of another"):
            read_checkpoint(save())

    def test_a_weight_in_no_shard(self, tmp_path):
        """Without its bias, a projection is none that lacks something."""
        parts, save = self.shards(source_models.TorchNN().state_dict(), tmp_path / "shards")
        assert convert(save(), **HEADS).config.lm_head_bias
        for part in parts:
            part.pop("generator.bias", None)
        with pytest.raises(ValueError, match=r"no file in .*shards holds generator\.bias, which the index names"):
            convert(save(), **HEADS)

    def test_two_indexes(self, state, tmp_path):
        _, save = self.shards(state, tmp_path / "shards")
        (save() / "other.bin.index.json").write_text("{}")
        with pytest.raises(ValueError, match=r"several shard indexes \(other.bin.index.json, pytorch_model.bin.in"):
            read_checkpoint(tmp_path / "shards")

    def test_numbers_of_numpy_beside_the_weights(self, state, tmp_path):
        numbers = {
            "best": np.float64(27.5), "val_loss": np.float32(2.5), "seen": np.int64(3), "array": np.arange(4.0),
            "flag": np.bool_(True), "name": np.str_("bleu"),
        }  # fmt: skip  # as above
        torch.save({"model": state, "extra_state": numbers}, tmp_path / "zip.pt")
        torch.save({"model": state, "extra_state": numbers}, tmp_path / "own.pt", _use_new_zipfile_serialization=False)
        content = (tmp_path / "own.pt").read_bytes()
        assert b"multiarray\nscalar" in content and b"multiarray\n_reconstruct" in content
        (tmp_path / "one.pt").write_bytes(content.replace(b"numpy._core", b"numpy.core"))
        (tmp_path / "two.pt").write_bytes(content.replace(b"numpy.core", b"numpy._core"))
        for name in ("zip.pt", "own.pt", "one.pt", "two.pt"):
            found = read_checkpoint(tmp_path / name).weights
            assert found.keys() == state.keys() and all(torch.equal(found[key], state[key]) for key in state)

    def test_objects_in_arrays_of_numpy_are_refused(self, state, tmp_path):
        torch.save({"model": state, "extra": np.array([{}, None], dtype=object)}, tmp_path / "objects.pt")
        with pytest.raises(ValueError, match="damaged, or no checkpoint that can be read safely|not run"):
            read_checkpoint(tmp_path / "objects.pt")

    @pytest.mark.parametrize("beside", [{}, {"best": np.float64(1), "array": np.arange(2)}], ids=["alone", "numpy"])
    def test_code_in_a_pickle_is_not_run(self, tmp_path, beside):
        class Attack:
            def __reduce__(self):
                return os.mkdir, (str(tmp_path / "attacked"),)

        content = {**beside, "weight": Attack()}
        torch.save(content, tmp_path / "zip.pt")
        torch.save(content, tmp_path / "legacy.pt", _use_new_zipfile_serialization=False)
        (tmp_path / "raw.pkl").write_bytes(pickle.dumps(content))
        for name, match in {
            "zip.pt": r"mkdir, which is not run; resave the weights",
            "legacy.pt": r"mkdir, which is not run; resave the weights",
            "raw.pkl": "no checkpoint that can be read safely",
        }.items():
            with pytest.raises(ValueError, match=match):
                read_checkpoint(tmp_path / name)
        assert not (tmp_path / "attacked").exists()


class TestWhatIsRefused:
    @pytest.fixture
    def state(self):
        return source_models.Annotated().state_dict()

    def test_weights_of_something_else(self, state):
        with pytest.raises(ValueError, match="no known layout: its keys are weight, bias.*shapes are of another"):
            convert(nn.Linear(2, 2).state_dict())
        with pytest.raises(ValueError, match="did you mean statquest"):
            convert(state, "statquests")
        with pytest.raises(ValueError, match="does not have the layout statquest.*there is no encoder.we.weight"):
            convert(state, "statquest")

    def test_missing_unexpected_and_misshaped_weights_are_all_listed(self, state):
        del state["encoder.layers.1.feed_forward.w_1.bias"], state["decoder.norm.a_2"]
        state["decoder.extra.weight"] = torch.zeros(1)
        state["encoder.layers.0.self_attn.linears.2.weight"] = torch.zeros(8, 7)
        with pytest.raises(ValueError) as caught:
            convert(state, **HEADS)
        message = str(caught.value)
        assert "2 missing: decoder.norm.a_2, encoder.layers.1.feed_forward.w_1.bias" in message
        assert "1 unexpected: decoder.extra.weight" in message
        assert "1 of another shape: encoder.layers.0.self_attn.linears.2.weight 8x7" in message
        assert "8x8" in message and "\n" not in message

    def test_a_layer_that_is_missing(self, state):
        state = {name: tensor for name, tensor in state.items() if not name.startswith("decoder.layers.0.")}
        with pytest.raises(ValueError, match=r"26 missing: decoder.layers.0.*and 18 more"):
            convert(state, **HEADS)

    def test_embeddings_that_are_no_embeddings(self, state):
        words = "src_embed.0.lut.weight"
        with pytest.raises(ValueError, match="are torch.int8; save the weights as floating-point numbers"):
            convert({**state, words: state[words].to(torch.int8)}, **HEADS)
        with pytest.raises(ValueError, match="the encoder's embeddings have the shape 8, not two axes"):
            convert({**state, words: state[words][0]}, **HEADS)
        encoderless = {name: tensor for name, tensor in state.items() if not name.startswith("encoder.layers.")}
        encoderless["encoder.layers.0.self_attn.linears.0.weight"] = torch.zeros(8, 8)
        with pytest.raises(ValueError, match="missing: .*encoder.layers.0.feed_forward"):
            convert(encoderless, **HEADS)
        targetless = {name: tensor for name, tensor in state.items() if name != "tgt_embed.0.lut.weight"}
        with pytest.raises(ValueError, match="one annotated-transformer: 1 missing: tgt_embed.0.lut.weight$"):
            convert(targetless, **HEADS)
        for value in (float("nan"), float("inf")):
            damaged = state["generator.proj.weight"].clone()
            damaged[1, 2] = value
            with pytest.raises(ValueError, match="NaN or infinite values in generator.proj.weight; use another"):
                convert({**state, "generator.proj.weight": damaged}, **HEADS)
        with pytest.raises(ValueError, match="1 of another shape: src_embed.1.pe 1x40x4 does not fit d_model=8"):
            convert({**state, "src_embed.1.pe": torch.zeros(1, 40, 4)}, **HEADS)

    def test_a_shared_projection_of_any_shape(self):
        state = source_models.SharedHeads().state_dict()
        key = "encoder.layers.1.attention.query_matrix.weight"
        for wrong in (torch.zeros(3, 3), torch.zeros(0, 4), torch.zeros(())):
            with pytest.raises(ValueError, match=f"of another shape: {key}"):
                convert({**state, key: wrong}, patched=True)

    @pytest.mark.parametrize(
        ("rows", "message"),
        [(1, "gives .*q_proj.weight 1x8, not 8x8"), (4, "4x8 does not give 3"), (25, "9x8, not 8x8")],
    )
    def test_a_stacked_projection_of_any_height(self, rows, message):
        key = "transformer.encoder.layers.0.self_attn.in_proj_weight"
        state = source_models.TorchNN().state_dict()
        with pytest.raises(ValueError, match=f"of another shape: {key}.*{message}"):
            convert({**state, key: torch.randn(rows, 8)}, **HEADS)

    def test_no_piece_of_a_stacked_projection_is_dropped(self, monkeypatch):
        layout = LAYOUTS["torch-nn-transformer"]
        rules = [
            replace(rule, names=rule.names[:2]) if rule.key.endswith("in_proj_weight") else rule
            for rule in layout.rules
        ]
        cut = {**LAYOUTS, layout.name: replace(layout, rules=tuple(rules))}
        monkeypatch.setattr("hf_vanilla_transformer.conversion.recognition.LAYOUTS", cut)
        with pytest.raises(ValueError, match="6 of another shape: .*in_proj_weight 24x8 does not give 2 weights"):
            convert(source_models.TorchNN().state_dict(), **HEADS)

    def test_weights_that_nobody_knows_beside_an_encoder_alone(self, state):
        state["encoder.layers.0.gate.weight"] = torch.ones(8)
        with pytest.raises(ValueError, match="1 unexpected: encoder.layers.0.gate.weight"):
            convert(state, encoder_only=True, **HEADS)

    def test_one_bias_less_than_the_others(self):
        state = source_models.TorchNN().state_dict()
        del state["transformer.encoder.layers.1.linear1.bias"]
        with pytest.raises(ValueError, match=r"1 missing: transformer.encoder.layers.1.linear1.bias"):
            convert(state, **HEADS)

    def test_fields(self, state):
        with pytest.raises(ValueError, match="code: `encoder_attention_heads=8` `decoder_attention_heads=8`$"):
            convert(state)
        with pytest.raises(ValueError, match="`encoder_head` is not a field.*did you mean encoder_"):
            convert(state, encoder_head=2)
        with pytest.raises(ValueError, match="`d_model=16`, but the weights say 8"):
            convert(state, d_model=16, **HEADS)
        with pytest.raises(ValueError, match="`encoder_attention_heads`=3 does not divide"):
            convert(state, encoder_attention_heads=3)
        with pytest.raises(ValueError, match="`tie_word_embeddings=True`, but .* differ"):
            convert(state, tie_word_embeddings=True, **HEADS)
        with pytest.raises(ValueError, match="`eos_token_id` is 17; use an id of both vocabularies"):
            convert(state, eos_token_id=17, **HEADS)

    def test_nothing_is_left_behind(self, state, tmp_path, monkeypatch):
        with pytest.raises(ValueError, match="missing"):
            convert_checkpoint({k: v for k, v in state.items() if "w_1" not in k}, tmp_path / "out", **HEADS)
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "mine").touch()
        with pytest.raises(ValueError, match="full exists and is not an empty folder"):
            convert_checkpoint(state, tmp_path / "full", **HEADS)
        with pytest.raises(ValueError, match="cannot be made"):
            convert_checkpoint(state, tmp_path / "full" / "mine" / "below", **HEADS)

        def full_disk(self, folder, *args, **kwargs):
            (Path(folder) / "config.json").touch()
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", full_disk)
        with pytest.raises(OSError, match="No space"):
            convert_checkpoint(state, tmp_path / "out", **HEADS)
        assert [path.name for path in tmp_path.iterdir()] == ["full"]


class TestDetails:
    def test_renamed_wrappings_of_torch_nn(self):
        """Other names of the same: a shared embedding is two of theirs."""
        state = source_models.TorchNN(source_vocabulary=17).state_dict()
        state["tgt_tok_emb.embedding.weight"] = state["src_tok_emb.embedding.weight"]
        expected = convert(state, **HEADS)
        assert expected.config.share_encoder_decoder_embeddings and not expected.config.tie_word_embeddings
        names = {"transformer.": "net.core.", "src_tok_emb.embedding.": "net.words.", "generator.": "net.out."}
        other = {}
        for name, tensor in state.items():
            if name.startswith("tgt_tok_emb."):
                continue
            begin = next((begin for begin in names if name.startswith(begin)), "")
            other[names.get(begin, "") + name.removeprefix(begin)] = tensor
        with pytest.raises(ValueError, match="nearest is torch-nn-transformer, but there is no transformer.*`rename`"):
            convert(other, **HEADS)
        pairs = [f"{new}={old}" for old, new in names.items()] + ["net.words.=tgt_tok_emb.embedding."]
        got = convert(other, rename=pairs, **SAID, **IDS, **HEADS)
        assert all(torch.equal(got.weights[name], tensor) for name, tensor in expected.weights.items())
        with pytest.raises(ValueError, match="no key begins with 'nets.'"):
            convert(other, rename=["nets.=transformer."], **HEADS)
        with pytest.raises(ValueError, match="is not old=new"):
            convert(other, rename=["net"], **HEADS)
        with pytest.raises(ValueError, match="two weights the name generator.weight"):
            convert(state, rename=["src_tok_emb.embedding.=generator."], **HEADS)

    def test_tied_weights_stay_tied(self, tmp_path):
        model = source_models.Annotated(source_vocabulary=17)
        model.src_embed[0].lut.weight = model.tgt_embed[0].lut.weight = model.generator.proj.weight
        convert_checkpoint(model.state_dict(), tmp_path / "tied", **HEADS)
        tied = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "tied")
        assert tied.lm_head.weight is tied.model.encoder.embed_tokens.weight
        assert tied.lm_head.weight is tied.model.decoder.embed_tokens.weight
        apart = convert(model.state_dict(), tie_word_embeddings=False, **HEADS)
        assert not apart.config.tie_word_embeddings and apart.config.share_encoder_decoder_embeddings

    def test_positions(self):
        """Sinusoids are computed however long, another table is kept as it is, and two lengths as the longer."""
        state = source_models.Annotated(length=5000).state_dict()
        conversion = convert(state, **HEADS)
        assert conversion.config.position_embedding_type == "sinusoidal"
        assert not any("embed_positions" in name for name in conversion.weights)
        exact = convert(state, position_embedding_type="learned", **HEADS)
        table = exact.weights["model.decoder.embed_positions.weight"]
        assert torch.equal(table, state["tgt_embed.1.pe"][0]) and exact.config.max_position_embeddings == 5000
        waves = state["src_embed.1.pe"]
        apart = torch.cat([waves[..., 0::2], waves[..., 1::2]], -1)
        state["src_embed.1.pe"] = state["tgt_embed.1.pe"] = apart
        assert convert(state, **HEADS).config.sinusoidal_layout == "concatenated"
        with pytest.raises(ValueError, match="layout=interleaved`, but the stored positions are concatenated"):
            convert(state, sinusoidal_layout="interleaved", **HEADS)
        state["src_embed.1.pe"] = torch.randn(1, 9, 8)
        with pytest.raises(ValueError, match="have 9 and 5000 rows.*max_position_embeddings=9` to truncate"):
            convert(state, **HEADS)
        with pytest.raises(ValueError, match="max_position_embeddings=10`, but 9 positions are stored"):
            convert(state, max_position_embeddings=10, **HEADS)
        assert convert(state, max_position_embeddings=9, **HEADS).config.max_position_embeddings == 9
        with pytest.raises(ValueError, match="src_embed.1.pe 2x9x8 does not fit"):
            convert({**state, "src_embed.1.pe": torch.randn(2, 9, 8)}, **HEADS)
        with pytest.raises(ValueError, match="stored positions are not sinusoids"):
            convert(state, position_embedding_type="sinusoidal", **HEADS)
        words = [["u", "<pad>", "<s>", "</s>", *map(str, range(count))] for count in (9, 13)]
        scalar = convert(
            source_models.ScalarNorms().state_dict(), source_vocabulary=words[0], target_vocabulary=words[1], **HEADS
        )
        assert scalar.config.max_position_embeddings == 15, "12 and 15 rows of one function"
        assert scalar.tokenizer.model_max_length == 15
        assert scalar.model().generate(torch.tensor([[2, 5, 3]]), eos_token_id=None).shape[1] == 15, "no error there"
        del state["src_embed.1.pe"], state["tgt_embed.1.pe"]
        assert convert(state, **HEADS).config.position_embedding_type == "sinusoidal"

    @pytest.mark.parametrize("name", ["scalar-norm", "shared-heads"])
    def test_sinusoids_of_its_own_must_be_stored(self, name):
        _, model, options = build(name)
        tables = [key for key in model.state_dict() if key.endswith("pe")]
        assert len(tables) == 2
        for missing, match in ((tables, "no position table is among the weights"), (tables[:1], "1 missing")):
            state = {key: tensor for key, tensor in model.state_dict().items() if key not in missing}
            with pytest.raises(ValueError, match=match):
                convert(state, **options)

    def test_every_layout_is_found_by_its_own_keys_alone(self):
        found = {case[0] for case in CASES.values()}
        assert found == set(LAYOUTS) - {"marian", "fsmt", "fairseq"}
        states = {name: build(name)[1].state_dict() for name in CASES}
        for name, state in states.items():
            assert convert(state, **CASES[name][2]).layout.name == CASES[name][0]
            for layout in LAYOUTS.values():
                if layout.name != CASES[name][0]:
                    with pytest.raises(ValueError, match="does not have the layout"):
                        convert(state, layout.name, **CASES[name][2])

    def test_what_else_a_layout_may_do(self, tmp_path, monkeypatch):
        """A layout that only a config.json tells from another, and that takes more over from the folder."""

        def read_folder(folder, load_tokenizer):
            return FolderContents(generation={"num_beams": 3}, notes=(f"{folder.name} was looked at",))

        special = replace(
            LAYOUTS["annotated-transformer"], name="special", model_types=("special",), read_folder=read_folder
        )
        monkeypatch.setattr("hf_vanilla_transformer.conversion.recognition.LAYOUTS", {"special": special, **LAYOUTS})
        folder = tmp_path / "folder"
        folder.mkdir()
        save_file(source_models.Annotated().state_dict(), folder / "model.safetensors")
        assert convert(folder, **HEADS).layout.name == "annotated-transformer"
        (folder / "config.json").write_text('{"model_type": "special"}')
        conversion = convert(folder, **HEADS)
        assert conversion.layout is special and conversion.notes[-1] == "folder was looked at"
        assert conversion.model().generation_config.num_beams == 3


WORDS = ("a", "cat", "dog", "sleeps", "runs", "the", "small", "big", "and")


class TestTokenizer:
    @pytest.fixture
    def annotated(self):
        return source_models.Annotated().eval()

    source = ["<s>", "</s>", "<blank>", "<unk>", *WORDS]
    target = ["<s>", "</s>", "<blank>", "<unk>", *(word.upper() for word in WORDS), "!", "?", ",", "."]

    def test_a_text_is_translated_as_by_the_original(self, annotated, tmp_path):
        """Special tokens around the source, ids, start and end are those of the original program."""
        (tmp_path / "source.json").write_text(json.dumps({token: i for i, token in enumerate(self.source)}))
        (tmp_path / "target.txt").write_text("".join(f"{token}\n" for token in self.target))
        convert_checkpoint(
            annotated.state_dict(), tmp_path / "out", None, tmp_path / "source.json", tmp_path / "target.txt", **HEADS
        )
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
        model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
        texts = ["the cat sleeps", "a zebra runs and runs"]
        ids = [[0, 9, 5, 7, 1], [0, 4, 3, 8, 12, 8, 1]]
        inputs = tokenizer(texts, text_target=["CAT RUNS", "DOG"], padding=True, return_tensors="pt")
        assert [row[: len(expected)] for row, expected in zip(inputs["input_ids"].tolist(), ids, strict=True)] == ids
        assert inputs["input_ids"][0, 5:].tolist() == [2, 2]
        assert inputs["labels"].tolist() == [[5, 8, 1], [6, 1, 2]]
        del inputs["labels"]
        got = tokenizer.batch_decode(model.generate(**inputs, num_beams=1, max_new_tokens=9), skip_special_tokens=True)
        for row, expected in zip(ids, got, strict=True):
            words = [self.target[i] for i in greedy(annotated, torch.tensor([row]), 0, 1, 9) if i > 2]
            assert expected == " ".join(word for word in words if word != "<unk>") and expected

    def test_special_tokens_at_other_ids_of_the_source(self):
        """The source's ids are renumbered, and its embeddings with them: texts are encoded to the same states."""
        torch.manual_seed(3)
        model = source_models.Phrases().eval()
        source = ["<SOS>", "i", "love", "you", "me", "see", "like", "pizza", "cake", "eat", "<EOS>", "<PAD>"]
        target = ["<SOS>", *(f"t{i}" for i in range(1, 14)), "<EOS>", "<PAD>"]
        conversion = convert(model.state_dict(), source_vocabulary=source, target_vocabulary=target, patched=True)
        assert conversion.config.vocab_size == 16 and any("renumbered" in note for note in conversion.notes)
        tokenizer, converted = conversion.tokenizer, conversion.model()
        inputs = tokenizer(["i love you", "you eat"], padding=True, return_tensors="pt")
        assert inputs["input_ids"][1].tolist() == [0, 3, 9, 14, 15]
        labels = torch.tensor([[0, 2, 3]] * 2)
        got = normalized(ours(converted, inputs["input_ids"], labels, inputs["attention_mask"].bool()))
        for row, text in enumerate(("<SOS> i love you <EOS>", "<SOS> you eat <EOS>")):
            ids = torch.tensor([[source.index(token) for token in text.split()]])
            with torch.no_grad():
                expected = normalized(model(ids, labels[:1]))[0]
            torch.testing.assert_close(got[row], expected, atol=TOLERANCE, rtol=0)

    def test_a_source_without_some_special_tokens(self):
        """StatQuest's source has no end: the token is added, and never read."""
        model = source_models.StatQuest().eval()
        vocabularies = (["<SOS>", "lets", "to", "go"], {"<SOS>": 0, "ir": 1, "vamos": 2, "y": 3, "<EOS>": 4})
        conversion = convert_checkpoint(model.state_dict(), None, None, *vocabularies, dry_run=True)
        assert conversion.tokenizer("lets go")["input_ids"] == [0, 1, 3]
        assert conversion.tokenizer(text_target="vamos")["input_ids"] == [2, 4]
        assert len(conversion.tokenizer) == conversion.config.vocab_size == 5

    def test_one_vocabulary_without_prefix_is_a_plain_tokenizer(self):
        model = source_models.Annotated(source_vocabulary=17)
        shared = convert(model.state_dict(), source_vocabulary=self.target, **HEADS).tokenizer
        assert shared("CAT")["input_ids"] == [0, 5, 1] and shared(text_target="CAT")["input_ids"] == [5, 1]

    def test_a_file_of_the_tokenizers_library(self, tmp_path):
        model = source_models.ScalarNorms()
        paths = []
        for side, count in (("en", 9), ("es", 13)):
            words = ["[UNK]", "[PAD]", "[SOS]", "[EOS]", *(f"{side}{i}" for i in range(count))]
            backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
            backend.pre_tokenizer = pre_tokenizers.Whitespace()
            paths.append(tmp_path / f"{side}.json")
            backend.save(str(paths[-1]))
        conversion = convert_checkpoint(model.state_dict(), None, None, *paths, dry_run=True, **HEADS)
        assert conversion.tokenizer("en1,en2")["input_ids"] == [2, 5, 0, 6, 3]
        assert conversion.tokenizer.decode([4, 5, 3], skip_special_tokens=True) == "es0 es1"
        with pytest.raises(ValueError, match="has other ids|renumbered"):
            convert_checkpoint(
                model.state_dict(), None, None, paths[0], ["[EOS]", "[SOS]", "[PAD]", "x", *map(str, range(13))],
                dry_run=True, pad_token_id=2, bos_token_id=1, eos_token_id=0, **HEADS,
            )  # fmt: skip  # one argument a line would fill the screen

    @pytest.mark.parametrize(
        ("text", "name", "match"),
        [
            ("<s>\n</s>\n", "v.txt", "v.txt has 2 tokens, but the embeddings .vocab_size. have 13 rows"),
            ("<s>\n</s> 4\n", "v.txt", "v.txt, line 2: '</s> 4' is not one token"),
            ("<s>\n\n</s>\n", "v.txt", "v.txt, line 2: '' is not one token"),
            ("", "v.txt", "v.txt is empty"),
            ('{"a": 0, "b": 0}', "v.json", "'a' and 'b' both have id 0"),
            ('{"a": 0, "b": 2}', "v.json", "no token has id 1, though ids go up to 2"),
            ('{"a": "0"}', "v.json", "'a': '0' is not a token with an integer id"),
            ('["a", "b", "a"]', "v.json", "'a' has the ids 0 and 2"),
            ('{"a": 0', "v.json", "v.json: not JSON"),
            ('"a"', "v.json", "holds str"),
            ('{"model": {"type": "Unheard"}}', "v.json", "not a readable tokenizer file"),
        ],
    )
    def test_vocabularies_that_do_not_fit(self, annotated, tmp_path, text, name, match):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=match) as caught:
            convert(annotated.state_dict(), source_vocabulary=tmp_path / name, **HEADS)
        assert "`source_vocabulary`" in str(caught.value) and "\n" not in str(caught.value)

    def test_special_tokens_that_are_not_there(self, annotated):
        state, source = annotated.state_dict(), [*self.source]
        with pytest.raises(ValueError, match="`target_vocabulary` needs `source_vocabulary`"):
            convert(state, target_vocabulary=self.target, **HEADS)
        source[1] = "[end]"
        with pytest.raises(ValueError, match="no '</s>', which has id 1 in the target vocabulary, but '.end.' there"):
            convert(state, source_vocabulary=source, target_vocabulary=self.target, **HEADS)
        with pytest.raises(ValueError, match="ends at id 16, and has no eos token 99"):
            convert(state, source_vocabulary=self.source, target_vocabulary=self.target, eos_token_id=99, **HEADS)


class TestScript:
    @pytest.fixture
    def checkpoint(self, tmp_path):
        torch.save(source_models.TorchNN(norm_first=True).state_dict(), tmp_path / "weights.pt")
        return tmp_path / "weights.pt"

    def test_converts(self, checkpoint, tmp_path, capsys):
        out = tmp_path / "out"
        main(
            ["--source", str(checkpoint), "--output_dir", str(out), "--config", "encoder_attention_heads=2"]
            + ["norm_position=pre", "dropout=0.3"]
        )
        printed = capsys.readouterr().out
        assert printed.startswith(f"{out}: model of layout torch-nn-transformer, ") and "no tokenizer" in printed
        config = AutoModelForSeq2SeqLM.from_pretrained(out).config
        assert (config.norm_position, config.dropout, config.decoder_attention_heads) == ("pre", 0.3, 2)
        assert sorted(path.name for path in out.iterdir()) == [
            "config.json", "generation_config.json", "model.safetensors"
        ]  # fmt: skip  # one name a line would fill the screen

    def test_options_may_be_given_piece_by_piece(self, checkpoint, capsys):
        """As they are when what a message asks for is appended to the command."""
        arguments = ["--source", str(checkpoint), "--dry_run", "--config", "norm_position=pre"]
        main([*arguments, "--config", "encoder_attention_heads=2"])
        assert "config: norm_position='pre'" in capsys.readouterr().out
        renames = ["--rename", "src_tok_emb.=one.", "--rename", "one.=tgt_tok_emb."]
        with pytest.raises(SystemExit):
            main([*arguments, *renames])
        assert "--rename one.=tgt_tok_emb.: no key begins with 'one.'" in capsys.readouterr().err

    def test_a_source_is_framed_as_the_notes_say(self, checkpoint, tmp_path, capsys):
        words = tmp_path / "words.txt"
        words.write_text("\n".join(["<unk>", "<pad>", "<s>", "</s>", *map(str, range(9))]))
        main(
            ["--source", str(checkpoint), "--dry_run", "--encoder_only", "--source_vocabulary", str(words)]
            + ["--config", "encoder_attention_heads=2"]
        )
        assert "a source becomes <s> ... </s>, as in the code of torch-nn-transformer" in capsys.readouterr().out

    def test_dry_run_prints_the_mapping_and_writes_nothing(self, checkpoint, tmp_path, capsys):
        before = set(tmp_path.iterdir())
        main(["--source", str(checkpoint), "--dry_run", "--config", "encoder_attention_heads=2"])
        lines = capsys.readouterr().out.splitlines()
        line = "transformer.encoder.layers.1.self_attn.in_proj_weight 24x8 -> "
        assert line + "model.encoder.layers.1.self_attn.v_proj.weight 8x8, split in three" in lines
        assert "config: decoder_attention_heads=2" in lines and 'norm_position="post"' in lines[-1]
        assert "positional_encoding.pos_embedding 40x1x8 -> sinusoids 40x8, computed, not kept" in lines
        assert set(tmp_path.iterdir()) == before

    def test_dry_run_shows_what_is_filled_in(self):
        lines = convert(source_models.StatQuest().state_dict()).describe().splitlines()
        assert "nothing -> model.encoder.layers.0.self_attn.out_proj.weight 4x4, identity" in lines

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ((), "code: --config encoder_attention_heads=8 --config decoder_attention_heads=8"),
            (("--config", "encoder_attention_heads"), "is not name=value"),
            (("--config", "dropout=0.1", "--config", "dropout=0.2"), "--config dropout is given as 0.1 and as 0.2"),
            (("--config", "encoder_attention_heads=two"), "`encoder_attention_heads` is 'two'"),
            (("--layout", "marvin"), "--layout marvin is not one of"),
        ],
    )
    def test_mistakes_are_one_line(self, checkpoint, tmp_path, capsys, arguments, message):
        with pytest.raises(SystemExit) as stop:
            main(["--source", str(checkpoint), "--output_dir", str(tmp_path / "out"), *arguments])
        printed = capsys.readouterr()
        assert stop.value.code == 2 and printed.out == "" and printed.err.count("\n") == 1
        assert message in printed.err and not (tmp_path / "out").exists()

    def test_no_output_folder(self, checkpoint, capsys):
        with pytest.raises(SystemExit):
            main(["--source", str(checkpoint)])
        assert "--output_dir is missing" in capsys.readouterr().err

    def test_help_shows_an_example_of_each_layout(self):
        result = subprocess.run([sys.executable, str(SCRIPT), "--help-all"], capture_output=True, text=True)
        assert result.returncode == 0 and result.stderr == ""
        for layout in LAYOUTS.values():
            assert layout.name in result.stdout and layout.example and layout.example in result.stdout
