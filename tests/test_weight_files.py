"""Damaged safetensors and shard indices."""

import json

import pytest
import torch
from safetensors.torch import save_file

from hf_vanilla_transformer.weight_files import check_safetensors, read_shard_index


@pytest.fixture
def index(tmp_path):
    save_file({"a": torch.zeros(2)}, tmp_path / "shard.safetensors")
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"a": "shard.safetensors"}}))
    return path


def test_an_index_names_the_shard_of_each_weight(index):
    assert read_shard_index(index, "fetch it again") == {"a": "shard.safetensors"}
    check_safetensors(index.with_name("shard.safetensors"), "fetch it again")


@pytest.mark.parametrize("weight_map", [None, [1], {"a": 1}])
def test_an_index_without_names(index, weight_map):
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ValueError, match="names no file for each weight .*; fetch it again"):
        read_shard_index(index, "fetch it again")


def test_a_missing_shard(index):
    index.with_name("shard.safetensors").unlink()
    with pytest.raises(ValueError, match="holds no shard.safetensors, which model.* names; fetch it"):
        read_shard_index(index, "fetch it again")


def test_a_damaged_file(index):
    file = index.with_name("shard.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="is damaged .*; fetch it again"):
        check_safetensors(file, "fetch it again")
