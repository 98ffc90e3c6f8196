"""Lists of corpora: their text, directions and sampling weights."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ..errors import DataError, did_you_mean
from ..files import atomic_write, is_yaml_null, read_yaml, yaml_items
from ..model.tokenization_vanilla_transformer import SPECIAL_TOKENS
from ..options import Range
from .arguments import SPLITS, WEIGHTS, DataArguments
from .filtering import parse_filters

# Marks sources that are back-translations of target text (Caswell et al. 2019).
BACK_TRANSLATED = "<back-translated>"

# The split of each list in a file.
LISTS = {"corpora": "train", "validation": "validation", "test": "test"}

COLUMNS = ("source_column", "target_column", "source_lang", "target_lang")
# Options that the command line may set for all entries.
SHARED = (*COLUMNS, "feature_columns", "feature_separator", "streaming", "cache_dir")
# Keys of an entry that select its text, with the equivalent fields of `DataArguments`.
_TEXT = ("train_source_file", "train_target_file", "train_file", "dataset_name", "dataset_config_name", *COLUMNS)
TEXT_KEYS = {name.removeprefix("train_"): name for name in _TEXT}


class Part(NamedTuple):
    """Pairs of one corpus in one direction."""

    source_lang: str | None = None
    target_lang: str | None = None
    # How often each pair occurs in an epoch at temperature 1; 0 if it is not for training.
    weight: float = 1.0
    # Token prepended to the sources.
    tag: str | None = None
    # Whether it has the pairs of another part with source and target swapped.
    is_reversed: bool = False

    @property
    def direction(self) -> tuple[str | None, str | None]:
        return self.source_lang, self.target_lang


@dataclass(frozen=True)
class Corpus:
    """An entry of a corpus list."""

    # Where its pairs are, as for a single corpus: files or dataset, columns and languages.
    text: DataArguments
    # Its location in the list, for messages; "" if options select it.
    where: str = ""
    # Weight of its parts; even with weight 0, pairs may be held out.
    weight: float = 1.0
    # Token that marks its sources for the model.
    tag: str | None = None
    # Whether each pair is also used from target to source.
    both_directions: bool = False
    # Whether held-out splits and `max_train_samples` apply to it.
    hold_out: bool = True
    # Filters that leave pairs out, and the TSV file for those pairs.
    filters: tuple[str, ...] = ()
    left_out_file: str | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        source, target = self.text.source_lang, self.text.target_lang
        forward = Part(source, target, self.weight, self.tag)
        return (forward, Part(target, source, self.weight, self.tag, True)) if self.both_directions else (forward,)


@dataclass(frozen=True)
class Corpora:
    """All corpora, by split; see `rows_per_epoch` for the temperature."""

    entries: Mapping[str, Sequence[Corpus]]
    temperature: float = 1.0

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Training parts in order, then an untagged part for each evaluated direction that has none."""
        trained = [part for corpus in self.entries.get("train", ()) for part in corpus.parts]
        held_out = [part for corpus in self.entries.get("train", ()) if corpus.hold_out for part in corpus.parts]
        evaluated = dict.fromkeys(part.direction for part in (*held_out, *(part for _, part in self._evaluated())))
        # Evaluated sources have no tag.
        known = {part.direction for part in trained if not part.tag}
        parts = (*trained, *(Part(*direction, weight=0) for direction in evaluated if direction not in known))
        if len({part.direction for part in parts}) > 1:
            self._check_languages([part for part in trained if part.weight])
        return parts

    def index(self, part: Part) -> int:
        """Return the index of the first untagged part in the same direction, for evaluation."""
        return [(other.direction, other.tag) for other in self.parts].index((part.direction, None))

    def _evaluated(self) -> Iterator[tuple[Corpus, Part]]:
        for split in SPLITS:
            for corpus in self.entries.get(split, ()):
                if split != "train" or not corpus.weight:
                    yield from ((corpus, part) for part in corpus.parts)

    def _check_languages(self, trained: Sequence[Part]) -> None:
        for corpus in (corpus for entries in self.entries.values() for corpus in entries):
            where, codes = corpus.where or "the corpus from the options", corpus.parts[0].direction
            if None in codes:
                raise DataError(
                    f"{where}: several directions need languages for each corpus; set `source_lang` and `target_lang`"
                )
            if odd := [code for code in map(str, codes) if code.split() != [code]]:
                raise DataError(f"{where}: {odd[0]!r} is not a language code; write one word, such as de")
        targets = {part.target_lang for part in trained}
        known = (targets | {part.source_lang for part in trained}, targets)
        for corpus, part in self._evaluated() if trained else ():
            for language, languages, side in zip(part.direction, known, ("", " as target"), strict=True):
                if language not in languages:
                    raise DataError(
                        f"{corpus.where or 'the options'}: no training pairs have the language {language}{side}, only "
                        f"{', '.join(sorted(map(str, languages)))}"
                    )


def rows_per_epoch(sizes: Sequence[int], parts: Sequence[Part], temperature: float = 1.0) -> list[int]:
    """Return the number of pairs per epoch for each part, given the parts' sizes.

    A direction with a share s of all pairs gets a new share in proportion to s^(1/T) (Arivazhagan et al. 2019), split
    among its parts by size. Each part's number is then multiplied by its weight. At temperature T = 1, each pair
    occurs as many times as its weight.
    """
    directions: Counter[object] = Counter()
    for size, part in zip(sizes, parts, strict=True):
        directions[part.direction] += size
    powers = {direction: size ** (1 / temperature) for direction, size in directions.items() if size}
    scale = sum(sizes) / sum(powers.values())
    numbers = []
    for size, part in zip(sizes, parts, strict=True):
        share = scale * powers[part.direction] * size / directions[part.direction] if size else 0.0
        numbers.append(max(round(share * part.weight), bool(size and part.weight)))
    return numbers


def corpora_of(arguments: DataArguments) -> Corpora:
    """Return the corpora that arguments select: the one from options, then those of the list."""
    listed = read_corpora(arguments.corpora, arguments) if arguments.corpora else Corpora({})
    is_set = bool(arguments.dataset_name or arguments.toy_corpus)
    entries = {split: [*listed.entries.get(split, ())] for split in SPLITS}
    for split in SPLITS:
        if is_set or arguments.files(split):
            weight = arguments.train_weight if split == "train" else 1.0
            entries[split].insert(0, Corpus(_text_of_split(arguments, split), weight=weight))
    return Corpora({split: corpora for split, corpora in entries.items() if corpora}, listed.temperature)


def _text_of_split(arguments: DataArguments, split: str) -> DataArguments:
    """Return arguments with the text of a split in the training fields."""
    files = {f"train_{name}": getattr(arguments, f"{split}_{name}") for name in ("source_file", "target_file", "file")}
    own = {name: getattr(arguments, name) for name in SHARED}
    if not arguments.files(split):
        own |= {name: getattr(arguments, name) for name in ("dataset_name", "dataset_config_name", "toy_corpus")}
    return DataArguments(**own, **files)


def read_corpora(path: str, arguments: DataArguments) -> Corpora:
    """Read a list of corpora in YAML or JSON; entries inherit the options `SHARED` from `arguments`."""
    entries: dict[str, list[Corpus]] = {}
    temperature = 1.0
    for key, line, value in yaml_items(read_yaml(path), path):
        where = f"{path}, line {line}"
        if key == "sampling_temperature":
            temperature = _number(value, f"{where}: `{key}`", Range(ge=1))
        elif key not in LISTS:
            known = (*LISTS, "sampling_temperature")
            raise DataError(f"{where}: unknown key {key}{did_you_mean(key, known)}; write one of {', '.join(known)}")
        elif value.id != "sequence":
            raise DataError(f"{where}: `{key}` must be a list; begin each entry with a hyphen")
        else:
            lines = Counter(node.start_mark.line for node in value.value)
            entries[LISTS[key]] = [
                # JSON may have all entries on one line.
                _corpus(node, path, f", entry {number}" if lines[node.start_mark.line] > 1 else "", key, arguments)
                for number, node in enumerate(value.value, start=1)
            ]
    tables = set[str]()
    for corpus in entries.get("train", ()):
        table = corpus.left_out_file and os.path.realpath(corpus.left_out_file)
        if table in tables:
            raise DataError(
                f"{corpus.where}: `left_out_file` {corpus.left_out_file} is taken by an earlier entry; name another"
            )
        tables.update([table] if table else [])
    return Corpora(entries, temperature)


def _corpus(node: Any, path: str, entry: str, name: str, arguments: DataArguments) -> Corpus:
    where = f"{path}, line {node.start_mark.line + 1}{entry}"
    text, own = dict[str, Any](), dict[str, Any]()
    keys = [*TEXT_KEYS, *(_VALUES if LISTS[name] == "train" else ["both_directions"])]
    for key, line, value in yaml_items(node, path):
        at = f"{path}, line {line}{entry}"
        if key not in keys:
            raise DataError(f"{at}: unknown key {key}{did_you_mean(key, keys)}; write any of {', '.join(keys)}")
        if is_yaml_null(value):
            continue
        if key in TEXT_KEYS:
            text[TEXT_KEYS[key]] = _scalar(value, f"{at}: `{key}`")
        else:
            own[key] = _VALUES[key](value, f"{at}: `{key}`")
    try:
        named = DataArguments(**{name: getattr(arguments, name) for name in SHARED} | text)
    except DataError as error:
        raise DataError(f"{where}: {str(error).replace('train_', '')}") from None
    if own.get("both_directions") and not named.source_lang:
        raise DataError(f"{where}: `both_directions` needs languages; set `source_lang` and `target_lang`")
    if own.get("both_directions") and named.feature_columns:
        raise DataError(f"{where}: `both_directions` would have no `feature_columns` on its source; leave it out")
    if "left_out_file" in own and not own.get("filters"):
        raise DataError(f"{where}: `left_out_file` needs `filters`; set them")
    if not named.names_data:
        raise DataError(f"{where}: no text; give `source_file` and `target_file`, `file` or `dataset_name`")
    return Corpus(named, where, **{"hold_out": "tag" not in own, **own})


def _scalar(node: Any, what: str) -> str:
    if node.id != "scalar" or not node.value:
        raise DataError(f"{what} must be a single value")
    return str(node.value)


def _number(node: Any, what: str, wanted: Range = WEIGHTS) -> float:
    try:
        number = float(_scalar(node, what))
    except ValueError:
        raise DataError(f"{what} is {_scalar(node, what)!r}, not a number") from None
    if number not in wanted:
        raise DataError(f"{what} is {number:g}; it must be {wanted}")
    return number


def _switch(node: Any, what: str) -> bool:
    text = _scalar(node, what).lower()
    if text not in ("true", "false"):
        raise DataError(f"{what} is {text!r}; write true or false")
    return text == "true"


def _tag(node: Any, what: str) -> str:
    word = _scalar(node, what)
    if len(word.split()) != 1:
        raise DataError(f"{what} is {word!r}; write one word")
    tag = word if word.startswith("<") and word.endswith(">") else f"<{word}>"
    if tag in SPECIAL_TOKENS.values():
        raise DataError(f"{what} is {tag}, a special token of every vocabulary; write another word")
    return tag


def _filters(node: Any, what: str) -> tuple[str, ...]:
    if node.id != "sequence":
        raise DataError(f"{what} must be a list, such as [equal, repeated]")
    return parse_filters([_scalar(item, what) for item in node.value], what)


_VALUES: dict[str, Callable[[Any, str], Any]] = {
    "weight": _number,
    "tag": _tag,
    "both_directions": _switch,
    "hold_out": _switch,
    "filters": _filters,
    "left_out_file": _scalar,
}


def with_entry(arguments: DataArguments, path: str | Path, **entry: Any) -> DataArguments:
    """Write the corpus list as JSON with `entry` added, if it is new, and return arguments that use it."""
    content = yaml.load(Path(arguments.corpora).read_text("utf-8"), yaml.BaseLoader) if arguments.corpora else {}
    content["corpora"] = [*(other for other in content.get("corpora", []) if other != entry), entry]
    text = f"{json.dumps(content, indent=2, ensure_ascii=False)}\n".encode()
    if not (Path(path).is_file() and Path(path).read_bytes() == text):
        with atomic_write(path) as file:
            file.write(text)
    return replace(arguments, corpora=str(path), monolingual_target=None, reverse_model=None)
