"""Convert damaged source checkpoints of every layout."""

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor

import conversions
import transformers_models
from damage import HOSTILE, DamagedFiles, damaged_bytes, damaged_json, damaged_safetensors, try_kinds
from hf_vanilla_transformer.conversion import convert_checkpoint
from hf_vanilla_transformer.conversion.reading import read_checkpoint

KINDS = (*conversions.CASES, "fairseq", "marian", "fsmt", "bart", "mbart", "m2m100")
Shape = Callable[[Random, Tensor], Tensor]
RESHAPED: tuple[Shape, ...] = (
    lambda random, tensor: tensor.T if tensor.dim() == 2 else tensor[None],
    lambda random, tensor: tensor.reshape(-1),
    lambda random, tensor: tensor[:0],
    lambda random, tensor: tensor[..., :-1],
    lambda random, tensor: torch.cat([tensor, tensor]) if tensor.dim() else tensor,
    lambda random, tensor: tensor[None],
    lambda random, tensor: torch.zeros(()),
    # Expanded, so that it takes no memory.
    lambda random, tensor: torch.zeros(1).expand(random.choice((2**20, 2**33)), 2**10),
)
RETYPED: tuple[Shape, ...] = (
    lambda random, tensor: tensor.to(random.choice((torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn))),
    lambda random, tensor: tensor.to_sparse(),
    lambda random, tensor: tensor.to("meta"),
    lambda random, tensor: tensor * float(random.choice(("nan", "inf"))),
)
INDICES = ("9", "999999999", "9" * 5000, "-1", "01", "٣", "")


class DamagedCheckpoint(DamagedFiles):
    """A source checkpoint with damaged tensors, settings or bytes in each case."""

    def __init__(self, kind: str, folder: Path):
        torch.manual_seed(0)
        self.options: dict[str, Any] = {}
        if kind in conversions.CASES:
            _, model, self.options = conversions.build(kind)
            # Most programs save more than weights.
            self.content: Any = {"state_dict": model.state_dict(), "epoch": 3, "hyper_parameters": {"dropout": 0.1}}
            torch.save(self.content, folder / "weights.pt")
        elif kind == "fairseq":
            weights = transformers_models.as_fairseq(transformers_models.fsmt())
            self.content = transformers_models.fairseq_content(weights, "nested")
            torch.save(self.content, folder / "weights.pt")
        else:
            getattr(transformers_models, kind)().save_pretrained(folder)
        self.source = folder / "weights.pt" if (folder / "weights.pt").is_file() else folder
        super().__init__(kind, folder)
        assert self.use({}) is None

    def damaged(self, random: Random, name: str) -> bytes:
        data, by_bytes = self.whole[name], random.random() < 0.3
        if by_bytes:
            return damaged_bytes(random, data)
        if name.endswith(".json"):
            return damaged_json(random, data)
        if name.endswith(".safetensors"):
            return damaged_safetensors(random, data)
        content = torch.load(io.BytesIO(data), weights_only=False)
        weights = content.get("state_dict", content.get("model"))
        if random.random() < 0.3:
            self._damage_settings(random, content)
        else:
            for key in random.sample(sorted(weights), random.choice((1, 1, 2, 5))):
                self._damage_weight(random, weights, key)
        buffer = io.BytesIO()
        torch.save(random.choice((content, content, content, weights, [content], None)), buffer)
        return buffer.getvalue()

    @staticmethod
    def _damage_weight(random: Random, weights: dict[Any, Any], key: str) -> None:
        kind, tensor = random.randrange(8), weights[key]
        if kind == 0:
            del weights[key]
        elif kind == 1:
            weights[random.choice((f"x.{key}", key[:-1], "x" * 100_000, "", 7, f"{key}\n"))] = weights.pop(key)
        elif kind == 2:
            weights[key.replace(".0.", f".{random.choice(INDICES)}.").replace(".1.", ".3.")] = weights.pop(key)
        elif kind == 3:
            weights[key] = random.choice(HOSTILE)
        elif kind in (4, 5):
            # Not every tensor can take every type or shape.
            with contextlib.suppress(RuntimeError, IndexError):
                weights[key] = random.choice(RESHAPED if kind == 4 else RETYPED)(random, tensor)
        elif kind == 6:
            other = random.choice(sorted(map(str, weights)))
            weights[key] = weights.get(other, tensor)
        else:
            weights[f"{key}.more"] = tensor

    @staticmethod
    def _damage_settings(random: Random, content: dict[str, Any]) -> None:
        names = ("args", "cfg", "config", "hyper_parameters", "state_dict", "model", "epoch")
        settings = content.get("hyper_parameters") or content["cfg"]["model"]
        changed = random.choice((content, settings, settings))
        options = [*settings, "max_source_positions", "encoder_attention_heads", "nhead", "pad_token_id", "activation"]
        for name in random.sample(names if changed is content else options, 2):
            changed[name] = random.choice((*HOSTILE, settings, 10**12))

    def use(self, damaged: dict[str, bytes | None]) -> str | None:
        """Convert; every weight must be mapped and, if not transformed, equal the source's."""
        found = convert_checkpoint(self.source, None, dry_run=True, **self.options)
        if found.config.max_position_embeddings < 10**6:
            # Loads the weights strictly.
            found.model()
        stored = read_checkpoint(self.source).weights
        if unmapped := found.weights.keys() - {row.name for row in found.mapping}:
            return f"{sorted(unmapped)} come from nowhere"
        for row in found.mapping:
            if row.key in stored and not row.transform:
                source, weight = stored[row.key], found.weights[row.name]
                # A vocabulary may get rows for special tokens.
                if not torch.equal(weight[: len(source)], source.to(weight.dtype)):
                    return f"{row.name} is not {row.key}"
        return None


def try_checkpoints(numbers: range, kinds: tuple[str, ...] = KINDS) -> Iterator[str]:
    """Yield the outcome of every damaged checkpoint, for each kind."""
    yield from try_kinds(DamagedCheckpoint, numbers, kinds)
