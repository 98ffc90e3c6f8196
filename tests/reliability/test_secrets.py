"""Secrets never appear in a file, upload, log or message."""

import base64
import json
import pickle
from pathlib import Path
from urllib.parse import quote

import pytest
import torch

from experiments import TINY, write_splits
from hf_vanilla_transformer.hub import files_to_share, upload
from hf_vanilla_transformer.training import VanillaTransformerTrainingArguments
from hub_server import TOKEN, hub_of_this_process
from parallel_text import write
from translators import save_publishable

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # From huggingface_hub's upload of large files.
    pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload raw bytes:DeprecationWarning"),
]

PASSWORD = "canary/of@a password"
API_KEY = "canary-of-an-api-key"
# Looks like a Hub token, but belongs to nobody.
STRAY = "hf_" + "Canary" * 5
SECRETS = (TOKEN, PASSWORD, API_KEY, STRAY)
URL = f"https://me:{quote(PASSWORD, safe='')}@canary.invalid/file?api_key={API_KEY}&v=1"


def leaks(contents):
    """Return the names of contents with a secret, as plain text, URL-quoted, or in base64 as in a header."""
    forms = {secret.encode() for secret in SECRETS} | {quote(PASSWORD, safe="").encode()}
    forms |= {base64.b64encode(form)[:-4] for form in forms}
    return [name for name, content in contents.items() if any(form in content for form in forms)]


def files_in(folder):
    return {str(path): path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    with hub_of_this_process(monkeypatch, tmp_path / "home") as hub:
        monkeypatch.setenv("WANDB_API_KEY", API_KEY)
        yield hub


@pytest.mark.slow
def test_training_that_pushes_writes_no_secret(hub, run, tmp_path, tried):
    options = {**write_splits(tmp_path / "data"), "hub_token": TOKEN, "config_overrides": TINY, "preset": "tiny"}
    options |= {"max_steps": 2, "warmup_steps": 2, "save_strategy": "steps", "save_steps": 1, "eval_strategy": "no"}
    options |= {"push_to_hub": True, "hub_model_id": "tester/model", "hub_strategy": "all_checkpoints"}
    # Push even while the push of an earlier checkpoint is in progress.
    options |= {"hub_always_push": True, "use_cpu": True}
    settings = write(tmp_path / "run.yaml", json.dumps(options))
    options = ("--hub_tok", TOKEN, f"--hub-token={TOKEN}")
    status, printed, _ = run("train", settings, "--output_dir", tmp_path / "run", *options)
    assert status == 0, printed
    contents = {**files_in(tmp_path), "standard output and error": printed.encode()}
    contents.pop(settings)
    for name, repository in hub.repositories.items():
        for commit in repository.commits.values():
            contents |= {f"{name}: {file}": content for file, content in commit.items()}
    assert {"tester/model: checkpoint-2/training_args.bin", str(tmp_path / "run" / "README.md")} <= contents.keys()
    assert leaks(contents) == []
    tried("files and uploads of a run with secrets among its options and in the environment", len(contents))


MISTAKES = {
    "a model by a URL": ["translate", "--model", URL],
    "a model to score with": ["score", "--model", URL, "--source", "a", "--target", "b"],
    "a checkpoint": ["convert", "--source", URL, "--output_dir", "new"],
    "a checkpoint to average": ["average", "--checkpoints", URL, "--output_dir", "new"],
    "a model to export": ["export", "--model", URL, "--to", "onnx", "--output_dir", "new"],
    "references": ["evaluate", "--predictions", "settings.yaml", "--references", URL],
    "text to translate": ["translate", "--model", "model", "--input", URL],
    "text of a tokenizer": ["tokenizer", "--source_files", URL, "--output_dir", "new"],
    "training text": ["train", "--train_file", URL],
    "a data set": ["train", "--dataset_name", URL],
    "a tokenizer": ["train", "--toy_corpus", "--tokenizer_name_or_path", URL],
    "a repository": ["publish", "--model", "model", "--repo_id", URL],
    "a token where a number belongs": ["train", "--seed", STRAY],
    "a token that nobody asked for": ["translate", "--model", "model", STRAY],
    "a token in another option": ["train", "--hub_token", TOKEN, "--preset", TOKEN],
    "a token in the wrong file": ["train", "settings.yaml", "--hub_token", TOKEN],
    "a token before a missing file": ["train", "--hub_token", TOKEN, "--train_file", f"{TOKEN}.tsv"],
    "a token with a misspelt option": ["train", "--hub_tokn", TOKEN],
}


@pytest.mark.slow
@pytest.mark.parametrize("words", MISTAKES.values(), ids=MISTAKES)
def test_no_error_quotes_a_secret(words, hub, run, tmp_path, monkeypatch, tried):
    monkeypatch.chdir(tmp_path)
    save_publishable("shared", tmp_path / "model")
    write(tmp_path / "settings.yaml", f"hub_token: {TOKEN}\nhub_tokens: [{STRAY}]\n")
    status, printed, _ = run(*words)
    # `publish` lists the files first.
    assert status == 2 and (printed.count("\n") == 1 or words[0] == "publish"), printed
    assert leaks({"printed": printed.encode()}) == [], printed
    tried("mistakes in a command line that holds a secret", 1)


def test_a_hub_that_echoes_the_token(hub, run, tmp_path, tried):
    save_publishable("shared", tmp_path / "model")
    for status in (400, 403, 409, 500):
        hub.refuse_with = status
        ended, printed, _ = run("publish", "--model", tmp_path / "model", "--repo_id", "tester/model")
        assert ended == 2 and f"the Hub answers {status}" in printed
        assert leaks({"printed": printed.encode()}) == []
    tried("refusals of a Hub that echoes the token", 4)


@pytest.mark.parametrize("name", ["README.md", "config.json", "all_results.json", "test_translations.txt"])
@pytest.mark.parametrize("secret", [TOKEN, STRAY])
def test_a_file_with_a_token_is_not_published(hub, tmp_path, name, secret, tried):
    folder = save_publishable("shared", tmp_path / "model")
    settings = json.loads((folder / name).read_text()) if name == "config.json" else {}
    (folder / name).write_text(json.dumps({**settings, "command": f"train --hub_token {secret}"}))
    with pytest.raises(ValueError, match=f"{name} holds a Hub token; remove it, and revoke it") as error:
        upload(files_to_share(folder), "tester/model")
    assert secret not in str(error.value) and not hub.requests
    tried("files with a token that were to be published", 1)


def test_no_form_of_the_arguments_holds_the_token(tmp_path, tried):
    args = VanillaTransformerTrainingArguments(str(tmp_path), hub_token=TOKEN)
    torch.save(args, tmp_path / "training_args.bin")
    forms = {
        "repr": repr(args),
        "str": str(args),
        "to_dict": repr(args.to_dict()),
        "to_sanitized_dict": repr(args.to_sanitized_dict()),
        "to_json_string": args.to_json_string(),
        "pickle": pickle.dumps(args).decode("latin-1"),
    }
    assert leaks({**{name: form.encode() for name, form in forms.items()}, **files_in(tmp_path)}) == []
    tried("texts and files that training arguments become", len(forms) + 1)
