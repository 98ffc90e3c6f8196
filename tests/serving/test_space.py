"""The Space: its files, and that its program starts."""

import re
import subprocess
import sys
import urllib.request

import pytest
import yaml
from packaging.requirements import Requirement

from hf_vanilla_transformer.cli.main import main
from hf_vanilla_transformer.hub import files_to_share, upload, write_files
from hf_vanilla_transformer.serving.space import PORT, space_files
from hub_server import hub_of_this_process
from processes import surroundings
from translators import build

gradio = pytest.importorskip("gradio", reason="a Space needs the extra `demo`")


PROGRAM = {"README.md", "app.py", "requirements.txt"}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / 'a "model"'
    for part in build("shared"):
        part.save_pretrained(folder)
    (folder / "README.md").write_text("# A model\n", encoding="utf-8")
    return folder


def front_matter(files):
    return yaml.safe_load(files["README.md"].decode().split("---\n")[1])


def test_the_space_of_a_model_on_the_hub_refers_to_it():
    files = space_files("me/my-model")
    assert {name for name in files if not name.startswith("hf_vanilla_transformer/")} == PROGRAM
    card = front_matter(files)
    expected = {"sdk": "gradio", "app_file": "app.py", "models": ["me/my-model"], "title": "my-model"}
    assert card.items() >= expected.items() and card["sdk_version"] == gradio.__version__
    assert b"'my-model=me/my-model'" in files["app.py"]
    assert {"hf_vanilla_transformer/cli/main.py", "hf_vanilla_transformer/serving/page.css"} < set(files)
    requirements = [Requirement(line) for line in files["requirements.txt"].decode().splitlines()]
    assert {"torch", "gradio", "uvicorn", "datasets"} < {requirement.name for requirement in requirements}
    assert all(requirement.specifier for requirement in requirements)


def test_the_space_of_a_folder_holds_the_model(folder):
    files = space_files(folder)
    model = {name for name in files if name.startswith("model/")}
    assert set(files) - model == set(space_files("me/my-model")) and "models" not in front_matter(files)
    assert {f"model/{name}" for name in files_to_share(folder)} == model


def test_what_is_no_model_is_refused(tmp_path):
    for name in ("a/b/c", "mine", "a/b c"):
        with pytest.raises(ValueError, match=f"^`model` {name} is neither a folder nor the name of a model on the H"):
            space_files(name)
    with pytest.raises(ValueError, match="holds no model"):
        space_files(tmp_path)


# How huggingface_hub passes large files to its HTTP client; not our code.
@pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload raw bytes:DeprecationWarning")
def test_uploading_replaces_the_weights_before(folder, monkeypatch, tmp_path):
    with hub_of_this_process(monkeypatch, tmp_path / "home") as hub:
        upload(space_files(folder), "tester/page", "space")
        build("shared")[0].save_pretrained(folder, max_shard_size="10KB")
        (folder / "model.safetensors").unlink(missing_ok=True)
        upload(space_files(folder), "tester/page", "space", private=False)
        repository = hub.repositories["tester/page"]
        names = set(repository.commits[repository.branches["main"]]) - {".gitattributes"}
        assert names == set(space_files(folder)) and "model/model.safetensors" not in names
        assert any(path.startswith("POST /api/spaces/") for path in hub.requests)


def test_a_dry_run_writes_the_files(folder, tmp_path, capsys):
    output = tmp_path / "space"
    words = ["publish", "--space", "--model", str(folder), "--repo_id", "me/page", "--dry_run"]
    main([*words, "--output_dir", str(output)])
    printed = capsys.readouterr().out
    assert "app.py" in printed and f"nothing was uploaded to me/page (files written to {output})" in printed
    assert {path.relative_to(output).as_posix() for path in output.rglob("*.*")} == set(space_files(folder))
    with pytest.raises(SystemExit):
        main([*words, "--output_dir", str(output)])
    assert "is not an empty folder; name another" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*words[:-1], "--output_dir", str(tmp_path / "other")])
    assert "--output_dir needs --dry_run" in capsys.readouterr().err


@pytest.mark.slow
def test_its_program_serves_the_page_of_its_model(folder, tmp_path):
    space = write_files(space_files(folder), tmp_path / "space")
    program = space / "app.py"
    # Use any free port, as the Space's may be taken here.
    program.write_text(program.read_text().replace(f'"{PORT}"', '"0"').replace("0.0.0.0", "127.0.0.1"))
    command = [sys.executable, str(program)]
    with subprocess.Popen(command, cwd=space, env=surroundings(), stdout=subprocess.PIPE, text=True) as server:
        try:
            lines = list(iter_until(server.stdout, "http://"))
            assert any(line.startswith('a "model": ') for line in lines)
            address = re.search(r"http://\S+", lines[-1])[0]
            with urllib.request.urlopen(address) as page:
                assert page.url == f"{address}/page/" and b"<gradio-app" in page.read()
        finally:
            server.terminate()


def iter_until(lines, start):
    for line in iter(lines.readline, ""):
        yield line
        if line.startswith(start):
            return
