"""Every command with a CUDA build of torch, the default on Linux, and no driver."""

import shutil
from unittest.mock import Mock

import pytest
import torch
from fastapi.testclient import TestClient

from experiments import MODEL, TINY, write_splits
from hf_vanilla_transformer.cli.main import COMMANDS, main
from tiny import tiny_model
from translators import ENGLISH, SHARED, SPANISH

pytestmark = pytest.mark.usefixtures("one_thread")

TRAINING = ["--train_file=train.tsv", "--max_tokens=400", "--max_steps=1", "--disable_tqdm=true", "--output_dir=run"]
PAIRS = ["--source=source", "--target=target"]
WORDS = {
    "train": [*(f"--{name}={value}" for name, value in MODEL.items()), *TRAINING],
    "distill": ["--model=model", "--preset=tiny", f"--config_overrides={TINY}", *TRAINING],
    "translate": ["--model=model", "--input=source"],
    "serve": ["--model=model", "--port=0"],
    "evaluate": ["--predictions=target", "--references=target"],
    "score": ["--model=model", *PAIRS],
    "align": ["--model=model", *PAIRS],
    "convert": ["--source=marian", "--output_dir=converted"],
    "export": ["--model=model", "--to=marian", "--output_dir=exported"],
    "publish": ["--model=model", "--repo_id=me/model", "--dry_run"],
    "average": ["--checkpoints", "model", "copy", "--output_dir=averaged"],
    "tokenizer": ["--source_files=source", "--output_dir=tokenizer"],
    "inspect": ["--train_file=train.tsv"],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Working directory with models, text and training pairs."""
    monkeypatch.chdir(tmp_path)
    model = tiny_model(max_position_embeddings=128)
    for part in (model, SHARED):
        part.save_pretrained("model")
    (tmp_path / "model" / "README.md").write_text("# A model\n", encoding="utf-8")
    shutil.copytree("model", "copy")
    main(["export", "--model=model", "--to=marian", "--output_dir=marian"])
    write_splits(tmp_path)
    for name, lines in (("source", ENGLISH), ("target", SPANISH)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return tmp_path


@pytest.fixture
def no_driver(monkeypatch):
    """Make torch report the accelerator it was built for, but as unavailable."""

    def current_accelerator(check_available=False):
        return None if check_available else torch.device("cuda")

    monkeypatch.setattr(torch.accelerator, "current_accelerator", current_accelerator)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.parametrize("command", COMMANDS)
def test_it_runs_on_the_cpu(command, folder, no_driver, monkeypatch):
    if command == "distill":
        pytest.importorskip("ctranslate2", reason="installed by the extra `export`")
    served = Mock()
    monkeypatch.setattr("hf_vanilla_transformer.serving.server.serve", served)
    main([command, *WORDS[command]])
    if command == "serve":
        application, engine, _ = served.call_args.args
        with TestClient(application) as client:
            assert client.post("/v1/translations", json={"text": "a red house"}).status_code == 200
        engine.close()
