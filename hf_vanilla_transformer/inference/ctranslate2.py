"""The CTranslate2 runtime: an exported model with the `generate()` that `translate()` calls.

Shape legend: B batch, n hypotheses per sentence, S source length, T target length.
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
from ..pretrained.generation_settings import check_generation_settings
from ..pretrained.loading import load_tokenizer
from ..pretrained.output_limits import LENGTH_BOUNDS
from ..pretrained.teacher_forcing import IdPair
from ..search.row_limits import RowLimits

# Key that we add to CTranslate2's config.json, and CTranslate2 ignores.
POSITIONS_KEY = "max_position_embeddings"

# Format version of model.bin, and its codes of floating-point types; bfloat16 is never exported.
BINARY_VERSION = 6
FLOATING_TYPES = {0: "<f4", 4: "<f2"}

# Settings of `generate()` and their names in CTranslate2. It can also suppress tokens or the end token, but then
# renormalizes the other tokens, so that beam search finds other translations.
OPTION_NAMES = {
    "num_beams": "beam_size",
    "num_return_sequences": "num_hypotheses",
    "length_penalty": "length_penalty",
    # It bans tokens before the softmax, `generate()` after it, so that some beam searches end differently. The start
    # token is in no n-gram, which matters only if an untrained model repeats it.
    "no_repeat_ngram_size": "no_repeat_ngram_size",
}

# Number of finished hypotheses that ends a search, as a multiple of the beams, by `early_stopping`. With True,
# `generate()` stops at one per beam; with False, when no unfinished one would be better if it ended now, which may be
# too early. On 500 sentences of Multi30k with 4 and 5 beams, 2.0 gives 500 and 499 of the translations of
# `generate()`, and 1.0 gives 495 and 493. With a model of 20 BLEU, 2.0 gives 494; of the other six, five have better
# scores than those of `generate()`.
PATIENCE = {True: 1.0, False: 2.0, None: 2.0}

# Settings that are converted elsewhere or do not affect tokens.
OTHER_SUPPORTED = {
    *LENGTH_BOUNDS, "alignment_heads", "bos_token_id", "decoder_start_token_id", "early_stopping", "eos_token_id",
    "language_ids", "output_attentions", "output_hidden_states", "output_logits", "output_scores", "pad_token_id",
    "return_dict_in_generate", "transformers_version", "use_cache",
}  # fmt: skip  # a table, not an expression

# Prefixes of settings without effect on a search, or only with sampling, beam groups or an assistant model.
INEFFECTIVE = (
    "_", "assistant_", "cache_", "epsilon_", "eta_", "is_assistant", "max_cache_len", "min_p", "num_assistant_",
    "target_lookbehind", "temperature", "text_facts", "top_h", "top_k", "top_p", "training_", "typical_p",
)  # fmt: skip  # as above

# Values without effect, for settings whose default in transformers is None.
NEUTRAL = {
    "min_length": 0,
    "repetition_penalty": 1.0,
    "do_sample": False,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "encoder_repetition_penalty": 1.0,
    "encoder_no_repeat_ngram_size": 0,
    "remove_invalid_values": False,
    "renormalize_logits": False,
}


def ctranslate2_missing() -> str | None:
    """Return the reason why CTranslate2 cannot be used, or None."""
    if find_spec("ctranslate2"):
        return None
    return "it is not installed; run `pip install ctranslate2`"


def check_settings(settings: Mapping[str, Any], program: str = "CTranslate2") -> None:
    """Raise a ValueError that names a setting of `generate()` which `program` does not support."""
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
        # Single tokens, as Marian bans padding. CTranslate2 renormalizes, `generate()` does not: no difference where
        # their probability is small.
        return all(len(word) == 1 for word in value)
    if name == "min_new_tokens":
        # Bans the end token as the first token, as fairseq does; also renormalized.
        return value == 1
    # An end token forced as the last token within the length bound.
    ends = settings.get("eos_token_id")
    return name == "forced_eos_token_id" and value in (ends if isinstance(ends, list) else [ends])


def load_ctranslate2(
    folder: str | Path, device: str | None = None, compute_type: str = "default", trust_remote_code: bool = False
) -> tuple["CTranslate2Model", PreTrainedTokenizerBase]:
    """Load an exported model and its tokenizer, for `translate` and `translate_lines`.

    Args:
        folder: Output folder of `export_model(..., to="ctranslate2")`.
        device: "cpu" (default), "cuda" or "cuda:1".
        compute_type: CTranslate2's compute type; by default that of the weights, or the nearest that the device
            supports.
        trust_remote_code: Whether to run Python code that comes with the tokenizer.

    Raises:
        ValueError: CTranslate2 is not installed, or the folder, the device or the compute type cannot be used.
    """
    return CTranslate2Model(folder, device or "cpu", compute_type), load_tokenizer(folder, trust_remote_code)


class CTranslate2Model(nn.Module):
    """An exported model that decodes in place of a transformers model.

    Equal settings give equal tokens, with two exceptions: with `early_stopping=False`, a beam search stops at
    `PATIENCE` times as many finished hypotheses as beams; with `no_repeat_ngram_size`, beam search may find other
    translations (see `OPTION_NAMES`).

    Attributes:
        folder: The folder it was loaded from.
        config: Has `max_position_embeddings`, the most tokens of a source and of an output.
        generation_config: The settings saved with the model.
        device: Device of ids passed and returned: always the CPU.

    Raises:
        ValueError: As for `load_ctranslate2`.
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
        # Damaged files raise many types of errors.
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
            input_ids: Padded sources (B, S).
            attention_mask: 1 at tokens, 0 at padding, (B, S); by default 0 where `input_ids` is `pad_token_id`.
            stopping_criteria: `RowLimits`, or none.
            **options: `num_beams`, `num_return_sequences`, `length_penalty`, `early_stopping`, `max_length` and
                `max_new_tokens`; by default the model's own. With `return_dict_in_generate`, scores are returned too
                if `output_scores` or `output_logits` is set.

        Raises:
            ValueError: CTranslate2 does not support an option, or a source exceeds the model's positions.
        """
        row_limits = [criterion for criterion in stopping_criteria if isinstance(criterion, RowLimits)]
        others = [criterion for criterion in stopping_criteria if criterion not in row_limits]
        options = self._merge_settings(options | ({"stopping_criteria": others} if others else {}))
        if input_ids.shape[1] > self.config.max_position_embeddings:
            raise ValueError(
                f"the source has {input_ids.shape[1]} tokens, but the export has positions for "
                f"{self.config.max_position_embeddings}; shorten it, or export with a larger `max_positions`"
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
        results = self._translate(sources, [self._decoding_length(limit, options) for limit in limits], options)
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
            sequences=sequences,  # type: ignore[arg-type]  # declared as LongTensor
            sequences_scores=torch.tensor(scores, device=self.device) if scores else None,
        )

    def alignment_weights(self, pairs: Sequence[IdPair]) -> list[Tensor]:
        """Return the attention of the target tokens before the end token to each source, (T - 1, S)."""
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
        weights = (torch.tensor(result.result().attention[0], device=self.device) for result in results)
        return [rows[: len(prefix)] for rows, prefix in zip(weights, prefixes, strict=True)]

    def _translate(self, sources: list[list[str]], lengths: list[int], options: Mapping[str, Any]) -> list[Any]:
        """Translate sources into at most `lengths` tokens each, with one call per length."""
        pending: dict[int, Any] = {}
        settings = self._translator_options(options)
        for length in dict.fromkeys(lengths):
            group = [i for i, own in enumerate(lengths) if own == length]
            results = self._submit([sources[i] for i in group], len(sources), max_decoding_length=length, **settings)
            pending.update(zip(group, results, strict=True))
        return [pending[i].result() for i in range(len(sources))]

    def _submit(self, sources: list[list[str]], total: int, **options: Any) -> list[Any]:
        """Start translating sources, in batches that split `total` sources among the translator's threads."""
        size = math.ceil(total / self._translator.num_translators)
        return self._translator.translate_batch(sources, max_batch_size=size, asynchronous=True, **options)

    def _merge_settings(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the model's settings overridden by the caller's, after checking them."""
        own = self.generation_config.to_dict()
        if options.keys() & {*LENGTH_BOUNDS}:
            # A length bound of the caller replaces both of the model's.
            own |= dict.fromkeys(LENGTH_BOUNDS)
        settings = own | {name: value for name, value in options.items() if value is not None}
        check_settings(settings)
        return {name: value for name, value in settings.items() if value is not None}

    def _decoding_length(self, limit: int, options: Mapping[str, Any]) -> int:
        """Convert an output length limit, start token included, to CTranslate2's `max_decoding_length`."""
        longest = limit - 1
        if options.get("forced_eos_token_id") is not None:
            longest = max(longest - 1, 1)
        return min(longest, self.config.max_position_embeddings)

    def _translator_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Convert settings to arguments of CTranslate2."""
        ends = options["eos_token_id"]
        return {
            **{theirs: options[ours] for ours, theirs in OPTION_NAMES.items() if ours in options},
            "patience": PATIENCE[options.get("early_stopping")],
            "end_token": [self._target_tokens[end] for end in (ends if isinstance(ends, list) else [ends])],
            "suppress_sequences": [[self._target_tokens[word[0]]] for word in options.get("bad_words_ids", [])],
            # The end token counts for output and score.
            "return_end_token": True,
            "min_decoding_length": options.get("min_new_tokens", 0),
            "max_input_length": 0,
            "return_scores": bool(options.get("output_scores") or options.get("output_logits")),
        }


def _load_translator(folder: Path, device: str, compute_type: str) -> Any:
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
            # Threads that share a matrix product wait for each other; threads with their own sentences do not.
            inter_threads=torch.get_num_threads() if kind == "cpu" else 1,
            intra_threads=1,
        )
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{folder} cannot be loaded on {device} as {compute_type}: {one_line(error)}") from error
    check_finite_export(folder, str(folder), "export another checkpoint")
    return translator


def check_finite_export(folder: Path, where: str, remedy: str) -> None:
    """Raise a ValueError, from `where` to `remedy`, if a weight in an intact model.bin is not finite."""
    for name, values in _read_variables(folder / "model.bin"):
        if not np.isfinite(values).all():
            raise ValueError(f"{where}: {name} has numbers that are NaN or infinite; {remedy}")


def _read_variables(file: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield names and values of the floating-point weights; none if the format has another version.

    The format: its version; name and revision of the model specification; the number of weights; for each weight its
    name, shape, type, size in bytes, and the bytes. A string is its length, its characters and a zero byte.
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
    """Return the source and target tokens by id; the same list for both if the vocabulary is shared."""
    shared = (folder / "shared_vocabulary.json").is_file()
    vocabularies = []
    for name in ("shared",) if shared else ("source", "target"):
        file = folder / f"{name}_vocabulary.json"
        tokens = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            raise ValueError(f"{file.name} is not a list of tokens")
        vocabularies.append(tokens)
    return vocabularies[0], vocabularies[-1]
