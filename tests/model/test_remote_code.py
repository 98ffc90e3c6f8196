"""A model that was pushed to a Hub, loaded by who has this package and by who has not, over HTTP."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification, AutoTokenizer

import hf_vanilla_transformer
from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForSequenceClassification
from hf_vanilla_transformer.model.hub_code_vanilla_transformer import (
    MODEL_AUTO_MAP,
    TOKENIZER_AUTO_MAP,
    add_code,
    code_files,
)
from hub_server import TOKEN, Hub, environment, running_hub
from paths import ROOT
from translators import ENGLISH, build

OPTIONS = {"max_new_tokens": 8, "num_beams": 2}

PUSH = """
import sys, torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
import hf_vanilla_transformer
folder, repo, private = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForSeq2SeqLM.from_pretrained(folder)
model.push_to_hub(repo, private=private == "private")
tokenizer.push_to_hub(repo)
"""

# What somebody does who has never heard of this package, or has it and trusts the code of the Hub, or not.
LOAD = """
import json, sys
settings = json.loads(sys.argv[1])
if settings["plugin"] == "absent":
    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "hf_vanilla_transformer":
                raise ImportError(f"{name} is not installed here")
    sys.meta_path.insert(0, Absent())
else:
    import hf_vanilla_transformer
import torch
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification
from transformers import AutoModelForTextEncoding, AutoTokenizer
name, options = settings["repo"], settings["options"]
config = AutoConfig.from_pretrained(name, **options)
tokenizer = AutoTokenizer.from_pretrained(name, **options)
model = AutoModelForSeq2SeqLM.from_pretrained(name, **options)
classifier = AutoModelForSequenceClassification.from_pretrained(name, **options)
encoder = AutoModelForTextEncoding.from_pretrained(name, **options)
whole = AutoModel.from_pretrained(name, **options)
source = tokenizer(settings["texts"], padding=True, return_tensors="pt", return_token_type_ids=False)
target = tokenizer(text_target=settings["texts"], padding=True, return_tensors="pt")["input_ids"]
ids = model.generate(**source, **settings["generate"])
with torch.no_grad():
    logits = model(**source, decoder_input_ids=ids).logits
    states = whole(**source, decoder_input_ids=ids).encoder_last_hidden_state
    same = torch.equal(states, encoder(**source).last_hidden_state)
    classes = classifier(**source).logits
if settings["save_to"]:
    model.save_pretrained(settings["save_to"])
    tokenizer.save_pretrained(settings["save_to"])
print(json.dumps({
    "ids": ids.tolist(), "texts": tokenizer.batch_decode(ids, skip_special_tokens=True), "target": target.tolist(),
    "logits": logits.flatten().tolist(), "same": same, "classes": list(classes.shape),
    "module": type(model).__module__.partition(".")[0], "config": type(config).__name__,
    "plugin": "hf_vanilla_transformer" in sys.modules,
}))
"""


def python(code: str, *arguments: str, environment: dict[str, str]) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, cwd=ROOT)


def push(hub: Hub, folder: Path, repo: str, home: Path, private: str = "public") -> None:
    done = python(PUSH, str(folder), repo, private, environment=environment(hub, home, HF_TOKEN=TOKEN))
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr


def load(hub: Hub, repo: str, home: Path, plugin: str, save_to: Path | None = None, token: str = "", **options):
    settings = {
        "repo": repo, "plugin": plugin, "options": options, "texts": ENGLISH, "generate": OPTIONS,
        "save_to": save_to and str(save_to),
    }  # fmt: skip  # one message
    more = {"HF_TOKEN": token} if token else {}
    return python(LOAD, json.dumps(settings), environment=environment(hub, home, **more))


def expected(kind: str) -> dict:
    model, tokenizer = build(kind)
    source = tokenizer(ENGLISH, padding=True, return_tensors="pt", return_token_type_ids=False)
    ids = model.generate(**source, **OPTIONS)
    with torch.no_grad():
        logits = model(**source, decoder_input_ids=ids).logits.flatten()
    return {
        "ids": ids.tolist(),
        "texts": tokenizer.batch_decode(ids, skip_special_tokens=True),
        "target": tokenizer(text_target=ENGLISH, padding=True, return_tensors="pt")["input_ids"].tolist(),
        "logits": pytest.approx(logits.tolist(), abs=1e-6),
        "same": True,
        "classes": [len(ENGLISH), 2],
        "config": "VanillaTransformerConfig",
    }


@pytest.fixture(scope="module")
def hub():
    with running_hub() as hub:
        yield hub


@pytest.fixture(scope="module", params=["shared", "pair"])
def shared(request, hub, tmp_path_factory):
    """The name of a pushed model, and what it must give."""
    folder, repo = tmp_path_factory.mktemp(request.param), f"tester/{request.param}"
    model, tokenizer = build(request.param)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    push(hub, folder, repo, tmp_path_factory.mktemp("home"))
    return repo, expected(request.param)


def test_whoever_trusts_the_code_needs_no_plugin(hub, shared, tmp_path):
    repo, wanted = shared
    done = load(hub, repo, tmp_path / "home", "absent", save_to=tmp_path / "again", trust_remote_code=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {**wanted, "module": "transformers_modules", "plugin": False}
    # What was loaded so can be saved, and passed on in turn.
    names = {path.name for path in (tmp_path / "again").iterdir()}
    assert {path.name for path in code_files()} - {"tokenization_vanilla_transformer.py"} <= names
    again = load(hub, str(tmp_path / "again"), tmp_path / "other", "absent", trust_remote_code=True)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout.splitlines()[-1])["ids"] == wanted["ids"]


TOKENIZER = """
import sys
sys.modules["hf_vanilla_transformer"] = None
from transformers import AutoTokenizer
print(type(AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=[None, False, True][int(sys.argv[2])])))
"""


@pytest.mark.parametrize("shared", ["pair"], indirect=True)
@pytest.mark.parametrize("trust", range(3), ids=["unsaid", "not trusted", "trusted"])
def test_nobody_gets_half_of_a_pair_of_vocabularies(hub, shared, tmp_path, trust):
    done = python(TOKENIZER, shared[0], str(trust), environment=environment(hub, tmp_path))
    if trust == 2:
        assert "tokenization_vanilla_transformer.VanillaTransformerTokenizer" in done.stdout, done.stderr
    else:
        assert done.returncode != 0 and "Please pass the argument `trust_remote_code=True`" in done.stderr


def test_nobody_runs_code_unasked(hub, shared, tmp_path):
    done = load(hub, shared[0], tmp_path, "absent")
    assert done.returncode != 0 and "trust_remote_code=True" in done.stderr


@pytest.mark.parametrize("options", [{}, {"trust_remote_code": True}], ids=["not trusted", "trusted"])
def test_with_the_plugin_either_way_works(hub, shared, tmp_path, options):
    repo, wanted = shared
    done = load(hub, repo, tmp_path, "installed", **options)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name: found[name] for name in wanted} == wanted and found["plugin"]
    if not options:
        assert found["module"] == "hf_vanilla_transformer"


def test_the_hub_was_asked_nothing_that_it_does_not_answer(hub, shared):
    assert not hub.unknown
    assert any(request.startswith("PUT /objects/") for request in hub.requests)


CLASSIFY = """
import json, sys
folder, repo = sys.argv[1:]
if folder:
    import hf_vanilla_transformer
else:
    sys.modules["hf_vanilla_transformer"] = None
import torch
from transformers import AutoModelForSequenceClassification
model = AutoModelForSequenceClassification.from_pretrained(folder or repo, trust_remote_code=not folder)
if folder:
    model.push_to_hub(repo)
with torch.no_grad():
    print(json.dumps(model(torch.tensor([[5, 6, 7, 2]])).logits.tolist()))
"""


@pytest.mark.slow
def test_a_classifier_says_the_same_without_the_plugin(hub, tmp_path):
    config = build("pair")[0].config
    config.num_labels = 3
    VanillaTransformerForSequenceClassification(config).save_pretrained(tmp_path / "model")
    answers = []
    for home, folder in (("author", str(tmp_path / "model")), ("stranger", "")):
        settings = environment(hub, tmp_path / home, HF_TOKEN=TOKEN)
        done = python(CLASSIFY, folder, "tester/classifier", environment=settings)
        assert done.returncode == 0, done.stderr
        answers.append(json.loads(done.stdout.splitlines()[-1]))
    assert answers[0][0] == pytest.approx(answers[1][0], abs=1e-6) and len(answers[0][0]) == 3


PASS_ON = """
import sys
sys.modules["hf_vanilla_transformer"] = None
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
for kind in (AutoModelForSeq2SeqLM, AutoTokenizer):
    part = kind.from_pretrained(sys.argv[1], trust_remote_code=True)
    part.push_to_hub("tester/passed-on", max_shard_size="20KB")
"""


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["pair"], indirect=True)
def test_a_model_is_passed_on_in_shards_by_who_has_no_plugin_either(hub, shared, tmp_path):
    repo, wanted = shared
    done = python(PASS_ON, repo, environment=environment(hub, tmp_path / "friend", HF_TOKEN=TOKEN))
    assert done.returncode == 0, done.stderr
    repository = hub.repositories["tester/passed-on"]
    theirs = repository.commits[repository.branches["main"]]
    assert {name: data for name, data in theirs.items() if name.endswith(".py")} == {
        path.name: path.read_bytes() for path in code_files()
    }
    assert "model.safetensors.index.json" in theirs and "model.safetensors" not in theirs
    loaded = load(hub, "tester/passed-on", tmp_path / "stranger", "absent", trust_remote_code=True)
    assert loaded.returncode == 0, loaded.stderr
    assert json.loads(loaded.stdout.splitlines()[-1]) == {**wanted, "module": "transformers_modules", "plugin": False}


@pytest.mark.slow
def test_revisions_and_private_repositories(hub, tmp_path):
    folder, repo = tmp_path / "model", "tester/private"
    model, tokenizer = build("shared")
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)
    push(hub, folder, repo, tmp_path / "home", "private")
    assert hub.repositories[repo].private
    first = hub.repositories[repo].branches["main"]
    torch.nn.init.zeros_(model.lm_head.weight)
    model.save_pretrained(folder)
    push(hub, folder, repo, tmp_path / "home")
    assert hub.repositories[repo].branches["main"] != first
    refused = load(hub, repo, tmp_path / "stranger", "installed")
    assert refused.returncode != 0 and "is not a local folder and is not a valid model" in refused.stderr
    wanted = expected("shared")
    pinned = load(hub, repo, tmp_path / "friend", "installed", token=TOKEN, revision=first)
    assert pinned.returncode == 0, pinned.stderr
    assert json.loads(pinned.stdout.splitlines()[-1])["ids"] == wanted["ids"]
    newest = load(hub, repo, tmp_path / "friend", "installed", token=TOKEN)
    assert json.loads(newest.stdout.splitlines()[-1])["ids"] != wanted["ids"]


TRAIN = """
import sys
from hf_vanilla_transformer.training import VanillaTransformerTrainer, VanillaTransformerTrainingArguments
from translators import ENGLISH, SPANISH, build
model, tokenizer = build("pair")
sources, targets = tokenizer(ENGLISH)["input_ids"], tokenizer(text_target=SPANISH)["input_ids"]
rows = [{"input_ids": source, "labels": target} for source, target in zip(sources, targets)]
arguments = VanillaTransformerTrainingArguments(
    sys.argv[1], max_steps=2, max_tokens=64, warmup_steps=1, use_cpu=True, eval_strategy="no", save_strategy="no",
    push_to_hub=True, hub_model_id="tester/trained", hub_strategy="end", report_to=[], disable_tqdm=True,
)
trainer = VanillaTransformerTrainer(model, arguments, train_dataset=rows, processing_class=tokenizer)
trainer.train()
trainer.push_to_hub()
"""


@pytest.mark.slow
def test_a_trainer_that_pushes_pushes_the_code_too(hub, tmp_path):
    settings = environment(hub, tmp_path / "home", HF_TOKEN=TOKEN, PYTHONPATH=str(ROOT / "tests" / "helpers"))
    done = python(TRAIN, str(tmp_path / "run"), environment=settings)
    assert done.returncode == 0, done.stderr
    loaded = load(hub, "tester/trained", tmp_path / "stranger", "absent", trust_remote_code=True)
    assert loaded.returncode == 0, loaded.stderr
    assert json.loads(loaded.stdout.splitlines()[-1])["module"] == "transformers_modules"


class TestCode:
    """The files that travel, looked at here."""

    def test_auto_map_names_every_registered_class(self):
        registered = {
            "AutoConfig": VanillaTransformerConfig,
            **{
                name: getattr(__import__("transformers"), name)._model_mapping[VanillaTransformerConfig]
                for name in MODEL_AUTO_MAP
                if name != "AutoConfig"
            },
            "AutoTokenizer": hf_vanilla_transformer.VanillaTransformerTokenizer,
        }
        named = {**MODEL_AUTO_MAP, "AutoTokenizer": TOKENIZER_AUTO_MAP["AutoTokenizer"][1]}
        assert named == {
            name: f"{kind.__module__.split('.')[-1]}.{kind.__name__}" for name, kind in registered.items()
        }
        exported = [getattr(hf_vanilla_transformer, name) for name in hf_vanilla_transformer.__all__]
        models = [kind for kind in exported if inspect.isclass(kind) and issubclass(kind, torch.nn.Module)]
        heads = [kind for kind in models if kind.__name__.startswith("VanillaTransformerFor")]
        assert set(heads) <= set(registered.values())

    def test_files_import_only_each_other_and_what_everybody_has(self):
        names, everybody = {file.stem for file in code_files()}, {"torch", "transformers", "tokenizers"}
        assert {value.split(".")[0] for value in MODEL_AUTO_MAP.values()} <= names
        for file in code_files():
            for line in file.read_text(encoding="utf-8").splitlines():
                words = line.split()
                if words[:1] == ["from"] and words[2:3] == ["import"] and words[1].startswith("."):
                    assert words[1][1:] in names, f"{file.name}: {line}"
                elif line.startswith(("import ", "from ")):
                    top = words[1].split(".")[0]
                    assert top in sys.stdlib_module_names | everybody, f"{file.name}: {line}"

    def test_saving_stores_no_code(self, tmp_path):
        model, tokenizer = build("pair")
        for part in (model, tokenizer, model.config):
            part.save_pretrained(tmp_path)
        assert not list(tmp_path.glob("*.py"))
        assert (
            "auto_map" not in (tmp_path / "config.json").read_text() + (tmp_path / "tokenizer_config.json").read_text()
        )

    def test_what_was_shared_and_is_saved_anew_names_no_code_that_is_not_there(self, tmp_path):
        for part in build("pair"):
            part.save_pretrained(tmp_path / "shared")
        add_code(tmp_path / "shared")
        for kind in (AutoModelForSeq2SeqLM, AutoTokenizer):
            kind.from_pretrained(tmp_path / "shared").save_pretrained(tmp_path / "again")
        assert not list((tmp_path / "again").glob("*.py"))
        for name in ("config.json", "tokenizer_config.json"):
            assert "auto_map" in json.loads((tmp_path / "shared" / name).read_text())
            assert "auto_map" not in json.loads((tmp_path / "again" / name).read_text())
        # The code of the Hub would come before the installed tokenizer, were it named.
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "again", trust_remote_code=True)
        assert type(tokenizer) is hf_vanilla_transformer.VanillaTransformerTokenizer

    def test_a_folder_with_code_still_loads_with_the_plugin(self, tmp_path):
        model, tokenizer = build("pair")
        model.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        add_code(tmp_path)
        assert type(AutoConfig.from_pretrained(tmp_path)) is VanillaTransformerConfig
        assert type(AutoModelForSeq2SeqLM.from_pretrained(tmp_path)) is type(model)
        assert type(AutoTokenizer.from_pretrained(tmp_path)) is type(tokenizer)
        kind = type(AutoModelForSequenceClassification.from_pretrained(tmp_path))
        assert kind is VanillaTransformerForSequenceClassification
