"""Prose, words, symbols and SMILES are told apart by their texts alone."""

import gzip
from itertools import islice, product

import pytest

from hf_vanilla_transformer.text.notation import (
    SMILES,
    WORDS,
    Notation,
    check_smiles,
    find_notation,
    share_symbols,
    split_into_symbols,
)
from paths import SHARED
from tables import looped

# Columns of corpora, by the algorithm that suits them.
COLUMNS = {
    "character": [
        *((f"g2p_sigmorphon2020/{name}.train.tsv", 0) for name in ("ady", "dut", "fre", "hun", "ice", "kor")),
        ("g2p_pronasyl2007/train.tsv", 0),
        *(("historical_german_ridges/train.tsv", side) for side in (0, 1)),
        *((f"inflection_sigmorphon2022/{name}.train.tsv", side) for name, side in product(("hun", "tur"), (0, 1))),
        ("transliteration_wikidata/hebrew.train.tsv", 0),
    ],
    "whitespace": [
        *((f"g2p_sigmorphon2020/{name}.train.tsv", 1) for name in ("ady", "dut", "fre", "hun", "ice", "kor")),
        ("g2p_pronasyl2007/train.tsv", 1),
        ("transliteration_wikidata/hebrew.train.tsv", 1),
        *((f"scan/{split}.train.{side}", 0) for split, side in product(("simple", "length"), ("src", "tgt"))),
    ],
    "smiles": [("reactions_uspto50k/train.tsv", 0), ("reactions_uspto50k/train.tsv", 1)],
    "bpe": [
        *((f"multi30k/train.{language}", 0) for language in ("en", "de")),
        *((f"multi30k_lc_norm_tok/train.{language}", 0) for language in ("en", "de")),
        *((f"wmt_en_de_sample/train.{language}", 0) for language in ("en", "de")),
        *(("tatoeba_en_es/spa.tsv", side) for side in (0, 1)),
        *((f"americasnlp2021/{name}", 0) for name in ("gn.train.es", "gn.train.gn", "nah.train.nah")),
    ],
}


@pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="needs the corpora beside the checkout")
@looped(("algorithm", "file", "column"), [(kind, *side) for kind, sides in COLUMNS.items() for side in sides])
def test_notations_of_corpora(algorithm, file, column):
    with gzip.open(SHARED / "data" / f"{file}.gz", "rt", encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in islice(lines, 20_000) if line.strip()]
    texts = [row[column] for row in rows if len(row) > column]
    # A tenth of a corpus is written like all of it.
    for sample in (texts, texts[::10]):
        notation = find_notation(sample)
        assert notation.algorithm == algorithm, notation.reason
        assert notation.decomposed == ("kor" in file and column == 0)


@pytest.mark.skipif(not (SHARED / "data").is_dir(), reason="needs the corpora beside the checkout")
def test_words_of_many_scripts_in_one_corpus():
    words = []
    for name in ("ady", "dut", "fre", "hun", "ice", "kor"):
        with gzip.open(SHARED / f"data/g2p_sigmorphon2020/{name}.train.tsv.gz", "rt", encoding="utf-8") as lines:
            words += [line.split("\t")[0] for line in lines]
    # 903 characters, most of them Hangul's syllables.
    notation = find_notation(words)
    assert (notation.algorithm, notation.decomposed) == (WORDS, True)


def test_few_texts_tell_nothing():
    assert find_notation(["CCO"] * 1000).is_prose
    assert find_notation([]).is_prose


def test_unspaced_prose_is_no_word():
    sentences = [f"我們在{chr(0x4E00 + number)}看見了{chr(0x5E00 + number)}，很高興。" for number in range(600)]
    assert find_notation(sentences).is_prose
    assert find_notation(["ภาษาไทยไม่มีช่องว่างระหว่างคำแต่มีระหว่างประโยค" + str(number) for number in range(300)]).is_prose


def test_numbers_are_no_molecules():
    assert find_notation([f"{one}+{other}" for one, other in product(range(20), range(20))]).algorithm == WORDS


def test_common_symbols_are_shared():
    words = Notation(WORDS, "")
    assert share_symbols(["abc"], ["cab", "bcx"] * 5 + ["abc"] * 10, words)
    assert not share_symbols(["abc"], ["ABC"], words)


def test_molecules_are_split_into_atoms():
    tokens = ["C", "[C@@H]", "(", "Cl", ")", "c", "%12", "Br", ".", "[nH]", ">>", "é"]
    assert split_into_symbols(SMILES)("C[C@@H](Cl)c%12Br.[nH]>é") == [*tokens[:-2], ">", "é"]


@looped(
    ("text", "character"), [("CC?Xe", "'X', character 4"), ("C l", "' ', character 2"), ("[nH", "'[', character 1")]
)
def test_the_character_that_is_not_smiles_is_named(text, character):
    with pytest.raises(ValueError, match=rf"^{character.replace('[', chr(92) + '[')} of "):
        check_smiles(text)
    check_smiles("C[nH]Cl")
    check_smiles(" C[nH]Cl\r")
