"""CTranslate2 in a worker process.

On a small machine, once two libraries have run OpenMP threads in one process, PyTorch's threads sleep between ops, and
short ops take three times as long. The worker imports only this module.
"""

import math
from concurrent.futures import ProcessPoolExecutor
from functools import cache, lru_cache
from multiprocessing import get_context
from typing import Any, NamedTuple


class ExportedModel(NamedTuple):
    """How to load an exported model; hashable, as a cache key."""

    folder: str
    device: str
    compute_type: str
    threads: int


def decode_in_worker(
    model: ExportedModel, sources: list[list[str]], num_beams: int, new_tokens: int
) -> list[list[str]]:
    """Decode exactly `new_tokens` tokens for each source; return the best hypothesis of each."""
    return _worker().submit(_decode, model, sources, num_beams, new_tokens).result()


@cache
def _worker() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"))


# One case has at most two exported models.
@lru_cache(maxsize=2)
def _load(model: ExportedModel) -> Any:
    import ctranslate2

    return ctranslate2.Translator(
        model.folder,
        device=model.device,
        compute_type=model.compute_type,
        # On a CPU, faster than threads that share each matrix product, for every batch size.
        inter_threads=model.threads if model.device == "cpu" else 1,
        intra_threads=1,
    )


def _decode(model: ExportedModel, sources: list[list[str]], num_beams: int, new_tokens: int) -> list[list[str]]:
    lengths = {"min_decoding_length": new_tokens, "max_decoding_length": new_tokens}
    translator = _load(model)
    size = math.ceil(len(sources) / translator.num_translators)
    results = translator.translate_batch(sources, beam_size=num_beams, max_batch_size=size, **lengths)
    return [result.hypotheses[0] for result in results]
