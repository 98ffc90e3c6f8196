"""Languages of a tokenizer: those of a multilingual model, or the single pair that it was trained for."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import permutations, repeat
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..errors import DataError
from ..text.facts import TextFacts

logger = logging.get_logger(__name__)

# Source and target language.
Direction = tuple[str, str]
# One for all sentences, or one for each; None for the tokenizer's current one.
Languages = str | Iterable[str | None] | None

# The value of `pivot` that translates every direction directly.
DIRECTLY = "none"

# Most directions listed in a message.
MAX_LISTED = 50


def set_languages(tokenizer: Any, src_lang: str | None, tgt_lang: str | None) -> dict[str, int]:
    """Set the languages of a tokenizer (None for the current one) and return the options `generate()` needs for them.

    Raises:
        ValueError: The tokenizer does not have the language, or is not multilingual and not recorded as having it.
    """
    if not is_multilingual(tokenizer):
        own = only_pair(tokenizer)
        if src_lang not in (None, own[0]) or tgt_lang not in (None, own[1]):
            raise ValueError(
                f"{type(tokenizer).__name__} has no languages to choose from; leave `src_lang` and `tgt_lang` out"
            )
        return {}
    if has_tags(tokenizer):
        tokenizer.src_lang, tokenizer.tgt_lang = _warned(tokenizer, _checked_direction(tokenizer, src_lang, tgt_lang))
        return {}
    src_lang, tgt_lang = src_lang or tokenizer.src_lang, tgt_lang or tokenizer.tgt_lang
    inputs = tokenizer._build_translation_inputs("", return_tensors=None, src_lang=src_lang, tgt_lang=tgt_lang)
    tokenizer.tgt_lang = tgt_lang
    return {key: inputs[key] for key in ("forced_bos_token_id",) if key in inputs}


def directions_of(
    tokenizer: Any, src_lang: Languages, tgt_lang: Languages, may_pivot: bool = False
) -> tuple[Iterator[Direction | None], dict[str, int]]:
    """Return the direction of each sentence, for `tag_sources`, and the options `generate()` needs for the languages.

    A tokenizer whose sources have no tags is set to the languages, which must be the same for all sentences. Logs a
    warning for zero-shot directions unless it `may_pivot`, which leaves that to `choose_pivot`.

    Raises:
        ValueError: As for `set_languages`, also while iterating over the directions.
    """
    if has_tags(tokenizer):
        sources, targets = _per_sentence(src_lang, tokenizer.src_lang), _per_sentence(tgt_lang, tokenizer.tgt_lang)
        pairs = (_checked_direction(tokenizer, *pair) for pair in zip(sources, targets, strict=False))
        return pairs if may_pivot else (_warned(tokenizer, pair) for pair in pairs), {}
    options = {}
    if src_lang is not None or tgt_lang is not None:
        if not all(language is None or isinstance(language, str) for language in (src_lang, tgt_lang)):
            raise ValueError(
                f"{type(tokenizer).__name__} translates one direction at a time; pass one language, not a list"
            )
        options = set_languages(tokenizer, src_lang, tgt_lang)  # type: ignore[arg-type]  # checked above
    return repeat(None), options


def tag_sources(tokenizer: Any, rows: Sequence[list[int]], directions: Iterable[Direction | None]) -> list[list[int]]:
    """Replace the tags of sources with those of the directions; None keeps them. Empty rows stay empty."""
    return [
        [*(tags := tokenizer.tag_ids(*direction)), *row[len(tags) :]] if row and direction else row
        for row, direction in zip(rows, directions, strict=False)
    ]


def set_language_ids(model: PreTrainedModel, tokenizer: Any) -> None:
    """Store the ids of the language tokens in the generation settings, where `generate()` looks them up."""
    settings: Any = model.generation_config
    settings.language_ids = list(tokenizer.lang_code_to_id.values())
    # Settings derived from the configuration would be saved without fields unknown to transformers.
    settings._from_model_config = False


def pivot_of(tokenizer: Any, direction: Direction, recorded: Mapping[str, str]) -> str | None:
    """Return the language that a direction without training pairs goes through; None if it is translated directly.

    By default the first language of `tokenizer.directions` that has training pairs for both legs.

    Args:
        tokenizer: A tokenizer whose sources have tags.
        direction: Source and target language.
        recorded: Decisions that replace the default, such as {"de-fr": "en", "fr-es": ""}; "" stands for directly.
    """
    (source, target), known = direction, tokenizer.directions
    if source == target or direction in known:
        return None
    default = next((middle for start, middle in known if start == source and (middle, target) in known), "")
    return recorded.get(f"{source}-{target}", default) or None


def choose_pivot(
    tokenizer: Any, recorded: Mapping[str, str], wanted: str | None, direction: Direction | None
) -> str | None:
    """Return the language to translate a direction through, None for directly.

    Logs a warning if that follows from training without pairs of the direction.

    Args:
        tokenizer: Any tokenizer.
        recorded: As for `pivot_of`.
        wanted: `DIRECTLY`, a language for all directions but its own, or None for `pivot_of`.
        direction: Source and target language; None if sources have no tags.

    Raises:
        ValueError: Sources have no tags, or the model was not trained on a leg.
    """
    if direction is None:
        if wanted not in (None, DIRECTLY):
            raise ValueError(f"`pivot` {wanted} needs a multilingual model of this package; leave it out")
        return None
    (source, target), known = direction, tokenizer.directions
    if wanted is None:
        pivot = pivot_of(tokenizer, direction, recorded)
    else:
        pivot = None if wanted in (DIRECTLY, *direction) else wanted
    if pivot is None:
        _warned(tokenizer, direction)
        return None
    for leg in ((source, pivot), (pivot, target)):
        if leg not in known:
            raise ValueError(
                f"{source} to {target} cannot go through {pivot}: the model was not trained to translate "
                f"{' to '.join(leg)}; choose another `pivot`, or none"
            )
    if wanted is None:
        logger.warning_once(
            f"{source} to {target} goes through {pivot}: the model was not trained on pairs of this direction "
            f"(`pivot` {DIRECTLY} translates directly)"
        )
    return pivot


def recorded_pivots(model: Any) -> Mapping[str, str]:
    """Return the decisions for `pivot_of` recorded with a model."""
    # Facts that cannot be used do not matter for text as it is.
    with suppress(ValueError):
        return TextFacts.of(model.generation_config).pivots
    return {}


def has_tags(tokenizer: Any) -> bool:
    """Whether sources carry tags for their direction, so that a batch may mix directions.

    True for `VanillaTransformerMultilingualTokenizer`.
    """
    return hasattr(tokenizer, "tag_ids")


def is_multilingual(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a tokenizer has languages to choose from, like those of NLLB, M2M100 and mBART."""
    return hasattr(tokenizer, "_build_translation_inputs")


def is_zero_shot(tokenizer: Any, source: str, target: str) -> bool:
    """Whether the model can translate a direction that it was not trained on."""
    known = tokenizer.directions if has_tags(tokenizer) and source != target else []
    return (source, target) not in known and target in _targets(known) and source in tokenizer.languages


def example_direction(tokenizer: Any) -> Direction | None:
    """Return a direction to show, for a tokenizer whose sources carry tags for theirs; None for others."""
    return tokenizer.directions[0] if has_tags(tokenizer) else None


def language_pairs(tokenizer: Any) -> list[Direction]:
    """Return the (source, target) language pairs of a tokenizer, none if it does not record any."""
    if has_tags(tokenizer):
        return tokenizer.directions
    if is_multilingual(tokenizer):
        # NLLB's languages are its special tokens.
        codes = getattr(tokenizer, "lang_code_to_id", None) or tokenizer.extra_special_tokens
        return list(permutations(map(str, codes), 2))
    # The names of Marian's tokenizers.
    pair = tuple(tokenizer.init_kwargs.get(f"{side}_lang") for side in ("source", "target"))
    return [pair] if all(isinstance(code, str) and code for code in pair) else []


def only_pair(tokenizer: Any) -> tuple[str | None, str | None]:
    """Return the languages of a tokenizer with a single direction; (None, None) if it has several or records none."""
    pairs = language_pairs(tokenizer)
    return pairs[0] if len(pairs) == 1 else (None, None)


def current_pair(tokenizer: Any) -> tuple[str | None, str | None]:
    """Return the languages that a tokenizer is set to, or its only ones; None if unknown."""
    if is_multilingual(tokenizer):
        return getattr(tokenizer, "src_lang", None), getattr(tokenizer, "tgt_lang", None)
    return only_pair(tokenizer)


def choose_pair(tokenizer: Any, source: str | None, target: str | None) -> tuple[str | None, str | None]:
    """Return the languages to translate between; either may be None if that leaves a single direction.

    Returns (None, None) if neither is given and the tokenizer records none.

    Raises:
        ValueError: Several directions match, or none.
    """
    known = language_pairs(tokenizer)
    if not has_tags(tokenizer) and is_multilingual(tokenizer):
        # Thousands of directions: the tokenizer's current languages stand in for None.
        return source, target
    if has_tags(tokenizer) and source and target:
        return _checked_direction(tokenizer, source, target)
    fitting = [pair for pair in known if source in (None, pair[0]) and target in (None, pair[1])]
    if len(fitting) == 1:
        return fitting[0]
    if not known and not source and not target:
        return None, None
    shown = [*map("-".join, known[:MAX_LISTED]), *["..."] * (len(known) > MAX_LISTED)]
    listed = f"it has {', '.join(shown)}" if known else "its tokenizer records no languages"
    if fitting:
        raise ValueError(
            f"the model translates several directions; choose one with `source_lang` and `target_lang`: {listed}"
        )
    raise ValueError(f"the model does not translate {source or 'any'}-{target or 'any'}: {listed}")


def check_direction(tokenizer: Any, source: str | None, target: str | None, what: str) -> None:
    """Raise a DataError if a model, called `what`, translates only the opposite direction.

    None stands for an unknown language and passes.
    """
    known = language_pairs(tokenizer)
    if (target, source) in known and (source, target) not in known:
        raise DataError(f"{what} translates {target} to {source}; name a model of the opposite direction")


def model_languages(tokenizer: Any, source: str | None, target: str | None, what: str) -> dict[str, str | None]:
    """Return the languages to translate between as options of `translate_lines`, none for a bilingual model.

    Raises:
        ValueError: The model, called `what`, does not translate source to target, or several directions match.
    """
    check_direction(tokenizer, source, target, what)
    if not is_multilingual(tokenizer):
        return {}
    return dict(zip(("src_lang", "tgt_lang"), choose_pair(tokenizer, source, target), strict=True))


def _per_sentence(languages: Languages, current: str) -> Iterator[str | None]:
    yield from repeat(languages or current) if languages is None or isinstance(languages, str) else languages
    raise ValueError("there are fewer languages than sentences; pass one language for all, or one for each")


def _checked_direction(tokenizer: Any, source: str | None, target: str | None) -> Direction:
    """Return a valid direction of a tokenizer whose sources have tags, defaulting to the current one."""
    source, target = source or tokenizer.src_lang, target or tokenizer.tgt_lang
    known = tokenizer.directions
    if (source, target) not in known:
        for code in (source, target):
            tokenizer.get_lang_token(code)
        if target not in _targets(known):
            raise ValueError(
                f"the model was not trained to translate to {target}, only to {', '.join(_targets(known))}"
            )
    return source, target


def _warned(tokenizer: Any, direction: Direction) -> Direction:
    """Return the direction, after a warning if training had no pairs of it."""
    if direction not in tokenizer.directions:
        logger.warning_once(
            f"{' to '.join(direction)} is zero-shot: the model was not trained on pairs of this direction"
        )
    return direction


def _targets(directions: Iterable[Direction]) -> list[str]:
    return list(dict.fromkeys(target for _, target in directions))
