"""Recognition of layouts by keys, and renaming."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

import source_models
import transformers_models
from conversions import CASES, HEADS, STATED, build, convert, refused
from hf_vanilla_transformer.conversion import LAYOUTS
from hf_vanilla_transformer.conversion.reading import SourceCheckpoint
from hf_vanilla_transformer.conversion.recognition import recognize_layout
from tables import looped

OTHERS = {
    "marian": lambda: transformers_models.marian().state_dict(),
    "fsmt": lambda: transformers_models.fsmt().state_dict(),
    "fairseq": lambda: transformers_models.as_fairseq(transformers_models.fsmt()),
}


class Adaptive(source_models.TorchNN):
    """Output projection with the adaptive softmax of torch."""

    def __init__(self):
        super().__init__()
        self.generator = nn.AdaptiveLogSoftmaxWithLoss(8, 17, [5, 11], div_value=2.0)


@looped(
    ("make", "added", "layout", "message"),
    [
        (partial(nn.Linear, 2, 2), {}, None, "no known layout: its keys are weight, bias.*pass `rename`"),
        (source_models.annotated, {}, "statquests", "`layout` statquests is not one of .*did you mean statquest"),
        (source_models.annotated, {}, "statquest", "not have the layout statquest.*there is no encoder.we.weight"),
        (
            Adaptive,
            {},
            None,
            r"has an adaptive softmax, .* \(generator\.tail\.0\.0\.weight\), which our configuration",
        ),
        (
            transformers_models.fsmt,
            {"decoder.adaptive_softmax.head.weight": torch.zeros(3, 8)},
            None,
            r"has an adaptive softmax, .* \(decoder\.adaptive_softmax\.head\.weight\)",
        ),
        (
            transformers_models.fsmt,
            {"encoder.embed_tokens.embeddings.0.0.weight": torch.zeros(3, 8)},
            None,
            r"has adaptive embeddings, .* \(encoder\.embed_tokens\.embeddings\.0\.0\.weight\)",
        ),
    ],
)
def test_weights_of_something_else(make, added, layout, message):
    refused(message, make().state_dict() | added, layout)


class TestEveryLayout:
    """Each layout recognizes its own weights and no others."""

    @pytest.fixture(params=[*CASES, *OTHERS])
    def source(self, request):
        """A layout name and a checkpoint with that layout."""
        if request.param in CASES:
            layout, model, _ = build(request.param)
            return layout, SourceCheckpoint(Path("state dict"), model.state_dict(), {})
        weights = OTHERS[request.param]()
        return request.param, SourceCheckpoint(Path("state dict"), weights, {"model_type": request.param})

    @looped("order", [list, reversed])
    def test_in_any_order(self, source, order, monkeypatch):
        own, checkpoint = source
        layouts = {name: LAYOUTS[name] for name in order(list(LAYOUTS))}
        monkeypatch.setattr("hf_vanilla_transformer.conversion.recognition.LAYOUTS", layouts)
        assert recognize_layout(checkpoint, None)[1].name == own

    def test_by_name(self, source):
        own, checkpoint = source
        # Keys alone do not distinguish the models of transformers, which use fairseq's names.
        known = own in OTHERS and {*OTHERS} or {own}
        # Those names are ours too.
        known |= {"plain"} if own in OTHERS else set()
        for name in LAYOUTS.keys() - known:
            with pytest.raises(ValueError, match=f"does not have the layout {name}"):
                recognize_layout(checkpoint, name)


class TestRename:
    @pytest.fixture
    def torch_nn(self):
        """Weights with one embedding for both stacks."""
        state = source_models.TorchNN(source_vocabulary=17).state_dict()
        state["tgt_tok_emb.embedding.weight"] = state["src_tok_emb.embedding.weight"]
        return state

    NAMES = {"transformer.": "net.core.", "src_tok_emb.embedding.": "net.words.", "generator.": "net.out."}

    @pytest.fixture
    def renamed(self, torch_nn):
        """The same weights with renamed keys, and the shared embedding stored once."""
        renamed = {}
        for key, tensor in torch_nn.items():
            old = next((old for old in self.NAMES if key.startswith(old)), "")
            if not key.startswith("tgt_tok_emb."):
                renamed[self.NAMES.get(old, "") + key.removeprefix(old)] = tensor
        return renamed

    def test_an_embedding_becomes_two(self, torch_nn, renamed):
        expected = convert(torch_nn, **HEADS)
        assert expected.config.share_encoder_decoder_embeddings and not expected.config.tie_word_embeddings
        refused("nearest is torch-nn-transformer, but there is no src_tok_emb.*`rename`", renamed, **HEADS)
        pairs = [f"{new}={old}" for old, new in self.NAMES.items()] + ["net.words.=tgt_tok_emb.embedding."]
        found = convert(renamed, rename=pairs, **STATED, **HEADS)
        assert all(torch.equal(found.weights[name], tensor) for name, tensor in expected.weights.items())

    def test_cutting_a_prefix_is_no_renaming(self):
        prefixed = {f"ema.{key}": tensor for key, tensor in source_models.annotated().state_dict().items()}
        assert convert(prefixed, rename=["ema.="], **HEADS).layout.name == "annotated-transformer"

    def test_no_weight_is_renamed_away(self):
        message = "generator.bias the name encoder.version, which is not a weight"
        refused(message, source_models.TorchNN().state_dict(), rename=["generator.bias=encoder.version"], **HEADS)
