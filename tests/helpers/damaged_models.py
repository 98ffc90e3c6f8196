"""Load damaged folders of models and tokenizers, and translate with them."""

import json
import re
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load
from transformers import GenerationConfig

from damage import DamagedFiles, damaged_bytes, damaged_json, damaged_safetensors, try_kinds
from hf_vanilla_transformer.inference.translation import translate
from hf_vanilla_transformer.pretrained.loading import load_model, load_tokenizer
from translators import build

KINDS = ("shared", "pair", "learned", "sharded", "marian")
SENTENCE = "the small cat sleeps"
SETTINGS = {
    "num_beams": 2, "max_length": 12, "length_penalty": 0.8, "early_stopping": True, "no_repeat_ngram_size": 3,
    "bad_words_ids": [[5], [6, 7]], "min_new_tokens": 1, "renormalize_logits": False, "suppress_tokens": [9],
}  # fmt: skip  # a table, not an expression


@cache
def files_of(kind: str) -> dict[str, bytes]:
    """Return the files of an undamaged folder by name."""
    model, tokenizer = build("shared" if kind == "sharded" else kind, encoder_layers=1, decoder_layers=1)
    model.generation_config = GenerationConfig.from_model_config(model.config)
    model.generation_config.update(**SETTINGS)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder, max_shard_size="8KB" if kind == "sharded" else "1GB")
        tokenizer.save_pretrained(folder)
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


class DamagedFolder(DamagedFiles):
    """A model folder with one or two damaged files in each case."""

    def __init__(self, kind: str, folder: Path):
        for name, data in files_of(kind).items():
            (folder / name).write_bytes(data)
        super().__init__(kind, folder)
        self.model, self.tokenizer = load_model(folder), load_tokenizer(folder)
        self.translation = self._translate(self.model, self.tokenizer)

    def names(self, random: Random) -> list[str]:
        return random.sample(sorted(self.whole), random.choice((1, 1, 1, 2)))

    def damaged(self, random: Random, name: str) -> bytes | None:
        data, kind = self.whole[name], random.randrange(40)
        if kind == 0:
            return None
        if kind == 1:
            return self.whole[random.choice(sorted(self.whole))]
        if kind == 2:
            # The same file of another model.
            return files_of("learned" if self.kind != "learned" else "pair").get(name, b"{}")
        damages: tuple[Any, ...] = (damaged_bytes, damaged_json, damaged_json, damaged_json)
        if name.endswith(".safetensors"):
            damages = (damaged_bytes, damaged_safetensors, damaged_safetensors)
        return random.choice(damages)(random, data)

    def use(self, damaged: dict[str, bytes | None]) -> str | None:
        """Load the damaged parts and translate; return the fault of a wrong result."""
        of_tokenizer = {name for name in damaged if "tokenizer" in name}
        model, tokenizer = self.model, self.tokenizer
        if of_tokenizer != damaged.keys():
            model = load_model(self.folder)
        if of_tokenizer or "config.json" in damaged:
            tokenizer = load_tokenizer(self.folder)
        files = [load(file.read_bytes()) for file in self.folder.glob("*.safetensors")]
        stored = {name: tensor for weights in files for name, tensor in weights.items()}
        weights = model.state_dict()
        for name, tensor in stored.items():
            # Files of other families may have unused tensors.
            if name in weights and not torch.equal(weights[name], tensor.to(weights[name].dtype)):
                return f"{name} is not the one in the file"
        # Marian computes its positions.
        own = {name for name, _ in model.named_parameters() if "embed_positions" not in name or self.kind == "learned"}
        if own - stored.keys():
            return f"{own - stored.keys()} come from nowhere"
        found = self._translate(model, tokenizer)
        if self._is_unchanged(damaged) and found != self.translation:
            return f"{found!r}, not {self.translation!r}"
        return None

    @staticmethod
    def _translate(model: Any, tokenizer: Any) -> str:
        ((hypothesis,),) = translate(model, tokenizer, [SENTENCE], max_new_tokens=4)
        assert isinstance(hypothesis.text, str)
        return hypothesis.text

    def _is_unchanged(self, damaged: dict[str, bytes | None]) -> bool:
        """Whether the files are merely spelled differently."""
        try:
            return all(json.loads(data or b"") == json.loads(self.whole[name]) for name, data in damaged.items())
        # Weights, or a file that nothing reads, such as the placeholder of two vocabularies.
        except (ValueError, RecursionError):
            return False

    def fault_of_message(self, message: str, names: list[str]) -> str | None:
        """Return the fault of a message that is not one short line naming a damaged file, a weight or a setting."""
        if fault := super().fault_of_message(message, names):
            return fault
        places = r"`\w+`|\w+\.(weight|bias|json|safetensors)|numbers in \w+|configuration does not use"
        # Weights of 1e38 are finite, but activations overflow.
        if any(name in message for name in names) or re.search(f"{places}|activations overflow", message):
            return None
        return f"a message without a place: {message}"


def try_models(numbers: range, kinds: tuple[str, ...] = KINDS) -> Iterator[str]:
    """Yield the outcome of every damaged folder, for each kind."""
    yield from try_kinds(DamagedFolder, numbers, kinds)
