"""Arguments of the benchmarks."""

from dataclasses import dataclass

import torch

from hf_vanilla_transformer.options import (
    NotNegative,
    NotNegativeFloat,
    Positive,
    PositiveFloat,
    check_ranges,
    option,
)
from hf_vanilla_transformer.presets import preset_config

from .machine import DTYPES

BASELINES = ["marian", "bart", "tutorial", "ctranslate2"]
BACKENDS = ["transformers", "ctranslate2"]


@dataclass
class BenchmarkArguments:
    """What to measure and how; for `transformers.HfArgumentParser`.

    Raises:
        ValueError: A value is unknown or too small; names the argument.
    """

    output_dir: str = option("runs/benchmark", "Output folder for results.json and table.md.")
    device: str = option("cpu", "Device of the models.", choices=["cpu", "cuda"])
    dtype: list[str] = option(["float32"], "Data types.", choices=[*DTYPES])
    preset: list[str] = option(["small"], "Model shapes: small, base, big or a row of Table 3.")
    vocab_size: list[Positive] = option(
        [8000, 32000],
        "Vocabulary sizes of loss and of train on identical batches; generate, memory and profile use the last one, "
        "products, scaling, startup and serve the first.",
    )
    baselines: list[str] = option(
        BASELINES, "Implementations to compare against.", choices=BASELINES, aliases=["--peers"]
    )
    rounds: Positive = option(7, "Timed rounds per comparison, after one warm-up round.")
    threads: Positive | None = option(None, "CPU threads (default: torch's choice).")
    batch_size: list[Positive] = option([1, 32, 128], "generate, profile: sentences per batch.")
    num_beams: list[Positive] = option([1, 4], "generate, profile: 1 is greedy search.")
    length: Positive = option(
        32, "Tokens per source, target and generated sequence in random batches; serve, soak: tokens per translation "
        "by models with random weights.",
    )  # fmt: skip  # one text
    tokens: NotNegative = option(
        2048, "train, loss, profile: target tokens per random batch; 0 skips these batches in train."
    )
    memory_tokens: Positive = option(8192, "memory: target tokens of the training step.")
    max_tokens: Positive = option(4096, "train, data: tokens per batch of real text, padding included.")
    label_smoothing_factor: NotNegativeFloat = option(
        0.0, "train: label smoothing on real text, which costs the baselines more time than ours."
    )
    steps: NotNegative = option(10, "train: steps on real text per round; 0 skips real text.")
    tutorial_length: Positive = option(350, "train: length to which the tutorial baseline pads every sentence.")
    tutorial_batch_size: Positive = option(8, "train: pairs per batch of the tutorial baseline.")
    text_vocab_size: Positive = option(8000, "train, data: vocabulary size on real text.")
    yoyodyne_python: str | None = option(None, "words: Python of an environment with yoyodyne, to compare with it.")
    scales: list[Positive] = option(
        [1, 2, 4, 8, 16, 32, 64],
        "scaling: factors. Source lengths are 32 times each factor, vocabularies 1,000 times; batch sizes are the "
        "factors, beams and layers the first four.",
    )
    torch_compile: bool = option(
        False,
        "train, generate: also measure with torch.compile: training steps of ours and Marian on identical batches, "
        "and our decoding with a static cache, compiled on a GPU only.",
    )
    packing: bool = option(False, "train: also measure our batches of real text packed, without padding.")
    stream_pairs: Positive = option(10_000_000, "scaling: pairs in the stream.")
    model: list[str] = option([], "serve, soak: folders of trained models, instead of presets with random weights.")
    backend: list[str] = option(BACKENDS, "serve, soak: backends that run the models.", choices=BACKENDS)
    quantization: str = option("int8", "serve, soak: quantization of the CTranslate2 exports.")
    clients: list[Positive] = option([1, 8, 64], "serve: numbers of concurrent clients.")
    seconds: PositiveFloat = option(60.0, "serve: seconds of load per number of clients, over all rounds.")
    requests: Positive = option(10_000, "soak: number of requests.")
    roofline_seconds: NotNegativeFloat = option(
        0.5, "Seconds per probe of the machine's peak FLOP/s and memory bandwidth.", aliases=["--limit_seconds"]
    )
    seed: NotNegative = option(0, "Seed of weights and batches.")

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("`device` is cuda, but torch finds no GPU; use cpu")
        for name in self.preset:
            preset_config(name)
