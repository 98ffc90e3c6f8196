r"""Find suspicious pairs in parallel text before you train on it.

The text is named by the same options as in `train`. For example:

    vanilla-transformer inspect --train_source_file train.en --train_target_file train.de
    vanilla-transformer inspect --train_file pairs.tsv --examples 20
    vanilla-transformer inspect --train_file words.tsv --tokenizer_name_or_path my-tokenizer

For each problem, it prints the number of pairs and the first few, source above target. Problems are identical sides,
duplicate pairs, very different lengths, a script or language that differs from the rest of the side, both languages
in one text, targets with many words of their source and, with a tokenizer, mostly unknown tokens. For validation and
test pairs, it also lists characters that are much rarer in training, such as another apostrophe. The text is read a
few times and not changed.
"""

import re
import unicodedata
from argparse import Namespace
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from shutil import get_terminal_size
from typing import Any

from ..data.arguments import DataArguments
from ..options import NOT_NEGATIVE
from .options import Number, OneLineParser, add_fields, add_trust_option, importing, parse_dataclasses
from .train import MAIN_OPTIONS, add_main_options

NO_TERMINAL = (120, 24)

# Fields of `DataArguments` that name text or say how to read it.
FIELDS = (
    "corpora",
    *(f"{split}_{side}" for split in ("train", "validation", "test")
      for side in ("source_file", "target_file", "file")),
    "source_column", "target_column", "feature_columns", "feature_separator", "source_lang", "target_lang",
    "dataset_name", "dataset_config_name", "toy_corpus", "cache_dir",
)  # fmt: skip  # a table by topic, not a column

# Most characters to show per split.
MAX_CHARACTERS = 20

# Characters that would move the cursor or end the line.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def add_arguments(parser: OneLineParser) -> None:
    if parser.shows_all:
        add_fields(parser, DataArguments, {"text": FIELDS}, "options of train without effect here")
    else:
        add_main_options(parser, "text", DataArguments, [name for name in MAIN_OPTIONS["text"][1] if name in FIELDS])
    report = parser.add_argument_group("report")
    examples = "Pairs to show per problem (default: 5)."
    report.add_argument("--examples", type=Number(int, NOT_NEGATIVE), default=5, metavar="N", help=examples)
    report.add_argument(
        "--tokenizer_name_or_path", metavar="NAME", help="Tokenizer (folder or Hub name) to find unknown tokens with."
    )
    add_trust_option(parser, report)


def run(arguments: Namespace) -> None:
    with importing():
        from ..data.inspection import inspect_pairs
        from ..data.splits import located_splits
        from ..pretrained.loading import load_tokenizer
    (data_args,) = parse_dataclasses([DataArguments], arguments)
    splits, tokenizer = located_splits(data_args), None
    if arguments.tokenizer_name_or_path:
        tokenizer = load_tokenizer(arguments.tokenizer_name_or_path, trust_remote_code=arguments.trust_remote_code)
    has_features = bool(data_args.feature_columns)
    unfamiliar = _unfamiliar_characters(splits, has_features)
    for split, corpus in splits.items():
        number, findings = inspect_pairs(corpus.read, tokenizer, arguments.examples, has_features)
        print("\n".join([*_report(split, number, findings), *_characters(split, unfamiliar.get(split, []))]))


def _is_training(split: str) -> bool:
    """Whether these are training pairs, of which a list may have several parts."""
    return split.partition(",")[0] == "train"


def _unfamiliar_characters(splits: Mapping[str, Any], has_features: bool) -> dict[str, list[Any]]:
    """Return the characters of held-out corpora that are much rarer in training text of the same side or language."""
    from ..data.inspection import SIDES, count_characters, unfamiliar_characters

    has_languages = len({corpus.direction for corpus in splits.values() if None not in corpus.direction}) > 1
    if not 0 < sum(map(_is_training, splits)) < len(splits):
        return {}
    training: defaultdict[str | None, Counter[str]] = defaultdict(Counter)
    held_out = {}
    for split, corpus in splits.items():
        names = dict(zip(SIDES, corpus.direction if has_languages else SIDES, strict=True))
        counts = count_characters(corpus.read(), has_features)
        if _is_training(split):
            for side, name in names.items():
                training[name] += counts[side]
        else:
            held_out[split] = names, counts
    return {
        split: unfamiliar_characters(counts, {side: training[name] for side, name in names.items() if training[name]})
        for split, (names, counts) in held_out.items()
    }


def _report(split: str, number: int, findings: list[Any]) -> Iterator[str]:
    yield f"{split}: {number} pairs" if findings else f"{split}: {number} pairs, none of them odd"
    for finding in findings:
        yield f"\n{finding}"
        indent = max([len(place) for place, _ in finding.examples], default=0)
        width = max(20, get_terminal_size(NO_TERMINAL).columns - indent - 4)
        for place, pair in finding.examples:
            yield f"  {place:{indent}}  {truncated(pair['source'], width)}"
            yield f"  {'':{indent}}  {truncated(pair['target'], width)}"
    yield ""


def _characters(split: str, found: list[Any]) -> Iterator[str]:
    if not found:
        return
    yield f"{split}: characters that are much rarer in training"
    for side, character, number, in_training in found[:MAX_CHARACTERS]:
        name = unicodedata.name(character, "unnamed").lower()
        shown = f" {character}" if unicodedata.category(character)[0] in "LNPS" else ""
        yield f"  {side} U+{ord(character):04X}{shown}, {name}: {number}, {in_training} in training"
    if len(found) > MAX_CHARACTERS:
        yield f"  and {len(found) - MAX_CHARACTERS} others"
    yield ""


def truncated(text: str, width: int) -> str:
    """Truncate text to `width` terminal columns, with control characters escaped."""
    text = CONTROL.sub(lambda match: ascii(match[0])[1:-1], text)
    columns = 0
    for index, character in enumerate(text):
        columns += _columns(character)
        if columns > width:
            cut = text[:index]
            while cut and sum(map(_columns, cut)) >= width:
                cut = cut[:-1]
            return f"{cut}…"
    return text


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
