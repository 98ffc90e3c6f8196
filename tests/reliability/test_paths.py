"""No name in a file, and no link, leads out of the folder that it lies in."""

import json
import os

import pytest
from safetensors.torch import load_file, save_file

from hf_vanilla_transformer.cli.main import main
from hf_vanilla_transformer.hub import files_to_share
from hf_vanilla_transformer.inference.loading import load_model, load_tokenizer
from translators import save_translator

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def folder(tmp_path):
    """A model whose folder could be published."""
    save_translator("marian", tmp_path / "model")
    (tmp_path / "model" / "README.md").write_text("# A model\n")
    return tmp_path / "model"


@pytest.fixture
def refused(capsys, tmp_path):
    """Run a command that must end with one line; return it."""

    def run(*words):
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main([str(word).format(output=tmp_path / "new") for word in words])
        error = capsys.readouterr().err
        assert stop.value.code == 2 and error.count("\n") == 1, error
        assert not (tmp_path / "new").exists()
        return error

    return run


def commands(folder):
    text = folder.parent / "text"
    text.write_text("a red house\n")
    return {
        "translate": ("translate", "--model", folder, "--input", text),
        "score": ("score", "--model", folder, "--source", text, "--target", text),
        "average": ("average", "--checkpoints", folder, folder, "--output_dir", "{output}"),
        "export": ("export", "--model", folder, "--to", "marian", "--output_dir", "{output}"),
        "convert": ("convert", "--source", folder, "--output_dir", "{output}"),
    }


COMMANDS = ("translate", "score", "average", "export", "convert")


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(
    "outside", ["../outside.safetensors", "{parent}/outside.safetensors", "sub/../../x.safetensors"]
)
def test_a_shard_outside_of_the_folder(folder, refused, name, outside, tried):
    weights = folder / "model.safetensors"
    outside = outside.format(parent=folder.parent)
    for target in (folder.parent / "outside.safetensors", folder.parent / "x.safetensors"):
        save_file(load_file(weights), target, metadata={"format": "pt"})
    (folder / "sub").mkdir()
    index = {"metadata": {}, "weight_map": dict.fromkeys(load_file(weights), outside)}
    weights.unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    error = refused(*commands(folder)[name])
    if name != "average":
        assert f"names {outside}, which is outside of its folder" in error
    tried("shard indexes that name a file outside of their folder: commands", 1)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_link_out_of_the_folder(folder, refused, name, file, tried):
    (folder / file).rename(folder.parent / file)
    (folder / file).symlink_to(f"../{file}")
    assert f"{file} is a link to {folder.parent / file}, outside of its folder" in refused(*commands(folder)[name])
    tried("links out of a model's folder: commands", 1)


@pytest.mark.parametrize(
    "name",
    ["README.md", "LICENSE", "test_translations.txt", "attention.png", "config.json", ".eval_results/data.yaml"],
)
def test_what_a_link_shows_is_not_published(tmp_path, refused, name, tried):
    save_translator("shared", folder := tmp_path / "model")
    (folder / "README.md").write_text("# A model\n")
    secret = tmp_path / "id_rsa"
    secret.write_text((folder / "config.json").read_text())
    (folder / name).unlink(missing_ok=True)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(secret)
    error = refused("publish", "--model", folder, "--repo_id", "me/model", "--dry_run")
    assert f"{name} is a link to {secret}, outside of its folder; put a copy of the file there" in error
    tried("links to private files in a folder that is to be published", 1)


def test_links_that_stay_inside(tmp_path, tried):
    """Links within a folder, to the folder itself, and in the Hub's cache from a snapshot to the blobs."""
    save_translator("shared", folder := tmp_path / "model")
    (folder / "README.md").write_text("# A model\n")
    cache = tmp_path / "models--me--model"
    (cache / "snapshots" / "1234").mkdir(parents=True)
    (cache / "blobs").mkdir()
    for number, file in enumerate(sorted(folder.iterdir())):
        os.replace(file, cache / "blobs" / str(number))
        (cache / "snapshots" / "1234" / file.name).symlink_to(f"../../blobs/{number}")
    (cache / "snapshots" / "1234" / "LICENSE").symlink_to("README.md")
    (tmp_path / "link").symlink_to(cache / "snapshots" / "1234")
    for name in (cache / "snapshots" / "1234", tmp_path / "link"):
        load_model(name)
        load_tokenizer(name)
        assert {"model.safetensors", "LICENSE"} <= files_to_share(name).keys()
    tried("links within a folder or the Hub's cache, followed", 6)


KEYS = ("tokenizer_file", "vocab_file", "source_tokenizer_file", "target_tokenizer_file", "vocab", "source_spm")


@pytest.mark.parametrize("kind", ["shared", "pair"])
@pytest.mark.parametrize("key", KEYS)
def test_a_tokenizer_file_outside_of_the_folder(tmp_path, kind, key, tried):
    save_translator(kind, folder := tmp_path / "model")
    expected = load_tokenizer(folder).get_vocab()
    for file in folder.glob("*tokenizer.json"):
        (tmp_path / "outside.json").write_text(file.read_text().replace('"red"', '"OUTSIDE"'))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    for path in ("../outside.json", str(tmp_path / "outside.json")):
        (folder / "tokenizer_config.json").write_text(json.dumps({**settings, key: path}))
        assert load_tokenizer(folder).get_vocab() == expected
    tried("tokenizer settings that name a file outside of their folder, not read", 2)
