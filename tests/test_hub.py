"""Publishing on a local stand-in for the Hub: uploads, replaced files, refusals."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM

from hf_vanilla_transformer.hub import files_to_share, upload
from hf_vanilla_transformer.model.hub_code_vanilla_transformer import code_files
from hf_vanilla_transformer.model.tokenization_vanilla_transformer import PLACEHOLDER_TOKENIZER_JSON
from hub_server import TOKEN, hub_of_this_process
from translators import build

CODE = {path.name for path in code_files()}


@pytest.fixture
def folder(tmp_path):
    """A folder as written by training."""
    folder = tmp_path / "model"
    for part in build("pair"):
        part.save_pretrained(folder)
    (folder / "README.md").write_text("---\nlibrary_name: transformers\n---\n# A model\n", encoding="utf-8")
    (folder / "all_results.json").write_text("{}", encoding="utf-8")
    (folder / "attention.png").write_bytes(b"\x89PNG")
    (folder / "checkpoint-7").mkdir()
    (folder / ".eval_results").mkdir()
    (folder / ".eval_results" / "data.yaml").write_text("- value: 1\n", encoding="utf-8")
    for name in ("optimizer.pt", "model.safetensors"):
        (folder / "checkpoint-7" / name).write_bytes(b"x")
    for name in ("training_args.bin", "trainer_state.json", "events.out.tfevents.1", ".env"):
        (folder / name).write_bytes(b"secret")
    return folder


SHARED = {
    ".eval_results/data.yaml", "README.md", "all_results.json", "attention.png", "config.json",
    "generation_config.json", "model.safetensors", "source_tokenizer.json", "target_tokenizer.json", "tokenizer.json",
    "tokenizer_config.json",
}  # fmt: skip  # a list of names


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


# How huggingface_hub passes large files to its HTTP client; not our code.
IN_PROCESS = pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload raw bytes:DeprecationWarning")


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A stand-in for the Hub, used by this process."""
    with hub_of_this_process(monkeypatch, tmp_path) as hub:
        yield hub


def published(hub, repo="tester/model", branch="main"):
    repository = hub.repositories[repo]
    return repository.commits[repository.branches[branch]]


def weights(files):
    return {name for name in files if "safetensors" in name}


@IN_PROCESS
def test_new_weights_are_not_hidden_behind_old_ones(hub, folder, tmp_path):
    upload(files_to_share(folder), "tester/model")
    old = published(hub)
    model, _ = build("pair")
    torch.nn.init.zeros_(model.lm_head.weight)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    upload(files_to_share(folder), "tester/model", revision="shards")
    assert weights(published(hub)) == {"model.safetensors"} and published(hub) == old
    files = published(hub, branch="shards")
    assert weights(files) == {path.name for path in folder.glob("model*safetensors*")} and len(weights(files)) > 2
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    assert not AutoModelForSeq2SeqLM.from_pretrained(tmp_path).lm_head.weight.any()


@IN_PROCESS
def test_private_weights_never_enter_a_public_repository(hub, folder):
    upload(files_to_share(folder), "tester/model")
    before = published(hub)
    with pytest.raises(ValueError, match="tester/model is public, and `private` .*; make it private in its settings"):
        upload(files_to_share(folder), "tester/model", private=True)
    assert published(hub) is before
    for _ in range(2):
        upload(files_to_share(folder), "tester/hidden", private=True)
    assert hub.repositories["tester/hidden"].private


@IN_PROCESS
def test_the_name_alone_is_in_the_namespace_of_the_user(hub, folder):
    upload(files_to_share(folder), "model")
    assert set(hub.repositories) == {"tester/model"} and "model.safetensors" in published(hub)


@IN_PROCESS
@pytest.mark.parametrize("files", [1, 2])
def test_an_upload_that_breaks_off_is_said_in_one_line(hub, folder, files):
    if files == 1:
        (folder / "attention.png").unlink()
    hub.refuse_objects_with = 403
    with pytest.raises(
        ValueError, match=r"Error while uploading '[\w.]+' to the Hub.*answers 403 .*no write access"
    ) as error:
        upload(files_to_share(folder), "tester/model")
    assert TOKEN not in str(error.value) and error.value.__suppress_context__
    assert set(published(hub)) == {".gitattributes"}


@pytest.mark.parametrize("token", ["hf_sécret_of_somebody", "hf_\x01secret_of_somebody"])
def test_a_token_that_no_header_carries(hub, folder, monkeypatch, token):
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(ValueError, match="the token contains an invalid character; set HF_TOKEN again") as error:
        upload(files_to_share(folder), "tester/model")
    assert "cret" not in str(error.value) and not hub.requests


@IN_PROCESS
def test_a_push_is_one_commit_that_can_be_repeated(hub, folder):
    commit = upload(files_to_share(folder), "tester/model", private=True)
    repository = hub.repositories["tester/model"]
    files = published(hub)
    assert repository.private and set(files) == SHARED | CODE | {".gitattributes"}
    assert f"/tester/model/commit/{repository.branches['main']}" in commit.commit_url
    assert files["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    assert json.loads(files["config.json"])["auto_map"]["AutoModel"].startswith("modeling_vanilla_transformer.")
    assert "AutoTokenizer" in json.loads(files["tokenizer_config.json"])["auto_map"]
    # The folder itself is unchanged.
    assert "auto_map" not in (folder / "config.json").read_text() and not list(folder.glob("*.py"))
    upload(files_to_share(folder), "tester/model", revision="draft", commit_message="More")
    assert set(repository.branches) == {"main", "draft"} and len(hub.repositories) == 1
    assert not hub.unknown


@IN_PROCESS
@pytest.mark.parametrize(
    ("status", "token", "message"),
    [
        (None, "hf_wrong_token_of_somebody", "answers 401 .*log in with `hf auth login`"),
        (403, TOKEN, "answers 403 .*no write access"),
        (409, TOKEN, "answers 409 .*try again"),
        (None, "", "answers 401 .*log in with `hf auth login`"),
        (418, TOKEN, "answers 418 .*try again later"),
    ],
)
def test_what_the_hub_refuses_is_explained(hub, folder, monkeypatch, status, token, message):
    hub.refuse_with = status
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(ValueError, match=message) as error:
        upload(files_to_share(folder), "tester/model")
    assert "hf_wrong" not in str(error.value) and TOKEN not in str(error.value)


def test_no_hub_at_all(folder, hub):
    hub.shutdown()
    hub.server_close()
    with pytest.raises(ValueError, match="the Hub cannot be reached .*; check the connection"):
        upload(files_to_share(folder), "tester/model")


class TestRefusals:
    def refuse(self, folder, message):
        with pytest.raises(ValueError, match=message) as error:
            files_to_share(folder)
        assert "\n" not in str(error.value)

    def test_no_folder(self, tmp_path):
        self.refuse(tmp_path / "nowhere", "is not a folder")

    def test_weights_that_can_run_code(self, folder):
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        self.refuse(folder, "pytorch_model.bin can run code")

    @pytest.mark.parametrize(
        ("pattern", "missing"),
        [
            ("model.safetensors", r"model\*.safetensors; save the model"),
            ("README.md", "README.md"),
            ("config.json", "config.json"),
            ("tokenizer_config.json", "tokenizer_config.json"),
            ("*tokenizer.json", "source_tokenizer.json"),
            ("source_tokenizer.json", "source_tokenizer.json"),
            ("target_tokenizer.json", "target_tokenizer.json"),
        ],
    )
    def test_missing_files(self, folder, pattern, missing):
        for path in folder.glob(pattern):
            path.unlink()
        self.refuse(folder, f"holds no {missing}")

    def test_the_single_vocabulary_is_missing(self, tmp_path):
        for part in build("shared"):
            part.save_pretrained(tmp_path)
        (tmp_path / "README.md").write_text("# A model\n", encoding="utf-8")
        (tmp_path / "tokenizer.json").unlink()
        self.refuse(tmp_path, "holds no tokenizer.json")

    def test_damaged_weights(self, folder):
        file = folder / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-8])
        self.refuse(folder, "model.safetensors is damaged")

    @pytest.mark.parametrize("value", [float("nan"), float("-inf")])
    def test_weights_that_are_not_finite(self, folder, value):
        weights = load_file(folder / "model.safetensors")
        weights["model.encoder.layers.1.fc1.bias"][3] = value
        save_file(weights, folder / "model.safetensors")
        self.refuse(folder, "model.safetensors: NaN or infinite values in model.encoder.layers.1.fc1.bias")

    def test_a_missing_shard(self, folder):
        build("pair")[0].save_pretrained(folder, max_shard_size="20KB")
        next(folder.glob("model-00002*")).unlink()
        self.refuse(folder, "lacks the shard model-00002.* listed in model.safetensors.index.json")

    @pytest.mark.parametrize(
        ("content", "message"),
        [("{", "config.json"), ("[]", "config.json"), ('{"model_type": "bert"}', "model_type is 'bert'")],
    )
    def test_a_configuration_that_is_none_of_ours(self, folder, content, message):
        (folder / "config.json").write_text(content)
        self.refuse(folder, message)

    def test_no_name_of_a_repository(self, hub, folder):
        with pytest.raises(ValueError, match="`repo_id` a/b/c is not the name of a repository"):
            upload(files_to_share(folder), "a/b/c")
