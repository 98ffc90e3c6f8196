"""The tokenizer of a run, loaded, trained or extended, with languages and tags; embeddings of new tokens."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import datasets
import torch
from tokenizers import AddedToken, Tokenizer, models
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..data.augmentation import parse_shares
from ..data.corpora import Part
from ..data.encoding import Prefixes, SourcePrefix
from ..data.features import Features, split_features
from ..data.tokenizer_training import train_tokenizer
from ..errors import DataError
from ..model.multilingual_vanilla_transformer import VanillaTransformerMultilingualTokenizer
from ..model.tokenization_vanilla_transformer import UNKNOWN_TAG, VanillaTransformerTokenizer, tag_token
from ..pretrained.languages import has_tags, is_multilingual
from ..pretrained.loading import load_tokenizer
from ..text.protection import PLACEHOLDERS
from .arguments import ModelArguments, VanillaTransformerTrainingArguments
from .run_folder import save_final
from .text_splits import TextSplits
from .trainer_loss import data_seed

# Pairs of a stream to train its tokenizer on; more would hardly change the vocabulary.
STREAM_TOKENIZER_PAIRS = 1_000_000

# Returns the texts of the given sides, "source" and "target".
Texts = Callable[..., Iterable[str]]

# Two tokens that are merged into one.
Merge = tuple[str, str]

SIDES = ("source", "target")

# Minimum frequency of a new token, as for a learned vocabulary.
MIN_FREQUENCY = 2


def load_or_train_tokenizer(
    model_args: ModelArguments, args: VanillaTransformerTrainingArguments, text: TextSplits
) -> PreTrainedTokenizerBase:
    """Load the tokenizer that the arguments name, or train one in the first process.

    Languages and tags of the training pairs, tags in their feature columns and, if the run inserts items, placeholders
    are added, not learned.
    """
    tags = [part.tag for part in text.parts if part.tag]
    placeholders = PLACEHOLDERS if "items" in parse_shares(args.augment) else ()
    # Matched as written, before normalization.
    added = [
        AddedToken(token, normalized=False) for token in dict.fromkeys([*tags, *placeholders, *_feature_tokens(text)])
    ]
    texts = partial(_texts, text, data_seed(args))
    if name := model_args.tokenizer_name_or_path or model_args.model_name_or_path:
        tokenizer = load_tokenizer(name, trust_remote_code=model_args.trust_remote_code)
        if Features.of(tokenizer) and not text.features:
            raise DataError(f"{name} was trained with feature columns; name those of the text as `feature_columns`")
        if model_args.extend_vocab:
            tokenizer = extend_tokenizer(tokenizer, texts, model_args.extend_vocab)
    elif model_args.separate_vocabularies and text.has_several_directions:
        raise ValueError("`separate_vocabularies`: several directions need a shared vocabulary; leave it out")
    elif args.process_index > 0:
        tokenizer = load_tokenizer(args.output_dir)
    else:
        languages = {*chain(*text.trained)} if text.has_several_directions else ()
        tokenizer = _train_tokenizer(model_args, texts, len(added) + len(languages))
        # The other processes must have the same tokenizer.
        save_final(tokenizer, args.output_dir)
    if text.has_several_directions or has_tags(tokenizer):
        tokenizer = _with_directions(tokenizer, text)
    tokenizer.add_tokens(added)
    if text.features:
        text.features.record(tokenizer)
    if len(text.trained) == 1 and not is_multilingual(tokenizer):
        # Saved with the tokenizer, as in Marian's.
        tokenizer.init_kwargs |= dict(zip(("source_lang", "target_lang"), text.trained[0], strict=True))
    return tokenizer


def _with_directions(tokenizer: PreTrainedTokenizerBase, text: TextSplits) -> PreTrainedTokenizerBase:
    """Return a multilingual tokenizer with the directions of the training pairs."""
    if is_multilingual(tokenizer) and not has_tags(tokenizer):
        raise ValueError(
            f"{type(tokenizer).__name__} has languages of its own; train one direction, or a model of this package"
        )
    if not text.trained:
        raise ValueError("the model translates between several languages; set `source_lang` and `target_lang`")
    return VanillaTransformerMultilingualTokenizer.from_shared(cast(PreTrainedTokenizerFast, tokenizer), text.trained)


def source_prefixes(tokenizer: PreTrainedTokenizerBase, parts: Sequence[Part]) -> Prefixes:
    """Return the prefix of the sources of each part; empty if no part has one."""
    prefixes = []
    for part in parts:
        languages = cast(Any, tokenizer).tag_ids(*part.direction) if has_tags(tokenizer) else []
        tag = [cast(int, tokenizer.convert_tokens_to_ids(part.tag))] if part.tag else []
        prefixes.append(SourcePrefix((*languages, *tag), len(languages)))
    return prefixes if any(prefix.ids for prefix in prefixes) else ()


def _texts(text: TextSplits, seed: int, *sides: str) -> Iterator[str]:
    is_stream = isinstance(text.train, datasets.IterableDataset)
    rows = text.train.take(STREAM_TOKENIZER_PAIRS) if is_stream else text.distinct_rows(seed)
    return (split_features(row[side], text.features)[0] for row in rows for side in sides)


def _feature_tokens(text: TextSplits) -> list[str]:
    """Return the tokens of the tags in the feature columns of the training pairs, for a stream its first ones."""
    if not text.features:
        return []
    is_stream = isinstance(text.train, datasets.IterableDataset)
    rows = text.train.take(STREAM_TOKENIZER_PAIRS) if is_stream else text.train
    tags = text.features.tags(source for batch in rows.iter(1000) for source in batch["source"])
    return [tag_token(tag) for tag in (UNKNOWN_TAG, *tags)]


def _train_tokenizer(model_args: ModelArguments, texts: Texts, reserved: int) -> PreTrainedTokenizerBase:
    """Train a tokenizer whose vocabulary has room for `reserved` more tokens."""

    def learn(tokenizer: tuple[str | None, str | None], *sides: str) -> PreTrainedTokenizerFast:
        algorithm, normalization = tokenizer
        # The unigram model prunes by likelihood, not by counts.
        fewest = 1 if algorithm == "unigram" else 2
        return train_tokenizer(
            texts(*sides),
            algorithm=cast(str, algorithm),
            vocab_size=model_args.vocab_size,
            reserved=reserved,
            min_frequency=fewest if model_args.min_frequency is None else model_args.min_frequency,
            lowercase=model_args.lowercase,
            normalization=normalization,
        )

    if model_args.separate_vocabularies:
        source, target = learn(model_args.source_tokenizer, "source"), learn(model_args.target_tokenizer, "target")
        return VanillaTransformerTokenizer.from_pair(source, target)
    return learn(model_args.source_tokenizer, "source", "target")


def vocabulary_sizes(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """Sizes of the source and of the target vocabulary."""
    return len(tokenizer), getattr(tokenizer, "target_vocab_size", len(tokenizer))


def extend_tokenizer(tokenizer: PreTrainedTokenizerBase, texts: Texts, size: int) -> PreTrainedTokenizerBase:
    """Return a tokenizer with up to `size` more BPE merges, learned on new texts; old tokens keep their ids.

    With a vocabulary for each side, each learns up to `size`.
    """
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        if hasattr(tokenizer, "target_vocab_size"):
            for side in SIDES:
                content = _extended(getattr(tokenizer, f"{side}_tokenizer"), texts(side), size)
                Path(folder, f"{side}_tokenizer.json").write_text(content, encoding="utf-8")
        else:
            Path(folder, "tokenizer.json").write_text(_extended(tokenizer, texts(*SIDES), size), encoding="utf-8")
        return load_tokenizer(folder)


def _extended(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], size: int) -> str:
    """Return the tokenizer.json of a tokenizer with further merges."""
    backend = _bpe_backend(tokenizer)
    content = json.loads(backend.to_str())
    merges = _learn_merges(backend, texts, size)
    next_id = 1 + max(backend.get_vocab(with_added_tokens=True).values())
    content["model"]["vocab"] |= {"".join(pair): next_id + i for i, pair in enumerate(merges)}
    content["model"]["merges"] += merges
    return json.dumps(content, ensure_ascii=False)


def _bpe_backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    backend = tokenizer.backend_tokenizer if isinstance(tokenizer, PreTrainedTokenizerFast) else None
    model = backend.model if backend else None
    is_plain = isinstance(model, models.BPE) and not (model.continuing_subword_prefix or model.end_of_word_suffix)
    if backend is None or backend.pre_tokenizer is None or not is_plain:
        raise ValueError(
            "`extend_vocab` needs a BPE tokenizer, such as `tokenizer_algorithm=bpe` trains; leave it out"
        )
    return backend


def _learn_merges(backend: Tokenizer, texts: Iterable[str], size: int) -> list[Merge]:
    """Return the merges that BPE would learn next from these texts."""
    normalize = backend.normalizer.normalize_str if backend.normalizer else str
    split = backend.pre_tokenizer.pre_tokenize_str
    # Merges stay within words.
    counts = Counter(word for text in texts for word, _ in split(normalize(text)))
    segments = {word: [token.value for token in backend.model.tokenize(word)] for word in counts}
    pairs: Counter[Merge] = Counter()
    words: defaultdict[Merge, set[str]] = defaultdict(set)

    def count(word: str, sign: int) -> None:
        for pair in pairwise(segments[word]):
            pairs[pair] += sign * counts[word]
            words[pair].add(word)

    for word in counts:
        count(word, 1)
    known, merges = set(backend.get_vocab()), list[Merge]()
    while len(merges) < size and (most := max(pairs.values(), default=0)) >= MIN_FREQUENCY:
        # Ties are broken alphabetically, whatever the order of the texts.
        pair = min(pair for pair, frequency in pairs.items() if frequency == most)
        token = "".join(pair)
        # A token that other merges already make would change their results.
        if token not in known:
            known.add(token)
            merges.append(pair)
            for word in words.pop(pair):
                count(word, -1)
                segments[word] = _merged(segments[word], pair)
                count(word, 1)
        del pairs[pair]
    return merges


def _merged(tokens: list[str], pair: Merge) -> list[str]:
    merged: list[str] = []
    for token in tokens:
        if merged and (merged[-1], token) == pair:
            merged[-1] += token
        else:
            merged.append(token)
    return merged


@torch.no_grad()
def add_embeddings(model: PreTrainedModel, before: PreTrainedTokenizerBase, after: PreTrainedTokenizerBase) -> None:
    """Give new tokens embeddings, resizing if needed: the mean of those of the old tokens each was split into.

    `after` is the tokenizer `before` with more tokens, whose ids follow.
    """
    old, new = vocabulary_sizes(before), vocabulary_sizes(after)
    if old == new:
        return
    # PreTrainedModel has no method for the decoder's vocabulary, and hides the type of its modules.
    resizable: Any = model
    config: Any = model.config
    if new[0] > config.vocab_size:
        resizable.resize_token_embeddings(new[0], mean_resizing=False)
    if new[1] > (getattr(config, "decoder_vocab_size", None) or config.vocab_size):
        resizable.resize_decoder_token_embeddings(new[1], mean_resizing=False)
    inputs, outputs = resizable.get_decoder().get_input_embeddings(), resizable.get_output_embeddings()
    matrices = ((resizable.get_input_embeddings(),), (inputs, outputs))
    for side, modules in zip(SIDES, matrices, strict=True):
        pieces = _pieces(*(getattr(tokenizer, f"{side}_tokenizer", tokenizer) for tokenizer in (before, after)))
        for module in modules:
            for token, ids in pieces.items():
                module.weight[token] = module.weight[ids].mean(0)


def _pieces(before: Any, after: Any) -> dict[int, list[int]]:
    """Return the ids of new tokens, each with the ids of the old tokens it was split into."""
    known = before.get_vocab()

    def split(token: str) -> list[int]:
        if before.is_fast:
            # Not the whole tokenizer: a BPE token may not be valid text.
            return [part.id for part in before.backend_tokenizer.model.tokenize(token)]
        return before.encode(token, add_special_tokens=False)

    return {i: split(token) for token, i in after.get_vocab().items() if token not in known}
