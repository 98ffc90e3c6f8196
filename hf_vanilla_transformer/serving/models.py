"""Loading models to serve: from folders, from the Hub, and as CTranslate2 exports, existing or made on loading."""

import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCard, constants

from .. import __version__
from ..export import export_model
from ..export.formats import load_for_export
from ..inference.ctranslate2 import load_ctranslate2
from ..inference.fingerprint import model_fingerprint
from ..inference.translation import load
from ..model.hub_code_vanilla_transformer import MODEL_TYPE
from ..pretrained.languages import Direction, is_zero_shot, language_pairs
from .engine import Engine, ServedModel

# "en-de", or "eng_Latn-deu_Latn" as in NLLB.
PAIR_NAME = re.compile(r"([a-z]{2,3}(?:_\w+)?)-([a-z]{2,3}(?:_\w+)?)")

# In HF_HOME, next to the Hub cache.
EXPORTS = Path(constants.HF_HOME) / "vanilla-transformer-exports"

CTRANSLATE2_FILE = "model.bin"


@dataclass(frozen=True)
class Loading:
    """How to load models.

    Attributes:
        backend: "transformers" or "ctranslate2"; None: inferred from the model's files.
        device: For example "cuda:1"; None: a GPU, if any, for transformers, the CPU for CTranslate2.
        dtype: Weight dtype for transformers; None: as saved.
        quantization: Weight type to export models of this package to CTranslate2 with, cached; None: no export.
        trust_remote_code: Run Python code shipped with a model.
    """

    backend: str | None = None
    device: str | None = None
    dtype: torch.dtype | None = None
    quantization: str | None = None
    trust_remote_code: bool = False

    def load(self, name: str) -> tuple[Any, Any]:
        """Return a model and its tokenizer; raise a ValueError if options conflict."""
        is_export = Path(name, CTRANSLATE2_FILE).is_file()
        backend = self.backend or ("ctranslate2" if is_export or self.quantization else "transformers")
        if backend == "transformers":
            if self.quantization:
                raise ValueError("`quantization` needs `backend=ctranslate2`; leave one of them out")
            return load(name, self.dtype, self.device, self.trust_remote_code)
        if self.dtype:
            raise ValueError("`bf16` needs `backend=transformers`; leave it out")
        if self.quantization and is_export:
            raise ValueError(f"{name} is already an export; leave `quantization` out, or name the original model")
        folder = self._export(name) if self.quantization else name
        return load_ctranslate2(folder, self.device, trust_remote_code=self.trust_remote_code)

    def _export(self, name: str) -> Path:
        """Return the cached export of a model, creating it if missing."""
        model, tokenizer = load_for_export(name, self.trust_remote_code)
        if tokenizer is None:
            raise ValueError(f"{name} has no tokenizer; save it with the model")
        folder = EXPORTS / f"{model_fingerprint(model, tokenizer)[:32]}-{self.quantization}-{__version__}"
        if folder.is_dir():
            return folder
        try:
            return export_model(
                name, "ctranslate2", folder, quantization=self.quantization, trust_remote_code=self.trust_remote_code
            )
        except (OSError, ValueError):
            # Another server may have created it first.
            if folder.is_dir():
                return folder
            raise


def load_engine(names: Iterable[str], loading: Loading, **options: Any) -> Engine:
    """Load models and start their threads.

    Args:
        names: Folders or names on the Hub, each optionally prefixed with `NAME=`; a NAME such as en-de sets the
            languages.
        loading: How to load them.
        **options: Passed to `ServedModel`.

    Raises:
        ValueError: A model cannot be loaded, or two have the same name or languages.
    """
    return Engine([_load_served(text, loading, options) for text in names])


def _load_served(text: str, loading: Loading, options: dict[str, Any]) -> ServedModel:
    name, folder = _split_name(text)
    # Load in a temporary thread: while another thread that has run PyTorch operations is alive, the cores of the
    # model's own thread sleep between operations, which then take 1.5 times as long.
    with ThreadPoolExecutor(1) as thread:
        model, tokenizer = thread.submit(loading.load, folder).result()
    known = language_pairs(tokenizer) or _card_pairs(model, folder)
    named = PAIR_NAME.fullmatch(name)
    if named and len(known) > 1 and named.groups() not in known and not is_zero_shot(tokenizer, named[1], named[2]):
        codes = sorted({code for pair in known for code in pair})
        raise ValueError(f"`model` {text}: its tokenizer has no pair {name}; its languages are {', '.join(codes)}")
    pairs = [(named[1], named[2])] if named else known
    return ServedModel(name, model, tokenizer, pairs, **options)


def _split_name(text: str) -> tuple[str, str]:
    """Split `[NAME=]MODEL` into the name in requests and the folder or name on the Hub."""
    name, equals, folder = text.partition("=")
    if not equals or Path(text).exists():
        name, folder = Path(text).resolve().name if Path(text).exists() else text, text
    if not name or not folder:
        raise ValueError(f"`model` {text} lacks a name or a folder; write NAME=FOLDER")
    return name, folder


def _card_pairs(model: Any, folder: str) -> list[Direction]:
    """Return the language pair in a model card written by training, source first."""
    card = Path(folder, "README.md")
    if getattr(model.config, "model_type", MODEL_TYPE) != MODEL_TYPE or not card.is_file():
        return []
    try:
        languages = ModelCard.load(card).data.get("language")
    # The card may have been edited; it is not part of the model.
    except Exception:
        return []
    return [tuple(languages)] if isinstance(languages, list) and len(languages) == 2 else []
