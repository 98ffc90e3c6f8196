"""Every kind of source file, settings beside the weights, and refused files."""

import json
import os
import pickle
import re
from argparse import Namespace

import numpy as np
import pytest
import torch
from huggingface_hub import save_torch_state_dict
from safetensors.torch import save_file
from torch import nn

import source_models
from conversions import HEADS, assert_same_logits, convert
from hf_vanilla_transformer.conversion.reading import read_checkpoint
from tables import looped


@pytest.fixture
def state():
    return source_models.annotated(layers=1).state_dict()


def save_shards(state, folder, safe=False):
    """Save files of a few weights each and their index, and return the files."""
    save_torch_state_dict(state, folder, max_shard_size=2000, safe_serialization=safe)
    return sorted(folder.glob("*-of-*"))


# The content of each file, as a function of the state dict.
FILES = {
    "plain.pt": lambda state: state,
    "legacy.pt": lambda state: state,
    "loop.pth": lambda state: {"epoch": 3, "model_state_dict": state},
    "parallel.bin": lambda state: {f"module.{key}": tensor for key, tensor in state.items()},
    "lightning.ckpt": lambda state: {"state_dict": {f"_orig_mod.model.{key}": state[key] for key in state}},
}


@pytest.mark.parametrize("kind", [*FILES, "weights.safetensors", "folder", "shards"])
def test_every_kind_of_file_gives_the_same_weights(state, tmp_path, kind):
    source = tmp_path if kind in ("folder", "shards") else tmp_path / kind
    if kind == "shards":
        assert len(save_shards(state, tmp_path, safe=True)) > 1
    elif kind in FILES:
        torch.save(FILES[kind](state), source, _use_new_zipfile_serialization=kind != "legacy.pt")
    else:
        save_file(state, tmp_path / ("model.safetensors" if kind == "folder" else kind))
    expected, found = convert(state, **HEADS).weights, convert(source, **HEADS).weights
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


class TestRefusedFiles:
    def refused(self, path, message):
        with pytest.raises(ValueError, match=message) as caught:
            read_checkpoint(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)

    @looped(
        ("content", "message"),
        [
            (None, "no such file"),
            (b"", "truncated, damaged or not a checkpoint"),
            (b"hello world\n", "truncated, damaged or not a checkpoint"),
            (bytes(range(256)) * 4, "resave the weights|truncated"),
            ([1, 2], "holds list, not a dict of weights"),
            ({"lr": 0.1}, "'lr' is float, not a tensor"),
            ({}, "holds dict"),
            (nn.Linear(2, 2), r"torch.nn.modules.linear.Linear, which is not run; resave the weights"),
        ],
    )
    def test_no_checkpoint(self, tmp_path, content, message):
        file = tmp_path / "file.pt"
        if isinstance(content, bytes):
            file.write_bytes(content)
        elif content is not None:
            torch.save(content, file)
        self.refused(file, message)

    def test_truncated_files(self, state, tmp_path):
        file = tmp_path / "truncated.pt"
        torch.save(state, file)
        file.write_bytes(file.read_bytes()[:2000])
        self.refused(file, "truncated, damaged or not a checkpoint")
        torch.save(state, file, _use_new_zipfile_serialization=False)
        whole = file.read_bytes()
        for length in range(1, len(whole), 397):
            file.write_bytes(whole[:length])
            self.refused(file, "damaged")
        file = tmp_path / "truncated.safetensors"
        save_file(state, file)
        file.write_bytes(file.read_bytes()[:-9])
        self.refused(file, "is damaged")

    def test_a_file_without_permission(self, tmp_path, monkeypatch):
        (tmp_path / "file.pt").touch()

        def denied(*args, **kwargs):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("torch.load", denied)
        self.refused(tmp_path / "file.pt", r"cannot be read \(Permission denied\); check the path")

    @pytest.mark.parametrize(
        ("files", "message"), [([], "holds no weights"), (["a.pt", "b.bin"], r"several weight files \(a.pt, b.bin\)")]
    )
    def test_a_folder_of_none_or_several_files(self, tmp_path, files, message):
        for name in files:
            (tmp_path / name).touch()
        self.refused(tmp_path, message)

    def test_an_index_of_nothing(self, tmp_path):
        (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
        self.refused(tmp_path, "lacks the shard gone.safetensors")

    @pytest.mark.parametrize("beside", [{}, {"best": np.float64(1), "array": np.arange(2)}], ids=["alone", "numpy"])
    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("zip.pt", r"mkdir, which is not run; resave the weights"),
            ("legacy.pt", r"mkdir, which is not run; resave the weights"),
            ("raw.pkl", "not a checkpoint that can be loaded safely"),
        ],
    )
    def test_code_in_a_pickle_is_not_run(self, tmp_path, beside, name, message):
        class Attack:
            def __reduce__(self):
                return os.mkdir, (str(tmp_path / "attacked"),)

        content = {**beside, "weight": Attack()}
        if name == "raw.pkl":
            (tmp_path / name).write_bytes(pickle.dumps(content))
        else:
            torch.save(content, tmp_path / name, _use_new_zipfile_serialization=name == "zip.pt")
        self.refused(tmp_path / name, message)
        assert not (tmp_path / "attacked").exists()

    def test_objects_in_numpy_arrays(self, state, tmp_path):
        torch.save({"model": state, "extra": np.array([{}, None], dtype=object)}, tmp_path / "objects.pt")
        self.refused(tmp_path / "objects.pt", "damaged, or not a checkpoint that can be loaded safely|not run")


@pytest.mark.parametrize("release", ["zip", "own", "core", "_core"])
def test_numpy_numbers_beside_the_weights(state, tmp_path, release):
    """Releases 1 and 2 of numpy name the functions in their pickles differently."""
    numbers = {
        "best": np.float64(27.5), "val_loss": np.float32(2.5), "seen": np.int64(3), "array": np.arange(4.0),
        "flag": np.bool_(True), "name": np.str_("bleu"),
    }  # fmt: skip  # one number a line would fill the screen
    file = tmp_path / "numbers.pt"
    torch.save({"model": state, "extra_state": numbers}, file, _use_new_zipfile_serialization=release == "zip")
    if release != "zip":
        content = file.read_bytes()
        assert b"multiarray\nscalar" in content and b"multiarray\n_reconstruct" in content
        if release != "own":
            file.write_bytes(re.sub(rb"numpy\._?core", b"numpy." + release.encode(), content))
    found = read_checkpoint(file).weights
    assert found.keys() == state.keys() and all(torch.equal(found[key], state[key]) for key in state)


class TestShards:
    def test_a_weight_in_two_shards(self, state, tmp_path):
        first, second, *_ = save_shards(state, tmp_path)
        part, (name, tensor) = torch.load(second), next(iter(torch.load(first).items()))
        torch.save({**part, name: tensor}, second)
        found = read_checkpoint(tmp_path).weights
        assert found.keys() == state.keys() and torch.equal(found[name], state[name])
        torch.save({**part, name: tensor + 1}, second)
        with pytest.raises(ValueError, match=f"{second.name}: {re.escape(name)} differs from that of another"):
            read_checkpoint(tmp_path)

    def test_a_weight_in_no_shard(self, tmp_path):
        """A projection may have no bias; only the index shows that this one is lost."""
        files = save_shards(source_models.TorchNN().state_dict(), tmp_path)
        assert convert(tmp_path, **HEADS).config.lm_head_bias
        for file in files:
            torch.save({k: v for k, v in torch.load(file).items() if k != "generator.bias"}, file)
        with pytest.raises(ValueError, match=r"no file in .* holds generator\.bias, which the index names"):
            convert(tmp_path, **HEADS)

    def test_two_indexes(self, state, tmp_path):
        save_shards(state, tmp_path)
        (tmp_path / "other.bin.index.json").write_text("{}")
        with pytest.raises(ValueError, match=r"several shard indexes \(other.bin.index.json, pytorch_model.bin.in"):
            read_checkpoint(tmp_path)


class TestSettings:
    SETTINGS = {
        "nhead": 2, "norm_first": True, "activation": "gelu", "layer_norm_eps": 1e-3, "dropout": 0.3, "lr": 0.1,
    }  # fmt: skip  # one option a line would fill the screen

    @pytest.fixture
    def model(self):
        options = {"norm_first": True, "activation": "gelu", "layer_norm_eps": 1e-3, "batch_first": True}
        return source_models.TorchNN(**options).eval()

    @pytest.mark.parametrize("key", ["hyper_parameters", "args", "config", "cfg"])
    def test_arguments_of_torch_nn(self, model, key, tmp_path):
        settings = {"cfg": {"seed": 1, "model": self.SETTINGS}, "args": Namespace(**self.SETTINGS)}
        torch.save({"state_dict": model.state_dict(), key: settings.get(key, self.SETTINGS)}, tmp_path / "last.ckpt")
        for source in (tmp_path, tmp_path / "last.ckpt"):
            conversion = convert(source)
            assert_same_logits(model, conversion.model())
            assert conversion.config.dropout == 0.3
            assert any("not read; check that the configuration agrees: lr=0.1" in note for note in conversion.notes)

    def test_a_file_beside_its_config(self, model, tmp_path):
        torch.save(model.state_dict(), tmp_path / "last.pt")
        (tmp_path / "config.json").write_text(json.dumps(self.SETTINGS))
        assert_same_logits(model, convert(tmp_path / "last.pt").model())

    def test_plain_values_and_numpy_numbers(self, model):
        settings = {**self.SETTINGS, "nhead": np.int64(2), "norm_first": np.bool_(True)}
        content = {"state_dict": model.state_dict(), **settings}
        hparams = {"epoch": 9, "activation": "gelu", "dropout": None}
        conversion = convert({**content, "epoch": 3, "hparams": hparams})
        assert_same_logits(model, conversion.model())
        assert type(conversion.config.encoder_attention_heads) is int and conversion.config.dropout == 0.3
        with pytest.raises(ValueError, match="setting norm_first beside the weights is 'False'; it must be true or f"):
            convert({**content, "norm_first": "False"})

    def test_an_unused_option_contradicts_nothing(self):
        both = {"args": {"nhead": None, "list": [np.ones(2)]}, "hparams": {"nhead": 2, "list": [np.ones(2)]}}
        state = source_models.TorchNN().state_dict()
        assert convert({"state_dict": state, **both}).config.encoder_attention_heads == 2

    def test_two_places_that_contradict_each_other(self, tmp_path):
        state = source_models.TorchNN().state_dict()
        torch.save({"state_dict": state, "args": Namespace(**self.SETTINGS)}, tmp_path / "last.ckpt")
        (tmp_path / "config.json").write_text(json.dumps({**self.SETTINGS, "norm_first": False}))
        with pytest.raises(ValueError, match="last.ckpt has norm_first=True, but elsewhere it is False"):
            convert(tmp_path)
        with pytest.raises(ValueError, match="'hparams', has nhead=4, but elsewhere it is 2"):
            convert({"state_dict": state, "args": {"nhead": 2}, "hparams": {"nhead": 4}})


class TestHub:
    def test_a_name_that_cannot_be_fetched(self):
        with pytest.raises(ValueError, match="nobody/nothing is not a local folder, and cannot be fetched") as caught:
            convert("nobody/nothing")
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("kind", ["weights.safetensors", "pytorch_model.bin"])
    def test_pickles_are_fetched_only_without_safetensors(self, state, tmp_path, monkeypatch, kind):
        """A stand-in for the Hub downloads what the patterns allow."""
        wanted = []

        def download(name, allow_patterns):
            wanted.append(allow_patterns[-1])
            if kind == "weights.safetensors":
                save_file(state, tmp_path / kind)
            elif len(wanted) == 2:
                torch.save(state, tmp_path / kind)
            return str(tmp_path)

        monkeypatch.setattr("hf_vanilla_transformer.conversion.reading.snapshot_download", download)
        assert read_checkpoint("somebody/model").weights.keys() == state.keys()
        assert wanted == ["*.safetensors*", "pytorch_model*.bin*"][: 1 if kind == "weights.safetensors" else 2]


@pytest.mark.parametrize(
    ("kind", "change"),
    {
        "meta": lambda tensor: tensor.to("meta"),
        "sparse": lambda tensor: tensor.to_sparse(),
        "torch.float8_e4m3fn": lambda tensor: tensor.to(torch.float8_e4m3fn),
    }.items(),
)
def test_tensors_without_usable_numbers(kind, change):
    with pytest.raises(ValueError, match=f"the state dict: b is a {kind} tensor; save it as a dense one on the CPU"):
        read_checkpoint({"a": torch.zeros(2), "b": change(torch.ones(2))})


def test_settings_that_nest_without_end(tmp_path):
    """A small pickle can hold a billion nested containers; only plain values are settings."""
    nested = {"layers": 6, "names": ["a", "b"], "tables": [[1], [2]]}
    endless = {"heads": 8, "again": nested}
    nested["more"] = endless
    for _ in range(40):
        nested = {"left": nested, "right": nested}
    file = tmp_path / "weights.pt"
    torch.save({"state_dict": {"a": torch.zeros(2)}, "hparams": {"top": 1, "nested": nested, "own": endless}}, file)
    settings = read_checkpoint(file).settings
    assert settings["top"] == 1 and settings["own_heads"] == 8 and settings["own_again_layers"] == 6
    assert settings["own_again_names"] == ["a", "b"] and not any("tables" in name for name in settings)
