"""The facts about training text that a model's generation settings hold."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any
from weakref import WeakKeyDictionary

from ..text.facts import ENTRY, RULES, Decision, TextFacts, unusable
from ..text.protection import ITEMS, placeholders_of
from .alphabet import Alphabet
from .languages import current_pair

# Rules for a model of unknown training: they do not change what it reads otherwise. `cut` saves what is beyond its
# positions; sentences are split if their language is known.
SAFE_RULES = frozenset(("lines", "cut", "links", "placeholders"))

_digests: "WeakKeyDictionary[Any, dict[tuple[int, ...], str]]" = WeakKeyDictionary()


def facts_of(settings: Any, tokenizer: Any) -> TextFacts:
    """Return the facts of training; for other models, those that older settings or the languages imply.

    Raises:
        ValueError: The facts cannot be used, or belong to another vocabulary.
    """
    if (entry := getattr(settings, ENTRY, None)) is None:
        return _older_facts(settings, tokenizer)
    facts = TextFacts.from_entry(entry)
    if facts.vocabulary_digest != vocabulary_digest(tokenizer, facts.vocabulary_sizes):
        digest = facts.vocabulary_digest
        raise unusable("vocabulary_digest", digest, "the tokenizer has another vocabulary; use the model's own")
    return facts


def set_facts(settings: Any, facts: TextFacts) -> None:
    setattr(settings, ENTRY, facts.to_entry())
    # Marked as coming from the configuration, settings lose names that transformers does not know.
    settings._from_model_config = False


def set_pivots(model: Any, tokenizer: Any, pivots: Mapping[str, str]) -> None:
    """Record in a model's facts which directions go through another language, as for `languages.pivot_of`."""
    facts, sizes = facts_of(model.generation_config, tokenizer), vocabulary_sizes(tokenizer)
    digest = vocabulary_digest(tokenizer, sizes)
    facts = replace(facts, pivots=pivots, vocabulary_sizes=sizes, vocabulary_digest=digest)
    set_facts(model.generation_config, facts)


def vocabulary_sizes(tokenizer: Any) -> list[int]:
    return [*map(len, _vocabularies(tokenizer))]


def vocabulary_digest(tokenizer: Any, sizes: Sequence[int]) -> str:
    """Return a digest of the first tokens of each vocabulary; later ones may be added."""
    known = _digests.setdefault(tokenizer, {})
    if (key := tuple(sizes)) not in known:
        digest = blake2b(digest_size=8)
        for side, size in zip(_vocabularies(tokenizer), sizes, strict=False):
            tokens = side.convert_ids_to_tokens([*range(min(size, len(side)))])
            digest.update("\n".join(map(str, tokens)).encode("utf-8", "surrogatepass"))
        known[key] = digest.hexdigest()
    return known[key]


def _vocabularies(tokenizer: Any) -> list[Any]:
    sides = [getattr(tokenizer, f"{side}_tokenizer", None) for side in ("source", "target")]
    return [side for side in sides if side is not None] or [tokenizer]


def _older_facts(settings: Any, tokenizer: Any) -> TextFacts:
    """Return the facts of a model without an entry, from the `training_*` settings of earlier releases, if any."""

    def recorded(name: str, default: Any = None) -> Any:
        value = getattr(settings, f"training_{name}", None)
        return default if value is None else value

    def by_language(name: str) -> dict[str, str]:
        words = recorded(name, "")
        return {"": words} if isinstance(words, str) else words

    active = {*SAFE_RULES, *(["sentences"] if current_pair(tokenizer)[0] else ())}
    rules = {name: Decision(True, "the training is unknown") for name in sorted(active)}
    if recorded("source_length"):
        active |= _older_rules(recorded, bool(placeholders_of(tokenizer)))
        rules = {name: Decision(name in active, "by the settings of an earlier release") for name in RULES}
    return TextFacts(
        rules=rules,
        usual_case="sentence" if Alphabet.of(tokenizer).is_cased else "lower",
        has_capitals=recorded("capitals", True),
        marks=recorded("marks", ""),
        source_length=recorded("source_length", 0),
        spellings=by_language("spellings"),
        words=by_language("words"),
        lookalikes=by_language("lookalikes"),
    )


def _older_rules(recorded: Any, has_placeholders: bool) -> set[str]:
    """Return the rules of a model that an earlier release trained; words tell that it was trained on text."""
    words = recorded("words", "")
    is_text = any(words.values()) if isinstance(words, dict) else bool(words)
    if not is_text:
        return {*ITEMS, "acronyms"} if has_placeholders else set()
    rules = {*ITEMS, "acronyms", "cut", "bullets", "spaces", "letters", "typos", "no_letters"}
    rules |= {"title_case", "restore_case", "sentences", "upper_case", "sentence_case"}
    rules |= {"lower_case"} if recorded("capitals") else set()
    rules |= {"marks"} if recorded("marks") is not None else set()
    wrong = {"sentences": recorded("paragraphs"), "upper_case": recorded("upper_case")}
    wrong["numbers"] = recorded("numbers", True) and not has_placeholders
    return rules - {name for name, is_wrong in wrong.items() if is_wrong}
