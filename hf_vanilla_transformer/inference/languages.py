"""Languages that a tokenizer knows: those of a multilingual model, or the pair that it was trained for."""

from itertools import permutations
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..errors import DataError


def set_languages(tokenizer: Any, src_lang: str | None, tgt_lang: str | None) -> dict[str, int]:
    """Set the languages of a multilingual tokenizer, and return the options `generate()` needs for them.

    Args:
        tokenizer: Any tokenizer; one that is not multilingual has no languages to choose from.
        src_lang: Source language; None: the current one.
        tgt_lang: Target language; None: the current one.

    Raises:
        ValueError: The tokenizer is not multilingual, and a language is given; or it has no such language.
    """
    if not is_multilingual(tokenizer):
        if src_lang or tgt_lang:
            raise ValueError(
                f"{type(tokenizer).__name__} has no languages to choose from; leave `src_lang` and `tgt_lang` out"
            )
        return {}
    src_lang, tgt_lang = src_lang or tokenizer.src_lang, tgt_lang or tokenizer.tgt_lang
    inputs = tokenizer._build_translation_inputs("", return_tensors=None, src_lang=src_lang, tgt_lang=tgt_lang)
    tokenizer.tgt_lang = tgt_lang
    return {"forced_bos_token_id": inputs["forced_bos_token_id"]}


def is_multilingual(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a tokenizer has languages to choose from, as those of NLLB, M2M100 and mBART."""
    return hasattr(tokenizer, "_build_translation_inputs")


def language_pairs(tokenizer: Any) -> list[tuple[str, str]]:
    """Return the pairs of source and target language of a tokenizer, none if it does not say."""
    if is_multilingual(tokenizer):
        # NLLB's languages are its special tokens.
        codes = getattr(tokenizer, "lang_code_to_id", None) or tokenizer.extra_special_tokens
        return list(permutations(map(str, codes), 2))
    # As Marian's tokenizers name them.
    pair = tuple(tokenizer.init_kwargs.get(f"{side}_lang") for side in ("source", "target"))
    return [pair] if all(isinstance(code, str) and code for code in pair) else []


def only_pair(tokenizer: Any) -> tuple[str | None, str | None]:
    """Return the languages of a tokenizer of one direction; None for both if it has several, or does not say."""
    pairs = language_pairs(tokenizer)
    return pairs[0] if len(pairs) == 1 else (None, None)


def check_direction(tokenizer: Any, source: str | None, target: str | None, what: str) -> None:
    """Refuse a model that translates target to source, as far as its tokenizer says.

    Args:
        tokenizer: The model's.
        source: Language that it should translate; None: unknown, which passes.
        target: Language that it should translate to; None: unknown, which passes.
        what: Name of the model, for the message.

    Raises:
        DataError: The tokenizer has the opposite direction, and not this one.
    """
    known = language_pairs(tokenizer)
    if (target, source) in known and (source, target) not in known:
        raise DataError(f"{what} translates {target} to {source}; name one of the opposite direction")


__all__ = ["check_direction", "is_multilingual", "language_pairs", "only_pair", "set_languages"]
