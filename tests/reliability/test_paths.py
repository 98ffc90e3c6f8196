"""File names in metadata and symbolic links never lead outside their folder."""

import json
import os

import pytest
from safetensors.torch import load_file, save_file

from hf_vanilla_transformer.hub import files_to_share
from hf_vanilla_transformer.pretrained.loading import load_model, load_tokenizer
from translators import save_publishable, save_translator

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def folder(tmp_path):
    """A publishable model folder."""
    return save_publishable("marian", tmp_path / "model")


COMMANDS = {
    "translate": "--model {folder} --input {text}",
    "score": "--model {folder} --source {text} --target {text}",
    "average": "--checkpoints {folder} {folder} --output_dir {output}",
    "export": "--model {folder} --to marian --output_dir {output}",
    "convert": "--source {folder} --output_dir {output}",
    "publish": "--model {folder} --repo_id me/model --dry_run",
}
# `publish` has its own test.
EVERY_COMMAND = pytest.mark.parametrize("name", [name for name in COMMANDS if name != "publish"])


@pytest.fixture
def refused(run, tmp_path):
    """Run a command on a folder; it must fail with one line and no output. Returns the line."""

    def start(name, folder):
        (tmp_path / "text").write_text("a red house\n")
        words = COMMANDS[name].format(folder=folder, text=tmp_path / "text", output=tmp_path / "new").split()
        status, _, error = run(name, *words)
        assert status == 2 and error.count("\n") == 1, error
        assert not (tmp_path / "new").exists()
        return error

    return start


@EVERY_COMMAND
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
    error = refused(name, folder)
    if name != "average":
        assert f"lists {outside}, which is outside its folder" in error
    tried("shard indexes that name a file outside of their folder: commands", 1)


@EVERY_COMMAND
@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_link_out_of_the_folder(folder, refused, name, file, tried):
    (folder / file).rename(folder.parent / file)
    (folder / file).symlink_to(f"../{file}")
    assert f"{file} is a link to {folder.parent / file}, outside its folder" in refused(name, folder)
    tried("links out of a model's folder: commands", 1)


@pytest.mark.parametrize(
    "name",
    ["README.md", "LICENSE", "test_translations.txt", "attention.png", "config.json", ".eval_results/data.yaml"],
)
def test_what_a_link_shows_is_not_published(tmp_path, refused, name, tried):
    folder = save_publishable("shared", tmp_path / "model")
    secret = tmp_path / "id_rsa"
    secret.write_text((folder / "config.json").read_text())
    (folder / name).unlink(missing_ok=True)
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).symlink_to(secret)
    error = refused("publish", folder)
    assert f"{name} is a link to {secret}, outside its folder; replace it with a copy of the file" in error
    tried("links to private files in a folder that is to be published", 1)


def test_links_that_stay_inside(tmp_path, tried):
    """Links within a folder, to the folder itself, and from snapshots to blobs in the Hub's cache."""
    folder = save_publishable("shared", tmp_path / "model")
    cache = tmp_path / "models--me--model"
    snapshot = cache / "snapshots" / "1234"
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    for number, file in enumerate(sorted(folder.iterdir())):
        os.replace(file, cache / "blobs" / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    (snapshot / "LICENSE").symlink_to("README.md")
    (tmp_path / "link").symlink_to(snapshot)
    for name in (snapshot, tmp_path / "link"):
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
