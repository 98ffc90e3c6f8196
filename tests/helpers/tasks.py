"""Small sequence-to-sequence tasks, prose and not: generators of pairs, and the options that suit each.

A generator draws one pair. Whatever a test source shows (capitals, digits, `#`, several lines), training shows often.
"""

import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise, product
from pathlib import Path
from random import Random
from typing import Any

from parallel_text import write_lines

Pair = tuple[str, str]

UNITS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()
UNITS += "seventeen eighteen nineteen".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def spelled(number: int) -> str:
    """The English words of a number below a million."""
    if number < 20:
        return UNITS[number]
    size = 1000 if number >= 1000 else 100 if number >= 100 else 10
    head, rest = divmod(number, size)
    words = {1000: [spelled(head), "thousand"], 100: [spelled(head), "hundred"], 10: [TENS[(head - 2) % 8]]}[size]
    return " ".join(words + [spelled(rest)] * bool(rest))


def numbers(draw: Random) -> Pair:
    number = draw.randrange(10 ** draw.randint(2, 5))
    return str(number), spelled(number)


def sums(draw: Random) -> Pair:
    one, other = draw.randrange(50), draw.randrange(50)
    return f"{one}+{other}=", str(one + other)


ROMAN = "M CM D CD C XC L XL X IX V IV I".split()


def roman_numerals(draw: Random) -> Pair:
    """Either way."""
    number = rest = draw.randrange(1, 4000)
    letters = ""
    for value, letter in zip((1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1), ROMAN, strict=True):
        letters += letter * (rest // value)
        rest %= value
    pair = str(number), letters
    return pair if draw.random() < 0.5 else pair[::-1]


def read_aloud(draw: Random) -> Pair:
    many, price = draw.randrange(2, 1000), draw.randrange(2, 100)
    who, thing = draw.choice(("dog", "king", "baker", "girl")), draw.choice(("lamps", "hats", "boats", "pens"))
    forms = (
        (f"The {who} sold {many} {thing} for ${price}.", f"the {who} sold {{}} {thing} for {{}} dollars"),
        (f"Dr. Lee bought {many} {thing}, {price}% of all.", f"doctor lee bought {{}} {thing} {{}} percent of all"),
        (f"Room No. {many} has {price} {thing}.", f"room number {{}} has {{}} {thing}"),
        (f"Call {many}-{price} now!", "call {} {} now"),
    )
    source, target = draw.choice(forms)
    return source, target.format(spelled(many), spelled(price))


ACIDS = ("CC(=O)O", "O=C(O)c1ccccc1", "O=C(O)C1CCCCC1", "CC(C)(C)C(=O)O", "O=C(O)CC#N", "O=C(O)c1ccncc1")
ALCOHOLS = ("OCC", "OCCO", "OC1CCCCC1", "OCc1ccccc1", "OCCC#N", "OCC[N+](C)(C)C", "OC[C@H](F)Cl", "OCC1CCNCC1")


def reactions(draw: Random) -> Pair:
    """Acid and alcohol, with up to two fragments that do not react, to an ester; some reactants are all capitals."""
    acid, alcohol = draw.choice(ACIDS), draw.choice(ALCOHOLS)
    others = draw.sample(("N#CCO", "[C-]#N.[Na+]", "ClCCl", "CC(C)NC1CCCCC1", "c1ccncc1", "BrBr", "CCN(CC)CC"), 2)
    ester = acid.replace("(O)", f"({alcohol})", 1) if "(O)" in acid else acid[:-1] + alcohol
    reactants = [acid, alcohol, *others[: draw.randint(0, 2)]]
    draw.shuffle(reactants)
    return ".".join(reactants), ester


PHONES = dict(zip("abcdefgiklmnoprstuvz", "ɒ b k d ɛ f ɡ iː k l m n oː p ɹ s t uː v z".split(), strict=True))
HEBREW = dict(zip("abdghiklmnprstuvz", "אבדגהיקלמנפרסתובז", strict=True))
AMINO_ACIDS = "FFLLSSSSYY**CC*WLLLLPPPPHHQQRRRRIIIMTTTTNNKKSSRRVVVVAAAADDEEGGGG"
CODONS = dict(zip(map("".join, product("TCAG", repeat=3)), AMINO_ACIDS, strict=True))


def _word(draw: Random, letters: Any, least: int = 3, most: int = 9) -> str:
    return "".join(draw.choices([*letters], k=draw.randint(least, most)))


def phones(draw: Random) -> Pair:
    word = _word(draw, PHONES)
    return word, " ".join(PHONES[letter] for letter in word)


def transliteration(draw: Random) -> Pair:
    name = _word(draw, HEBREW)
    return name, " ".join(HEBREW[letter] for letter in name)


def proteins(draw: Random) -> Pair:
    codons = draw.choices([*CODONS], k=draw.randint(3, 9))
    return "".join(codons), "".join(CODONS[codon] for codon in codons)


def inflection(draw: Random) -> Pair:
    endings = {"V;PST;3;SG": "ed", "V;PRS;3;SG": "s", "V.PTCP;PRS": "ing", "N;PL": "es", "N;IN+ESS;SG": "ban"}
    lemma, tags = _word(draw, "abdegiklmnorstu"), draw.choice([*endings])
    return f"{lemma} {tags}", lemma + endings[tags]


def code(draw: Random) -> Pair:
    """A Python function or assignment to JavaScript, often with a comment."""
    name = "_".join(draw.choices(("total", "cost", "get_user", "maxValue", "HTTP", "row"), k=2))
    call = f"{draw.choice('fgh')}(x, {draw.randrange(100)}) {draw.choice('+-*')} {draw.choice(('a[i]', 'MAX_SIZE'))}"
    note = draw.choice(("", "", f" TODO: see {name}", "fixme", " Adds both. Returns the sum."))
    if draw.random() < 0.3:
        return f"{name} = {call}  #{note}", f"let {name} = {call}; //{note}"
    source, target = (f"    #{note}\n", f"  //{note}\n") if note else ("", "")
    source = f"def {name}(x):\n{source}    return {call}"
    return source, f"function {name}(x) {{\n{target}  return {call};\n}}"


def sql(draw: Random) -> Pair:
    table, column = draw.choice(("users", "orders", "cities")), draw.choice(("age", "price", "unit_cost"))
    number, text = draw.randrange(1000), draw.choice(("Paris", "new york", "USA", "O'Hara", "AB-12"))
    forms = (
        (f"How many {table} have {column} over {number}?", f"SELECT COUNT(*) FROM {table} WHERE {column} > {number}"),
        (f'List the {table} whose name is "{text}".', f'SELECT * FROM {table} WHERE name = "{text}"'),
        (f"What is the top {column} of '{text}'?", f"SELECT MAX({column}) FROM cities WHERE name = '{text}'"),
    )
    return draw.choice(forms)


NOUNS = {"犬": "dog", "猫": "cat", "先生": "teacher", "鳥": "bird", "学生": "student"}
OBJECTS = {"本": "books", "水": "water", "花": "flowers", "4つの星": "4 stars"}
ACRONYMS = {"TV": "TV", "USA": "the USA", "2台のPC": "2 PCs"}
VERBS = {"を見る": "sees", "が好きだ": "likes", "を売る": "sells", "を知る": "knows"}
PLACES = {"": "", "ここで、": " here", "東京で": " in Tokyo", "今日は": " today"}


def japanese(draw: Random) -> Pair:
    """No spaces; one in ten has an acronym."""
    things = ACRONYMS if draw.random() < 0.1 else OBJECTS
    place, noun, thing, verb = (draw.choice([*words]) for words in (PLACES, NOUNS, things, VERBS))
    target = f"The {NOUNS[noun]} {VERBS[verb]} {things[thing]}{PLACES[place]}."
    return f"{place}{noun}は{thing}{verb}。", target


WHO = {"A man": "Ein Mann", "A girl": "Ein Mädchen", "3 dogs": "3 Hunde", "Two boys": "Zwei Jungen"}
WHAT = {"in a red T-shirt": "in rotem T-Shirt", 'with a sign: "STOP"': 'mit Schild: "STOP"', "": ""}
HOW = {"run": "rennen", "sit": "sitzen", "wait": "warten", "sing": "singen"}
WHERE = {"at the beach": "am Strand", "in New York": "in New York"}


def captions(draw: Random) -> Pair:
    where = WHERE | {f"at {draw.randrange(2, 12)} pm": "abends"}
    words = [(key, table[key]) for table in (WHO, WHAT, HOW, where) for key in [draw.choice([*table])]]
    source, target = (" ".join(filter(None, side)) for side in zip(*words, strict=True))
    return f"{source}.", f"{target}."


def counting(draw: Random) -> Pair:
    """A short key to more words than its own length plus 50."""
    key = _word(draw, "aeiklmnorst")
    return key, " ".join(f"{spelled(number).replace(' ', '-')} {key}" for number in range(1, 33))


@dataclass(frozen=True)
class Task:
    """A generator, options of `experiments.train`, and the sizes of training, validation and test split.

    If `is_memorized`, validation and test pairs are training pairs.
    """

    draw: Callable[[Random], Pair]
    options: dict[str, Any] = field(default_factory=dict)
    sizes: tuple[int, int, int] = (300, 20, 20)
    is_memorized: bool = False

    def splits(self, seed: int = 0) -> list[list[Pair]]:
        """Pairs of each split; no source occurs twice in one."""
        draw, pairs, (train, *others) = Random(seed), dict[str, str](), self.sizes
        while len(pairs) < (train if self.is_memorized else sum(self.sizes)):
            source, target = self.draw(draw)
            pairs.setdefault(source, target)
        found = [*pairs.items()]
        if self.is_memorized:
            return [found, *(found[:size] for size in others)]
        return [found[start:end] for start, end in pairwise((0, train, train + others[0], len(found)))]


CHARACTERS, WORDS, SYMBOLS = ({"tokenizer_algorithm": name} for name in ("character", "word", "whitespace"))
TWO_ALPHABETS = CHARACTERS | {"separate_vocabularies": True}
SUBWORDS = {"tokenizer_algorithm": "bpe", "vocab_size": 400}
JAPANESE, GERMAN = ({"source_lang": source, "target_lang": target} for source, target in (("ja", "en"), ("en", "de")))
# Pairs that fit no limit made for prose.
LONG = {"max_length_ratio": 50, "max_steps": 250, "label_smoothing_factor": 0.0}

TASKS = {
    "numbers to words": Task(numbers, CHARACTERS),
    "sums": Task(sums, CHARACTERS),
    "Roman numerals": Task(roman_numerals, CHARACTERS),
    "text read aloud": Task(read_aloud, SUBWORDS),
    "reactions": Task(reactions, CHARACTERS),
    "phones": Task(phones, TWO_ALPHABETS),
    "transliteration": Task(transliteration, TWO_ALPHABETS),
    "DNA to protein": Task(proteins, CHARACTERS),
    "inflection": Task(inflection, CHARACTERS),
    "code to code": Task(code, SUBWORDS),
    "questions to SQL": Task(sql, SUBWORDS),
    "Japanese to English": Task(japanese, SUBWORDS | JAPANESE),
    "captions": Task(captions, WORDS | GERMAN, (150, 20, 20)),
    "key to long text": Task(counting, SYMBOLS | LONG, (6, 6, 6), is_memorized=True),
}

# Real corpora of ../shared/data: file, and patterns of source and target over its columns.
CORPORA = {
    "Adyghe to phones": ("g2p_sigmorphon2020/ady", "{0}", "{1}"),
    "Hungarian inflection": ("inflection_sigmorphon2022/hun", "{0} {2}", "{1}"),
    "names to Hebrew": ("transliteration_wikidata/hebrew", "{0}", "{1}"),
    "reactions of patents": ("reactions_uspto50k/", "{0}", "{1}"),
}


def corpus(folder: Path, name: str) -> list[list[Pair]]:
    """Training, validation and test pairs of a corpus."""
    file, *patterns = CORPORA[name]
    paths = [folder / f"{file}{'' if file.endswith('/') else '.'}{split}.tsv.gz" for split in ("train", "dev", "test")]
    texts = [gzip.decompress(path.read_bytes()).decode() for path in paths]
    rows = [[line.split("\t") for line in text.split("\n")[:-1]] for text in texts]
    return [[tuple(pattern.format(*row) for pattern in patterns) for row in split] for split in rows]


def write_splits(folder: Path, splits: list[list[Pair]]) -> dict[str, str]:
    """Write pairs, whose texts may have several lines, and return the arguments that name the files."""
    names = ("train", "validation", "test")
    rows = ([json.dumps(dict(zip(("source", "target"), pair, strict=True))) for pair in pairs] for pairs in splits)
    files = (folder / f"{name}.jsonl" for name in names)
    return {f"{name}_file": write_lines(file, row) for name, file, row in zip(names, files, rows, strict=True)}
