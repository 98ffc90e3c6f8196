"""Lists of corpora: what they hold, in which directions, and how often an epoch has their pairs."""

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

# Marks sources that were translated from text of the target side (Caswell et al. 2019).
BACK_TRANSLATED = "<back-translated>"

# Splits by the names of their lists in a file.
LISTS = {"corpora": "train", "validation": "validation", "test": "test"}

COLUMNS = ("source_column", "target_column", "source_lang", "target_lang")
# What a command line may set once for all entries.
SHARED = (*COLUMNS, "streaming", "cache_dir")
# Keys of an entry that name its text, with the fields of `DataArguments` that mean the same.
_TEXT = ("train_source_file", "train_target_file", "train_file", "dataset_name", "dataset_config_name", *COLUMNS)
TEXT_KEYS = {name.removeprefix("train_"): name for name in _TEXT}


class Part(NamedTuple):
    """Pairs of one corpus in one direction."""

    source_lang: str | None = None
    target_lang: str | None = None
    # How often an epoch has each pair, at a temperature of 1; 0 if there are none for training.
    weight: float = 1.0
    # Before the sources.
    tag: str | None = None
    # Whether another part has the same pairs, with the sides exchanged.
    is_reversed: bool = False

    @property
    def direction(self) -> tuple[str | None, str | None]:
        return self.source_lang, self.target_lang


@dataclass(frozen=True)
class Corpus:
    """An entry of a list."""

    # Its pairs, as if it were the only corpus: files or dataset, columns and languages.
    text: DataArguments
    # Its place in a list, for messages; "" if options name it.
    where: str = ""
    # As of a part; of pairs without weight, some may be held out.
    weight: float = 1.0
    # Token that tells the model where a pair comes from.
    tag: str | None = None
    # Whether each pair is also one from target to source.
    both_directions: bool = False
    # Whether validation and test pairs may be held out from it, and a sample taken.
    hold_out: bool = True
    # Which pairs are left out, and the TSV file that receives those.
    filters: tuple[str, ...] = ()
    left_out_file: str | None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        source, target = self.text.source_lang, self.text.target_lang
        forward = Part(source, target, self.weight, self.tag)
        return (forward, Part(target, source, self.weight, self.tag, True)) if self.both_directions else (forward,)


@dataclass(frozen=True)
class Corpora:
    """All entries of a run, by split; see `rows_per_epoch` for the temperature."""

    entries: Mapping[str, Sequence[Corpus]]
    temperature: float = 1.0

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """Parts of the training pairs in their order, then one for each direction that is only evaluated or tagged."""
        trained = [part for corpus in self.entries.get("train", ()) for part in corpus.parts]
        held_out = [part for corpus in self.entries.get("train", ()) if corpus.hold_out for part in corpus.parts]
        evaluated = dict.fromkeys(part.direction for part in (*held_out, *(part for _, part in self._evaluated())))
        # Sources of an evaluation have no tag.
        known = {part.direction for part in trained if not part.tag}
        parts = (*trained, *(Part(*direction, weight=0) for direction in evaluated if direction not in known))
        if len({part.direction for part in parts}) > 1:
            self._check_languages([part for part in trained if part.weight])
        return parts

    def number(self, part: Part) -> int:
        """Return the number of the first part with this direction and no tag, for an evaluation."""
        return [(each.direction, each.tag) for each in self.parts].index((part.direction, None))

    def _evaluated(self) -> Iterator[tuple[Corpus, Part]]:
        for split in SPLITS:
            for corpus in self.entries.get(split, ()):
                if split != "train" or not corpus.weight:
                    yield from ((corpus, part) for part in corpus.parts)

    def _check_languages(self, trained: Sequence[Part]) -> None:
        for corpus in (corpus for entries in self.entries.values() for corpus in entries):
            where, codes = corpus.where or "the corpus of the options", corpus.parts[0].direction
            if None in codes:
                raise DataError(
                    f"{where}: no languages, which several directions need; set `source_lang` and `target_lang`"
                )
            if odd := [code for code in map(str, codes) if code.split() != [code]]:
                raise DataError(f"{where}: the language {odd[0]!r} is no code; write one word, such as de")
        targets = {part.target_lang for part in trained}
        known = (targets | {part.source_lang for part in trained}, targets)
        for corpus, part in self._evaluated() if trained else ():
            for language, languages, side in zip(part.direction, known, ("", " as target"), strict=True):
                if language not in languages:
                    raise DataError(
                        f"{corpus.where or 'the options'}: no training pairs have the language {language}{side}, but "
                        f"{', '.join(sorted(map(str, languages)))}"
                    )


def rows_per_epoch(sizes: Sequence[int], parts: Sequence[Part], temperature: float = 1.0) -> list[int]:
    """Return how many pairs of each part an epoch has, for their sizes.

    A direction with a share s of all pairs gets one in proportion to s^(1/T) (Arivazhagan et al. 2019), and divides
    it among its corpora by their sizes; weights then multiply. At a temperature T of 1 an epoch has each pair as often
    as its weight says.
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
    """Return the corpora that arguments name: the one of the options, and those of a list."""
    listed = read_corpora(arguments.corpora, arguments) if arguments.corpora else Corpora({})
    is_set = bool(arguments.dataset_name or arguments.toy_corpus)
    entries = {split: [*listed.entries.get(split, ())] for split in SPLITS}
    for split in SPLITS:
        if is_set or arguments.files(split):
            weight = arguments.train_weight if split == "train" else 1.0
            entries[split].insert(0, Corpus(_text_of_split(arguments, split), weight=weight))
    return Corpora({split: found for split, found in entries.items() if found}, listed.temperature)


def _text_of_split(arguments: DataArguments, split: str) -> DataArguments:
    """Return arguments that name the text of a split as that of training."""
    files = {f"train_{name}": getattr(arguments, f"{split}_{name}") for name in ("source_file", "target_file", "file")}
    own = {name: getattr(arguments, name) for name in SHARED}
    if not arguments.files(split):
        own |= {name: getattr(arguments, name) for name in ("dataset_name", "dataset_config_name", "toy_corpus")}
    return DataArguments(**own, **files)


def read_corpora(path: str, arguments: DataArguments) -> Corpora:
    """Read a list of corpora, in YAML or JSON; entries without their own take over options of `arguments`."""
    entries: dict[str, list[Corpus]] = {}
    temperature = 1.0
    for key, line, value in yaml_items(read_yaml(path), path):
        where = f"{path}, line {line}"
        if key == "sampling_temperature":
            temperature = _number(value, f"{where}: `{key}`", Range(ge=1))
        elif key not in LISTS:
            known = (*LISTS, "sampling_temperature")
            raise DataError(f"{where}: unknown key {key}{did_you_mean(key, known)}; write {', '.join(known)}")
        elif value.id != "sequence":
            raise DataError(f"{where}: `{key}` is no list; begin each of its entries with a hyphen")
        else:
            lines = Counter(node.start_mark.line for node in value.value)
            entries[LISTS[key]] = [
                # JSON may have all on one line.
                _corpus(node, path, f", entry {number}" if lines[node.start_mark.line] > 1 else "", key, arguments)
                for number, node in enumerate(value.value, start=1)
            ]
    tables = set[str]()
    for corpus in entries.get("train", ()):
        table = corpus.left_out_file and os.path.realpath(corpus.left_out_file)
        if table in tables:
            raise DataError(f"{corpus.where}: {corpus.left_out_file} is the `left_out_file` of an earlier entry, too")
        tables.update([table] if table else [])
    return Corpora(entries, temperature)


def _corpus(node: Any, path: str, entry: str, name: str, arguments: DataArguments) -> Corpus:
    where = f"{path}, line {node.start_mark.line + 1}{entry}"
    text, own = dict[str, Any](), dict[str, Any]()
    keys = [*TEXT_KEYS, *(_VALUES if LISTS[name] == "train" else ["both_directions"])]
    for key, line, value in yaml_items(node, path):
        at = f"{path}, line {line}{entry}"
        if key not in keys:
            raise DataError(f"{at}: unknown key {key}{did_you_mean(key, keys)}; write some of {', '.join(keys)}")
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
        raise DataError(f"{where}: `both_directions` without languages; set `source_lang` and `target_lang`")
    if "left_out_file" in own and not own.get("filters"):
        raise DataError(f"{where}: `left_out_file`, but no `filters` that leave something out; set them")
    if not named.names_data:
        raise DataError(f"{where}: no text; give `source_file` and `target_file`, `file` or `dataset_name`")
    return Corpus(named, where, **{"hold_out": "tag" not in own, **own})


def _scalar(node: Any, what: str) -> str:
    if node.id != "scalar" or not node.value:
        raise DataError(f"{what} is no single value; write one")
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
        raise DataError(f"{what} is no list; write it as [equal, repeated]")
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
    """Write a list in JSON with a further corpus, unless it is there, and return arguments that name it."""
    content = yaml.load(Path(arguments.corpora).read_text("utf-8"), yaml.BaseLoader) if arguments.corpora else {}
    content["corpora"] = [*(each for each in content.get("corpora", []) if each != entry), entry]
    text = f"{json.dumps(content, indent=2, ensure_ascii=False)}\n".encode()
    if not (Path(path).is_file() and Path(path).read_bytes() == text):
        with atomic_write(path) as file:
            file.write(text)
    return replace(arguments, corpora=str(path), monolingual_target=None, reverse_model=None)
