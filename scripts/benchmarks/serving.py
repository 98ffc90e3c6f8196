"""The server under load, compared with offline translation of the same sentences; its memory over many requests."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.data.tokenizer_training import train_tokenizer
from hf_vanilla_transformer.export.formats import export_model
from hf_vanilla_transformer.inference.ctranslate2 import load_ctranslate2
from hf_vanilla_transformer.inference.translation import load, translate

from .arguments import BenchmarkArguments
from .baselines import our_model
from .clients import Answer, Load, own_process, run_load
from .measure import OURS, Case, Disagreement, Sample
from .server import Server, running_server
from .text import read_pairs, with_text

# Sentences in the first request, which sends a list.
LIST_SIZE = 50

# Clients of the soak, and the options that its requests cycle through.
SOAK_CLIENTS = 128
SOAK_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"num_beams": 1},
    {"num_beams": 2, "num_hypotheses": 2, "scores": True},
    {"num_beams": 2, "length_penalty": 0.6},
)
# Memory is read after each of these parts of the requests; the first few warm up the server.
SOAK_PARTS = 20
SOAK_WARM_UP = 4
# Allowed growth of memory after the warm-up.
SOAK_GROWTH = 1.05


class Model(NamedTuple):
    """A model to serve, named after its preset or folder."""

    name: str
    folder: str
    backend: str
    device: str
    # None: the library's choice.
    threads: int | None
    # Maximum per translation; None: depends on the source.
    max_new_tokens: int | None

    def server_options(self) -> list[str]:
        return ["--model", self.folder, "--backend", self.backend, "--device", self.device]

    def environment(self) -> dict[str, str]:
        return {"OMP_NUM_THREADS": str(self.threads)} if self.threads else {}

    def request(self, text: str | Sequence[str]) -> dict[str, Any]:
        body: dict[str, Any] = {"text": text, "split_sentences": False}
        return body | ({"max_new_tokens": self.max_new_tokens} if self.max_new_tokens else {})


def serve_benchmark(args: BenchmarkArguments, data_args: DataArguments) -> Iterator[Case]:
    """Compare serving concurrent clients with offline translation of the same sentences."""
    text, sentences = read_sentences(data_args)
    with tempfile.TemporaryDirectory() as folder:
        for name, saved in saved_models(args, text, Path(folder)).items():
            for backend in args.backend:
                yield from load_cases(prepared(name, saved, backend, args, Path(folder)), sentences, args)


def read_sentences(data_args: DataArguments) -> tuple[Any, list[str]]:
    """Return the test pairs if a file has them, else the training pairs, and their non-blank sources."""
    pairs = read_pairs(with_text(data_args), "test" if data_args.files("test") else "train")
    return pairs, [sentence for sentence in pairs["source"] if sentence.strip()]


def saved_models(args: BenchmarkArguments, text: Any, folder: Path) -> dict[str, str]:
    """Return folders by model name: those of `args.model`, or a model with random weights for each preset."""
    if args.model:
        return {Path(model).resolve().name: model for model in args.model}
    sentences = (sentence for side in ("source", "target") for sentence in text[side])
    tokenizer = train_tokenizer(sentences, vocab_size=args.text_vocab_size)
    for preset in args.preset:
        torch.manual_seed(args.seed)
        our_model(preset, vocab_size=args.vocab_size[0]).save_pretrained(folder / preset)
        tokenizer.save_pretrained(folder / preset)
    return {preset: str(folder / preset) for preset in args.preset}


def prepared(name: str, saved: str, backend: str, args: BenchmarkArguments, folder: Path) -> Model:
    """Return a model for a backend, exported if needed; random weights translate to `args.length` tokens at most."""
    if backend == "ctranslate2":
        saved = str(export_model(saved, "ctranslate2", folder / f"{name}-ct2", quantization=args.quantization))
    return Model(name, saved, backend, args.device, args.threads, None if args.model else args.length)


def load_cases(model: Model, sentences: list[str], args: BenchmarkArguments) -> Iterator[Case]:
    """Compare a server's throughput with offline translation of the same sentences, for each number of clients."""
    kind = model.backend if model.backend == "transformers" else f"{model.backend} {args.quantization}"
    with (
        running_server(*model.server_options(), environment=model.environment()) as server,
        own_process() as clients,
        own_process() as offline,
    ):
        check_list(model, server, sentences[:LIST_SIZE], clients, offline)
        bodies, served = [model.request(sentence) for sentence in sentences], list[Answer]()

        def serve(num_clients: int) -> Sample:
            load = ask(server, bodies, num_clients, clients, args.seconds / args.rounds)
            served[:] = load.answers
            return Sample(load.seconds, len(served), latencies=[answer.seconds for answer in served])

        def translate_served() -> Sample:
            requested = list(islice(cycle(sentences), len(served)))
            texts, seconds = offline.submit(translate_offline, model, requested).result()
            check_equal([text for answer in served for text in translations(answer)], texts)
            return Sample(seconds, len(texts))

        for number in args.clients:
            yield Case(
                "serve",
                f"{number} client{'s' if number > 1 else ''}, {model.name}, {kind}",
                {OURS: partial(serve, number), "offline": translate_served},
                unit="sentences",
                notes=f"every answer equals the offline one, {args.seconds:g} s",
                warm_up=False,
            )


def check_list(
    model: Model, server: Server, sentences: list[str], clients: ProcessPoolExecutor, offline: ProcessPoolExecutor
) -> None:
    """Check that a list is answered in order; also warms up the server and the offline process."""
    (answer,) = ask(server, [model.request(sentences)], 1, clients).answers
    check_equal(translations(answer), offline.submit(translate_offline, model, sentences).result()[0])


def ask(
    server: Server, bodies: list[Any], num_clients: int, clients: ProcessPoolExecutor, seconds: float | None = None
) -> Load:
    """Run a load in the clients' process; raises OSError if a request is refused or unanswered."""
    load = clients.submit(run_load, f"{server.url}/v1/translations", bodies, num_clients, seconds).result()
    for number, answer in enumerate(load.answers, start=1):
        if answer.status != 200:
            raise OSError(f"the server answered request {number} with status {answer.status}: {answer.body[:200]}")
    return load


def translations(answer: Answer) -> list[str]:
    texts = answer.json()["translations"]
    return [sentence["hypotheses"][0]["text"] for text in texts for sentence in text["sentences"]]


def check_equal(served: list[str], offline: list[str]) -> None:
    """Check that the served translations equal the offline ones, in the same order."""
    if len(served) != len(offline):
        raise Disagreement(f"the server gave {len(served)} translations for {len(offline)} sentences")
    if different := [i for i, (one, other) in enumerate(zip(served, offline, strict=True)) if one != other]:
        i = different[0]
        raise Disagreement(
            f"{len(different)} of {len(served)} answers differ from the offline translation, the first in sentence "
            f"{i + 1}: {served[i]!r}, offline {offline[i]!r}"
        )


def translate_offline(model: Model, sentences: list[str]) -> tuple[list[str], float]:
    """Return the translations of sentences, and the seconds that they took."""
    if model.threads:
        torch.set_num_threads(model.threads)
    loaded, tokenizer = _load(model)
    start = time.perf_counter()
    hypotheses = translate(loaded, tokenizer, sentences, max_new_tokens=model.max_new_tokens)
    return [best[0].text for best in hypotheses], time.perf_counter() - start


@cache
def _load(model: Model) -> tuple[Any, Any]:
    if model.backend == "ctranslate2":
        return load_ctranslate2(model.folder, model.device)
    return load(model.folder, device=model.device)


# Memory


def soak_benchmark(args: BenchmarkArguments, data_args: DataArguments) -> Iterator[Case]:
    """Read the memory of a server while many clients send requests with various options."""
    text, sentences = read_sentences(data_args)
    with tempfile.TemporaryDirectory() as folder:
        for name, saved in saved_models(replace(args, preset=["tiny"]), text, Path(folder)).items():
            for backend in args.backend:
                yield from soak_cases(prepared(name, saved, backend, args, Path(folder)), sentences, args.requests)


def soak_cases(model: Model, sentences: list[str], num_requests: int) -> Iterator[Case]:
    """Read a server's memory after each part of the requests; raises ValueError if it grows after the warm-up."""
    options = cycle(SOAK_OPTIONS)
    bodies = ({**model.request(sentence), **next(options)} for sentence in cycle(sentences))
    resident: dict[int, int] = {}

    def send(number: int) -> Sample:
        ask(server, list(islice(bodies, number - max(resident, default=0))), SOAK_CLIENTS, clients)
        resident[number] = server.resident_bytes
        return Sample(resident[number])

    with running_server(*model.server_options(), environment=model.environment()) as server, own_process() as clients:
        for part in range(1, SOAK_PARTS + 1):
            number = num_requests * part // SOAK_PARTS
            yield Case(
                "soak",
                f"memory after {number:,} requests, {model.name}, {model.backend}",
                {OURS: partial(send, number)},
                quantity="bytes",
                axis=("requests", number),
                notes=f"resident memory of the server, {model.backend}, {SOAK_CLIENTS} clients",
                rounds=1,
                warm_up=False,
            )
    warm, last = (resident[num_requests * part // SOAK_PARTS] for part in (SOAK_WARM_UP, SOAK_PARTS))
    if last > SOAK_GROWTH * warm:
        grew = f"grew from {warm / 1e6:.0f} to {last / 1e6:.0f} MB"
        raise ValueError(f"the memory of the server {grew}: {model.name}, {model.backend}")
