"""Tokenizer of multilingual translation models.

tokenizer = VanillaTransformerMultilingualTokenizer.from_shared(tokenizer, [("en", "de"), ("de", "en"), ("en", "es")])
tokenizer.src_lang, tokenizer.tgt_lang = "en", "de"
tokenizer("A house.")  # __de__ A house. </s>
tokenizer(text_target="Ein Haus.")  # Ein Haus. </s>
"""

from collections.abc import Iterable, Sequence
from typing import Any, Self, cast

from tokenizers import processors
from transformers import BatchEncoding, PreTrainedTokenizerFast

from .tokenization_vanilla_transformer import VanillaTransformerSharedTokenizer, shared_settings

# Languages whose tokens are prepended to each side. The target language before the source needs no change to the
# decoder (Johnson et al. 2017) and is best for zero-shot directions (Wu et al. 2021).
SOURCE_TAGS = ("tgt_lang",)
TARGET_TAGS: tuple[str, ...] = ()


class VanillaTransformerMultilingualTokenizer(VanillaTransformerSharedTokenizer):
    """Tokenizer with one vocabulary for many languages, with the interface of M2M100's and NLLB's.

    Sources begin with the token of the target language, `__de__` for `tgt_lang` "de". Text that contains such a token
    is tokenized like any other. Without this package and its code, the same files load as a `PreTrainedTokenizerFast`
    for the languages that were current when they were saved.

    Args:
        directions: Source and target language of each direction that the model is trained for.
        src_lang: Current source language; by default that of the first direction.
        tgt_lang: Current target language; by default that of the first direction.
        **kwargs: Arguments of `PreTrainedTokenizerFast`.

    Raises:
        ValueError: `directions` is empty or malformed, a current language is not among them, or the vocabulary
            already contains a language token.
    """

    def __init__(
        self,
        directions: Iterable[Sequence[str]] = (),
        src_lang: str | None = None,
        tgt_lang: str | None = None,
        **kwargs: Any,
    ) -> None:
        self._directions = _checked_directions(directions)
        codes = dict.fromkeys(code for direction in self._directions for code in direction)
        self._lang_tokens = {code: language_token(code) for code in codes}
        first_source, first_target = self._directions[0]
        self._src_lang, self._tgt_lang = src_lang or first_source, tgt_lang or first_target
        languages = {"directions": self._directions, "src_lang": self._src_lang, "tgt_lang": self._tgt_lang}
        # Otherwise a text could set another target language.
        super().__init__(**kwargs | languages | {"split_special_tokens": True})
        for token in self._lang_tokens.values():
            if self.backend_tokenizer.model.token_to_id(token) is not None:
                raise ValueError(f"the vocabulary already contains {token}; train it on texts without this word")
        self.add_tokens(list(self._lang_tokens.values()), special_tokens=True)
        self.src_lang, self.tgt_lang = self._src_lang, self._tgt_lang

    @classmethod
    def from_shared(cls, tokenizer: PreTrainedTokenizerFast, directions: Iterable[Sequence[str]]) -> Self:
        """Copy a tokenizer and append language tokens to the vocabulary.

        Args:
            tokenizer: Tokenizer with one vocabulary for both sides, multilingual or not; it stays unchanged.
            directions: Source and target language of each direction, in addition to those of the tokenizer.

        Raises:
            ValueError: The tokenizer has a vocabulary for each side, or as for the constructor.
        """
        if hasattr(tokenizer, "target_tokenizer"):
            raise ValueError(
                "the tokenizer has a vocabulary for each side, but multilingual models need a shared one; train it on "
                "texts of all languages"
            )
        known = getattr(tokenizer, "directions", [])
        current = {name: getattr(tokenizer, name) for name in ("src_lang", "tgt_lang")} if known else {}
        return cls(
            [*known, *directions],
            tokenizer_object=tokenizer.backend_tokenizer,
            **current,
            **shared_settings(tokenizer),
        )

    @property
    def directions(self) -> list[tuple[str, str]]:
        """Source and target language of each direction that the model is trained for."""
        return list(self._directions)

    @property
    def languages(self) -> list[str]:
        """Codes of all languages."""
        return list(self._lang_tokens)

    @property
    def lang_code_to_id(self) -> dict[str, int]:
        """Ids of the language tokens."""
        return {code: self.get_lang_id(code) for code in self.languages}

    def get_lang_token(self, lang: str) -> str:
        """Return the token of a language."""
        if lang not in self._lang_tokens:
            raise ValueError(f"there is no language {lang!r}; the languages are {', '.join(self._lang_tokens)}")
        return self._lang_tokens[lang]

    def get_lang_id(self, lang: str) -> int:
        """Return the id of a language's token: `generate(forced_bos_token_id=tokenizer.get_lang_id("de"))`."""
        return cast(int, self.convert_tokens_to_ids(self.get_lang_token(lang)))

    @property
    def src_lang(self) -> str:
        """Current source language."""
        return self._src_lang

    @src_lang.setter
    def src_lang(self, lang: str) -> None:
        self.get_lang_token(lang)
        self._src_lang = lang
        self._switch_to_input_mode()

    @property
    def tgt_lang(self) -> str:
        """Current target language."""
        return self._tgt_lang

    @tgt_lang.setter
    def tgt_lang(self, lang: str) -> None:
        self.get_lang_token(lang)
        self._tgt_lang = lang
        self._switch_to_input_mode()

    def tag_ids(self, src_lang: str, tgt_lang: str) -> list[int]:
        """Return the ids at the start of a source; replacing them changes the direction of an encoded source."""
        languages = {"src_lang": src_lang, "tgt_lang": tgt_lang}
        return [self.get_lang_id(languages[tag]) for tag in SOURCE_TAGS]

    def __call__(self, *args: Any, **kwargs: Any) -> BatchEncoding:
        """Tokenize source texts, target texts (`text_target`), or both."""
        try:
            return super().__call__(*args, **kwargs)
        finally:
            # Also after an error.
            self._switch_to_input_mode()

    def _build_translation_inputs(
        self, raw_inputs: Any, *, src_lang: str | None = None, tgt_lang: str | None = None, **kwargs: Any
    ) -> BatchEncoding:
        self.src_lang, self.tgt_lang = src_lang or self.src_lang, tgt_lang or self.tgt_lang
        return self(raw_inputs, **kwargs)

    def _added_special_tokens(self) -> list[str]:
        # Language tokens are special in the backend, too, which never matches them in text.
        languages = self._lang_tokens.values()
        return [token for token in super()._added_special_tokens() if token not in languages]

    def _switch_to_input_mode(self) -> None:
        self._begin_with(SOURCE_TAGS)

    def _switch_to_target_mode(self) -> None:
        self._begin_with(TARGET_TAGS)

    def _begin_with(self, tags: Sequence[str]) -> None:
        begin, end = [self.get_lang_token(getattr(self, tag)) for tag in tags], str(self.eos_token)
        self.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=[*begin, "$A", end],
            pair=[*begin, "$A", end, "$B", end],
            special_tokens=[(token, self.backend_tokenizer.token_to_id(token)) for token in (*begin, end)],
        )


def language_token(code: str) -> str:
    """Return the token of a language, spelled as M2M100 does."""
    return f"__{code}__"


def _checked_directions(directions: Iterable[Sequence[str]]) -> list[tuple[str, str]]:
    checked: dict[tuple[str, str], None] = {}
    for pair in directions:
        if len(pair) != 2 or not all(isinstance(code, str) and code.split() == [code] for code in pair):
            raise ValueError(f"`directions` has {pair!r}; pass two language codes, such as ('en', 'de')")
        checked[pair[0], pair[1]] = None
    if not checked:
        raise ValueError("`directions` is empty; pass the source and target language of at least one")
    return list(checked)


__all__ = ["SOURCE_TAGS", "TARGET_TAGS", "VanillaTransformerMultilingualTokenizer", "language_token"]
