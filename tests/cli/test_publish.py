"""The script that publishes a model: what it lists, what it uploads, and what it refuses, in one line."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from hf_vanilla_transformer.cli.publish import readable
from hf_vanilla_transformer.hub import files_to_share, publish
from hf_vanilla_transformer.model.hub_code_vanilla_transformer import code_files
from hf_vanilla_transformer.model.tokenization_vanilla_transformer import PLACEHOLDER_TOKENIZER_JSON
from hub_server import TOKEN, environment, running_hub
from paths import ROOT
from translators import build

SCRIPT = ROOT / "scripts" / "push_to_hub.py"
CODE = {path.name for path in code_files()}


@pytest.fixture(scope="module")
def script(load_script):
    return load_script("push_to_hub")


@pytest.fixture
def folder(tmp_path):
    """A folder as training leaves it."""
    folder = tmp_path / "model"
    for part in build("pair"):
        part.save_pretrained(folder)
    (folder / "README.md").write_text("---\nlibrary_name: transformers\n---\n# A model\n", encoding="utf-8")
    (folder / "all_results.json").write_text("{}", encoding="utf-8")
    (folder / "attention.png").write_bytes(b"\x89PNG")
    (folder / "checkpoint-7").mkdir()
    for name in ("optimizer.pt", "model.safetensors"):
        (folder / "checkpoint-7" / name).write_bytes(b"x")
    for name in ("training_args.bin", "trainer_state.json", "events.out.tfevents.1", ".env"):
        (folder / name).write_bytes(b"secret")
    return folder


SHARED = {
    "README.md", "all_results.json", "attention.png", "config.json", "generation_config.json", "model.safetensors",
    "source_tokenizer.json", "target_tokenizer.json", "tokenizer.json", "tokenizer_config.json",
}  # fmt: skip  # a list of names


def push(hub, home, *arguments, token=TOKEN):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    settings = {**os.environ, **environment(hub, home), "HF_TOKEN": token}
    done = subprocess.run(command, capture_output=True, text=True, env=settings)
    assert not (token and token in done.stdout + done.stderr)
    return done


def refusal(script, capsys, *arguments):
    with pytest.raises(SystemExit) as error:
        script.main([*map(str, arguments)])
    said = capsys.readouterr()
    assert error.value.code == 2 and len(said.err.splitlines()) == 1 and not said.out
    return said.err


def test_dry_run_lists_what_would_go(script, folder, capsys):
    script.main(["--model", str(folder), "--repo_id", "me/model", "--dry_run"])
    *lines, total = capsys.readouterr().out.splitlines()
    assert {line.split()[-1] for line in lines} == SHARED | CODE
    assert total.startswith(f"{len(lines)} files, ") and "nothing was uploaded to me/model" in total
    size = (folder / "model.safetensors").stat().st_size
    assert f"{size / 1000:.1f} kB  model.safetensors" in "\n".join(lines)


def test_a_pair_saved_by_an_earlier_release_goes_in_the_layout_of_today(folder):
    today = {name: contents(file) for name, file in files_to_share(folder).items()}
    (folder / "source_tokenizer.json").rename(folder / "tokenizer.json")
    assert {name: contents(file) for name, file in files_to_share(folder).items()} == today
    assert PLACEHOLDER_TOKENIZER_JSON.encode() == today["tokenizer.json"]


def test_a_single_vocabulary_stays_where_files_of_a_pair_are_left(tmp_path):
    for part in (*build("pair"), *build("shared")):
        part.save_pretrained(tmp_path)
    (tmp_path / "README.md").write_text("# A model\n", encoding="utf-8")
    (tmp_path / "source_tokenizer.json").unlink()
    assert files_to_share(tmp_path)["tokenizer.json"] == tmp_path / "tokenizer.json"


def contents(file: Path | bytes) -> bytes:
    return file if isinstance(file, bytes) else file.read_bytes()


def test_shards_and_variants_go_along(folder):
    model, _ = build("pair")
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    model.to(torch.float16).save_pretrained(folder, variant="fp16")
    model.save_pretrained(folder, variant="half", max_shard_size="10KB")
    names = set(files_to_share(folder))
    assert {"model.safetensors.index.json", "model.fp16.safetensors", "model.safetensors.index.half.json"} <= names
    assert {path.name for path in folder.glob("model*.safetensors")} <= names
    assert sum(name.startswith("model-0") for name in names) > 1


def test_push_is_one_commit_that_can_be_repeated(folder, tmp_path):
    with running_hub() as hub:
        done = push(hub, tmp_path, "--model", folder, "--repo_id", "tester/model", "--private")
        assert done.returncode == 0, done.stderr
        repository = hub.repositories["tester/model"]
        files = repository.commits[repository.branches["main"]]
        assert repository.private and set(files) == SHARED | CODE | {".gitattributes"}
        assert f"/tester/model/commit/{repository.branches['main']}" in done.stdout
        assert files["model.safetensors"] == (folder / "model.safetensors").read_bytes()
        assert json.loads(files["config.json"])["auto_map"]["AutoModel"].startswith("modeling_vanilla_transformer.")
        assert "AutoTokenizer" in json.loads(files["tokenizer_config.json"])["auto_map"]
        # What was there stays as it was.
        assert "auto_map" not in (folder / "config.json").read_text() and not list(folder.glob("*.py"))

        options = ("--model", folder, "--repo_id", "tester/model", "--revision", "draft", "--commit_message", "More")
        done = push(hub, tmp_path, *options)
        assert done.returncode == 0, done.stderr
        assert set(repository.branches) == {"main", "draft"} and len(hub.repositories) == 1
        assert not hub.unknown


@pytest.mark.parametrize(
    ("status", "token", "message"),
    [
        (None, "hf_wrong_token_of_somebody", "answers 401 .*log in with `hf auth login`"),
        (403, TOKEN, "answers 403 .*may not write"),
        (409, TOKEN, "answers 409 .*try again"),
        (None, "", "log in with `hf auth login`"),
    ],
)
def test_what_the_hub_refuses_is_said_in_one_line(folder, tmp_path, status, token, message):
    with running_hub() as hub:
        hub.refuse_with = status
        done = push(hub, tmp_path, "--model", folder, "--repo_id", "tester/model", token=token)
    error = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert re.search(message, error), done.stderr
    assert "hf_wrong" not in done.stderr


# How huggingface_hub hands large files to its HTTP client; no matter of ours.
IN_PROCESS = pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload raw bytes:DeprecationWarning")


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A Hub that this very process publishes on."""
    with running_hub() as hub:
        for name, value in {"ENDPOINT": hub.url, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}.items():
            monkeypatch.setattr(huggingface_hub.constants, name, value)
        for name, value in environment(hub, tmp_path, HF_TOKEN=TOKEN).items():
            monkeypatch.setenv(name, value)
        yield hub
    huggingface_hub.utils.close_session()


def published(hub, repo="tester/model", branch="main"):
    repository = hub.repositories[repo]
    return repository.commits[repository.branches[branch]]


def weights(files):
    return {name for name in files if "safetensors" in name}


@IN_PROCESS
def test_new_weights_are_not_hidden_behind_old_ones(hub, folder, tmp_path):
    publish(folder, "tester/model")
    old = published(hub)
    model, _ = build("pair")
    torch.nn.init.zeros_(model.lm_head.weight)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    publish(folder, "tester/model", revision="shards")
    assert weights(published(hub)) == {"model.safetensors"} and published(hub) == old
    files = published(hub, branch="shards")
    assert weights(files) == {path.name for path in folder.glob("model*safetensors*")} and len(weights(files)) > 2
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert not AutoModelForSeq2SeqLM.from_pretrained(tmp_path).lm_head.weight.any()


@IN_PROCESS
def test_private_weights_never_enter_a_public_repository(hub, folder):
    publish(folder, "tester/model")
    before = published(hub)
    with pytest.raises(ValueError, match="tester/model is public, and `private` .*: make it private in its settings"):
        publish(folder, "tester/model", private=True)
    assert published(hub) is before
    for _ in range(2):
        publish(folder, "tester/hidden", private=True)
    assert hub.repositories["tester/hidden"].private


@IN_PROCESS
def test_the_name_alone_is_in_the_namespace_of_the_user(hub, folder):
    publish(folder, "model")
    assert set(hub.repositories) == {"tester/model"} and "model.safetensors" in published(hub)


@IN_PROCESS
@pytest.mark.parametrize("files", [1, 2])
def test_an_upload_that_breaks_off_is_said_in_one_line(hub, folder, files):
    if files == 1:
        (folder / "attention.png").unlink()
    hub.refuse_objects_with = 403
    with pytest.raises(
        ValueError, match=r"(?s)Error while uploading '[\w.]+' to the Hub.*answers 403 .*may not write"
    ) as error:
        publish(folder, "tester/model")
    assert TOKEN not in str(error.value) and error.value.__suppress_context__
    assert set(published(hub)) == {".gitattributes"}


@pytest.mark.parametrize("token", ["hf_sécret_of_somebody", "hf_\x01secret_of_somebody"])
def test_a_token_that_no_header_carries(hub, folder, monkeypatch, token):
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(ValueError, match="the token contains an invalid character; set HF_TOKEN again") as error:
        publish(folder, "tester/model")
    assert "cret" not in str(error.value) and not hub.requests


def test_no_hub_at_all(folder, tmp_path):
    with running_hub() as hub:
        pass
    done = push(hub, tmp_path, "--model", folder, "--repo_id", "tester/model")
    assert done.returncode == 2 and "cannot be reached" in done.stderr.splitlines()[-1], done.stderr


class TestRefusals:
    def ask(self, script, capsys, folder):
        return refusal(script, capsys, "--model", folder, "--repo_id", "me/model", "--dry_run")

    def test_no_folder(self, script, tmp_path, capsys):
        assert "is not a folder" in self.ask(script, capsys, tmp_path / "nowhere")

    def test_no_weights(self, script, folder, capsys):
        (folder / "model.safetensors").unlink()
        assert "holds no model*.safetensors; save the model" in self.ask(script, capsys, folder)

    def test_weights_that_can_run_code(self, script, folder, capsys):
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        assert "pytorch_model.bin can run code" in self.ask(script, capsys, folder)

    @pytest.mark.parametrize("name", ["README.md", "config.json", "tokenizer_config.json"])
    def test_missing_files(self, script, folder, capsys, name):
        (folder / name).unlink()
        assert f"holds no {name}" in self.ask(script, capsys, folder)

    def test_no_vocabulary(self, script, folder, capsys):
        for path in folder.glob("*tokenizer.json"):
            path.unlink()
        assert "holds no source_tokenizer.json" in self.ask(script, capsys, folder)

    def test_the_single_vocabulary_is_missing(self, script, tmp_path, capsys):
        for part in build("shared"):
            part.save_pretrained(tmp_path)
        (tmp_path / "README.md").write_text("# A model\n", encoding="utf-8")
        (tmp_path / "tokenizer.json").unlink()
        capsys.readouterr()
        assert "holds no tokenizer.json" in self.ask(script, capsys, tmp_path)

    @pytest.mark.parametrize("name", ["source_tokenizer.json", "target_tokenizer.json"])
    def test_a_side_without_vocabulary(self, script, folder, capsys, name):
        (folder / name).unlink()
        assert f"holds no {name}" in self.ask(script, capsys, folder)

    def test_damaged_weights(self, script, folder, capsys):
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-8])
        assert "model.safetensors is damaged" in self.ask(script, capsys, folder)

    def test_a_missing_shard(self, script, folder, capsys):
        build("pair")[0].save_pretrained(folder, max_shard_size="20KB")
        next(folder.glob("model-00002*")).unlink()
        capsys.readouterr()
        assert re.search("no model-00002.*, which model.safetensors.index.json", self.ask(script, capsys, folder))

    @pytest.mark.parametrize("content", ["{", "[]"])
    def test_broken_configuration(self, script, folder, capsys, content):
        (folder / "config.json").write_text(content)
        assert "config.json" in self.ask(script, capsys, folder)

    def test_somebody_elses_model(self, script, folder, capsys):
        (folder / "config.json").write_text('{"model_type": "bert"}')
        assert "model_type is 'bert'" in self.ask(script, capsys, folder)

    def test_no_name_of_a_repository(self, script, folder, capsys):
        with pytest.raises(SystemExit):
            script.main(["--model", str(folder), "--repo_id", "a/b/c"])
        assert "--repo_id a/b/c is not the name of a repository" in capsys.readouterr().err


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e9, "2.5 GB")])
def test_readable_sizes(size, text):
    assert readable(size) == text
