"""Given vocabularies, as programs without a tokenizer of their own keep them, made into tokenizers of ours."""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ..files import read_lines
from ..model.tokenization_vanilla_transformer import VanillaTransformerTokenizer

# A dict, a list, a file of either, or of one token a line, or of a tokenizer of the library of that name.
Vocabulary = Mapping[str, int] | Sequence[str] | str | os.PathLike[str]

# A dictionary of fairseq counts its tokens, and leaves out the first four.
FAIRSEQ_LINE = re.compile(r"[^ \t]+ \d+( #fairseq:overwrite)?")
FAIRSEQ_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")

UNKNOWN = ("<unk>", "[UNK]", "<UNK>", "UNK", "unk", "<|unk|>")


class WordVocabulary:
    """Tokens and their ids, 0 to n - 1, and the tokenizer that they came with, if they did.

    Args:
        vocabulary: Token to id; or tokens in the order of their ids; or a file: JSON of either, a tokenizer file of
            the `tokenizers` library, text with one token a line, or a dictionary of fairseq.
        name: What messages call it.

    Raises:
        ValueError: It cannot be read, is empty, or an id is missing, doubled or no number; names the token.
    """

    def __init__(self, vocabulary: Vocabulary, name: str):
        self.name = name
        self.backend: Tokenizer | None = None
        if isinstance(vocabulary, (str, os.PathLike)):
            self.name = f"{name} {os.fspath(vocabulary)}"
            vocabulary = self._read(Path(vocabulary))
        self.tokens = self._in_order(vocabulary)

    @property
    def unknown(self) -> str | None:
        """The token that stands for unknown ones, by the usual spellings, or None."""
        return next((token for token in UNKNOWN if token in self.tokens), None)

    def aligned(self, special: Mapping[str, int]) -> list[int | None]:
        """Give special tokens the ids that they have on the other side, and return the old id of each new one.

        What stood there takes the place of the special token. A special token that is not there is added at the end,
        where its id is; None is the old id of such, and of what fills the gap to it.

        Raises:
            ValueError: A special token is not there, and another has its id; or the tokenizer cannot be renumbered.
        """
        tokens: list[str] = list(self.tokens)
        old: list[int | None] = list(range(len(tokens)))
        for token, wanted in special.items():
            while len(tokens) <= wanted:
                old.append(None)
                tokens.append(f"<unused-{len(tokens)}>")
            if token in tokens:
                found = tokens.index(token)
                tokens[found], tokens[wanted] = tokens[wanted], tokens[found]
                old[found], old[wanted] = old[wanted], old[found]
            elif old[wanted] is None:
                tokens[wanted] = token
            else:
                raise ValueError(
                    f"{self.name} has no {token!r}, which has id {wanted} in the target vocabulary, but "
                    f"{tokens[wanted]!r} there; name special tokens alike in both"
                )
        if self.backend is not None and tokens != self.tokens:
            raise ValueError(
                f"{self.name} is a tokenizer whose special tokens ({', '.join(special)}) have other ids than in the "
                "target vocabulary; give the words as a dict or a list, which can be renumbered"
            )
        self.tokens = tokens
        return old

    def tokenizer(
        self, special: Mapping[str, str], prefix: Iterable[str] = (), suffix: Iterable[str] = ()
    ) -> PreTrainedTokenizerFast:
        """Return a tokenizer of these words: what stands between blanks, or what the tokenizer file says.

        Args:
            special: Role ("pad_token", ...) to token.
            prefix: Tokens before every text.
            suffix: Tokens after every text.
        """
        if self.backend is None:
            words = {token: number for number, token in enumerate(self.tokens)}
            # Without a token for unknown words, one of them is an error, as it is in the code that had none.
            backend = Tokenizer(models.WordLevel(words, unk_token=self.unknown or UNKNOWN[0]))
            backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        else:
            backend = Tokenizer.from_str(self.backend.to_str())
            backend.no_padding()
            backend.no_truncation()
        prefix, suffix = list(prefix), list(suffix)
        backend.post_processor = processors.TemplateProcessing(
            single=[*prefix, "$A", *suffix],
            pair=[*prefix, "$A", *suffix, "$B", *suffix],
            special_tokens=[(token, self.tokens.index(token)) for token in dict.fromkeys((*prefix, *suffix))],
        )
        return PreTrainedTokenizerFast(
            tokenizer_object=backend,
            model_input_names=["input_ids", "attention_mask"],
            clean_up_tokenization_spaces=False,
            split_special_tokens=True,
            **special,
        )

    def _read(self, path: Path) -> Mapping[str, int] | Sequence[str]:
        lines = list(read_lines(path))
        if path.suffix != ".json":
            while lines and not lines[-1]:
                lines.pop()
            if lines and all(map(FAIRSEQ_LINE.fullmatch, lines)):
                return [*FAIRSEQ_SPECIAL, *(line.split(" ")[0] for line in lines)]
            for number, line in enumerate(lines, start=1):
                if not line or {" ", "\t"} & set(line):
                    raise ValueError(f"{self.name}, line {number}: {line!r} is not one token; give one token a line")
            return lines
        try:
            content: Any = json.loads("\n".join(lines))
        except ValueError as error:
            raise ValueError(f"{self.name}: not JSON ({error}); write {{token: id}}") from None
        if isinstance(content, dict) and isinstance(content.get("model"), dict):
            return self._read_tokenizer(path)
        if not isinstance(content, (dict, list)):
            raise ValueError(f"{self.name} holds {type(content).__name__}; write {{token: id}} or a list of tokens")
        return content

    def _read_tokenizer(self, path: Path) -> Mapping[str, int]:
        try:
            self.backend = Tokenizer.from_file(str(path))
        except Exception as error:
            raise ValueError(f"{self.name} is not a readable tokenizer file: {error}") from None
        return self.backend.get_vocab(with_added_tokens=True)

    def _in_order(self, vocabulary: Mapping[str, int] | Sequence[str]) -> list[str]:
        """Return the tokens in the order of their ids, once it is sure that these are 0 to n - 1."""
        pairs = (
            list(vocabulary.items()) if isinstance(vocabulary, Mapping) else [(t, n) for n, t in enumerate(vocabulary)]
        )
        if not pairs:
            raise ValueError(f"{self.name} is empty; give one token a line, or {{token: id}}")
        tokens: dict[int, str] = {}
        seen: dict[str, int] = {}
        for token, number in pairs:
            if not isinstance(token, str) or isinstance(number, bool) or not isinstance(number, int):
                raise ValueError(f"{self.name}: {token!r}: {number!r} is no token with a whole number as its id")
            if number in tokens:
                raise ValueError(
                    f"{self.name}: {tokens[number]!r} and {token!r} both have id {number}; ids are unique"
                )
            if token in seen:
                raise ValueError(
                    f"{self.name}: {token!r} has the ids {seen[token]} and {number}; list every token once"
                )
            tokens[number], seen[token] = token, number
        gap = next((number for number in range(len(tokens)) if number not in tokens), None)
        if gap is not None:
            raise ValueError(f"{self.name}: no token has id {gap}, though ids go up to {max(tokens)}; leave no gaps")
        return [tokens[number] for number in range(len(tokens))]


def vocabulary_tokenizer(
    source: WordVocabulary,
    target: WordVocabulary,
    special: Mapping[str, str],
    source_prefix: Iterable[str] = (),
    source_suffix: Iterable[str] = (),
) -> PreTrainedTokenizerFast:
    """Return the tokenizer of two vocabularies, or of one if both sides have the same words and ends.

    Args:
        source: Vocabulary of the source side, aligned with the other.
        target: Vocabulary of the target side.
        special: Role ("pad_token", "bos_token", "eos_token") to token.
        source_prefix: Roles of the tokens before a source text.
        source_suffix: Roles of those after it; after a target text stands the end token.
    """
    roles = dict(special)
    if source.unknown is not None and source.unknown == target.unknown:
        roles["unk_token"] = source.unknown
    prefix, suffix = ([special[role] for role in part if role in special] for part in (source_prefix, source_suffix))
    end = [special["eos_token"]] if "eos_token" in special else []
    one_side = source.tokenizer(roles, prefix, suffix)
    if (source.tokens, prefix, suffix) == (target.tokens, [], end):
        return one_side
    return VanillaTransformerTokenizer.from_pair(one_side, target.tokenizer(roles, suffix=end))


__all__ = ["Vocabulary", "WordVocabulary", "vocabulary_tokenizer"]
