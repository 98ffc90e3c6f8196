"""Commands, Python blocks and errors in README and docs work as printed, with long runs cut short."""

import contextlib
import doctest
import importlib.util
import io
import re
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from benchmarks.server import running_server
from hf_vanilla_transformer.cli.main import COMMANDS, main
from paths import ROOT
from processes import surroundings
from reviewers import save_bert, save_reviews
from source_models import TorchNN
from tables import looped
from translators import build

DOCS = ROOT / "docs"
PAGES = {
    path.relative_to(DOCS if DOCS in path.parents else ROOT).with_suffix("").as_posix(): path
    for path in (ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("measurements/*.md")))
}
# Added to a command so that it finishes in seconds.
FEW_STEPS = "--max_steps 2"
SHORT_RUN = f"{FEW_STEPS} --max_tokens 512 --final_num_beams 1 --max_train_samples 40 --use_cpu"
NEW_MODEL = "--config_overrides encoder_layers=1,decoder_layers=1,d_model=32"
# Commands with a time budget, identified by a substring; a shorter one is added.
BUDGETED = ("--time_budget", "recipes/guarani.yaml")
# Added to commands that hold out more pairs than exist here, identified by a substring.
SHORT_SPLITS = "--validation_split_size 4 --test_split_size 4"
HOLDING_OUT = ("--train_file spa.tsv", "recipes/wmt_sample.yaml", "--validation_split_size 1000")
CUT_SHORT = {
    "reproduce_tutorials.py": "--seeds 1 --light --preset tiny --max_steps 2 --train_file spa.tsv "
    "--validation_split_size 4",
    "compare_recipes.py": f"{SHORT_RUN} {NEW_MODEL} --vocab_size 300",
    "every_tenth.py": "--validation_split_size 4 --test_split_size 40",
    "marian_baseline.py": f"{SHORT_RUN} {NEW_MODEL},norm_position=post --vocab_size 300",
    "benchmark.py": "--preset tiny --vocab_size 300 --tokens 24 --memory_tokens 24 --rounds 1 --batch_size 2 "
    "--length 6 --steps 1 --max_tokens 256 --text_vocab_size 300 --tutorial_length 40 --roofline_seconds 0 "
    "--baselines marian",
    "imdb_bert_baseline.py": "--model_name_or_path small-bert --dataset_name reviews --bert_num_train_epochs 1 "
    "--scratch_num_train_epochs 1 --max_length 12 --max_train_samples 16 --max_test_samples 16",
}
# Programs that pass options to `train`.
TRAINING_SCRIPTS = ("compare_recipes.py", "marian_baseline.py")
# Names of text files, language and words.
ENGLISH_GERMAN, SPANISH_GUARANI = "train half rest more wmt val test test_2016_flickr", "train held_out dev more"
TEXT_FILES = (
    (ENGLISH_GERMAN, "en", "one two three four"),
    (ENGLISH_GERMAN, "de", "eins zwei drei vier"),
    (SPANISH_GUARANI, "es", "uno dos tres cuatro"),
    (SPANISH_GUARANI, "gn", "peteĩ mokõi mbohapy irundy"),
    ("baseline", "hyp", "peteĩ mokõi mbohapy irundy"),
    ("nah_train nah_held_out", "es", "uno dos tres cuatro"),
    ("nah_train nah_held_out", "nah", "ce ome yei nahui"),
)
# Programs that do not depend on other commands; one test each, to run in parallel.
INDEPENDENT = (
    "scripts/benchmark.py", "scripts/compare_recipes.py", "scripts/reproduce_tutorials.py",
    "scripts/imdb_bert_baseline.py", "scripts/marian_baseline.py",
)  # fmt: skip  # a row of names
LAUNCHERS = ("accelerate", "torchrun")
# Clients of a server, and what starts a server.
CLIENTS = ("curl", "client.py", "requests_client.py")
SERVERS = ("serve", "scripts/serve_ray.py")


class Block(NamedTuple):
    """A code block of a page."""

    page: str
    language: str
    title: str
    code: str


BLOCKS = [
    Block(page, *found.groups(default=""))
    for page, path in PAGES.items()
    for found in re.finditer(
        r'^ *```(\w+)(?: title="([^"\n]+)")?\n(.*?)^ *```$', path.read_text(encoding="utf-8"), re.M | re.S
    )
]


def code_of(language: str, page: str | None = None) -> list[str]:
    return [block.code for block in BLOCKS if block.language == language and page in (None, block.page)]


def commands(page: str | None = None) -> list[list[str]]:
    """Return the distinct commands of a page, or of all pages."""
    lines = [line for code in code_of("sh", page) for line in code.splitlines() if line.strip()]
    return [shlex.split(line) for line in dict.fromkeys(lines)]


# The command that trains the model used by all pages.
(FIRST_TRAINING,) = (each for each in commands("README") if each[-2:] == ["--output_dir", "my-model"])


def shortened(words: list[str]) -> list[str]:
    """Return the command changed to finish in seconds."""
    splits = SHORT_SPLITS.split() if any(each in shlex.join(words) for each in HOLDING_OUT) else []
    if words[0] == "python":
        words = ["0.001" if before == "--minutes" else word for before, word in pairwise(["", *words])]
        # Variants of a recipe override the options that cut it short.
        words = [re.sub(r"\bmax_steps=\d+", "max_steps=2", word) for word in words]
        script = Path(words[1]).name
        return [*words, *CUT_SHORT.get(script, "").split(), *(splits if script in TRAINING_SCRIPTS else ())]
    if "train" not in words and "distill" not in words:
        return words
    begun = "--init_from" in words
    model = "" if begun else NEW_MODEL
    has_vocabulary = begun or "--tokenizer_name_or_path" in words or "distill" in words
    vocabulary = "" if has_vocabulary else "--vocab_size 300"
    is_budgeted = any(each in shlex.join(words) for each in BUDGETED)
    short_run = SHORT_RUN.replace(FEW_STEPS, "--time_budget 0.001") if is_budgeted else SHORT_RUN
    return [*words, *short_run.split(), *model.split(), *vocabulary.split(), *splits]


def run(command: list[str], folder: Path, **options) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"


def run_here(command: list[str]) -> None:
    """Run a program in this process, which saves seconds of imports."""
    words = shortened(command)
    program = words[1:] if words[0] == "python" else words
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("default")
        patch.setattr(sys, "argv", program)
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        if command[0] == "python":
            patch.syspath_prepend(Path(program[0]).resolve().parent)
            runpy.run_path(program[0], run_name="__main__")
        else:
            main()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as assumed by the pages: scripts, and texts and models under the names used there."""
    path = tmp_path_factory.mktemp("docs")
    (path / "scripts").symlink_to(ROOT / "scripts")
    for names, language, words in TEXT_FILES:
        for name in names.split():
            numbers = {"train": range(40), "rest": range(40, 48), "wmt": range(9)}.get(name, range(8))
            lines = [" ".join(words.split()[: 1 + i % 4]) + f" {i}" for i in numbers]
            (path / f"{name}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (path / "latin1.de").write_text("Tür\n" * 40, encoding="latin-1")
    (path / "headed.tsv").write_text("English\tGerman\none\teins\n", encoding="utf-8")
    (path / "terms.tsv").write_text("three\tdrei\n", encoding="utf-8")
    (path / "names.txt").write_text("Ann( Lee)?\n", encoding="utf-8")
    (path / "docs").mkdir()
    (path / "docs" / "page.md").write_text("# three\n\ntwo **one**\n", encoding="utf-8")
    (path / "page.html").write_text("<p>three <b>two</b></p>\n", encoding="utf-8")
    (path / "spa.tsv").write_text("".join(f"number {i}\tnúmero {i}\n" for i in range(60)), encoding="utf-8")
    forms = "".join(f"kar{i}\tkar{i}nak\tN;DAT;SG\n" for i in range(60))
    for name in ("hun.train", "hun.test", "tur.train", "tur.dev", "tur.test"):
        (path / f"{name}.tsv").write_text(forms, encoding="utf-8")
    spelling = "".join(f"kar{i}\tk a r {' '.join(str(i))}\n" for i in range(60))
    for name, split in product(("ady", "dut"), ("train", "dev", "test")):
        (path / f"{name}.{split}.tsv").write_text(spelling, encoding="utf-8")
    for name in ("small-bert", "empty"):
        (path / name).mkdir()
    save_bert(path / "small-bert")
    save_reviews(path / "reviews")
    save_source_models(path)
    return path


def save_source_models(path: Path) -> None:
    """Save the models the pages convert, under a Hub name and as a tutorial's file, and a multilingual model."""
    for kind, name in (("marian", "Helsinki-NLP/opus-mt-en-de"), ("multilingual", "my-multilingual")):
        for each in build(kind):
            each.save_pretrained(path / name)
    torch.save(TorchNN(width=16, heads=8, batch_first=True).state_dict(), path / "seq2seq.pt")
    for language, size in (("en", 13), ("de", 17)):
        tokens = ["<unk>", "<pad>", "<bos>", "<eos>", *(f"word{n}" for n in range(4, size))]
        (path / f"vocab.{language}").write_text("\n".join(tokens) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def trained(corpus: Path) -> Path:
    """The model trained in the README."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(corpus)
        run_here(FIRST_TRAINING)
    return corpus / "my-model"


@pytest.fixture
def folder(corpus: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A separate copy for each page, with the trained model."""
    shutil.copytree(corpus, tmp_path / "copy", symlinks=True)
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def write_files(page: str, folder: Path, port: int = 8000) -> None:
    """Write the files shown on a page, with the port of a server."""
    for block in BLOCKS:
        if block.page == page and block.title:
            code = block.code.replace("127.0.0.1:8000", f"127.0.0.1:{port}")
            (folder / block.title).write_text(code, encoding="utf-8")


SLOW = pytest.mark.slow


def marked(pages: Iterable[str]) -> list[Any]:
    """Mark all pages but the README as slow."""
    return [pytest.param(page, marks=() if page == "README" else SLOW) for page in pages]


def test_commands_are_known_to_this_test():
    for command in commands():
        known = ("python", "make", "vanilla-transformer", "sacrebleu", "curl", *LAUNCHERS)
        assert command[0] in known, f"no test runs {shlex.join(command)}"


@pytest.mark.parametrize("page", marked(page for page in PAGES if commands(page)))
def test_commands_of_a_page_run_in_their_order(page: str, folder: Path):
    write_files(page, folder)
    for command in commands(page):
        if command[0] in ("make", *LAUNCHERS) or command[1] in INDEPENDENT or concerns_server(command):
            continue
        if command == FIRST_TRAINING or "trackio" in command:
            # The fixture runs the former; another test the latter.
            continue
        if command[0] == "sacrebleu":
            run([sys.executable, "-m", *command], folder)
        else:
            run_here(command)


@pytest.mark.slow
@pytest.mark.parametrize("command", [each for each in commands() if "trackio" in each], ids=shlex.join)
def test_commands_with_a_folder_below_home(command: list[str], folder: Path):
    """In a separate process with its own home: Trackio looks up its folder once."""
    run([sys.executable, "-m", "hf_vanilla_transformer", *shortened(command)[1:]], folder, env=own_home(folder))


def own_home(folder: Path) -> dict[str, str]:
    return {**surroundings(), "HF_HOME": str(folder / "home")}


@pytest.mark.parametrize("page", marked(page for page in PAGES if code_of("python", page)))
def test_python_of_a_page_runs(page: str, folder: Path):
    """In a fresh process, where nothing is registered yet; blocks share no names."""
    if page == "embeddings":
        pytest.importorskip("sentence_transformers", reason="installed by the extra `dev`")
    blocks = [block.code for block in BLOCKS if (block.page, block.language) == (page, "python") and not block.title]
    run([sys.executable, "-c", "\n".join(f"exec({code!r}, {{}})" for code in blocks)], folder)


def independent_commands() -> list[Any]:
    found = [command for command in commands() if command[1] in INDEPENDENT]
    of_readme = commands("README")
    return [pytest.param(each, id=shlex.join(each), marks=() if each in of_readme else SLOW) for each in found]


@pytest.mark.parametrize("command", independent_commands())
def test_commands_that_stand_alone(command: list[str], corpus: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(corpus)
    run_here(command)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if any(each[0] in LAUNCHERS for each in commands(page))])
def test_commands_of_several_processes(page: str, folder: Path):
    write_files(page, folder)
    # Commands for several machines run concurrently, here on one.
    groups: dict[str, list[list[str]]] = {}
    for command in commands(page):
        if command[0] in LAUNCHERS:
            rank = command.index("--machine_rank") + 1 if "--machine_rank" in command else None
            key = shlex.join(command[:rank] + command[rank + 1 :] if rank else command)
            groups.setdefault(key, []).append(launched(command))
    for group in groups.values():
        started = [
            subprocess.Popen(
                command, cwd=folder, env=surroundings(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            for command in group
        ]
        outputs = [process.communicate()[0] for process in started]
        for command, process, output in zip(group, started, outputs, strict=True):
            assert process.returncode == 0, f"{shlex.join(command)}\n{output}"


def concerns_server(command: list[str]) -> bool:
    return command[0] in CLIENTS or command[1] in (*CLIENTS, *SERVERS)


def served(page: str) -> list[list[list[str]]]:
    """Return the server commands of a page, each followed by the commands of its clients."""
    lines = [shlex.split(line) for code in code_of("sh", page) for line in code.splitlines() if line.strip()]
    groups: list[list[list[str]]] = []
    for command in filter(concerns_server, lines):
        if command[1] in SERVERS:
            groups.append([])
        groups[-1].append(command)
    return groups


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "group"),
    [(page, group) for page in PAGES for group in served(page)],
    ids=[f"{page}-{shlex.join(group[0])}" for page in PAGES for group in served(page)],
)
def test_servers_answer_their_clients(page: str, group: list[list[str]], folder: Path):
    """Start a server, run the client commands, and stop it with SIGTERM."""
    (_, *words), *clients = group
    program = [sys.executable, *(() if group[0][0] == "python" else ("-m", "hf_vanilla_transformer"))]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    # Ray's socket paths may have at most 107 characters.
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as short:
        environment = {**own_home(folder), "RAY_TMPDIR": short, "RAY_AUTH_MODE": "disabled"}
        shutil.copytree("my-model", "my-reverse-model")
        with running_server(command=[*program, *words, "--port", port], environment=environment):
            write_files(page, folder, port)
            for program, *rest in clients:
                rest = [word.replace("127.0.0.1:8000", f"127.0.0.1:{port}") for word in rest]
                command = [sys.executable, *rest] if program == "python" else [program, "--fail-with-body", *rest]
                run(command, folder, env=environment)


def launched(command: list[str]) -> list[str]:
    """Return the command to launch several processes on this machine."""
    modules = {"accelerate": ["accelerate.commands.accelerate_cli"], "torchrun": ["torch.distributed.run"]}
    words = ["127.0.0.1" if word == "10.0.0.1" else word for word in shortened(command)[1:]]
    return [sys.executable, "-m", *modules[command[0]], *words]


# Commands that no test runs, by first word, and why.
NOT_RUN = {"docker": "there is no Docker to test with; tests/test_docker.py checks its files"}


@pytest.mark.parametrize("line", [line for code in code_of("shell") for line in code.splitlines()])
def test_commands_that_are_not_run_name_files_that_are_there(line: str):
    words = shlex.split(line)
    assert words[0] in NOT_RUN
    files = [word for word in words if word.startswith("docker/")]
    assert all((ROOT / file).is_file() for file in files) and (files or "run" in words)


@looped("command", [command for command in commands() if command[0] == "make"])
def test_make_targets_exist(command: list[str]):
    run([*command, "--dry-run"], ROOT)


@pytest.mark.slow
def test_make_demo_runs(tmp_path: Path):
    output = tmp_path / "demo"
    arguments = f"--output_dir {output} --max_steps 3 --warmup_steps 1 --final_num_beams 1"
    run(["make", "demo", f"ARGS={arguments}"], ROOT)
    assert {"model.safetensors", "training_curve.png", "attention.png", "README.md"} <= {
        path.name for path in output.iterdir()
    }


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """From text to a served model, in its own kernel; the notebook is stored without outputs."""
    nbclient = pytest.importorskip("nbclient", reason="the extra `dev` installs it")
    nbformat = pytest.importorskip("nbformat", reason="it comes with nbclient")
    notebook = nbformat.read(ROOT / "docs" / "quickstart.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)
    for name, value in surroundings().items():
        monkeypatch.setenv(name, value)
    resources = {"metadata": {"path": str(tmp_path)}}
    with warnings.catch_warnings():
        # Jupyter warns about its event loop and an unencrypted connection.
        warnings.simplefilter("default")
        nbclient.NotebookClient(notebook, timeout=None, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    printed = "".join(output.get("text", "") for output in outputs)
    bleu = float(re.search(r"BLEU on the test pairs: ([\d.]+)", printed)[1])
    assert bleu > 50
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    assert '"translations"' in printed and '"score"' in printed


# Errors


CONSOLE = [code.partition("\n") for code in code_of("console")]


@pytest.mark.parametrize(
    ("command", "expected"), [(line.removeprefix("$ "), output) for line, _, output in CONSOLE],
    ids=[line.removeprefix("$ vanilla-transformer ") for line, _, _ in CONSOLE],
)  # fmt: skip  # two columns
def test_errors_are_as_quoted(command: str, expected: str, folder: Path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit), warnings.catch_warnings():
        warnings.simplefilter("default")
        main()
    last = capsys.readouterr().err.splitlines()[-1]
    assert doctest.OutputChecker().check_output(expected, f"{last}\n", doctest.ELLIPSIS), last


@pytest.mark.parametrize("code", code_of("pycon"))
def test_errors_in_python_are_as_quoted(code: str):
    test = doctest.DocTestParser().get_doctest(code, {}, "docs", None, None)
    output: list[str] = []
    assert not doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=output.append).failed, "".join(output)


# Links and names


@pytest.fixture(scope="module")
def hooks():
    """The hooks module of mkdocs."""
    pytest.importorskip("mkdocs", reason="the site is built by the extra `docs`")
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs" / "hooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LINK = re.compile(r"\[(`?)([^][`]*)\1\]\(([^)#\s]+)(?:#[^)]*)?\)")


@looped("page", PAGES)
def test_links_lead_somewhere(page: str, hooks):
    path = PAGES[page]
    text = path.read_text(encoding="utf-8")
    assert all((path.parent / picture).is_file() for picture in re.findall(r'<img src="([^"]+)"', text))
    for quote, name, target in LINK.findall(text):
        if "://" in target:
            continue
        file = (path.parent / target).resolve()
        assert file.is_file(), f"{page}: {target}"
        if file.suffix == ".py" and quote and not name.endswith(".py"):
            assert hooks.line_of(name, file), f"{page}: {target} defines no {name}"


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert not [page for page in PAGES if page != "README" and f" {page}.md\n" not in navigation]


def test_the_readme_is_for_the_first_five_minutes():
    assert len(PAGES["README"].read_text(encoding="utf-8").splitlines()) <= 150


def test_options_of_other_toolkits_have_options_of_ours():
    """The right-hand columns of the tables name existing options and fields."""
    from hf_vanilla_transformer import VanillaTransformerConfig

    options = {word for name in COMMANDS for word in re.findall(r"--\w+", help_of(name))}
    rows = re.findall(r"^\|.*\|(.*)\|$", PAGES["coming_from"].read_text(encoding="utf-8"), re.M)
    codes = [code for row in rows for code in re.findall(r"`([^`]+)`", row)]
    named = {word for code in codes for word in re.findall(r"--\w+", code)}
    assert len(named) > 30 and not named - options
    fields = {field for code in codes for field in re.findall(r"\b(\w+)=", code)}
    assert len(fields) > 10 and not fields - set(VanillaTransformerConfig().to_dict())


def help_of(command: str) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), pytest.raises(SystemExit, match="^0$"):
        main([command, "--help-all"])
    return output.getvalue()
