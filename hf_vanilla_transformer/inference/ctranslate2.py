"""The CTranslate2 runtime: an exported model behind the `generate()` that `translate()` calls.

Shape legend: B batch, n hypotheses a sentence, S source length, T target length.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput
from transformers.utils import GENERATION_CONFIG_NAME

from ..errors import one_line
from ..files import read_json_object
from ..model.masks_vanilla_transformer import mask_padding
from ..search.row_limits import RowLimits
from .generation_settings import check_generation_settings
from .loading import load_tokenizer
from .output_limits import LENGTH_BOUNDS
from .teacher_forcing import IdPair

# Key of the number of positions in CTranslate2's config.json, which CTranslate2 itself ignores.
POSITIONS_KEY = "max_position_embeddings"

# Version of the format of model.bin, and the numbers of its floating-point types; bfloat16 is never exported.
BINARY_VERSION = 6
FLOATING_TYPES = {0: "<f4", 4: "<f2"}

# Settings of `generate()` and their names in CTranslate2. It can also bar tokens or the end of a sentence, but then
# renormalizes the other tokens, so that a beam search finds other translations.
OPTION_NAMES = {
    "num_beams": "beam_size",
    "num_return_sequences": "num_hypotheses",
    "length_penalty": "length_penalty",
}

# Finished hypotheses that end a search, as a multiple of the beams, by `early_stopping`. With True, `generate()` ends
# at as many as beams; with False, when no unfinished one would be better if it ended now, which may be too early. Of
# 500 sentences of Multi30k with 4 and 5 beams, 2.0 gives 500 and 499 translations of `generate()`, 1.0 gives 495 and
# 493. With a model of 20 BLEU it is 494; of the other six, five score better than those of `generate()`.
PATIENCE = {True: 1.0, False: 2.0, None: 2.0}

# Settings that are translated otherwise, or do not affect tokens.
OTHER_SUPPORTED = {
    *LENGTH_BOUNDS, "alignment_heads", "bos_token_id", "decoder_start_token_id", "early_stopping", "eos_token_id",
    "language_ids", "output_attentions", "output_hidden_states", "output_logits", "output_scores", "pad_token_id",
    "return_dict_in_generate", "transformers_version", "use_cache",
}  # fmt: skip  # one name a line would say no more

# Prefixes of settings without effect on a search, or only with sampling, beam groups or an assistant model.
INEFFECTIVE = (
    "_", "assistant_", "cache_", "epsilon_", "eta_", "is_assistant", "max_cache_len", "min_p", "num_assistant_",
    "target_lookbehind", "temperature", "top_h", "top_k", "top_p", "training_", "typical_p",
)  # fmt: skip  # as above

# Values that change nothing, of settings whose default in transformers is None.
NEUTRAL = {
    "min_length": 0,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "do_sample": False,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "remove_invalid_values": False,
    "renormalize_logits": False,
}


def ctranslate2_missing() -> str | None:
    """Return why CTranslate2 cannot be used, or None."""
    if find_spec("ctranslate2"):
        return None
    return 'it is not installed; run `pip install "hf-vanilla-transformer[export]"`'


def check_settings(settings: Mapping[str, Any], program: str = "CTranslate2") -> None:
    """Raise a ValueError that names a setting of `generate()` which CTranslate2, or another program, cannot follow."""
    defaults = GenerationConfig().to_dict()
    for name, value in settings.items():
        if value in (None, defaults.get(name), NEUTRAL.get(name)) or _is_supported(name, value, settings):
            continue
        raise ValueError(
            f"{program} does not support `{name}`={value!r} of generate(); leave it out, or translate with "
            "`backend=transformers`"
        )
    if settings.get("early_stopping") not in PATIENCE:
        raise ValueError(
            f"{program} does not support `early_stopping`={settings['early_stopping']!r}; set it to True or False"
        )


def _is_supported(name: str, value: Any, settings: Mapping[str, Any]) -> bool:
    if name in OPTION_NAMES or name in OTHER_SUPPORTED or name.startswith(INEFFECTIVE):
        return True
    if name == "bad_words_ids":
        # Single tokens, as Marian bars padding. CTranslate2 shares out their probability, `generate()` does not: no
        # difference where it is small.
        return all(len(word) == 1 for word in value)
    if name == "min_new_tokens":
        # Bars the end as the first token, as fairseq does; also by sharing out its probability.
        return value == 1
    # An end forced as the last token that the length bound allows.
    ends = settings.get("eos_token_id")
    return name == "forced_eos_token_id" and value in (ends if isinstance(ends, list) else [ends])


def load_ctranslate2(
    folder: str | Path, device: str | None = None, compute_type: str = "default", trust_remote_code: bool = False
) -> tuple["CTranslate2Model", PreTrainedTokenizerBase]:
    """Load an exported model and its tokenizer, for `translate` and `translate_lines`.

    Args:
        folder: What `export_model(..., to="ctranslate2")` wrote.
        device: "cpu" (default), "cuda" or "cuda:1".
        compute_type: Of CTranslate2; by default that of the weights, or the nearest one that the device supports.
        trust_remote_code: Whether to run Python code that comes with the tokenizer.

    Raises:
        ValueError: CTranslate2 is not installed, or the folder, the device or the compute type cannot be used.
    """
    return CTranslate2Model(folder, device or "cpu", compute_type), load_tokenizer(folder, trust_remote_code)


class CTranslate2Model(nn.Module):
    """An exported model that decodes in place of one of transformers.

    The same settings give the same tokens, except that with `early_stopping=False` a beam search ends by another rule:
    at `PATIENCE` times as many finished hypotheses as beams.

    Attributes:
        folder: What it was loaded from.
        config: Has `max_position_embeddings`, the most tokens of a source and of an output.
        generation_config: The settings saved with the model.
        device: Where ids are expected and returned: always the CPU.

    Raises:
        ValueError: As `load_ctranslate2`.
    """

    def __init__(self, folder: str | Path, device: str = "cpu", compute_type: str = "default"):
        super().__init__()
        self.folder = folder = Path(folder)
        self.training = False
        self.device = torch.device("cpu")
        self._translator = _load_translator(folder, device, compute_type)
        try:
            positions = read_json_object(folder / "config.json", "export the model again")[POSITIONS_KEY]
            if type(positions) is not int or positions < 1:
                raise ValueError(f"config.json: {POSITIONS_KEY} is {positions!r}")
            self.config = SimpleNamespace(max_position_embeddings=positions)
            self._source_tokens, self._target_tokens = _read_vocabularies(folder)
            self.generation_config = GenerationConfig.from_pretrained(folder)
            check_generation_settings(self.generation_config, GENERATION_CONFIG_NAME, len(self._target_tokens))
        # Damaged files raise errors of many kinds.
        except Exception as error:
            raise ValueError(
                f"{folder} is not a complete export of `export_model` ({one_line(error)}); export the model again"
            ) from error
        self._target_ids = {token: i for i, token in enumerate(self._target_tokens)}

    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        stopping_criteria: Sequence[Any] = (),
        **options: Any,
    ) -> GenerateBeamEncoderDecoderOutput | Tensor:
        """Return the tokens (B * n, T) of the best n hypotheses, like `generate()` of transformers.

        Args:
            input_ids: Sources (B, S), padded.
            attention_mask: 1 at tokens, 0 at padding, (B, S); by default 0 where `input_ids` is `pad_token_id`.
            stopping_criteria: `RowLimits`, or none.
            **options: `num_beams`, `num_return_sequences`, `length_penalty`, `early_stopping`, `max_length` and
                `max_new_tokens`; by default the model's own. With `return_dict_in_generate`, scores are returned too
                if `output_scores` or `output_logits` asks for them.

        Raises:
            ValueError: CTranslate2 does not support an option, or a source is longer than the positions.
        """
        row_limits = [each for each in stopping_criteria if isinstance(each, RowLimits)]
        others = [each for each in stopping_criteria if each not in row_limits]
        options = self._merge_settings(options | ({"stopping_criteria": others} if others else {}))
        if input_ids.shape[1] > self.config.max_position_embeddings:
            raise ValueError(
                f"the source has {input_ids.shape[1]} tokens, but the export has positions for "
                f"{self.config.max_position_embeddings}; shorten it, or export with larger `max_positions`"
            )
        mask = mask_padding(attention_mask, input_ids, self.generation_config)
        mask = torch.ones_like(input_ids) if mask is None else mask
        sources = [
            [self._source_tokens[i] for i in row[keep.bool()].tolist()]
            for row, keep in zip(input_ids.cpu(), mask.cpu(), strict=True)
        ]
        # `max_length` counts the start token, `max_new_tokens` does not.
        limit = options["max_new_tokens"] + 1 if options.get("max_new_tokens") else options.get("max_length", 20)
        limits = row_limits[0].limits.tolist() if row_limits else [limit] * len(sources)
        results = self._translate(sources, [self._decoding_length(each, options) for each in limits], options)
        start = options["decoder_start_token_id"]
        rows = [
            torch.tensor([start, *map(self._target_ids.__getitem__, tokens)], device=self.device)
            for result in results
            for tokens in result.hypotheses
        ]
        sequences = pad_sequence(rows, batch_first=True, padding_value=options.get("pad_token_id", 0))
        if not options.get("return_dict_in_generate"):
            return sequences
        scores = [score for result in results for score in result.scores]
        return GenerateBeamEncoderDecoderOutput(
            sequences=sequences,  # type: ignore[arg-type]  # declared for ids of one type of tensor
            sequences_scores=torch.tensor(scores, device=self.device) if scores else None,
        )

    def alignment_weights(self, pairs: Sequence[IdPair]) -> list[Tensor]:
        """Return what the target tokens before the end token attend to in each source, (T - 1, S)."""
        sources = [[self._source_tokens[i] for i in source] for source, _ in pairs]
        prefixes = [[self._target_tokens[i] for i in target[:-1]] for _, target in pairs]
        results = self._submit(
            sources,
            len(sources),
            target_prefix=prefixes,
            # Weights of a forced prefix are right only without beams.
            beam_size=1,
            max_decoding_length=max(map(len, prefixes)) + 1,
            min_decoding_length=0,
            max_input_length=0,
            return_attention=True,
        )
        weights = (torch.tensor(each.result().attention[0], device=self.device) for each in results)
        return [rows[: len(prefix)] for rows, prefix in zip(weights, prefixes, strict=True)]

    def _translate(self, sources: list[list[str]], lengths: list[int], options: Mapping[str, Any]) -> list[Any]:
        """Translate the tokens of sources into at most `lengths` tokens: those of one length by one call."""
        pending: dict[int, Any] = {}
        settings = self._translator_options(options)
        for length in dict.fromkeys(lengths):
            group = [i for i, each in enumerate(lengths) if each == length]
            found = self._submit([sources[i] for i in group], len(sources), max_decoding_length=length, **settings)
            pending.update(zip(group, found, strict=True))
        return [pending[i].result() for i in range(len(sources))]

    def _submit(self, sources: list[list[str]], total: int, **options: Any) -> list[Any]:
        """Start to translate the tokens of sources, `total` of which are shared out among the translator's threads."""
        size = math.ceil(total / self._translator.num_translators)
        return self._translator.translate_batch(sources, max_batch_size=size, asynchronous=True, **options)

    def _merge_settings(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the model's settings overridden by the caller's, checked."""
        own = self.generation_config.to_dict()
        if options.keys() & {*LENGTH_BOUNDS}:
            # One bound of the caller's replaces both of the model's.
            own |= dict.fromkeys(LENGTH_BOUNDS)
        settings = own | {name: value for name, value in options.items() if value is not None}
        check_settings(settings)
        return {name: value for name, value in settings.items() if value is not None}

    def _decoding_length(self, limit: int, options: Mapping[str, Any]) -> int:
        """Translate the most tokens of an output, start token included, into CTranslate2's `max_decoding_length`."""
        longest = limit - 1
        if options.get("forced_eos_token_id") is not None:
            longest = max(longest - 1, 1)
        return min(longest, self.config.max_position_embeddings)

    def _translator_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Translate the settings into arguments of CTranslate2."""
        ends = options["eos_token_id"]
        return {
            **{theirs: options[ours] for ours, theirs in OPTION_NAMES.items() if ours in options},
            "patience": PATIENCE[options.get("early_stopping")],
            "end_token": [self._target_tokens[end] for end in (ends if isinstance(ends, list) else [ends])],
            "suppress_sequences": [[self._target_tokens[word[0]]] for word in options.get("bad_words_ids", [])],
            # The end token is part of the output, also in its score.
            "return_end_token": True,
            "min_decoding_length": options.get("min_new_tokens", 0),
            "max_input_length": 0,
            "return_scores": bool(options.get("output_scores") or options.get("output_logits")),
        }


def _load_translator(folder: Path, device: str, compute_type: str) -> Any:
    """Return a `ctranslate2.Translator`."""
    if missing := ctranslate2_missing():
        raise ValueError(f"CTranslate2 cannot be used: {missing}")
    if not (folder / "model.bin").is_file():
        raise ValueError(
            f"{folder} holds no model.bin of CTranslate2; export the model first, or use `backend=transformers`"
        )
    import ctranslate2

    kind, _, index = device.partition(":")
    try:
        translator = ctranslate2.Translator(
            str(folder),
            device=kind,
            device_index=int(index or 0),
            compute_type=compute_type,
            # Threads that share a batch's products wait for each other; those with a part of the batch do not.
            inter_threads=torch.get_num_threads() if kind == "cpu" else 1,
            intra_threads=1,
        )
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{folder} cannot be loaded on {device} as {compute_type}: {one_line(error)}") from error
    check_finite_export(folder, str(folder), "export another checkpoint")
    return translator


def check_finite_export(folder: Path, where: str, remedy: str) -> None:
    """Raise a ValueError, from `where` to `remedy`, if a weight in the intact model.bin of a folder is not finite."""
    for name, values in _read_variables(folder / "model.bin"):
        if not np.isfinite(values).all():
            raise ValueError(f"{where}: {name} has numbers that are NaN or infinite; {remedy}")


def _read_variables(file: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the weights of floating-point types by their names; none if the format is of another version.

    The format is a version; name and revision of the specification; the number of weights; and for each its name, its
    shape, its type, the number of its bytes, and those. A string is its length, its characters and a zero.
    """
    content = np.memmap(file, mode="r")
    offset = 0

    def take(size: int) -> np.ndarray:
        nonlocal offset
        offset += size
        return content[offset - size : offset]

    def read(kind: str) -> int:
        return int(take(np.dtype(kind).itemsize).view(kind)[0])

    if read("<u4") != BINARY_VERSION:
        return
    take(read("<u2")), read("<u4")
    for _ in range(read("<u4")):
        name = take(read("<u2"))[:-1].tobytes().decode()
        take(4 * read("u1"))
        kind, values = read("u1"), take(read("<u4"))
        if kind in FLOATING_TYPES:
            yield name, values.view(FLOATING_TYPES[kind])


def _read_vocabularies(folder: Path) -> tuple[list[str], list[str]]:
    """Return the source and target tokens by id, one list for both if they share a vocabulary."""
    shared = (folder / "shared_vocabulary.json").is_file()
    vocabularies = []
    for name in ("shared",) if shared else ("source", "target"):
        file = folder / f"{name}_vocabulary.json"
        tokens = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise ValueError(f"{file.name} is no list of tokens")
        vocabularies.append(tokens)
    return vocabularies[0], vocabularies[-1]
