"""Recognition of layouts by keys, and renaming."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import source_models
from conversions import HEADS, STATED, convert
from hf_vanilla_transformer.conversion import LAYOUTS
from hf_vanilla_transformer.conversion.recognition import has_shapes
from hf_vanilla_transformer.conversion.rules import FolderContents

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),
]


@pytest.fixture
def state():
    return source_models.Annotated().state_dict()


@pytest.mark.parametrize(
    ("model", "layout", "message"),
    [
        (nn.Linear(2, 2), None, "no known layout: its keys are weight, bias.*shapes are of another"),
        (nn.ParameterList([torch.zeros(2)]), None, "no known layout: its keys are 0.*shapes are of another"),
        (source_models.Annotated(), "statquests", "`layout` statquests is not one of .*did you mean statquest"),
        (source_models.Annotated(), "statquest", "does not have the layout statquest.*there is no encoder.we.weight"),
    ],
)
def test_weights_of_something_else(model, layout, message):
    with pytest.raises(ValueError, match=message):
        convert(model.state_dict(), layout)


def test_a_layout_that_only_its_config_shows(tmp_path, monkeypatch):
    def read_folder(folder, load_tokenizer):
        return FolderContents(generation={"num_beams": 3}, notes=(f"{folder.name} was read",))

    annotated = LAYOUTS["annotated-transformer"]
    special = replace(annotated, name="special", model_types=("special",), read_folder=read_folder)
    monkeypatch.setattr("hf_vanilla_transformer.conversion.recognition.LAYOUTS", {"special": special, **LAYOUTS})
    folder = tmp_path / "folder"
    folder.mkdir()
    save_file(source_models.Annotated().state_dict(), folder / "model.safetensors")
    assert convert(folder, **HEADS).layout.name == "annotated-transformer"
    (folder / "config.json").write_text(json.dumps({"model_type": "special"}))
    conversion = convert(folder, **HEADS)
    assert conversion.layout is special and conversion.notes[-1] == "folder was read"
    assert conversion.model().generation_config.num_beams == 3


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
        """The same under other names, and the shared embedding once."""
        renamed = {}
        for key, tensor in torch_nn.items():
            old = next((old for old in self.NAMES if key.startswith(old)), "")
            if not key.startswith("tgt_tok_emb."):
                renamed[self.NAMES.get(old, "") + key.removeprefix(old)] = tensor
        return renamed

    def test_an_embedding_becomes_two(self, torch_nn, renamed):
        expected = convert(torch_nn, **HEADS)
        assert expected.config.share_encoder_decoder_embeddings and not expected.config.tie_word_embeddings
        with pytest.raises(ValueError, match="nearest is torch-nn-transformer, but there is no transformer.*`rename`"):
            convert(renamed, **HEADS)
        pairs = [f"{new}={old}" for old, new in self.NAMES.items()] + ["net.words.=tgt_tok_emb.embedding."]
        found = convert(renamed, rename=pairs, **STATED, **HEADS)
        assert all(torch.equal(found.weights[name], tensor) for name, tensor in expected.weights.items())

    @pytest.mark.parametrize(
        ("pair", "message"),
        [
            ("nets.=transformer.", "no key begins with 'nets.'"),
            ("net", "is not old=new"),
            ("src_tok_emb.embedding.=generator.", "two weights the name generator.weight"),
        ],
    )
    def test_refused_pairs(self, torch_nn, pair, message):
        with pytest.raises(ValueError, match=message):
            convert(torch_nn, rename=[pair], **HEADS)

    def test_cutting_a_prefix_is_no_renaming(self, state):
        prefixed = {f"ema.{key}": tensor for key, tensor in state.items()}
        assert convert(prefixed, rename=["ema.="], **HEADS).layout.name == "annotated-transformer"

    def test_no_weight_is_renamed_away(self):
        state = source_models.TorchNN().state_dict()
        with pytest.raises(ValueError, match="generator.bias the name encoder.version, which is no weight"):
            convert(state, rename=["generator.bias=encoder.version"], **HEADS)


class TestHint:
    """Renaming is suggested only where shapes fit."""

    @pytest.fixture
    def wide(self, state):
        names = {"src_embed.0.lut": "src_embed.embedding", "norm.a_2": "norm.alpha", "norm.b_2": "norm.bias"}
        for old, new in names.items():
            state = {key.replace(old, new): tensor for key, tensor in state.items()}
        return state

    def test_one_key_is_missing_and_another_unexpected(self):
        state = source_models.ScalarNorms().state_dict()
        state = {key.replace("layers.0.feed_forward_block.linear1.b", "x."): value for key, value in state.items()}
        with pytest.raises(ValueError, match="2 missing: .*2 unexpected: .*; if only names differ, pass `rename`"):
            convert(state, **HEADS)

    def test_other_names_of_the_same_shapes(self, wide):
        with pytest.raises(ValueError, match="nearest is (annotated|simple)-transformer.*pass `rename`"):
            convert(wide)

    def test_other_shapes(self, wide):
        with pytest.raises(ValueError, match="not have the layout scalar-norm.*are of another model") as caught:
            convert(wide, "scalar-norm")
        assert "rename" not in str(caught.value)
        deeper = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False)
        with pytest.raises(ValueError, match="shapes are of another model"):
            convert(deeper.state_dict())

    def test_one_of_the_embeddings_and_the_output_must_be_there(self, state):
        matrices = ["src_embed.0.lut.weight", "tgt_embed.0.lut.weight", "generator.proj.weight"]
        # Position tables have the axes of embeddings.
        found = [
            has_shapes(
                {key: state[key] for key in state if key not in matrices[:n] and not key.endswith(".pe")},
                LAYOUTS["annotated-transformer"],
            )
            for n in range(4)
        ]
        assert found == [True, True, True, False]
