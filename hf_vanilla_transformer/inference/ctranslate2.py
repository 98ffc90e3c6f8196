"""A model that `export.py` wrote for CTranslate2, with the `generate()` that `translation.py` asks of a model.

Legend: B batch, n hypotheses a sentence, S source length, T target length.
"""

import json
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.generation.utils import GenerateBeamEncoderDecoderOutput

from .loading import load_tokenizer
from .translation import LENGTH_BOUNDS

# Settings of `generate()` by the names that CTranslate2 has for the same. It also has ways to keep words or the end
# from a sentence, but makes up for it among the other words, which in a beam search gives other translations.
SERVED = {
    "num_beams": "beam_size",
    "num_return_sequences": "num_hypotheses",
    "length_penalty": "length_penalty",
}

# Hypotheses that must be finished before a search ends, as a multiple of the beams. `generate()` ends, with True, when
# there are as many as beams; with False, when none that is going on would be better if it ended now, which may be too
# early. Beams of 4 and 5, 500 sentences of Multi30k: with 2.0 all and 499 are those of `generate()`, with 1.0 495 and
# 493. Of a model of 20 BLEU it is 494; of the others five score better than those of `generate()`, and one worse.
PATIENCE = {True: 1.0, False: 2.0, None: 2.0}

# What is read of the generation settings in another way, or says nothing of the tokens.
READ_APART = {*LENGTH_BOUNDS} | {
    "bos_token_id", "decoder_start_token_id", "early_stopping", "eos_token_id", "output_attentions",
    "output_hidden_states", "output_logits", "output_scores", "pad_token_id", "return_dict_in_generate",
    "transformers_version", "use_cache",
}  # fmt: skip  # one name a line would say no more

# Says nothing as long as nobody asks for samples, groups of beams or an assistant model.
WITHOUT_EFFECT = (
    "_", "assistant_", "cache_", "epsilon_", "eta_", "is_assistant", "max_cache_len", "min_p", "num_assistant_",
    "target_lookbehind", "temperature", "top_h", "top_k", "top_p", "typical_p",
)  # fmt: skip  # beginnings of names, as above

# Of settings whose default in transformers is None, the value that changes nothing.
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


# Where the number of positions stands in the config.json of CTranslate2, which knows nothing of it and lets it be.
POSITIONS_KEY = "max_position_embeddings"


def ctranslate2_missing() -> str | None:
    """Return why CTranslate2 cannot be used, or None."""
    if find_spec("ctranslate2"):
        return None
    return 'it is not installed; `pip install "hf-vanilla-transformer[export]"` brings it'


def read_vocabularies(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the ids of the source and of the target, as the export wrote them."""
    shared = folder / "shared_vocabulary.json"
    files = (
        [shared, shared] if shared.is_file() else [folder / f"{side}_vocabulary.json" for side in ("source", "target")]
    )
    source, target = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    return source, target


def is_single_words(name: str, value: Any) -> bool:
    """Return whether a setting bars single tokens, as Marian's do padding.

    CTranslate2 shares their probability out among the others, `generate()` does not: no difference where it is small.
    """
    return name == "bad_words_ids" and all(len(word) == 1 for word in value)


def bars_empty_outputs(name: str, value: Any) -> bool:
    """Return whether a setting bars the end as the first token, as fairseq does: with the effect of single words."""
    return name == "min_new_tokens" and value == 1


def ends_at_the_bound(name: str, value: Any, settings: Mapping[str, Any]) -> bool:
    """Return whether a setting forces the end upon an output that has reached its bound, whose last token it is."""
    ends = settings.get("eos_token_id")
    return name == "forced_eos_token_id" and value in (ends if isinstance(ends, list) else [ends])


def check_settings(settings: Mapping[str, Any], program: str = "CTranslate2") -> None:
    """Raise for a setting of `generate()` that CTranslate2, or another program, has not.

    Raises:
        ValueError: Names the setting and its value.
    """
    defaults = GenerationConfig().to_dict()
    for name, value in settings.items():
        if value is None or name in SERVED or name in READ_APART or name.startswith(WITHOUT_EFFECT):
            continue
        if is_single_words(name, value) or bars_empty_outputs(name, value):
            continue
        if ends_at_the_bound(name, value, settings):
            continue
        if value not in (defaults.get(name), NEUTRAL.get(name)):
            raise ValueError(
                f"{program} has no `{name}`={value!r} of generate(); leave it out, or translate with "
                "--backend transformers"
            )
    if settings.get("early_stopping") not in PATIENCE:
        raise ValueError(f"{program} has no `early_stopping`={settings['early_stopping']!r}; set it to True or False")


def load_ctranslate2(
    folder: str | Path, device: str | None = None, compute_type: str = "default"
) -> tuple["CTranslate2Model", PreTrainedTokenizerBase]:
    """Return an exported model and its tokenizer, for `translate_lines` and `translate`.

    Args:
        folder: What `scripts/export_model.py --to ctranslate2` wrote.
        device: "cpu" (default), "cuda" or "cuda:1".
        compute_type: Of CTranslate2; by default that of the weights, or the nearest that the device has.

    Raises:
        ValueError: CTranslate2 is not installed, or the folder, the device or the compute type cannot be used.
    """
    return CTranslate2Model(folder, device or "cpu", compute_type), load_tokenizer(folder)


class CTranslate2Model(nn.Module):
    """An exported model in the place of one of transformers, for decoding; its weights are CTranslate2's.

    The same settings give the same tokens, but that a beam search ends by another rule where `early_stopping` is
    False: when there are `PATIENCE` times as many finished hypotheses as beams.

    Attributes:
        config: With `max_position_embeddings`, the most tokens of a source and of an output.
        generation_config: The settings that came with the model.
        device: Where ids are expected, and come back: the CPU in any case.

    Raises:
        ValueError: As `load_ctranslate2`.
    """

    def __init__(self, folder: str | Path, device: str = "cpu", compute_type: str = "default"):
        super().__init__()
        folder = Path(folder)
        self.training = False
        self.device = torch.device("cpu")
        self._translator = _load_translator(folder, device, compute_type)
        try:
            settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            self.config = SimpleNamespace(max_position_embeddings=settings[POSITIONS_KEY])
            self.generation_config = GenerationConfig.from_pretrained(folder)
            self._source, self._target = read_vocabularies(folder)
        except (KeyError, ValueError, OSError) as error:
            raise ValueError(
                f"{folder} was not written by scripts/export_model.py, or not all of it is there ({error}); export "
                "the model again"
            ) from error
        self._ids = {token: number for number, token in enumerate(self._target)}

    def generate(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **options: Any
    ) -> GenerateBeamEncoderDecoderOutput | Tensor:
        """Return the tokens (B * n, T) of the best n hypotheses, as `generate()` of transformers does.

        Args:
            input_ids: Sources (B, S), padded.
            attention_mask: 1 at tokens, 0 at padding, (B, S).
            **options: `num_beams`, `num_return_sequences`, `length_penalty`, `early_stopping`, `max_length` and
                `max_new_tokens`; by default the model's own. With `return_dict_in_generate`, the scores come along
                where `output_scores` or `output_logits` ask for any.

        Raises:
            ValueError: An option that CTranslate2 has not; names it. Or a source is longer than the positions.
        """
        options = self._settings(options)
        if input_ids.shape[1] > self.config.max_position_embeddings:
            raise ValueError(
                f"the source has {input_ids.shape[1]} tokens, but the exported positions end at "
                f"{self.config.max_position_embeddings}; shorten it, or export with more --max_positions"
            )
        mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        sources = [
            [self._source[number] for number in row[keep.bool()].tolist()]
            for row, keep in zip(input_ids.cpu(), mask.cpu(), strict=True)
        ]
        results = self._translator.translate_batch(sources, **self._arguments(options))
        start = [options["decoder_start_token_id"]]
        hypotheses = [tokens for result in results for tokens in result.hypotheses]
        sequences = pad_sequence(
            [torch.tensor(start + [self._ids[token] for token in tokens]) for tokens in hypotheses],
            batch_first=True,
            padding_value=options.get("pad_token_id", 0),
        )
        if not options.get("return_dict_in_generate"):
            return sequences
        scores = [score for result in results for score in result.scores]
        return GenerateBeamEncoderDecoderOutput(
            sequences=sequences,  # type: ignore[arg-type]  # declared for ids of one type of tensor
            sequences_scores=torch.tensor(scores) if scores else None,
        )

    def _settings(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return the model's settings, and the caller's before them, that CTranslate2 can follow."""
        own, given = self.generation_config.to_dict(), dict(options)
        if given.keys() & {*LENGTH_BOUNDS}:
            # One bound of the caller's stands for both of the model's.
            own = {name: value for name, value in own.items() if name not in LENGTH_BOUNDS}
        settings = own | {name: value for name, value in given.items() if value is not None}
        check_settings(settings)
        return {name: value for name, value in settings.items() if value is not None}

    def _arguments(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return what CTranslate2 calls the settings."""
        ends = options["eos_token_id"]
        # The start token counts in the one bound, and not in the other.
        longest = options.get("max_new_tokens") or options.get("max_length", 20) - 1
        if options.get("forced_eos_token_id") is not None:
            longest = max(longest - 1, 1)
        return {
            **{theirs: options[ours] for ours, theirs in SERVED.items() if ours in options},
            "patience": PATIENCE[options.get("early_stopping")],
            "end_token": [self._target[end] for end in (ends if isinstance(ends, list) else [ends])],
            "suppress_sequences": [[self._target[word[0]]] for word in options.get("bad_words_ids", [])],
            # The end token counts as part of the output, also in its score.
            "return_end_token": True,
            "max_decoding_length": min(longest, self.config.max_position_embeddings),
            "min_decoding_length": options.get("min_new_tokens", 0),
            "max_input_length": 0,
            "return_scores": bool(options.get("output_scores") or options.get("output_logits")),
        }


def _load_translator(folder: Path, device: str, compute_type: str) -> Any:
    """Return CTranslate2's translator of a folder."""
    if missing := ctranslate2_missing():
        raise ValueError(f"CTranslate2 cannot be used: {missing}")
    if not (folder / "model.bin").is_file():
        raise ValueError(
            f"{folder} holds no model.bin of CTranslate2; write one with scripts/export_model.py --to ctranslate2, or "
            "leave --backend ctranslate2 out"
        )
    import ctranslate2

    kind, _, index = device.partition(":")
    try:
        return ctranslate2.Translator(
            str(folder),
            device=kind,
            device_index=int(index or 0),
            compute_type=compute_type,
            intra_threads=torch.get_num_threads(),
        )
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{folder} cannot be loaded on {device} as {compute_type}: {error}") from error


__all__ = ["CTranslate2Model", "check_settings", "ctranslate2_missing", "load_ctranslate2", "read_vocabularies"]
