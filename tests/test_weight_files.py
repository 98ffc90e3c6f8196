"""Damaged safetensors and shard indices."""

import json
import zipfile

import pytest
import torch
from safetensors.torch import save_file

from hf_vanilla_transformer.weight_files import check_safetensors, load_pickle, read_shard_index, stored_shapes


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
    with pytest.raises(ValueError, match="weight_map does not map every weight to a file name; fetch it again"):
        read_shard_index(index, "fetch it again")


def test_a_missing_shard(index):
    index.with_name("shard.safetensors").unlink()
    with pytest.raises(ValueError, match="lacks the shard shard.safetensors listed in model.*; fetch it"):
        read_shard_index(index, "fetch it again")


def test_metadata_of_an_index_and_names_that_no_file_can_have(index):
    index.write_text(json.dumps({"metadata": 7, "weight_map": {}}))
    with pytest.raises(ValueError, match="metadata is not a JSON object; fetch it again"):
        read_shard_index(index, "fetch it again")
    index.write_text(json.dumps({"weight_map": {"a": "x" * 100_000}}))
    with pytest.raises(ValueError, match=r"lacks the shard x+ \[...\] x+ listed in .*; fetch it again") as error:
        read_shard_index(index, "fetch it again")
    assert len(str(error.value)) < 500


def test_a_damaged_file(index):
    file = index.with_name("shard.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match="is damaged .*; fetch it again"):
        check_safetensors(file, "fetch it again")


def test_shapes_without_numbers(tmp_path):
    weights = {"a": torch.zeros(2, 3), "b": torch.zeros(())}
    save_file(weights, tmp_path / "model.safetensors")
    assert stored_shapes(tmp_path, "save it again") == {"a": (2, 3), "b": ()}
    (tmp_path / "model.safetensors").unlink()
    assert stored_shapes(tmp_path, "save it again") is None
    torch.save(weights, tmp_path / "pytorch_model.bin")
    assert stored_shapes(tmp_path, "save it again") == {"a": (2, 3), "b": ()}
    torch.save([1], tmp_path / "pytorch_model.bin")
    with pytest.raises(
        ValueError, match=r"pytorch_model.bin holds list, not a dict from names to weights; save it again"
    ):
        stored_shapes(tmp_path, "save it again")


def test_an_index_that_transformers_cannot_read_or_that_names_too_much(index):
    with pytest.raises(ValueError, match="has no metadata, .*; save it again"):
        stored_shapes(index.parent, "save it again")
    content = {"metadata": {}, "weight_map": {"a": "shard.safetensors", "b": "shard.safetensors"}}
    index.write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match="no shard in .* holds b, which model.safetensors.index.json lists; save it again"
    ):
        stored_shapes(index.parent, "save it again")


def test_a_pickle_with_a_compressed_member(tmp_path):
    """Two gigabytes of zeros compress to two megabytes; here fewer."""
    torch.save({"a": torch.zeros(1_000_000)}, tmp_path / "whole.pt")
    with zipfile.ZipFile(tmp_path / "whole.pt") as whole, zipfile.ZipFile(tmp_path / "a.pt", "w") as zipped:
        for member in whole.infolist():
            zipped.writestr(member.filename, whole.read(member), zipfile.ZIP_DEFLATED)
    assert (tmp_path / "a.pt").stat().st_size < 10_000
    with pytest.raises(
        ValueError, match=r"a.pt is damaged or hostile: its member whole/.* is compressed; fetch or save"
    ):
        load_pickle(tmp_path / "a.pt", "save it again")


def test_a_pickle_of_tensors_that_repeat_one_number(tmp_path):
    torch.save({"state_dict": {"a": torch.zeros(1).expand(2**20, 2**20)}}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match="a.pt is damaged or hostile: its tensors would fill 4,398,046,511,104 bytes"):
        load_pickle(tmp_path / "a.pt", "save it again")


def test_tied_weights_and_nested_containers_are_no_repetition(tmp_path):
    tied = torch.ones(1000)
    nested = [tied]
    for _ in range(60):
        nested = [nested, nested]
    torch.save({"a": tied, "b": tied, "c": tied[:10], "nested": nested}, tmp_path / "a.pt")
    content = load_pickle(tmp_path / "a.pt", "save it again")
    assert torch.equal(content["b"], tied)
