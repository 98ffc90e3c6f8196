"""Check types and ranges of saved `generate()` settings, which transformers checks only partly, or only in use."""

from collections.abc import Callable, Iterable
from typing import Any

from transformers import GenerationConfig

from ..errors import shorten
from ..options import MAX_BEAMS, MAX_COUNT, MAX_LENGTH_PENALTY

_BEAMS = ("num_beams", "num_return_sequences", "num_beam_groups")
_COUNTS = (
    "max_length", "max_new_tokens", "min_length", "min_new_tokens", "top_k", "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size", "max_matching_ngram_size", "num_assistant_tokens", "prompt_lookup_num_tokens",
    "assistant_early_exit", "assistant_lookbehind", "target_lookbehind", "prefill_chunk_size", "max_cache_len",
    "training_source_length",
)  # fmt: skip  # a table, not an expression
_NUMBERS = (
    "temperature", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff", "repetition_penalty",
    "encoder_repetition_penalty", "diversity_penalty", "penalty_alpha", "max_time", "guidance_scale",
    "assistant_confidence_threshold",
)  # fmt: skip  # as above
_SWITCHES = (
    "do_sample", "use_cache", "renormalize_logits", "remove_invalid_values", "token_healing", "output_attentions",
    "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate", "disable_compile",
    "low_memory", "is_assistant", "training_paragraphs", "training_capitals", "training_upper_case",
    "training_numbers",
)  # fmt: skip  # as above
_TEXTS = ("training_marks",)
_TEXTS_BY_LANGUAGE = ("training_spellings", "training_words", "training_lookalikes")
_ID = ("pad_token_id", "bos_token_id", "forced_bos_token_id")
_ENDS = ("eos_token_id", "decoder_start_token_id", "forced_eos_token_id")
_IDS = ("suppress_tokens", "begin_suppress_tokens", "language_ids")
_WORDS = ("bad_words_ids", "force_words_ids")
# Ids used as indices; others are only compared with tokens.
_LOOKED_UP = ("decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", *_WORDS)


def _is_integer(value: Any, least: int = 0, largest: int = MAX_COUNT) -> bool:
    return type(value) is int and least <= value <= largest


def _is_number(value: Any, largest: int = MAX_COUNT) -> bool:
    return type(value) in (int, float) and abs(value) <= largest


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_id(value: Any) -> bool:
    # Several families have -1 for "none".
    return _is_integer(value, least=-1)


def _is_ids(value: Any, least: int = 0) -> bool:
    return _is_id(value) or _is_list(value, _is_id, least)


def _is_list(value: Any, is_usable: Callable[[Any], bool], least: int = 0, most: int = MAX_COUNT) -> bool:
    return isinstance(value, list) and least <= len(value) <= most and all(map(is_usable, value))


# Names of settings, the test of their values, and its description.
RULES: tuple[tuple[Iterable[str], Callable[[Any], bool], str], ...] = (
    (_BEAMS, lambda value: _is_integer(value, 1, MAX_BEAMS), f"an integer from 1 to {MAX_BEAMS:,}"),
    (_COUNTS, _is_integer, f"an integer from 0 to {MAX_COUNT:,}"),
    (_NUMBERS, _is_number, f"a number of at most {MAX_COUNT:,}"),
    (
        ("length_penalty",),
        lambda value: _is_number(value, MAX_LENGTH_PENALTY),
        f"a number from {-MAX_LENGTH_PENALTY} to {MAX_LENGTH_PENALTY}",
    ),
    (_SWITCHES, lambda value: type(value) is bool, "true or false"),
    (_TEXTS, _is_text, "a string"),
    (
        _TEXTS_BY_LANGUAGE,
        lambda value: _is_text(value) or (isinstance(value, dict) and all(map(_is_text, value.values()))),
        "a string, or an object of strings by language",
    ),
    (_ID, _is_id, "the id of a token"),
    (_ENDS, lambda value: _is_ids(value, 1), "the id of a token, or a list of one or more"),
    (_IDS, _is_ids, "the id of a token, or a list of ids"),
    (_WORDS, lambda value: _is_list(value, lambda word: _is_list(word, _is_id, 1)), "a list of lists of ids"),
    (
        ("alignment_heads",),
        lambda value: _is_list(value, lambda head: _is_list(head, _is_integer, 2, 2)),
        "a list of [layer, head] pairs",
    ),
    (("early_stopping",), lambda value: value in (True, False, "never"), 'true, false or "never"'),
)


def check_generation_settings(
    settings: GenerationConfig, where: object, vocab_size: int | None = None, every_id: bool = True
) -> None:
    """Raise a ValueError for an unusable value of a `generate()` setting read from the file `where`.

    Given `vocab_size`, the number of target tokens, ids must be below it: all if `every_id`, else only those used as
    indices.
    """
    for names, is_usable, wanted in RULES:
        for name in names:
            value = getattr(settings, name, None)
            if value is not None and not is_usable(value):
                raise ValueError(f"{where}: `{name}` is {shorten(repr(value), 100)}; it must be {wanted}")
    for name in (*_ID, *_ENDS, *_IDS, *_WORDS) if every_id else _LOOKED_UP:
        value = getattr(settings, name, None)
        if vocab_size is not None and not all(0 <= token_id < vocab_size for token_id in _flat_ids(value)):
            raise ValueError(
                f"{where}: `{name}` is {shorten(repr(value), 100)}, but ids go from 0 to {vocab_size - 1}; "
                "save it again"
            )


def _flat_ids(value: Any) -> list[int]:
    if isinstance(value, list):
        return [token_id for item in value for token_id in _flat_ids(item)]
    return [] if value is None else [value]
