"""`vanilla-transformer publish`: the list of files, and one-line refusals."""

import os
import subprocess
import sys

import pytest
from huggingface_hub import ModelCard

from hf_vanilla_transformer.cli.main import main
from hf_vanilla_transformer.cli.publish import readable
from hub_server import TOKEN, environment, running_hub
from paths import ROOT
from tables import looped
from translators import build


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "model"
    for part in build("pair"):
        part.save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# A model\n", encoding="utf-8")
    (folder / "optimizer.pt").write_bytes(b"secret")
    return folder


def test_dry_run_lists_what_would_go(folder, capsys):
    capsys.readouterr()
    main(["publish", "--model", str(folder), "--repo_id", "me/model", "--dry_run"])
    *lines, total = capsys.readouterr().out.splitlines()
    names = {line.split()[-1] for line in lines}
    assert {"README.md", "config.json", "model.safetensors", "modeling_vanilla_transformer.py"} < names
    assert "optimizer.pt" not in names
    assert total.startswith(f"{len(lines)} files, ") and "nothing was uploaded to me/model" in total
    size = (folder / "model.safetensors").stat().st_size
    assert f"{size / 1000:.1f} kB  model.safetensors" in "\n".join(lines)


def test_the_license_is_named(folder, tmp_path, capsys):
    words = ["publish", "--model", str(folder), "--repo_id", "me/model", "--dry_run", "--output_dir"]
    main([*words, str(tmp_path / "as-it-is")])
    assert "names no license" not in capsys.readouterr().out
    assert (tmp_path / "as-it-is" / "README.md").read_bytes() == (folder / "README.md").read_bytes()
    main([*words, str(tmp_path / "another"), "--license", "cc-by-4.0"])
    card = ModelCard.load(tmp_path / "another" / "README.md")
    assert card.data.license == "cc-by-4.0" and card.text.strip() == "# A model"
    # Whatever else the card says stays.
    own = "license: other\nlicense_name: mine\nlicense_link: https://example.org\nlanguage: [no]\n"
    (folder / "README.md").write_text(f"\ufeff---\n{own}---\n# A model\n", encoding="utf-8")
    main([*words, str(tmp_path / "renamed"), "--license", "mit"])
    changed = (tmp_path / "renamed" / "README.md").read_text(encoding="utf-8")
    assert changed == "---\nlicense: mit\nlanguage: [no]\n---\n# A model\n"
    (folder / "README.md").write_text("# A model\n", encoding="utf-8")
    main([*words, str(tmp_path / "first"), "--license", "mit"])
    assert (tmp_path / "first" / "README.md").read_text() == "---\nlicense: mit\n---\n# A model\n"
    capsys.readouterr()
    main(words[:-1])
    assert "names no license" in capsys.readouterr().out


@looped("name, message", [("Apache 2.0", "not an identifier"), ("", "not an identifier"), ("other", "license_name")])
def test_a_license_that_is_none(folder, refusal, name, message):
    found = refusal("publish", "--model", folder, "--repo_id", "me/model", "--dry_run", "--license", name)
    assert "--license" in found and message in found


def test_a_card_whose_metadata_cannot_be_read(folder, refusal):
    (folder / "README.md").write_text("---\n: [\n---\n# A model\n", encoding="utf-8")
    message = refusal("publish", "--model", folder, "--repo_id", "me/model", "--dry_run")
    assert "README.md: its metadata cannot be read" in message


@pytest.mark.slow
def test_as_a_program(folder, tmp_path):
    program = ROOT / "scripts" / "push_to_hub.py"
    words = [sys.executable, program, "--model", folder, "--repo_id", "tester/model", "--private"]
    with running_hub() as hub:
        settings = {**os.environ, **environment(hub, tmp_path), "HF_TOKEN": TOKEN}
        done = subprocess.run(words, capture_output=True, text=True, env=settings)
        assert done.returncode == 0, done.stderr
        repository = hub.repositories["tester/model"]
        assert repository.private and f"/tester/model/commit/{repository.branches['main']}" in done.stdout
        assert TOKEN not in done.stdout + done.stderr and not hub.unknown


def test_a_folder_that_is_none_is_refused(refusal, tmp_path):
    message = refusal("publish", "--model", tmp_path / "none", "--repo_id", "me/model", "--dry_run")
    assert "none is not a folder" in message


def test_messages_name_options(folder, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["publish", "--model", str(folder), "--repo_id", "a/b/c"])
    error = capsys.readouterr().err.splitlines()[-1]
    assert stop.value.code == 2 and "--repo_id a/b/c is not the name of a repository" in error


@looped(("size", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2.5e9, "2.5 GB")])
def test_readable_sizes(size, text):
    assert readable(size) == text
