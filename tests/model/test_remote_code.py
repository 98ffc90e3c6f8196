"""Models pushed to a Hub over HTTP, loaded with and without this package."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from hf_vanilla_transformer import VanillaTransformerForSequenceClassification
from hf_vanilla_transformer.model.hub_code_vanilla_transformer import TOKENIZERS, code_files, with_auto_map
from hub_server import TOKEN, Hub, environment, running_hub
from paths import ROOT
from processes import run_python
from translators import ENGLISH, build

OPTIONS = {"max_new_tokens": 8, "num_beams": 2}
KINDS = ("shared", "pair", "multilingual")

# Start of every program below; the last line of output is a JSON object.
PRELUDE = """
import json, sys
settings = json.loads(sys.argv[1])
if settings["package"]:
    import hf_vanilla_transformer
else:
    # Importing it raises ImportError.
    sys.modules["hf_vanilla_transformer"] = None
import torch
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification
from transformers import AutoModelForTextEncoding, AutoTokenizer

def report(value):
    # After transformers' prompt, which does not end its line.
    print("\\n" + json.dumps(value))

def use(name, save_to=None, **options):
    config = AutoConfig.from_pretrained(name, **options)
    tokenizer = AutoTokenizer.from_pretrained(name, **options)
    model = AutoModelForSeq2SeqLM.from_pretrained(name, **options)
    source = tokenizer(settings["texts"], padding=True, return_tensors="pt", return_token_type_ids=False)
    target = tokenizer(text_target=settings["texts"], padding=True, return_tensors="pt")["input_ids"]
    ids = model.generate(**source, **settings["generate"])
    whole, encoder, classifier = (
        kind.from_pretrained(name, **options)
        for kind in (AutoModel, AutoModelForTextEncoding, AutoModelForSequenceClassification)
    )
    uncached = model.generate(**source, **settings["generate"], use_cache=False)
    with torch.no_grad():
        logits = model(**source, decoder_input_ids=ids).logits
        states = whole(**source, decoder_input_ids=ids).encoder_last_hidden_state
        same = torch.equal(states, encoder(**source).last_hidden_state)
        classes = classifier(**source).logits
    try:
        unknown = str(model(**source, decoder_input_ids=ids, chache=ids))
    except TypeError as error:
        unknown = str(error).partition(", ")[0]
    if save_to:
        model.save_pretrained(save_to)
        tokenizer.save_pretrained(save_to)
    return {
        "ids": ids.tolist(), "texts": tokenizer.batch_decode(ids, skip_special_tokens=True),
        "cached": torch.equal(ids, uncached), "unknown": unknown, "classes": list(classes.shape),
        "target": target.tolist(), "logits": logits.flatten().tolist(), "same": same,
        "config": type(config).__name__, "module": type(model).__module__.partition(".")[0],
    }

def error_of(kind, name, **options):
    try:
        return f"loaded {type(kind.from_pretrained(name, **options))}"
    except ValueError as error:
        return str(error)
"""

PUSH = """
for repo, folder in settings["folders"].items():
    AutoModelForSeq2SeqLM.from_pretrained(folder).push_to_hub(repo, private=settings["private"])
    AutoTokenizer.from_pretrained(folder).push_to_hub(repo)
used = {}
if not settings["private"]:
    used = {repo: [use(repo), use(repo, trust_remote_code=True)] for repo in settings["folders"]}
report(used)
"""

LOAD = """
report(use(settings["name"], **settings["options"]))
"""

WITHOUT_PACKAGE = """
used = {}
for name, save_to in settings["names"].items():
    used[name] = {
        "refused": [
            error_of(kind, name, trust_remote_code=trust)
            for kind in (AutoConfig, AutoTokenizer, AutoModelForSeq2SeqLM) for trust in (None, False)
        ],
        "first": use(name, save_to, trust_remote_code=True),
        "again": use(save_to, trust_remote_code=True),
    }
report(used)
"""

PASS_ON = """
for kind in (AutoModelForSeq2SeqLM, AutoTokenizer):
    part = kind.from_pretrained(settings["name"], trust_remote_code=True)
    part.push_to_hub("tester/passed-on", max_shard_size="20KB")
report(None)
"""

CLASSIFY = """
model = AutoModelForSequenceClassification.from_pretrained(
    settings["name"], trust_remote_code=not settings["package"]
)
if settings["package"]:
    model.push_to_hub("tester/classifier")
with torch.no_grad():
    report(model(torch.tensor([[5, 6, 7, 2]])).logits.tolist())
"""

TRAIN = """
from hf_vanilla_transformer.training.arguments import VanillaTransformerTrainingArguments
from hf_vanilla_transformer.training.trainer import VanillaTransformerTrainer
from translators import ENGLISH, SPANISH, build
model, tokenizer = build("pair")
sources, targets = tokenizer(ENGLISH)["input_ids"], tokenizer(text_target=SPANISH)["input_ids"]
rows = [{"input_ids": source, "labels": target} for source, target in zip(sources, targets)]
arguments = VanillaTransformerTrainingArguments(
    settings["run"], max_steps=2, max_tokens=64, warmup_steps=1, use_cpu=True, eval_strategy="no", save_strategy="no",
    push_to_hub=True, hub_model_id="tester/trained", hub_strategy="end", report_to=[], disable_tqdm=True,
)
trainer = VanillaTransformerTrainer(model, arguments, train_dataset=rows, processing_class=tokenizer)
trainer.train()
trainer.push_to_hub()
report(None)
"""


def start(code: str, environment: dict[str, str], package: bool, **settings: Any) -> Any:
    settings |= {"package": package, "texts": ENGLISH, "generate": OPTIONS}
    return run_python(PRELUDE + code, json.dumps(settings), environment=environment)


def run(code: str, environment: dict[str, str], package: bool, **settings: Any) -> Any:
    """Run a program and return the object that it prints."""
    done = start(code, environment, package, **settings)
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def expected(kind: str) -> dict[str, Any]:
    model, tokenizer = build(kind)
    source = tokenizer(ENGLISH, padding=True, return_tensors="pt", return_token_type_ids=False)
    ids = model.generate(**source, **OPTIONS)
    with torch.no_grad():
        logits = model(**source, decoder_input_ids=ids).logits.flatten()
    return {
        "ids": ids.tolist(),
        "texts": tokenizer.batch_decode(ids, skip_special_tokens=True),
        "cached": True,
        "unknown": "`forward` got an argument `chache`",
        "target": tokenizer(text_target=ENGLISH, padding=True, return_tensors="pt")["input_ids"].tolist(),
        "logits": pytest.approx(logits.tolist(), abs=1e-6),
        "same": True,
        "classes": [len(ENGLISH), 2],
        "config": "VanillaTransformerConfig",
    }


def save(kind: str, folder: Path) -> Path:
    for part in build(kind):
        part.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def hub():
    with running_hub() as hub:
        yield hub


@pytest.fixture(scope="module")
def pushed(hub: Hub, tmp_path_factory) -> dict[str, list[dict[str, Any]]]:
    """Reports of loading each kind of model, untrusted and trusted, in the process that pushed it."""
    folders = {f"tester/{kind}": str(save(kind, tmp_path_factory.mktemp(kind))) for kind in KINDS}
    settings = environment(hub, tmp_path_factory.mktemp("home"), HF_TOKEN=TOKEN)
    return run(PUSH, settings, package=True, folders=folders, private=False)


@pytest.fixture(scope="module")
def copied(tmp_path_factory) -> Path:
    """A folder with a saved model and tokenizer and the files of model/, which their `auto_map` names."""
    folder = tmp_path_factory.mktemp("copied")
    for file in (ROOT / "hf_vanilla_transformer" / "model").glob("*.py"):
        shutil.copyfile(file, folder / file.name)
    save("pair", folder)
    for name in ("config.json", "tokenizer_config.json"):
        settings = with_auto_map(name, json.loads((folder / name).read_text()))
        (folder / name).write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def without_package(hub: Hub, pushed, copied: Path, tmp_path_factory) -> dict[str, dict[str, Any]]:
    """Reports of loading the pushed models and the copied files in a process that cannot import the package."""
    saved = tmp_path_factory.mktemp("saved")
    names = {name: str(saved / str(number)) for number, name in enumerate([*pushed, str(copied)])}
    reports = run(WITHOUT_PACKAGE, environment(hub, tmp_path_factory.mktemp("stranger")), package=False, names=names)
    for name, report in reports.items():
        report["files"] = {path.name for path in Path(names[name]).iterdir()}
    return {**reports, "copied files": reports[str(copied)]}


@pytest.mark.parametrize("kind", KINDS)
def test_with_the_package(pushed, kind):
    wanted = expected(kind)
    for found in pushed[f"tester/{kind}"]:
        assert {name: found[name] for name in wanted} == wanted
    assert pushed[f"tester/{kind}"][0]["module"] == "hf_vanilla_transformer"


@pytest.mark.parametrize(("name", "kind"), [*((f"tester/{kind}", kind) for kind in KINDS), ("copied files", "pair")])
class TestWithoutThePackage:
    def test_trusted_code_loads_everything(self, without_package, name, kind):
        wanted = {**expected(kind), "module": "transformers_modules"}
        assert without_package[name]["first"] == wanted
        # What was loaded can be saved and loaded in turn.
        assert without_package[name]["again"] == wanted
        files = {path.name for path in code_files()}
        # Only the code that a model uses is saved with it.
        assert files - {f"{each}.py" for each in TOKENIZERS.values()} <= without_package[name]["files"]

    def test_untrusted_code_does_not_run(self, without_package, name, kind):
        refused = without_package[name]["refused"]
        # One vocabulary is a tokenizer of transformers and needs no code.
        assert len(refused) == 6
        for error in refused if kind == "pair" else refused[:2] + refused[4:]:
            assert "Please pass the argument `trust_remote_code=True`" in error


@pytest.mark.usefixtures("pushed", "without_package")
def test_every_request_was_answered(hub):
    assert not hub.unknown
    assert any(request.startswith("PUT /objects/") for request in hub.requests)


# The slow tests start two to five processes each; those above cover their parts over one kind of repository.


@pytest.mark.slow
def test_a_classifier_is_the_same_without_the_package(hub, tmp_path):
    config = build("pair")[0].config
    config.num_labels = 3
    VanillaTransformerForSequenceClassification(config).save_pretrained(tmp_path / "model")
    author, stranger = (environment(hub, tmp_path / home, HF_TOKEN=TOKEN) for home in ("author", "stranger"))
    logits = run(CLASSIFY, author, package=True, name=str(tmp_path / "model"))[0]
    assert run(CLASSIFY, stranger, package=False, name="tester/classifier")[0] == pytest.approx(logits, abs=1e-6)
    assert len(logits) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("pushed")
def test_a_model_is_passed_on_in_shards_without_the_package(hub, tmp_path):
    friend, stranger = (environment(hub, tmp_path / home, HF_TOKEN=TOKEN) for home in ("friend", "stranger"))
    run(PASS_ON, friend, package=False, name="tester/pair")
    repository = hub.repositories["tester/passed-on"]
    theirs = repository.commits[repository.branches["main"]]
    assert {name: data for name, data in theirs.items() if name.endswith(".py")} == {
        path.name: path.read_bytes() for path in code_files() if "multilingual" not in path.name
    }
    assert "model.safetensors.index.json" in theirs and "model.safetensors" not in theirs
    found = run(LOAD, stranger, package=False, name="tester/passed-on", options={"trust_remote_code": True})
    assert found == {**expected("pair"), "module": "transformers_modules"}


@pytest.mark.slow
def test_revisions_and_private_repositories(hub, tmp_path):
    repo, author = "tester/private", environment(hub, tmp_path / "home", HF_TOKEN=TOKEN)
    folder = save("shared", tmp_path / "model")
    run(PUSH, author, package=True, folders={repo: str(folder)}, private=True)
    assert hub.repositories[repo].private
    first = hub.repositories[repo].branches["main"]
    model, _ = build("shared")
    torch.nn.init.zeros_(model.lm_head.weight)
    model.save_pretrained(folder)
    run(PUSH, author, package=True, folders={repo: str(folder)}, private=True)
    assert hub.repositories[repo].branches["main"] != first
    refused = start(LOAD, environment(hub, tmp_path / "stranger"), package=True, name=repo, options={})
    assert refused.returncode != 0 and "is not a local folder and is not a valid model" in refused.stderr
    friend = environment(hub, tmp_path / "friend", HF_TOKEN=TOKEN)
    wanted = expected("shared")["ids"]
    assert run(LOAD, friend, package=True, name=repo, options={"revision": first})["ids"] == wanted
    assert run(LOAD, friend, package=True, name=repo, options={})["ids"] != wanted


@pytest.mark.slow
def test_a_trainer_that_pushes_pushes_the_code_too(hub, tmp_path):
    author = environment(hub, tmp_path / "home", HF_TOKEN=TOKEN)
    run(TRAIN, author, package=True, run=str(tmp_path / "run"))
    stranger = environment(hub, tmp_path / "stranger")
    found = run(LOAD, stranger, package=False, name="tester/trained", options={"trust_remote_code": True})
    assert found["module"] == "transformers_modules"
