"""Measure how well models translate text as people type it: capitals, typos, emoji, links, placeholders, names.

    python scripts/robustness.py --model my-model --source test.en --reference test.de
    python scripts/robustness.py --models seed-1 seed-2 seed-3 --source test.en --reference test.de --output rows.json
    python scripts/robustness.py --model my-model --source test.en --reference test.de --card my-model/README.md

Each table row applies one kind of change to the source sentences. For several models, such as seeds of one recipe, a
row gives means and ranges.

- BLEU, also lower-cased: for upper and title case, the references change too. Items, such as links, are removed before
  scoring, and final punctuation is replaced by the reference's, so that only the rest of the sentence counts.
- difference: of lower-cased BLEU from the unchanged sentences; for three on a line, from the three translated alone.
- items kept: translations that contain the exact item exactly once.
- suspicious: translations with less than a third of their source's characters, or with five repetitions in a row.

The JSON file also holds all texts and translations.
"""

import json
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from random import Random
from statistics import mean
from typing import Any, NamedTuple

from _imports import importing

with importing():
    from hf_vanilla_transformer.cli.options import (
        SWITCH,
        Number,
        OneLineParser,
        add_compute_options,
        add_language_options,
        add_options,
        choose_languages,
        load_by_name,
        one_line_errors,
        out_of_memory,
        quiet_unless_terminal,
    )
    from hf_vanilla_transformer.data.augmentation import NEIGHBOURS
    from hf_vanilla_transformer.data.toy_corpus import load_toy_corpus
    from hf_vanilla_transformer.files import atomic_write, check_output_file, read_line_pairs
    from hf_vanilla_transformer.inference.translation import translate
    from hf_vanilla_transformer.options import BatchOptions, SearchOptions
    from hf_vanilla_transformer.registration import register
    from hf_vanilla_transformer.text.casing import Case, in_case
    from hf_vanilla_transformer.training.metrics import check_tokenizer, language_tokenizer, translation_scores
    from hf_vanilla_transformer.training.model_card import add_section, command_line, read_card

    register()

PUNCTUATION = ".!?…。！？"

# One to twenty characters, the first not a space, five times in a row.
LOOP = re.compile(r"(\S.{0,19}?)\1{4}")

# The kind that the others are compared with.
PLAIN = "as_it_is"


def main(argv: list[str] | None = None) -> None:
    """Translate, score and print; invalid input exits with status 2 and one line on standard error."""
    parser = OneLineParser(description=__doc__)
    add_arguments(parser)
    with one_line_errors(parser):
        arguments = parser.parse_args(argv)
        if len(set(arguments.models)) < len(arguments.models):
            raise ValueError("`models` contains duplicates; name each model once")
        if arguments.output is not None:
            inputs = [*filter(None, (arguments.source, arguments.reference, arguments.card)), *arguments.models]
            check_output_file(arguments.output, inputs, "output")
        if arguments.card is not None:
            read_card(arguments.card)
        if arguments.tokenize is not None:
            check_tokenizer(arguments.tokenize)
        sources, references = read_sentences(arguments)
        names = dict.fromkeys([PLAIN, *arguments.kinds])
        texts = {name: changed(name, sources, references, arguments.seed) for name in names}
        quiet_unless_terminal()
        results = {model: evaluate(model, texts, arguments) for model in arguments.models}
        if arguments.output is not None:
            save(arguments, texts, results)
        rows = table([result["rows"] for result in results.values()])
        print(rows)
        if arguments.card is not None:
            add_section(arguments.card, "Text as people type it", f"{rows}\n\n```sh\n{command_line()}\n```\n")


def add_arguments(parser: OneLineParser) -> None:
    model = parser.add_argument_group("model")
    model.add_argument("--models", required=True, nargs="+", help="Folders or Hub names; several are averaged.")
    add_language_options(model)
    add_compute_options(parser, model)
    files = parser.add_argument_group("input and output")
    files.add_argument("--source", metavar="FILE", help="Sentences, one per line; plain or .gz.")
    files.add_argument("--reference", metavar="FILE", help="Their reference translations.")
    files.add_argument("--toy_corpus", **SWITCH, help="Use the test pairs of the built-in corpus instead.")
    files.add_argument("--tokenize", help="BLEU's tokenizer (default: the target language's); none: tokenized text.")
    files.add_argument("--output", metavar="FILE", help="Write a JSON file of all values, texts and translations.")
    files.add_argument("--card", metavar="FILE", help="Add the table to a model card written by training.")
    rows = parser.add_argument_group("rows")
    kinds = f"Kinds of change: {', '.join(KINDS)} (default: all)."
    rows.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help=kinds)
    rows.add_argument(
        "--max_sentences", type=Number(int), default=200, help="How many to use, from the start (default: 200)."
    )
    rows.add_argument("--seed", type=int, default=0, help="Seed of places, letters and items (default: 0).")
    search = parser.add_argument_group("search")
    search.add_argument("--raw", **SWITCH, help="Translate lines as they are, without preprocessing.")
    add_options(parser, search, SearchOptions, "num_beams", num_beams={"default": 1, "help": "Beams; 1: greedy."})
    add_options(parser, search, BatchOptions, "max_tokens")
    parser.add_help_options()


def read_sentences(arguments: Namespace) -> tuple[list[str], list[str]]:
    """Return the first sentences and their references, skipping blank ones."""
    named = [name for name in ("source", "reference") if getattr(arguments, name) is not None]
    pairs: Iterable[tuple[str, str]]
    if arguments.toy_corpus:
        if named:
            raise ValueError(f"`{named[0]}` and `toy_corpus` are both given; keep one of them")
        test = load_toy_corpus()["test"]
        pairs = zip(test["source"], test["target"], strict=True)
    elif len(named) < 2:
        raise ValueError("no text is given; give `source` and `reference`, or `toy_corpus`")
    else:
        pairs = read_line_pairs(arguments.source, arguments.reference)
    stripped = ((one.strip(), other.strip()) for one, other in pairs)
    chosen = list(islice(filter(all, stripped), arguments.max_sentences))
    if not chosen:
        raise ValueError(f"{arguments.source} and {arguments.reference} hold no sentences; name files with text")
    sources, references = zip(*chosen, strict=True)
    return list(sources), list(references)


def evaluate(name: str, texts: Mapping[str, "Text"], arguments: Namespace) -> dict[str, Any]:
    """Return a model's translations of each kind and their scores."""
    print(f"translating with {name}", file=sys.stderr)
    model, tokenizer = load_by_name(name, arguments)
    languages = choose_languages(arguments, tokenizer)
    options = {"num_beams": arguments.num_beams, "max_tokens": arguments.max_tokens, **languages}
    if arguments.raw:
        options["raw"] = True
    sources = [source for text in texts.values() for source in text.sources]
    with out_of_memory(f"lower --max_tokens {arguments.max_tokens}"):
        hypotheses = iter(translate(model, tokenizer, sources, show_progress=sys.stderr.isatty(), **options))
    translations = {
        kind: [best.text for best, *_ in islice(hypotheses, len(text.sources))] for kind, text in texts.items()
    }
    tokenize = arguments.tokenize or language_tokenizer(languages["tgt_lang"])
    rows = measure(texts, translations, tokenize)
    return {"bleu_tokenize": tokenize, "rows": rows, "translations": translations}


def save(arguments: Namespace, texts: Mapping[str, "Text"], results: Mapping[str, Any]) -> None:
    settings = {name: getattr(arguments, name) for name in ("source", "reference", "seed", "num_beams", "raw", "bf16")}
    content = {**settings, "models": results, "texts": {name: text._asdict() for name, text in texts.items()}}
    with atomic_write(arguments.output) as file:
        file.write(f"{json.dumps(content, indent=2, ensure_ascii=False)}\n".encode())


def swap_letters(text: str, item: str, random: Random) -> str:
    """Swap two letters in the middle of a word."""
    places = [i for i in inner_letters(text) if text[i] != text[i + 1]]
    if not places:
        return text
    i = random.choice(places)
    return text[:i] + text[i + 1] + text[i] + text[i + 2 :]


def hit_neighbouring_key(text: str, item: str, random: Random) -> str:
    """Replace a letter in the middle of a word with one beside it on a QWERTY keyboard."""
    places = [i for i in inner_letters(text) if text[i] in NEIGHBOURS]
    if not places:
        return text
    i = random.choice(places)
    return text[:i] + random.choice(NEIGHBOURS[text[i]]) + text[i + 1 :]


def inner_letters(text: str) -> list[int]:
    """Return the positions of letters within words, without the first one and the last two of each word."""
    words = re.finditer(r"[^\W\d_]{4,}", text)
    return [i for word in words for i in range(word.start() + 1, word.end() - 2)]


def with_ending(text: str, ending: str, *_: object) -> str:
    return text.rstrip(f" {PUNCTUATION}") + ending


def append(text: str, item: str, random: Random) -> str:
    return f"{text} {item}"


def insert(text: str, item: str, random: Random) -> str:
    words = text.split()
    place = random.randint(1, max(1, len(words) - 1))
    return " ".join([*words[:place], item, *words[place:]])


def without_item(translation: str, item: str, reference: str) -> str:
    return " ".join(translation.replace(item, " ").split())


def with_final_punctuation(translation: str, item: str, reference: str) -> str:
    """Replace final punctuation with the reference's."""
    return with_ending(translation, reference[len(reference.rstrip(f" {PUNCTUATION}")) :])


class Kind(NamedTuple):
    """A way in which user text differs from corpus text."""

    title: str
    # Changes a source, given its item and a random generator.
    change: Callable[[str, str, Random], str] = lambda text, *_: text
    # Each source gets one of these.
    items: Sequence[str] = ()
    # Returns the text to score, given a translation, its item and its reference.
    scored: Callable[[str, str, str], str] = lambda translation, *_: translation
    # Whether references are changed too.
    changes_references: bool = False
    # Sentences per line.
    size: int = 1


EMOJI = ("😀", "🎉", "❤️", "👍🏽", "🐶")
LINKS = ("https://example.com/a?b=1", "www.example.org/news", "someone@example.com")
PLACEHOLDERS = ("{name}", "%1$s", "${x}", "<b>")
NUMBERS = ("3417", "86.5", "902")
DATES = ("2024-03-17", "17/03/2024", "17.03.2024")
NAMES = ("Ольга", "Ελένη", "ნინო", "Անի", "יעל")

KINDS = {
    PLAIN: Kind("as it is"),
    "upper_case": Kind("UPPER CASE", lambda text, *_: in_case(text, Case.UPPER), changes_references=True),
    "title_case": Kind("Title Case", lambda text, *_: in_case(text, Case.TITLE), changes_references=True),
    "lower_case": Kind("lower case", lambda text, *_: text.lower()),
    "typo": Kind("one letter swapped with the next", swap_letters),
    "key": Kind("a neighbouring key instead of one letter", hit_neighbouring_key),
    "exclamation": Kind("`!!!` at the end", with_ending, ("!!!",), with_final_punctuation),
    "no_punctuation": Kind("no final punctuation", with_ending, scored=with_final_punctuation),
    "emoji_at_end": Kind("emoji at the end", append, EMOJI, without_item),
    "emoji": Kind("emoji in the middle", insert, EMOJI, without_item),
    "link": Kind("link or address in the middle", insert, LINKS, without_item),
    "placeholder": Kind("`{name}`, `%1$s`, `${x}` or `<b>` in the middle", insert, PLACEHOLDERS, without_item),
    "number": Kind("number in the middle", insert, NUMBERS, without_item),
    "date": Kind("date in the middle", insert, DATES, without_item),
    "name": Kind("name in another script in the middle", insert, NAMES, without_item),
    "three_sentences": Kind("three sentences on a line", size=3),
}


class Text(NamedTuple):
    """Sources of a kind, their references, and the item of each source ("" for none)."""

    sources: list[str]
    references: list[str]
    items: list[str]


def changed(name: str, sources: Sequence[str], references: Sequence[str], seed: int) -> Text:
    """Apply a kind of change to sentences and references; raises ValueError if there are too few."""
    kind, random = KINDS[name], Random(f"{seed} {name}")
    if len(sources) < kind.size:
        raise ValueError(f"`kinds` {name} needs {kind.size} sentences, but there are {len(sources)}; give more")
    # The model has probably seen the letters and emoji of this text, so prefer items without them.
    known = set().union(*sources, *references)
    items = [item for item in kind.items if item.isascii() or not known & set(item)] or kind.items or [""]
    chosen = [random.choice(items) for _ in sources]
    texts = [kind.change(text, item, random) for text, item in zip(sources, chosen, strict=True)]
    if kind.changes_references:
        references = [kind.change(text, "", random) for text in references]
    lines = joined(texts, kind.size)
    return Text(lines, joined(references, kind.size), chosen[: len(lines)])


def joined(lines: Sequence[str], size: int) -> list[str]:
    """Join `size` lines at a time; an incomplete last group is dropped."""
    return [" ".join(lines[i : i + size]) for i in range(0, len(lines) - size + 1, size)]


def measure(texts: Mapping[str, Text], translations: Mapping[str, list[str]], tokenize: str) -> dict[str, Any]:
    """Return the values of each row, from texts by kind (including `PLAIN`) and their translations."""

    def bleu(translations: Sequence[str], references: Sequence[str]) -> float:
        return float(translation_scores(translations, references, tokenize=tokenize, metrics=("bleu",))["bleu"])

    def lowercase_bleu(translations: Sequence[str], references: Sequence[str]) -> float:
        # Not `lower`: an upper-cased ß is SS, and both must become ss.
        return bleu([text.casefold() for text in translations], [text.casefold() for text in references])

    rows = {}
    for name, (sources, references, items) in texts.items():
        kind, outputs = KINDS[name], translations[name]
        scored = [kind.scored(*row) for row in zip(outputs, items, references, strict=True)]
        row = {
            "lines": len(sources),
            "bleu": bleu(scored, references),
            "lowercase_bleu": lowercase_bleu(scored, references),
        }
        if name != PLAIN:
            alone = joined(translations[PLAIN], kind.size), joined(texts[PLAIN].references, kind.size)
            row["difference"] = row["lowercase_bleu"] - lowercase_bleu(*alone)
        if kind.items:
            row["kept"] = sum(text.count(item) == 1 for text, item in zip(outputs, items, strict=True))
        row["suspicious"] = sum(map(is_suspicious, sources, outputs))
        rows[name] = row
    return rows


def is_suspicious(source: str, translation: str) -> bool:
    return 3 * len(translation.strip()) < len(source) or LOOP.search(translation) is not None


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with a row for each kind: the mean over models and, for several models, the range."""
    lines = ["| text | BLEU | lower-cased | difference | items kept | suspicious |", "|---|---:|---:|---:|---:|---:|"]
    for name, kind in KINDS.items():
        if rows := [result[name] for result in results if name in result]:
            scores = [spread(rows, "bleu"), spread(rows, "lowercase_bleu"), spread(rows, "difference", "+z.1f")]
            counts = [spread(rows, key, ".0f") for key in ("kept", "suspicious")]
            cells = [*scores, *(count and f"{count} of {rows[0]['lines']}" for count in counts)]
            lines.append(f"| {kind.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(rows: Sequence[Mapping[str, Any]], key: str, number: str = ".1f") -> str:
    """Return the mean of a value and, for several rows, the range; "" if rows lack the value."""
    if key not in rows[0]:
        return ""
    values = [row[key] for row in rows]
    text = format(mean(values), number)
    return text if len(values) == 1 else f"{text} ({min(values):{number}} to {max(values):{number}})"


if __name__ == "__main__":
    main()
