"""The tokenizer of a run: loaded or trained, with the languages and tags of its corpora."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, cast

import datasets
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..data.augmentation import parse_shares
from ..data.corpora import Part
from ..data.encoding import Prefixes, SourcePrefix
from ..data.tokenizer_training import train_tokenizer
from ..inference.languages import has_tags, is_multilingual
from ..inference.loading import load_tokenizer
from ..model.multilingual_vanilla_transformer import VanillaTransformerMultilingualTokenizer
from ..model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..text.protection import PLACEHOLDERS
from .arguments import ModelArguments, VanillaTransformerTrainingArguments
from .run_folder import save_tokenizer
from .text_splits import TextSplits
from .trainer_loss import data_seed
from .vocabulary import Texts, extend_tokenizer

# Pairs of a stream to train its tokenizer on; more would hardly change the vocabulary.
STREAM_TOKENIZER_PAIRS = 1_000_000


def load_or_train_tokenizer(
    model_args: ModelArguments, args: VanillaTransformerTrainingArguments, text: TextSplits
) -> PreTrainedTokenizerBase:
    """Load the tokenizer that the arguments name; if they name none, the first process trains one.

    It gets languages and tags of the training pairs and, if the run inserts items, placeholders, but learns none.
    """
    tags = [part.tag for part in text.parts if part.tag]
    placeholders = PLACEHOLDERS if "items" in parse_shares(args.augment) else ()
    # As they are written, whatever else the tokenizer makes of a text.
    added = [AddedToken(token, normalized=False) for token in dict.fromkeys([*tags, *placeholders])]
    texts = partial(_texts, text, data_seed(args))
    if name := model_args.tokenizer_name_or_path or model_args.model_name_or_path:
        tokenizer = load_tokenizer(name, trust_remote_code=model_args.trust_remote_code)
        if model_args.extend_vocab:
            tokenizer = extend_tokenizer(tokenizer, texts, model_args.extend_vocab)
    elif model_args.separate_vocabularies and text.has_several_directions:
        raise ValueError("`separate_vocabularies`: several languages need one for all; leave it out")
    elif args.process_index > 0:
        tokenizer = load_tokenizer(args.output_dir)
    else:
        languages = {*chain(*text.trained)} if text.has_several_directions else ()
        tokenizer = _train_tokenizer(model_args, texts, len(added) + len(languages))
        # The other processes must have the very same.
        save_tokenizer(tokenizer, args.output_dir)
    if text.has_several_directions or has_tags(tokenizer):
        tokenizer = _with_directions(tokenizer, text)
    tokenizer.add_tokens(added)
    if len(text.trained) == 1 and not is_multilingual(tokenizer):
        # Saved, as Marian's tokenizers do.
        tokenizer.init_kwargs |= dict(zip(("source_lang", "target_lang"), text.trained[0], strict=True))
    return tokenizer


def _with_directions(tokenizer: PreTrainedTokenizerBase, text: TextSplits) -> PreTrainedTokenizerBase:
    """Return a tokenizer that knows the directions of the training pairs."""
    if is_multilingual(tokenizer) and not has_tags(tokenizer):
        raise ValueError(
            f"{type(tokenizer).__name__} has languages of its own; train one direction, or a model of this package"
        )
    if not text.trained:
        raise ValueError("the model translates between several languages; set `source_lang` and `target_lang`")
    return VanillaTransformerMultilingualTokenizer.from_shared(cast(PreTrainedTokenizerFast, tokenizer), text.trained)


def source_prefixes(tokenizer: PreTrainedTokenizerBase, parts: Sequence[Part]) -> Prefixes:
    """Return the tokens before the sources of each part; none at all if no part has any."""
    prefixes = []
    for part in parts:
        languages = cast(Any, tokenizer).tag_ids(*part.direction) if has_tags(tokenizer) else []
        tag = [cast(int, tokenizer.convert_tokens_to_ids(part.tag))] if part.tag else []
        prefixes.append(SourcePrefix((*languages, *tag), len(languages)))
    return prefixes if any(prefix.ids for prefix in prefixes) else ()


def _texts(text: TextSplits, seed: int, *sides: str) -> Iterator[str]:
    """Yield the texts to learn a vocabulary on."""
    is_stream = isinstance(text.train, datasets.IterableDataset)
    rows = text.train.take(STREAM_TOKENIZER_PAIRS) if is_stream else text.distinct_rows(seed)
    return (row[side] for row in rows for side in sides)


def _train_tokenizer(model_args: ModelArguments, texts: Texts, reserved: int) -> PreTrainedTokenizerBase:
    """Train a tokenizer whose vocabulary has room for so many tokens more."""
    algorithm = model_args.tokenizer_algorithm
    # The unigram model prunes by likelihood, not by counts.
    fewest = 1 if algorithm == "unigram" else 2

    def learn(*sides: str) -> PreTrainedTokenizerFast:
        return train_tokenizer(
            texts(*sides),
            algorithm=algorithm,
            vocab_size=model_args.vocab_size,
            reserved=reserved,
            min_frequency=fewest if model_args.min_frequency is None else model_args.min_frequency,
            lowercase=model_args.lowercase,
            normalization=model_args.normalization,
        )

    if model_args.separate_vocabularies:
        return VanillaTransformerTokenizer.from_pair(learn("source"), learn("target"))
    return learn("source", "target")
