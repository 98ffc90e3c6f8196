"""The code that travels to the Hub: what it names and imports, and when folders contain it."""

import inspect
import json
import sys

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification, AutoTokenizer
from transformers.models.auto.tokenization_auto import tokenizer_class_from_name

import hf_vanilla_transformer
from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerMultilingualTokenizer,
    VanillaTransformerTokenizer,
)
from hf_vanilla_transformer.model.hub_code_vanilla_transformer import (
    MODEL_AUTO_MAP,
    TOKENIZERS,
    add_code,
    code_files,
    with_auto_map,
)
from hf_vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerSharedTokenizer
from tables import looped
from translators import build

CONFIG_FILES = ("config.json", "tokenizer_config.json")


@pytest.fixture
def saved(tmp_path):
    """A folder with a model and a pair of vocabularies, without code."""
    for part in build("pair"):
        part.save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def test_auto_map_names_every_registered_class():
    models, named = MODEL_AUTO_MAP.keys() - {"AutoConfig"}, dict(MODEL_AUTO_MAP)
    registered = {name: getattr(transformers, name)._model_mapping[VanillaTransformerConfig] for name in models}
    # The encoder by itself is `AutoModelForTextEncoding`'s class too.
    registered["AutoModel"], _ = registered["AutoModel"]
    registered |= {"AutoConfig": VanillaTransformerConfig}
    for kind in (
        VanillaTransformerMultilingualTokenizer, VanillaTransformerSharedTokenizer, VanillaTransformerTokenizer,
    ):  # fmt: skip  # one class a line would say no more
        settings = with_auto_map("tokenizer_config.json", {"tokenizer_class": kind.__name__})
        registered[kind.__name__], named[kind.__name__] = kind, settings["auto_map"]["AutoTokenizer"][1]
        assert tokenizer_class_from_name(kind.__name__) is kind
    assert {*TOKENIZERS} <= registered.keys()
    assert named == {name: f"{kind.__module__.split('.')[-1]}.{kind.__name__}" for name, kind in registered.items()}
    exported = [getattr(hf_vanilla_transformer, name) for name in hf_vanilla_transformer.__all__]
    models = [kind for kind in exported if inspect.isclass(kind) and issubclass(kind, torch.nn.Module)]
    assert {kind for kind in models if kind.__name__.startswith("VanillaTransformerFor")} <= set(registered.values())


@looped("file", code_files())
def test_imports_are_limited_to_siblings_and_dependencies(file):
    """When transformers copies code, it finds siblings only through `from .name import ...`."""
    siblings = {each.stem for each in code_files()}
    allowed = sys.stdlib_module_names | {"torch", "transformers", "tokenizers"}
    assert {value.split(".")[0] for value in MODEL_AUTO_MAP.values()} <= siblings
    for line in file.read_text(encoding="utf-8").splitlines():
        words = line.split()
        if words[:1] == ["from"] and words[2:3] == ["import"] and words[1].startswith("."):
            assert words[1][1:] in siblings, line
        elif line.startswith(("import ", "from ")):
            assert words[1].split(".")[0] in allowed, line


def test_saving_adds_no_code(saved):
    assert not list(saved.glob("*.py"))
    assert "auto_map" not in "".join((saved / name).read_text() for name in CONFIG_FILES)


@pytest.mark.parametrize("vocabulary", ["shared", "pair", "multilingual"])
def test_saving_again_drops_the_auto_map(vocabulary, tmp_path):
    saved, again = tmp_path / "saved", tmp_path / "again"
    for part in (built := build(vocabulary)):
        part.save_pretrained(saved)
    add_code(saved)
    for kind in (AutoModelForSeq2SeqLM, AutoTokenizer):
        kind.from_pretrained(saved).save_pretrained(again)
    assert not list(again.glob("*.py"))
    for name in CONFIG_FILES:
        assert "auto_map" in json.loads((saved / name).read_text())
        assert "auto_map" not in json.loads((again / name).read_text())
    # With `auto_map`, trusted code would take precedence over the installed tokenizer.
    tokenizer = AutoTokenizer.from_pretrained(again, trust_remote_code=True)
    assert type(tokenizer) is type(built[1])


def test_a_folder_with_code_loads_the_installed_classes(saved):
    add_code(saved)
    model, tokenizer = build("pair")
    assert type(AutoConfig.from_pretrained(saved)) is VanillaTransformerConfig
    assert type(AutoModelForSeq2SeqLM.from_pretrained(saved)) is type(model)
    assert type(AutoTokenizer.from_pretrained(saved)) is type(tokenizer)
    kind = type(AutoModelForSequenceClassification.from_pretrained(saved))
    assert kind is VanillaTransformerForSequenceClassification
