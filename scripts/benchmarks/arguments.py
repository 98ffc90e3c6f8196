"""Arguments of the benchmarks."""

from dataclasses import dataclass, field
from typing import Any

import torch

from hf_vanilla_transformer.presets import preset_config

from .machine import DTYPES

BASELINES = ("marian", "bart", "tutorial", "ctranslate2")
BACKENDS = ("transformers", "ctranslate2")
DEVICES = ("cpu", "cuda")
MAY_BE_ZERO = ("label_smoothing_factor", "roofline_seconds", "seconds", "seed", "steps", "tokens")
MAY_BE_EMPTY = ("model",)


@dataclass
class BenchmarkArguments:
    """What to measure and how; for `transformers.HfArgumentParser`.

    Raises:
        ValueError: A value is unknown or too small; names the argument.
    """

    output_dir: str = field(
        default="runs/benchmark", metadata={"help": "Output folder for results.json and table.md."}
    )
    device: str = field(default="cpu", metadata={"help": "cpu or cuda."})
    dtype: list[str] = field(
        default_factory=lambda: ["float32"], metadata={"help": f"One or more of {', '.join(DTYPES)}."}
    )
    preset: list[str] = field(
        default_factory=lambda: ["small"], metadata={"help": "Model shapes: small, base, big or a row of Table 3."}
    )
    vocab_size: list[int] = field(
        default_factory=lambda: [8000, 32000],
        metadata={
            "help": "Vocabulary sizes for losses and for training steps on identical batches; generate and memory use "
            "the last one, products, scaling and startup the first."
        },
    )
    baselines: list[str] = field(
        default_factory=lambda: list(BASELINES),
        metadata={"help": f"Implementations to compare with: {', '.join(BASELINES)}.", "aliases": ["--peers"]},
    )
    rounds: int = field(default=7, metadata={"help": "Timed rounds per comparison, after one warm-up round."})
    threads: int | None = field(default=None, metadata={"help": "CPU threads; torch's choice by default."})
    batch_size: list[int] = field(
        default_factory=lambda: [1, 32, 128], metadata={"help": "generate, profile: sentences per batch."}
    )
    num_beams: list[int] = field(
        default_factory=lambda: [1, 4], metadata={"help": "generate, profile: 1 is greedy search."}
    )
    length: int = field(
        default=32,
        metadata={
            "help": "Tokens per source, target and generated sequence in random batches, and of what models of random "
            "weights answer."
        },
    )
    tokens: int = field(
        default=2048,
        metadata={"help": "train, loss, profile: target tokens per identical batch; 0 skips these batches in train."},
    )
    memory_tokens: int = field(default=8192, metadata={"help": "memory: target tokens of the training step."})
    max_tokens: int = field(
        default=4096, metadata={"help": "train, data: tokens per batch of real text, padding included."}
    )
    label_smoothing_factor: float = field(
        default=0.0, metadata={"help": "train: label smoothing on real text; it slows the baselines down more."}
    )
    steps: int = field(default=10, metadata={"help": "train: steps on real text per round; 0 skips real text."})
    tutorial_length: int = field(
        default=350, metadata={"help": "train: length the tutorial baseline pads every sentence to."}
    )
    tutorial_batch_size: int = field(default=8, metadata={"help": "train: pairs per batch of the tutorial baseline."})
    text_vocab_size: int = field(default=8000, metadata={"help": "train, data: vocabulary size on real text."})
    scales: list[int] = field(
        default_factory=lambda: [1, 2, 4, 8, 16, 32, 64],
        metadata={
            "help": "scaling: factors. Source lengths are 32 times and vocabularies 1,000 times each factor, batch "
            "sizes the factors, numbers of beams and layers the first four."
        },
    )
    torch_compile: bool = field(
        default=False,
        metadata={
            "help": "Also measure with torch.compile: training steps of ours and Marian on identical batches, and our "
            "decoding over a static cache, whose steps are compiled on a GPU only."
        },
    )
    packing: bool = field(
        default=False, metadata={"help": "train: also measure our batches of real text packed, without padding."}
    )
    stream_pairs: int = field(default=10_000_000, metadata={"help": "scaling: pairs in the stream."})
    model: list[str] = field(
        default_factory=list,
        metadata={"help": "serve, soak: folders of trained models, instead of presets with random weights."},
    )
    backend: list[str] = field(
        default_factory=lambda: list(BACKENDS), metadata={"help": f"serve, soak: {' or '.join(BACKENDS)}, or both."}
    )
    quantization: str = field(default="int8", metadata={"help": "serve, soak: weights of the CTranslate2 exports."})
    clients: list[int] = field(
        default_factory=lambda: [1, 8, 64], metadata={"help": "serve: clients that ask at the same time."}
    )
    seconds: float = field(
        default=60.0, metadata={"help": "serve: seconds of load for each number of clients, all rounds together."}
    )
    requests: int = field(default=10_000, metadata={"help": "soak: number of requests."})
    roofline_seconds: float = field(
        default=0.5,
        metadata={
            "help": "Seconds per probe of the machine's peak FLOP/s and memory bandwidth.",
            "aliases": ["--limit_seconds"],
        },
    )
    seed: int = field(default=0, metadata={"help": "Seed of the weights and batches."})

    def __post_init__(self) -> None:
        for name, known in (("dtype", DTYPES), ("baselines", BASELINES), ("backend", BACKENDS)):
            for value in getattr(self, name):
                if value not in known:
                    raise ValueError(f"`{name}` {value} is unknown; choose from {', '.join(known)}")
        if self.device not in DEVICES:
            raise ValueError(f"`device` {self.device} is unknown; choose from {', '.join(DEVICES)}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("`device` cuda: torch finds no GPU; use cpu")
        for name in self.preset:
            preset_config(name)
        for name, value in vars(self).items():
            _check_numbers(name, value if isinstance(value, list) else [value])


def _check_numbers(name: str, values: list[Any]) -> None:
    least = 0 if name in MAY_BE_ZERO else 1
    if not values and name not in MAY_BE_EMPTY:
        raise ValueError(f"`{name}` is empty; give at least one value")
    for value in values:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and not value >= least:
            raise ValueError(f"`{name}` is {value}; it must be at least {least}")


__all__ = ["BenchmarkArguments"]
