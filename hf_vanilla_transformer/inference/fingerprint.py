"""Fingerprints that tell whether models and tokenizers translate alike."""

import hashlib
import json
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from ..pretrained.loading import tokenizer_sides
from .ctranslate2 import CTranslate2Model


def model_fingerprint(model: Any, tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash weights, configuration, generation settings and tokenizer, regardless of where they were loaded from.

    The model is an encoder-decoder of transformers, an ensemble of them, or a `CTranslate2Model`.
    """
    digest = hashlib.sha256()
    for side in tokenizer_sides(tokenizer):
        backend = getattr(side, "backend_tokenizer", None)
        if backend is not None:
            backend = Tokenizer.from_str(backend.to_str())
            # State of the last call.
            backend.no_padding()
            backend.no_truncation()
        content = (sorted(side.get_vocab().items()), side.special_tokens_map, backend and backend.to_str())
        digest.update(json.dumps(content, default=str).encode())
    digest.update(model.generation_config.to_json_string().encode())
    if isinstance(model, CTranslate2Model):
        # Its memory cannot be read, but the folder contains only the export.
        for path in sorted(path for path in model.folder.iterdir() if path.is_file()):
            with path.open("rb") as file:
                digest.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
        return digest.hexdigest()
    digest.update(model.config.to_json_string().encode())
    for name, weight in sorted(model.state_dict().items()):
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}\n".encode())
        digest.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the sizes of the vocabularies and a hash of their tokens and ids."""
    vocabularies = [sorted(side.get_vocab().items()) for side in tokenizer_sides(tokenizer)]
    digest = hashlib.blake2b(json.dumps(vocabularies).encode(), digest_size=6).hexdigest()
    return f"{'/'.join(str(len(tokens)) for tokens in vocabularies)} tokens, {digest}"
