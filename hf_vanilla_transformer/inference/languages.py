"""Languages that a tokenizer knows: those of a multilingual model, or the pair that it was trained for."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import permutations, repeat
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..errors import DataError

logger = logging.get_logger(__name__)

# Source and target language.
Direction = tuple[str, str]
# One for all sentences, or one for each; None: the tokenizer's current one.
Languages = str | Iterable[str | None] | None

# Directions that a message lists.
MAX_LISTED = 50


def set_languages(tokenizer: Any, src_lang: str | None, tgt_lang: str | None) -> dict[str, int]:
    """Set the languages of a tokenizer, None: the current one, and return the options `generate()` needs for them.

    Raises:
        ValueError: The tokenizer has no such language, or is not multilingual and does not say that it has it.
    """
    if not is_multilingual(tokenizer):
        own = only_pair(tokenizer)
        if src_lang not in (None, own[0]) or tgt_lang not in (None, own[1]):
            raise ValueError(
                f"{type(tokenizer).__name__} has no languages to choose from; leave `src_lang` and `tgt_lang` out"
            )
        return {}
    if has_tags(tokenizer):
        tokenizer.src_lang, tokenizer.tgt_lang = _checked_direction(tokenizer, src_lang, tgt_lang)
        return {}
    src_lang, tgt_lang = src_lang or tokenizer.src_lang, tgt_lang or tokenizer.tgt_lang
    inputs = tokenizer._build_translation_inputs("", return_tensors=None, src_lang=src_lang, tgt_lang=tgt_lang)
    tokenizer.tgt_lang = tgt_lang
    return {key: inputs[key] for key in ("forced_bos_token_id",) if key in inputs}


def directions_of(
    tokenizer: Any, src_lang: Languages, tgt_lang: Languages
) -> tuple[Iterator[Direction | None], dict[str, int]]:
    """Return the direction of each sentence, for `tag_sources`, and the options `generate()` needs for the languages.

    A tokenizer whose sources have no tags is set to its languages, which must be the same for all sentences.

    Raises:
        ValueError: As `set_languages`, also while directions are read.
    """
    if has_tags(tokenizer):
        sources, targets = _each(src_lang, tokenizer.src_lang), _each(tgt_lang, tokenizer.tgt_lang)
        return (_checked_direction(tokenizer, *pair) for pair in zip(sources, targets, strict=False)), {}
    options = {}
    if src_lang is not None or tgt_lang is not None:
        if not all(given is None or isinstance(given, str) for given in (src_lang, tgt_lang)):
            raise ValueError(
                f"{type(tokenizer).__name__} translates one direction at a time; pass a language, no list"
            )
        options = set_languages(tokenizer, src_lang, tgt_lang)  # type: ignore[arg-type]  # checked above
    return repeat(None), options


def tag_sources(tokenizer: Any, rows: Sequence[list[int]], directions: Iterable[Direction | None]) -> list[list[int]]:
    """Return the ids of sources with the tags of these directions; None: the present ones. Empty rows stay."""
    return [
        [*(tags := tokenizer.tag_ids(*direction)), *row[len(tags) :]] if row and direction else row
        for row, direction in zip(rows, directions, strict=False)
    ]


def set_language_ids(model: PreTrainedModel, tokenizer: Any) -> None:
    """Save the ids of the language tokens in the model's generation settings, where `forced_bos_token_id` looks."""
    settings: Any = model.generation_config
    settings.language_ids = list(tokenizer.lang_code_to_id.values())
    # Settings that come from the configuration lose names that transformers does not know.
    settings._from_model_config = False


def has_tags(tokenizer: Any) -> bool:
    """Whether sources carry their direction, as of `VanillaTransformerMultilingualTokenizer`: batches may mix them."""
    return hasattr(tokenizer, "tag_ids")


def is_multilingual(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a tokenizer has languages to choose from, as those of NLLB, M2M100 and mBART."""
    return hasattr(tokenizer, "_build_translation_inputs")


def is_zero_shot(tokenizer: Any, source: str, target: str) -> bool:
    """Whether a tokenizer has a direction that its model can translate, but was not trained for."""
    known = tokenizer.directions if has_tags(tokenizer) and source != target else []
    return (source, target) not in known and target in _targets(known) and source in tokenizer.languages


def language_pairs(tokenizer: Any) -> list[Direction]:
    """Return the pairs of source and target language of a tokenizer, none if it does not say."""
    if has_tags(tokenizer):
        return tokenizer.directions
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


def choose_pair(tokenizer: Any, source: str | None, target: str | None) -> tuple[str | None, str | None]:
    """Return the languages to translate between, of which any may be left open if one direction remains.

    None for both if none is given and the tokenizer does not say.

    Raises:
        ValueError: Several directions remain, or none.
    """
    known = language_pairs(tokenizer)
    if not has_tags(tokenizer) and is_multilingual(tokenizer):
        # Thousands of directions: what is left open is what was saved.
        return source, target
    if has_tags(tokenizer) and source and target:
        return _checked_direction(tokenizer, source, target)
    fitting = [pair for pair in known if source in (None, pair[0]) and target in (None, pair[1])]
    if len(fitting) == 1:
        return fitting[0]
    if not known and not source and not target:
        return None, None
    shown = [*map("-".join, known[:MAX_LISTED]), *["..."] * (len(known) > MAX_LISTED)]
    listed = f"it has {', '.join(shown)}" if known else "it does not say its languages"
    if fitting:
        raise ValueError(
            f"the model translates several directions; choose by `source_lang` and `target_lang`: {listed}"
        )
    raise ValueError(f"the model does not translate {source or 'any'}-{target or 'any'}: {listed}")


def check_direction(tokenizer: Any, source: str | None, target: str | None, what: str) -> None:
    """Raise a DataError for a model, called `what`, whose tokenizer has the opposite direction, and not this one.

    An unknown language, None, passes.
    """
    known = language_pairs(tokenizer)
    if (target, source) in known and (source, target) not in known:
        raise DataError(f"{what} translates {target} to {source}; name one of the opposite direction")


def model_languages(tokenizer: Any, source: str | None, target: str | None, what: str) -> dict[str, str | None]:
    """Return the languages to translate between as options of `translate_lines`, none for a model of one direction.

    Raises:
        ValueError: The model, called `what`, does not translate source to target, or several directions are left.
    """
    check_direction(tokenizer, source, target, what)
    if not is_multilingual(tokenizer):
        return {}
    return dict(zip(("src_lang", "tgt_lang"), choose_pair(tokenizer, source, target), strict=True))


def _each(languages: Languages, current: str) -> Iterator[str | None]:
    yield from repeat(languages or current) if languages is None or isinstance(languages, str) else languages
    raise ValueError("there are fewer languages than sentences; pass a language for all, or one for each")


def _checked_direction(tokenizer: Any, source: str | None, target: str | None) -> Direction:
    """Return a direction, by default the current one, of a tokenizer whose sources have tags."""
    source, target = source or tokenizer.src_lang, target or tokenizer.tgt_lang
    known = tokenizer.directions
    if (source, target) not in known:
        for code in (source, target):
            tokenizer.get_lang_token(code)
        if target not in _targets(known):
            raise ValueError(
                f"the model was not trained to translate to {target}, only to {', '.join(_targets(known))}"
            )
        logger.warning_once(
            f"{source} to {target} is zero-shot: the model was trained without pairs of this direction"
        )
    return source, target


def _targets(directions: Iterable[Direction]) -> list[str]:
    return list(dict.fromkeys(target for _, target in directions))
