"""Untrusted model folders that leave a trace file as soon as any of their code runs."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from translators import save_publishable

# Source of a module in the folder.
MODULE = """from pathlib import Path
Path({trace!r}).write_text(__name__)
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

class Config(PreTrainedConfig):
    model_type = "stranger"

class Model(PreTrainedModel):
    config_class = Config

class Tokenizer(PreTrainedTokenizerFast):
    pass

def generate(model, *args, **kwargs):
    raise SystemExit("the canary generates")
"""
MODEL_CLASSES = ("AutoModel", "AutoModelForSeq2SeqLM", "AutoModelForSequenceClassification")


class Bomb:
    """Pickles into a call that writes the trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.write_text, (self.trace, "unpickled")


def change_json(file: Path, **changes: Any) -> None:
    settings = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**settings, **changes}))


def write_module(folder: Path, trace: Path, name: str = "canary.py") -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(MODULE.format(trace=str(trace)))


def model_of_code(folder: Path, trace: Path, module: str = "canary") -> None:
    """Configuration and model classes come from a module in the folder."""
    auto_map = {"AutoConfig": f"{module}.Config", **dict.fromkeys(MODEL_CLASSES, f"{module}.Model")}
    change_json(folder / "config.json", model_type="stranger", auto_map=auto_map)
    write_module(folder, trace)


def model_of_another_repository(folder: Path, trace: Path) -> None:
    """Configuration and model classes come from another repository on the Hub."""
    model_of_code(folder, trace, "someone/else--canary")


def tokenizer_of_code(folder: Path, trace: Path) -> None:
    """The tokenizer class comes from a module in the folder."""
    auto_map = {"AutoTokenizer": [None, "canary.Tokenizer"]}
    change_json(folder / "tokenizer_config.json", tokenizer_class="Tokenizer", auto_map=auto_map)
    write_module(folder, trace)


def tokenizer_alone(folder: Path, trace: Path) -> None:
    """A tokenizer with its own code, without a model, whose family's tokenizer would be used instead."""
    tokenizer_of_code(folder, trace)
    (folder / "config.json").unlink()


def classes_beside_known_ones(folder: Path, trace: Path) -> None:
    """A known model type whose folder also has its own classes."""
    auto_map = {"AutoConfig": "canary.Config", **dict.fromkeys(MODEL_CLASSES, "canary.Model")}
    change_json(folder / "config.json", auto_map=auto_map)
    change_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "canary.Tokenizer"]})
    write_module(folder, trace)


def generation_of_code(folder: Path, trace: Path) -> None:
    """The folder has its own `generate` function."""
    write_module(folder, trace, "custom_generate/generate.py")


def pickled_weights(folder: Path, trace: Path) -> None:
    """The weights are a pickle that runs code."""
    (folder / "model.safetensors").unlink()
    torch.save({"model.shared.weight": Bomb(trace)}, folder / "pytorch_model.bin")


def plain_pickle(folder: Path, trace: Path) -> None:
    """The same as a plain pickle, not written by `torch.save`."""
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(trace)))


Canary = Callable[[Path, Path], None]

# All kinds of code that must not run.
CANARIES: tuple[Canary, ...] = (
    model_of_code,
    model_of_another_repository,
    tokenizer_of_code,
    tokenizer_alone,
    classes_beside_known_ones,
    generation_of_code,
    pickled_weights,
    plain_pickle,
)


def save_canary(folder: Path, trace: Path, canary: Canary, kind: str = "shared") -> Path:
    """Save a translator, then turn its folder into a canary that writes `trace` if its code runs."""
    canary(save_publishable(kind, folder), trace)
    return folder
