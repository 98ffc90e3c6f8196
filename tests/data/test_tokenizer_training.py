import gzip
import random
from itertools import islice
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.model.tokenization_vanilla_transformer import SPECIAL_TOKENS
from parallel_text import ENGLISH, SPANISH
from tables import looped

ALGORITHMS = ("bpe", "unigram", "word", "whitespace", "character")
AWKWARD = [
    "",
    " ",
    "  two  blanks  at   both ends  ",
    "\ttab\nline\r\nend\x0b\x0c",
    "NUL\0inside\0",
    "next\u0085line, no\u00a0break, \u2028separator",
    "👩‍👩‍👧‍👦 🇪🇸 👍🏽 e\u0301 é İ ß ﬁ \u200b\u202e\ufeff",
    "日本語 العربية עברית हिन्दी \U0010ffff",
    "</s> a <s>strike</s> <pad><unk> </s></s>",
    "Ġ Ċ ▁ ▁▁x ##y",
]


def random_text(generator: random.Random) -> str:
    """Return up to 40 characters from all of Unicode, favoring ASCII and white space."""
    ranges = [(0, 0x7F), (9, 32), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF)]
    return "".join(chr(generator.randint(*generator.choice(ranges))) for _ in range(generator.randint(0, 40)))


def round_trip(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    return tokenizer.batch_decode([tokenizer(text)["input_ids"]], skip_special_tokens=True)[0]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_keeps_the_conventions(algorithm: str) -> None:
    tokenizer = train_tokenizer(iter(ENGLISH), algorithm=algorithm, vocab_size=5000)
    assert list(SPECIAL_TOKENS.values()) == tokenizer.convert_ids_to_tokens([0, 1, 2, 3])
    ids = (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id)
    assert ids == (0, 1, 2, 3)
    assert 4 < len(tokenizer) < 5000
    encoded = tokenizer(ENGLISH[0], text_target=ENGLISH[1])
    assert set(encoded) == {"input_ids", "attention_mask", "labels"}
    for sequence in (encoded["input_ids"], encoded["labels"]):
        assert sequence[-1] == 2
        assert not {0, 1, 2, 3} & set(sequence[:-1])
    pair_ids = tokenizer(ENGLISH[0], ENGLISH[1])["input_ids"]
    assert pair_ids.count(2) == 2
    assert pair_ids[-1] == 2
    assert tokenizer("")["input_ids"] == [2]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_survives_saving(algorithm: str, tmp_path: Path) -> None:
    tokenizer = train_tokenizer(ENGLISH, algorithm=algorithm, vocab_size=300, max_length=6, lowercase=True)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = "A CAT </s>, on the mat"
    assert loaded(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert loaded(text, truncation=True)["input_ids"] == [*tokenizer(text)["input_ids"][:5], 2]
    assert round_trip(loaded, text) == round_trip(tokenizer, text)
    assert set(loaded(text)) == {"input_ids", "attention_mask"}


def test_bpe_restores_any_text() -> None:
    tokenizer = train_tokenizer(ENGLISH, vocab_size=300)
    generator = random.Random(0)
    for text in AWKWARD + [random_text(generator) for _ in range(500)]:
        assert round_trip(tokenizer, text) == text
        assert tokenizer(text)["input_ids"].count(2) == 1


def test_character_restores_texts_of_seen_characters() -> None:
    generator = random.Random(1)
    texts = AWKWARD + [random_text(generator) for _ in range(200)]
    tokenizer = train_tokenizer(texts, algorithm="character", vocab_size=20_000)
    alphabet = sorted(set("".join(texts)))
    assert len(tokenizer) == len(alphabet) + 4
    for text in texts + ["".join(generator.choices(alphabet, k=30)) for _ in range(200)]:
        assert round_trip(tokenizer, text) == text
        assert len(tokenizer(text)["input_ids"]) == len(text) + 1


def test_character_cuts_smiles_into_characters() -> None:
    tokenizer = train_tokenizer(["CC(=O)Oc1ccccc1C(=O)O"], algorithm="character")
    assert tokenizer.tokenize("CC(=O)O") == list("CC(=O)O")
    assert tokenizer.tokenize("CN") == ["C", "<unk>"]


def test_unigram_restores_blanks_and_the_character_that_it_writes_for_them() -> None:
    tokenizer = train_tokenizer([*ENGLISH, "</s> < > </s>"], algorithm="unigram", vocab_size=200)
    for text in [*ENGLISH, "on  the   mat ", "the <s> mat </s>"]:
        assert round_trip(tokenizer, text) == text
        assert tokenizer(text)["input_ids"].count(2) == 1
    assert round_trip(tokenizer, "  the mat") == "  the mat"
    tokenizer = train_tokenizer(["▁▂▃ low to high"], algorithm="unigram", vocab_size=40)
    for text in ("▁▂▃", "to ▁▁ low", " ▁ "):
        assert round_trip(tokenizer, text) == text


def test_word_cuts_at_punctuation_and_attaches_it_again() -> None:
    text = "A well-known cat (don't ask!) sat: «on» 2 mats..."
    tokenizer = train_tokenizer([text, ","], algorithm="word")
    assert tokenizer.tokenize("don't (ask)") == ["don't", "(", "ask", ")"]
    assert round_trip(tokenizer, text) == text
    assert round_trip(tokenizer, "A  cat\tsat , on") == "A cat sat, on"


def test_whitespace_takes_symbols_as_they_are() -> None:
    tokenizer = train_tokenizer(["HH AH0 L OW1 ," * 3, "x^2 + \\frac{1}{2}"], algorithm="whitespace")
    assert tokenizer.tokenize("x^2  +\tAH0") == ["x^2", "+", "AH0"]
    assert round_trip(tokenizer, " HH  AH0 L OW1 ") == "HH AH0 L OW1"
    tokenizer = train_tokenizer(["</s> <pad> <s>x <mask>"], algorithm="whitespace")
    assert tokenizer.tokenize("</s> <pad> <s>x <mask>") == ["<", "/s>", "<", "pad>", "<s>x", "<mask>"]


def test_min_frequency_and_vocab_size_limit_the_vocabulary() -> None:
    texts = ["a a a b b c"]
    assert len(train_tokenizer(texts, algorithm="whitespace")) == 7
    assert len(train_tokenizer(texts, algorithm="whitespace", min_frequency=2)) == 6
    assert train_tokenizer(texts, algorithm="whitespace", vocab_size=5).tokenize("a b") == ["a", "<unk>"]


def test_lowercase_and_normalization() -> None:
    tokenizer = train_tokenizer(["ﬁ Ｆull"], normalization="NFKC", lowercase=True)
    assert round_trip(tokenizer, "ﬁ Ｆull É") == "fi full é"
    assert round_trip(train_tokenizer(["x"], normalization="NFC"), "e\u0301 E") == "é E"


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "unigram"])
def test_training_is_deterministic(algorithm: str) -> None:
    first, second = (train_tokenizer(ENGLISH + SPANISH, algorithm=algorithm, vocab_size=320) for _ in range(2))
    assert first.backend_tokenizer.to_str() == second.backend_tokenizer.to_str()


def test_texts_are_read_once_as_a_stream() -> None:
    stream = iter(ENGLISH)
    tokenizer = train_tokenizer(stream, algorithm="word")
    assert next(stream, None) is None
    assert 3 not in tokenizer(ENGLISH[-1])["input_ids"]


@looped(
    ("texts", "options", "error", "message"),
    [
        ([], {}, ValueError, "corpus is empty"),
        (["", " \n"], {"algorithm": "unigram"}, ValueError, "corpus is empty"),
        ("a text", {}, TypeError, "`texts` is one string"),
        (["a", None], {}, TypeError, r"`texts\[1\]` is of type NoneType"),
        (["a", "b\udc80"], {}, ValueError, r"`texts\[1\]` has a lone surrogate, U\+DC80, at position 1"),
        (["a"], {"algorithm": "bpee"}, ValueError, "`algorithm` 'bpee' is not one of .* did you mean bpe"),
        (["a"], {"normalization": "nfkc"}, ValueError, "`normalization` 'nfkc' is not one of .* mean NFKC"),
        (["a"], {"vocab_size": 259}, ValueError, "`vocab_size` is 259; it must be at least 260 for bpe"),
        (
            ["a"],
            {"vocab_size": 4, "algorithm": "word"},
            ValueError,
            "`vocab_size` is 4; it must be at least 5 for word",
        ),
        (
            ENGLISH,
            {"vocab_size": 9, "algorithm": "unigram"},
            ValueError,
            "`vocab_size` 9 is below the number of characters",
        ),
        (["a"], {"min_frequency": 0}, ValueError, "`min_frequency` is 0; it must be positive"),
        (["a"], {"min_frequency": 2, "algorithm": "unigram"}, ValueError, "is 2, but has no effect on unigram"),
        (["a"], {"max_length": 1}, ValueError, "`max_length` is 1; it must be at least 2"),
    ],
)
def test_training_errors_name_what_is_wrong(texts, options, error, message) -> None:
    with pytest.raises(error, match=message) as caught:
        train_tokenizer(texts, **options)
    assert "\n" not in str(caught.value)


def test_real_prose_survives(shared_data: Path) -> None:
    def lines(name: str) -> list[str]:
        with gzip.open(shared_data / name, "rt", encoding="utf-8", newline="\n") as file:
            return [line.removesuffix("\n") for line in islice(file, 1000)]

    for name in ("multi30k/train.de.gz", "wmt_en_de_sample/train.de.gz"):
        texts = lines(name)
        for algorithm in ("bpe", "character"):
            tokenizer = train_tokenizer(texts, algorithm=algorithm, vocab_size=1000)
            assert tokenizer.batch_decode(tokenizer(texts)["input_ids"], skip_special_tokens=True) == texts


def test_atoms_of_molecules_are_tokens():
    molecules = ["C[C@@H](Cl)c1cc[nH]c1", "BrC%12CCCC%12 "]
    tokenizer = train_tokenizer(molecules, algorithm="smiles")
    assert tokenizer.tokenize(molecules[0])[:5] == ["C", "[C@@H]", "(", "Cl", ")"]
    assert tokenizer.tokenize(molecules[1])[:3] == ["Br", "C", "%12"]
    assert tokenizer.decode(tokenizer(molecules[0])["input_ids"], skip_special_tokens=True) == molecules[0]
    with pytest.raises(ValueError, match=r"^`texts\[1\]`: 'X', character 2 of 'CXe', is not SMILES"):
        train_tokenizer(["CC", "CXe"], algorithm="smiles")
